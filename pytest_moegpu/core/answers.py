"""Is an answer right? Rules by which a text is held against what is expected of it.

A rule takes a right answer in any honest form, and no wrong one for it. None of them raises or hangs on a text, however
long, deep or hostile it is; only a rule that does not exist, or an expectation that it cannot read, is an error.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from decimal import Decimal

from pytest_moegpu.core.safebudget import SafeEvalError
from pytest_moegpu.core.safeeval import evaluate, parsed
from pytest_moegpu.errors import UserError, nearest

__all__ = ["RULES", "check_rule", "contains", "is_right"]

_MOST_TEXT = 200_000
"""Characters of an answer that are looked at; a known answer is short, and stands near the start."""
_MOST_NESTING = 64
_MOST_TRIES = 20
"""Places of a text that are tried as the start of a JSON value, or lines left out at the end of code."""

_NUMBER = re.compile(r"[-−]?\d+(?:\.\d+)?")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:[,_ \u2009\u202f'’]\d{3})+(?![\d,_'’])")
_GOES_ON = re.compile(r"[^\W\d]*\d|_")
_FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_LABEL = re.compile(r"(?:a|answer|output|result|答|答案|回答|输出|结果)\s*[:：]\s*", re.IGNORECASE)
_NUMBERING = re.compile(r"^[ \t]{0,8}(?:\d{1,2}[.)、]|[-*•])[ \t]{1,8}(?=\S)", re.MULTILINE)
_BETWEEN = re.compile(r"(?:[\W_]|\band\b|\bthen\b|和|然后|与|接着|最后|再){0,40}", re.IGNORECASE)
_AROUND = " \t\"'`*_“”‘’「」《》"
_END = ".。!！"
_BRACKETS = {"{": "}", "[": "]"}


def contains(text: str, expect: tuple[str, ...]) -> bool:
    """Tell whether a text holds one of the expected answers, whatever the case of its letters."""
    lowered = text.casefold()
    return any(word.casefold() in lowered for word in expect)


def is_right(rule: str, expect: tuple[str, ...], text: str) -> bool:
    """Tell whether a text answers as expected.

    Args:
        rule: How the text is held against the expectation, a word of `RULES`.
        expect: Answers of which any one is right; for `order` the items in their order, for `code` expressions that
            must all be true.
        text: What the model wrote.

    Raises:
        UserError: No such rule, or an expectation that the rule cannot read.
    """
    check_rule(rule, expect)
    return RULES[rule](text[:_MOST_TEXT], expect)


def check_rule(rule: str, expect: tuple[str, ...]) -> None:
    """Check that a rule exists and can read an expectation.

    Raises:
        UserError: It does not, or cannot.
    """
    if rule not in RULES:
        raise UserError(f"{rule!r} is no rule for answers{nearest(rule, RULES)}; one of {', '.join(RULES)}")
    if rule == "json":
        for wanted in expect:
            if not isinstance(_loaded(wanted), dict | list):
                raise UserError(f"{wanted!r} is no JSON object or array")
    if rule == "code":
        for wanted in expect:
            if not _parses(wanted):
                raise UserError(f"{wanted!r} is no expression in Python")


def _word(text: str, expect: tuple[str, ...]) -> bool:
    plain = _plain(text)
    return any(_holds_word(plain, _plain(word)) for word in expect)


def _plain(text: str) -> str:
    """Return a text with full-width and small digits made plain, thousands not separated, letters in one case."""
    # Spaces of every kind become one here, so a space between thousands is looked for before.
    joined = _THOUSANDS.sub(lambda found: re.sub(r"\D", "", found[0]), unicodedata.normalize("NFKC", text))
    return joined.casefold()


def _holds_word(text: str, word: str) -> bool:
    if _NUMBER.fullmatch(word):
        wanted = _value(word)
        return any(_value(found) == wanted for found in _numbers(text))
    # Chinese and Japanese are written without spaces: a word there ends wherever another begins.
    first = r"(?<![^\W\u3040-\u30ff\u3400-\u9fff])" if _is_spaced(word[:1]) else ""
    last = r"(?![^\W\u3040-\u30ff\u3400-\u9fff])" if _is_spaced(word[-1:]) else ""
    return re.search(first + re.escape(word) + last, text) is not None


def _is_spaced(letter: str) -> bool:
    return letter.isalnum() and not "\u3040" <= letter <= "\u9fff"


def _value(number: str) -> Decimal:
    return Decimal(number.replace("−", "-"))


def _numbers(text: str) -> Iterator[str]:
    """Find the numbers that stand alone; a unit may follow. A minus behind a word or number is no sign."""
    for found in _NUMBER.finditer(text):
        number, before = found[0], text[max(found.start() - 1, 0) : found.start()]
        if len(number) > _MOST_NESTING or _GOES_ON.match(text, found.end()):
            continue
        if number[0] in "-−":
            yield number[1:] if before.isalnum() or before in (")", "-") else number
        elif not _is_spaced(before) and before not in ("_", "."):
            yield number


def _line(text: str, expect: tuple[str, ...]) -> bool:
    wanted = {_bare(line) for line in expect}
    return any(_bare(line) in wanted for line in text.splitlines())


def _bare(line: str) -> str:
    """Return a line without what is put around an answer: a label, quotes, emphasis, the end of a sentence."""
    line = unicodedata.normalize("NFC", line).strip(_AROUND)
    return _LABEL.sub("", line, count=1).strip(_AROUND).rstrip(_END).strip(_AROUND) if line else line


def _order(text: str, expect: tuple[str, ...]) -> bool:
    """Look for a list of all the items; what stands between two of them may be signs, numbering, or "and"."""
    items = [item.casefold() for item in expect]
    plain = _NUMBERING.sub("\n", unicodedata.normalize("NFKC", text)).casefold()
    hits = _items(plain, items)
    lists: list[list[str]] = []
    end = None
    for start, item in hits:
        if end is not None and _BETWEEN.fullmatch(plain, end, start):
            lists[-1].append(item)
        else:
            lists.append([item])
        end = start + len(item)
    # The question's own list may stand before the answer in one line, as in "c, a, b → a, b, c".
    return any(len(one) % len(items) == 0 and one[-len(items) :] == items and _each_whole(one, items) for one in lists)


def _items(text: str, items: list[str]) -> list[tuple[int, str]]:
    """Find the items where they stand as whole words, and any other number beside items that are numbers."""
    words = [re.escape(item) for item in sorted(set(items), key=len, reverse=True)]
    # Another number or letter beside these is an item too many, which is as wrong as one too few.
    others = {r"\d+": str.isdecimal, r"[^\W\d_]": lambda item: len(item) == 1 and item.isalpha()}
    words += [pattern for pattern, fits in others.items() if all(map(fits, items))]
    spaced = all(_is_spaced(item[:1]) for item in items)
    pattern = rf"(?<![^\W_])(?:{'|'.join(words)})(?![^\W_])" if spaced else "|".join(words)
    return [(found.start(), found[0]) for found in re.finditer(pattern, text)]


def _each_whole(one: list[str], items: list[str]) -> bool:
    size = len(items)
    return all(sorted(one[i : i + size]) == sorted(items) for i in range(0, len(one), size))


def _json(text: str, expect: tuple[str, ...]) -> bool:
    for wanted in map(_loaded, expect):
        found = _first_json(text, "{" if isinstance(wanted, dict) else "[")
        if found is not None and _same(found, wanted):
            return True
    return False


def _first_json(text: str, bracket: str) -> object:
    """Return the first value of a text that is in such brackets and is JSON; None where there is none."""
    start = text.find(bracket)
    for _ in range(_MOST_TRIES):
        if start < 0:
            return None
        if (end := _closed(text, start)) is not None and (value := _loaded(text[start:end])) is not None:
            return value
        start = text.find(bracket, start + 1)
    return None


def _closed(text: str, start: int) -> int | None:
    """Return where the bracket at `start` is closed; None where it is not, or too much is nested in it."""
    open_ones: list[str] = []
    position, quoted = start, False
    while position < len(text):
        sign = text[position]
        if quoted:
            position += sign == "\\"
            quoted = sign != '"'
        elif sign == '"':
            quoted = True
        elif sign in _BRACKETS:
            open_ones.append(_BRACKETS[sign])
            if len(open_ones) > _MOST_NESTING:
                return None
        elif sign in "]}":
            if open_ones.pop() != sign:
                return None
            if not open_ones:
                return position + 1
        position += 1
    return None


def _loaded(text: str) -> object:
    """Return the value of a JSON text; None where it is none. NaN and Infinity are no JSON."""
    try:
        value: object = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value


def _refuse(word: str) -> object:
    raise ValueError(word)


def _same(one: object, other: object) -> bool:
    """Compare JSON values: true is not 1, "1" is not 1, but 1.0 is, as JSON has one kind of number."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    return type(one) is type(other) and one == other


