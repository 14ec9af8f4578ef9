"""A right answer in any honest form is right, a wrong one is not, and nothing that a model writes does harm."""

from __future__ import annotations

import time

import pytest

from pytest_moegpu.core.answers import RULES, check_rule, contains, is_right
from pytest_moegpu.errors import UserError

FENCED = "```python\ndef add(a, b):\n    return a + b\n```"
ADDS = ("add(2, 3) == 5", "add(-1, 1) == 0")
PERSON = ('{"name": "Anna", "age": 30}',)

RIGHT = [
    ("contains", ("Paris",), "The capital is PARIS."),
    ("contains", ("is Au", "AU"), "The symbol is au"),
    ("word", ("42",), "42"),
    ("word", ("42",), "The answer is 42."),
    ("word", ("42",), "= 42!"),
    ("word", ("42",), "**42**"),
    ("word", ("42",), "答案是42。"),
    ("word", ("42",), "４２"),
    ("word", ("42",), "42.0"),
    ("word", ("42",), "42 km"),
    ("word", ("42",), "42km"),
    ("word", ("42",), "40 + 2 = 42"),
    ("word", ("42",), "$42"),
    ("word", ("1234",), "1,234"),
    ("word", ("1234",), "It is 1 234 in all"),
    ("word", ("1234",), "1'234"),
    ("word", ("1234567",), "1,234,567."),
    ("word", ("1,234",), "1234"),
    ("word", ("-7",), "The result is -7"),
    ("word", ("-7",), "−7"),
    ("word", ("7",), "10-3=7"),
    ("word", ("3.5",), "3.50"),
    ("word", ("H2O",), "H₂O"),
    ("word", ("cat",), "A Cat, of course."),
    ("word", ("cat",), "答案：cat。"),
    ("word", ("北京",), "中国的首都是北京市。"),
    ("word", ("3", "三"), "一共三个"),
    ("word", ("Thank you",), "thank you!"),
    ("word", ("école",), "« École »"),
    ("line", ("abc-12",), "abc-12"),
    ("line", ("abc-12",), "`abc-12`"),
    ("line", ("abc-12",), "Sure:\n\nabc-12\n"),
    ("line", ("abc-12",), "Answer: abc-12."),
    ("line", ("小船慢慢漂过",), "“小船慢慢漂过”。"),
    ("line", ("小船慢慢漂过",), "答：小船慢慢漂过"),
    ("line", ("The clock struck",), '**"The clock struck"**'),
    ("order", ("a", "b", "c"), "a, b, c"),
    ("order", ("a", "b", "c"), "A B C"),
    ("order", ("a", "b", "c"), "a\nb\nc"),
    ("order", ("a", "b", "c"), "1. a\n2. b\n3. c"),
    ("order", ("a", "b", "c"), "- a\n- b\n- c"),
    ("order", ("a", "b", "c"), "a, b and c"),
    ("order", ("a", "b", "c"), "a → b → c"),
    ("order", ("a", "b", "c"), "c, a, b → a, b, c"),
    ("order", ("a", "b", "c"), "Sorted: [a, b, c]. That is all."),
    ("order", ("3", "12", "40"), "3, 12, 40"),
    ("order", ("3", "12", "40"), "1. 3\n2. 12\n3. 40"),
    ("order", ("3", "12", "40"), "３、１２、４０"),
    ("order", ("40", "12", "3"), "40 > 12 > 3"),
    ("order", ("苹果", "河流"), "苹果、河流"),
    ("order", ("苹果", "河流"), "先是苹果，然后河流"),
    ("json", PERSON, '{"name": "Anna", "age": 30}'),
    ("json", PERSON, '{"age":30,"name":"Anna"}'),
    ("json", PERSON, 'Here it is:\n```json\n{\n  "name": "Anna",\n  "age": 30\n}\n```\nDone.'),
    ("json", PERSON, 'See [1]: {"name": "Anna", "age": 30.0}'),
    ("json", PERSON, 'Use {braces}: {"name": "Anna", "age": 30}'),
    ("json", ('{"a": "}"}',), 'x {"a": "}"} y'),
    ("json", ('{"a": "\\""}',), '{"a": "\\""}'),
    ("json", ("[1, 2]",), "The list is [1, 2]."),
    ("json", ('{"n": null, "t": true}',), '{"t": true, "n": null}'),
    ("json", ('{"名": "小明"}',), '{"名": "\\u5c0f\\u660e"}'),
    ("code", ADDS, FENCED),
    ("code", ADDS, "def add(a, b):\n    return a + b"),
    ("code", ADDS, "def add(a, b): return sum([a, b])"),
    ("code", ADDS, f"Here you are:\n{FENCED}\nIt adds two numbers."),
    ("code", ADDS, "```\ndef add(a: int, b: int) -> int:\n    '''Add.'''\n    return b + a"),
    ("code", ADDS, "def add(a, b):\n    return a + b\n\nThis function takes two numbers."),
    ("code", ADDS, "def add(a, b):\n    return a + b\nprint(add(1, 2))\nassert add(1, 1) == 2"),
    ("code", ADDS, "  def add(a, b):\n      return a + b\n"),
    ("code", ADDS, "```python\ndef add(a, b):\n    return a + b\n```\n```python\nadd(2, 3)\n```"),
    ("code", ADDS, "def add(a, b):\n    return a + b\n\ndef oth"),
]

