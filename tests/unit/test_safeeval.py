"""The safe evaluator runs honest small functions as Python does, and ends every hostile program soon and small."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from pytest_moegpu.core.safebudget import SafeEvalError
from pytest_moegpu.core.safeeval import evaluate

HONEST = [
    ("def f(n):\n    return 1 if n < 2 else n * f(n - 1)", "f(10)", 3628800),
    ("def f(n):\n    a, b = 0, 1\n    for _ in range(n): a, b = b, a + b\n    return a", "f(12)", 144),
    ("def f(s):\n    return ''.join(reversed(s))", "f('abc')", "cba"),
    ("def f(s):\n    return s[::-1]", "f('abc')", "cba"),
    ("def f(s):\n    return sum(1 for c in s if c in 'aeiou')", "f('banana')", 3),
    ("def f(a, b):\n    while b:\n        a, b = b, a % b\n    return a", "f(12, 18)", 6),
    ("def f(xs):\n    return sorted(set(xs), key=lambda x: -x)[1]", "f([4, 9, 9, 7])", 7),
    ("def f(n):\n    return n > 1 and all(n % i for i in range(2, int(n ** 0.5) + 1))", "f(97)", True),
    (
        "def f(n):\n    if n == 0:\n        return '0'\n    s = ''\n    while n > 0:\n        s = str(n % 2) + s\n"
        "        n //= 2\n    return s",
        "f(10)",
        "1010",
    ),
    (
        "def f(xs):\n    d = {}\n    for x in xs:\n        d[x] = d.get(x, 0) + 1\n"
        "    return max(d, key=lambda k: d[k])",
        "f('abbb')",
        "b",
    ),
    ("def f(xs):\n    return list(map(str, xs))", "f([1, 2])", ["1", "2"]),
    ("def f(a, b=2):\n    return a * b", "f(3) + f(b=1, a=4)", 10),
    (
        "def f(n):\n    for i in range(9):\n        if i == n:\n            break\n    else:\n        return 'none'\n"
        "    return i",
        "[f(3), f(10)]",
        [3, "none"],
    ),
    (
        "def f(n):\n    out = []\n    for i in range(n):\n        if i % 2:\n            continue\n"
        "        out.append(i)\n"
        "    return out",
        "f(5)",
        [0, 2, 4],
    ),
    (
        "V = 'ae'\ndef f(s: str) -> int:\n    '''Count.'''\n    return len([c for c in s if c in V])\nprint(f(1))",
        "f('abe')",
        2,
    ),
    ("def f(s):\n    return {w: len(w) for w in s.split()}", "f('a bc')", {"a": 1, "bc": 2}),
    ("def f(n):\n    def inner(m):\n        return 0 if m == 0 else n + inner(m - 1)\n    return inner(3)", "f(5)", 15),
    ("def f(a):\n    return f'{a} and {a + 1}'", "f(1)", "1 and 2"),
    ("def f(m):\n    return [[row[i] for row in m] for i in range(2)]", "f([[1, 2], [3, 4]])", [[1, 3], [2, 4]]),
    ("def f(a, b):\n    return 0 < a <= b != 9", "f(1, 2)", True),
    ("def f(x):\n    return -x if x < 0 else +x", "f(-3)", 3),
    ("def f(xs):\n    xs.sort()\n    return xs", "f([3, 1, 2])", [1, 2, 3]),
    ("def f(s):\n    return s == s[::-1]", "f('level')", True),
    ("def f(a, b):\n    return max(a, b)", "f(3, 9)", 9),
]

HOSTILE = [
    "def f():\n    while True: pass\nx = f()",
    "def f():\n    for _ in range(10**18): pass\nx = f()",
    "x = 10**10**10",
    "x = 2**(2**63)",
    "x = 1 << 10**10",
    "x = 'a' * 10**9",
    "x = 10**9 * [0]",
    "x = list(range(10**9))",
    "x = sum(range(10**12))",
    "x = max(range(10**12))",
    "x = [a for a in range(10**6) for b in range(10**6)]",
    "def f(): return f()\nx = f()",
    "def f(n): return f(n - 1) + f(n - 1) if n else 1\nx = f(35)",
    "x = (lambda s: s(s))(lambda s: s(s))",
    "def f():\n    a = 'a'\n    for i in range(100): a = a + a\nx = f()",
    "def f():\n    a = 2\n    for i in range(100): a = a * a\nx = f()",
    "def f():\n    a = []\n    for i in range(60): a = [a, a]\n    return a == a\nx = f()",
    "def f():\n    a = []\n    for i in range(60): a = [a, a]\n    return str(a)\nx = f()",
    "def f():\n    a = []\n    for i in range(60): a = [a, a]\n    return sorted([a, a])\nx = f()",
    "def f():\n    t = ()\n    for i in range(60): t = (t, t)\n    return {1: 2}[t]\nx = f()",
    "def f():\n    t = ()\n    for i in range(60): t = (t, t)\n    return t in {1}\nx = f()",
    "def f():\n    a = []\n    a.append(a)\n    return a == [a]\nx = f()",
    "def f():\n    a = []\n    for i in range(10**6): a.append('a' * 9999)\nx = f()",
    "def f():\n    a = [1]\n    for b in a: a.append(b)\n    while True: a.extend(a)\nx = f()",
    "x = 'a'.join(['b' * 9999] * 9999)",
    "x = 'aaaa'.replace('', 'b' * 9999)",
    "x = round(1, -10**9)",
    "x = '%1000000000d' % 1",
    "x = f'{1:>1000000000}'",
    "x = '{:>1000000000}'.format(1)",
    "x = 'a'.ljust(10**9)",
    "x = int('9' * 5000)",
    "x = (-1) ** 0.5",
    "x = ().__class__",
    "x = ().__class__.__bases__[0].__subclasses__()",
    "x = 'a'.__class__",
    "def f(): pass\nx = f.__globals__",
    "x = (lambda: 0).__code__",
    "x = __import__('os').system('true')",
    "x = eval('1')",
    "x = exec('1')",
    "x = open('/etc/passwd')",
    "x = globals()",
    "x = getattr('a', 'upper')",
    "x = type(1)",
    "x = (y := 1)",
    "x = " + "(" * 500 + ")" * 500,
    "x = " + "-" * 7000 + "1",
    "x = " + "[" * 70 + "]" * 70,
    "x = " + " + ".join(["1"] * 3000),
    "x = 1" + "\n" * 9000,
    "x = '\ud800' + 1",
    "x = 1 \0",
    "x = 1 +",
    "x = unknown",
    "x = [1][9]",
    "x = {}['a']",
    "x = 1 / 0",
    "x = 1.0e308 ** 9",
    "x = b'a'",
    "x = 1j",
    "x = ...",
    "def f(*a): return a\nx = f(1)",
    "def f(a): return a\nx = f()",
    "def f(a): return a\nx = f(1, a=2)",
    "def f():\n    try:\n        return 1\n    except: pass\nx = f()",
    "def f():\n    global x\n    return 1\nx = f()",
    "def f():\n    yield 1\nx = f()",
    "def f():\n    import os\nx = f()",
    "def f():\n    with open('a') as b: pass\nx = f()",
    "def f():\n    raise ValueError\nx = f()",
    "def f():\n    del f\nx = f()",
    "def f():\n    class A: pass\nx = f()",
    "@len\ndef f(): pass\nx = f()",
    "x = len(*[1])",
    "x = dict(**{})",
    "def f():\n    break\nx = f()",
]


@pytest.mark.parametrize(("source", "expression", "value"), HONEST)
def test_honest_functions_give_what_python_gives(source: str, expression: str, value: object) -> None:
    assert evaluate(source, expression) == value
    names: dict[str, object] = {"print": lambda *_: None}
    if "f(1))" not in source:
        exec(source, names)
        assert eval(expression, names) == value


@pytest.mark.parametrize("source", HOSTILE)
def test_hostile_or_broken_programs_end_in_one_error(source: str) -> None:
    with pytest.raises(SafeEvalError):
        evaluate(source, "x")


def test_a_hostile_program_takes_little_memory() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(SafeEvalError):
            evaluate("def f():\n    a = []\n    for i in range(10**6): a.append('a' * 9999 + str(i))\nx = f()", "x")
        assert tracemalloc.get_traced_memory()[1] < 32_000_000
    finally:
        tracemalloc.stop()


def test_programs_made_at_random_end_with_a_value_or_that_error() -> None:
    parts = (
        *("x", "y", "1", "'a'", "[x]", "(x, y)", "{1: x}", "x + y", "x * y", "x ** y", "x[y]", "x[::y]", "f(x)"),
        *("str(x)", "sorted(x)", "sum(x)", "len(x)", "x.append(y)", "x == y", "x % y", "[x for x in y]", "-x"),
    )
    ended = {True: 0, False: 0}
    for seed in range(1500):
        draw = random.Random(seed)
        lines = [f"    {draw.choice('xy')} = {draw.choice(parts)}" for _ in range(draw.randint(1, 12))]
        loop = draw.choice(("if True:", "while x:", "for x in range(10**9):", "for y in x:"))
        body = "\n".join("    " + line for line in lines)
        source = f"def f(x, y=3):\n    {loop}\n{body}\n    return x"
        try:
            evaluate(source, f"f({draw.choice(('2', '[1]', repr('ab'), '7.5'))})")
            ended[True] += 1
        except SafeEvalError:
            ended[False] += 1
    assert sum(ended.values()) == 1500
    assert min(ended.values()) > 50


def test_top_level_statements_that_only_show_are_left_alone() -> None:
    assert evaluate("def f():\n    return 1\nwhile True: pass\nimport os\nexit()", "f()") == 1


def test_only_one_expression_is_evaluated() -> None:
    with pytest.raises(SafeEvalError, match="not one expression"):
        evaluate("", "x = 1")