def _code(text: str, expect: tuple[str, ...]) -> bool:
    return any(all(_holds(source, wanted) for wanted in expect) for source in _programs(text))


def _programs(text: str) -> Iterator[str]:
    """Find what may be the program of an answer: what stands in fences, else all from the first function on."""
    fenced = [found for found in _FENCE.findall(text[: _MOST_TEXT // 10]) if "def " in found][:_MOST_TRIES]
    start = re.search(r"^[ \t]*def ", text, re.MULTILINE)
    rest = [] if start is None else [text[start.start() :]]
    for source in fenced or rest:
        lines = source.split("```")[0].rstrip().splitlines()[: 10 * _MOST_TRIES]
        indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
        lines = [line[indent:] if not line[:indent].strip() else line for line in lines]
        # An answer may be cut off in a line, or go on in words below the code.
        for last in range(len(lines), max(0, len(lines) - _MOST_TRIES), -1):
            program = "\n".join(lines[:last])
            if _parses(program):
                yield program
                break


def _parses(source: str) -> bool:
    try:
        parsed(source)
    except SafeEvalError:
        return False
    return True


def _holds(source: str, expression: str) -> bool:
    try:
        return evaluate(source, expression) is True
    except SafeEvalError:
        return False


RULES: dict[str, Callable[[str, tuple[str, ...]], bool]] = {
    "contains": contains,
    "word": _word,
    "line": _line,
    "order": _order,
    "json": _json,
    "code": _code,
}
"""Name of a rule → what holds a text against the expectation."""