WRONG = [
    ("contains", ("Paris",), "Lyon"),
    ("contains", ("Paris",), ""),
    ("word", ("42",), "142"),
    ("word", ("42",), "421"),
    ("word", ("42",), "4 2"),
    ("word", ("42",), "-42"),
    ("word", ("42",), "42.5"),
    ("word", ("42",), "3.42"),
    ("word", ("42",), "x42"),
    ("word", ("42",), "42a7"),
    ("word", ("42",), "!!!!!!!!"),
    ("word", ("-7",), "7"),
    ("word", ("7",), "-7"),
    ("word", ("234",), "1,234"),
    ("word", ("cat",), "concatenate"),
    ("word", ("cat",), "cats"),
    ("word", ("Na",), "Nickel (Ni)"),
    ("word", ("北京",), "东京"),
    ("line", ("abc-12",), "abc-123"),
    ("line", ("abc-12",), "ABC-12"),
    ("line", ("abc-12",), "the code abc-12 it is"),
    ("line", ("The clock struck",), "The clock strikes"),
    ("line", ("小船慢慢漂过",), "小船慢慢飘过"),
    ("order", ("a", "b", "c"), "c, a, b"),
    ("order", ("a", "b", "c"), "a, b"),
    ("order", ("a", "b", "c"), "a, c, b"),
    ("order", ("a", "b", "c"), "a, b, c, d"),
    ("order", ("a", "b", "c"), "c, a, b, c"),
    ("order", ("a", "b", "c"), "a, a, b, c"),
    ("order", ("3", "12", "40"), "3, 12, 400"),
    ("order", ("3", "12", "40"), "3, 4, 12, 40"),
    ("order", ("3", "12", "40"), "40, 12, 3"),
    ("order", ("苹果", "河流"), "河流、苹果"),
    ("json", PERSON, '{"name": "Anna", "age": "30"}'),
    ("json", PERSON, '{"name": "Anna", "age": 31}'),
    ("json", PERSON, '{"name": "Anna"}'),
    ("json", PERSON, '{"name": "Anna", "age": 30, "x": 1}'),
    ("json", PERSON, '{"name": "Anna", "age": 30'),
    ("json", PERSON, "name: Anna, age: 30"),
    ("json", PERSON, '[["name", "Anna"], ["age", 30]]'),
    ("json", PERSON, '{"name": "Ben", "age": 1} {"name": "Anna", "age": 30}'),
    ("json", ('{"t": true}',), '{"t": 1}'),
    ("json", ('{"t": 1}',), '{"t": true}'),
    ("json", ('{"t": 1}',), '{"t": NaN}'),
    ("json", ("[1, 2]",), "[2, 1]"),
    ("code", ADDS, "def add(a, b):\n    return a - b"),
    ("code", ADDS, "def plus(a, b):\n    return a + b"),
    ("code", ADDS, "def add(a, b):\n    return 5"),
    ("code", ADDS, "def add(a, b):\n    return"),
    ("code", ADDS, "def add(a, b:\n    return a + b"),
    ("code", ADDS, "a + b"),
    ("code", ADDS, ""),
    ("code", ADDS, "def add(a, b):\n    while True: pass"),
    ("code", ADDS, "import os\nadd = os.system"),
    ("code", ADDS, "def add(a, b):\n    return __import__('os')"),
]


@pytest.mark.parametrize(("rule", "expect", "text"), RIGHT)
def test_a_right_answer_in_another_form_is_not_accused(rule: str, expect: tuple[str, ...], text: str) -> None:
    assert is_right(rule, expect, text)


@pytest.mark.parametrize(("rule", "expect", "text"), WRONG)
def test_a_wrong_answer_is_caught(rule: str, expect: tuple[str, ...], text: str) -> None:
    assert not is_right(rule, expect, text)


def test_the_tables_try_every_rule_on_both_sides() -> None:
    assert {rule for rule, _, _ in RIGHT} == {rule for rule, _, _ in WRONG} == set(RULES)
    assert len(RIGHT) + len(WRONG) > 120


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "text",
    [
        "[" * 1_000_000,
        '{"a":' * 200_000,
        "```" * 300_000,
        "1," * 500_000,
        "9" * 1_000_000,
        "a b c " * 160_000,
        "def add(a, b):\n" * 70_000,
        "-" * 1_000_000,
        "\0\ud800\uffff" * 300_000,
        " \n" * 500_000,
        "def add(a, b): return " + "(" * 5000 + ")" * 5000,
    ],
    ids=["brackets", "objects", "fences", "commas", "digits", "items", "functions", "minus", "noise", "white", "deep"],
)
def test_a_megabyte_of_hostile_text_is_wrong_and_soon_told(rule: str, text: str) -> None:
    expect = {"json": PERSON, "code": ADDS, "order": ("a", "b", "zz")}.get(rule, ("zz",))
    began = time.monotonic()
    assert not is_right(rule, expect, text)
    # Far above what it takes; a loop that grows with the square of the length takes minutes.
    assert time.monotonic() - began < 30


def test_an_unknown_rule_names_the_nearest() -> None:
    with pytest.raises(
        UserError, match=r"'jsn' is no rule for answers \(did you mean 'json'\?\); one of contains, word"
    ):
        is_right("jsn", ("{}",), "{}")


@pytest.mark.parametrize(
    ("rule", "expect", "message"),
    [
        ("json", "{", "no JSON object or array"),
        ("json", "7", "no JSON object or array"),
        ("code", "add(", "no expression in Python"),
    ],
)
def test_an_expectation_that_its_rule_cannot_read_is_told(rule: str, expect: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_rule(rule, (expect,))


def test_contains_takes_any_of_several_whatever_the_case() -> None:
    assert contains("STRASSE", ("straße",))
    assert not contains("Weg", ("straße", "Platz"))
