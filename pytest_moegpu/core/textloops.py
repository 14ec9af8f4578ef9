"""Loops: one unit over and over at the end, one that changes a little each time, and one inside a longer text."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator

from pytest_moegpu.core.textasked import Asked
from pytest_moegpu.core.textfinding import DOUBTFUL, Finding
from pytest_moegpu.core.textruns import RULER

__all__ = ["echoes", "inner_loops", "periodic_tail", "repetition"]

# A loop long enough to judge has its period well inside these; both bound the time.
_TAIL = 4000
_PERIOD_MAX = 500
_GRID = frozenset("01 \t\n,;|.()[]{}")
_REFRAIN_MAX = 8

_WINDOW = 1300
# A window that deflates to less may be a loop: it is looked at closely, a few times at most.
_LOOP_RATIO = 0.08
_LOOKS = 24

# Healthy answers keep more than 0.58 of their runs of four words distinct; loops fewer than a half.
_DISTINCT_BAD = 0.45
_DISTINCT_DOUBTFUL = 0.56
_SHINGLE = 10
_SHINGLES_BAD = 0.62
_SHINGLES_DOUBTFUL = 0.48
_LAST = 240
# Five times may be said in excitement, eight times hardly.
_ECHO = re.compile(r"\b([^\W\d_]{3,24})(?:\s+\1\b){4,}")
_ECHOES_BAD = 8
_RULED = re.compile(r"\|  |([^\w\s])\1{11}|\.{8}|_{8}")


def periodic_tail(text: str, asked: Asked, finish_reason: str | None) -> Iterator[Finding]:
    """Find a unit repeated at least three times up to the end of the text, of its last whole line or word."""
    best = (0, 0, 0)
    tail = text.rstrip()[-_TAIL:]
    for end in sorted({len(tail), max(tail.rfind("\n"), 0), max(tail.rfind(" "), 0)}, reverse=True):
        covered, period = _periodic(tail[:end])
        if covered > best[0]:
            best = (covered, period, end)
    covered, period, end = best
    start = end - covered
    unit = tail[start : start + period]
    if period < 2 or len(set(unit)) < 2:
        return
    share = covered / len(text.strip())
    times = covered // period
    ruled = all(c in RULER or c in " \n" for c in unit)
    broken_off = "\n" in unit.strip(" ") and times >= 6 and finish_reason == "length"
    if ruled and ((covered <= 120 and not broken_off) or asked.draw):
        return
    if covered >= 200 or (covered >= 30 and share >= 0.5) or (covered >= 60 and times >= 8):
        strength = 1.0
    elif (times >= 6 and share >= 0.5 and covered >= 16 and any(map(str.isalpha, unit))) or (
        finish_reason == "length" and covered >= 60 and share >= 0.2 and not asked.alike
    ):
        strength = 0.85
    elif covered >= 40 and (share >= 0.2 or broken_off):
        strength = 0.6
    else:
        return
    grid = _GRID.issuperset(unit) and "0" in unit and "\n" in tail[start:end]
    refrain = finish_reason == "stop" and "\n" in unit and times <= _REFRAIN_MAX
    if grid or refrain or (finish_reason != "length" and _whole_json(text)):
        strength = min(strength, 0.3 if asked.verse and refrain and times <= 4 else DOUBTFUL)
    wanted = asked.repeats(unit)
    if wanted < 1.0:
        yield Finding(
            name="periodic-tail",
            strength=strength * (1 - wanted),
            position=len(text.rstrip()) - len(tail) + start,
            detail=f"{unit[:60]!r} {times} times, {share:.0%} of the text",
        )


def repetition(text: str, asked: Asked, finish_reason: str | None) -> Iterator[Finding]:
    """Find an end that says little new: few distinct runs of four words, or of ten characters."""
    tail = text.strip()[-_TAIL:]
    words = re.findall(r"[^\W_]+", tail.casefold())
    if asked.many or not any(len(w) > 1 and w.isalpha() for w in words):
        return
    strength, said = 0.0, ""
    last = words[-60:]
    if len(last) >= 20 and len({w for w in last if not w.isdigit()}) >= 2:
        grams = list(zip(last, last[1:], last[2:], last[3:], strict=False))
        distinct = len(set(grams)) / len(grams)
        strength = 0.9 if distinct < _DISTINCT_BAD else DOUBTFUL if distinct < _DISTINCT_DOUBTFUL else 0.0
        said = f"{distinct:.0%} of the last runs of four words are distinct"
    end = tail[-_LAST:]
    lettered = sum(map(str.isalpha, end)) > 0.2 * len(end)
    if len(end) >= 70 and strength < 0.9 and (lettered or finish_reason == "length") and not _RULED.search(end):
        count = len(end) - _SHINGLE + 1
        same = 1 - len({end[i : i + _SHINGLE] for i in range(count)}) / count
        if same > _SHINGLES_DOUBTFUL:
            strength = max(strength, 0.9 if same > _SHINGLES_BAD else DOUBTFUL)
            said = f"{same:.0%} of the last {len(end)} characters were there before"
    if not strength:
        return
    lines = [line for line in tail.splitlines()[-40:] if line.strip()]
    numbered = (
        len(lines) >= 4 and len(set(lines)) == len(lines) and len({re.sub(r"\d+", "", x) for x in lines[-8:-1]}) < 7
    )
    if (
        asked.same
        or (asked.alike and finish_reason != "length")
        or (finish_reason != "length" and (asked.verse or _whole_json(text)))
    ):
        strength = 0.3
    elif numbered or _markup(end) or asked.verse or asked.alike or not lettered:
        strength = min(strength, DOUBTFUL)
    if strength >= DOUBTFUL:
        yield Finding(
            name="distinct-n-grams", strength=strength, position=max(len(text.rstrip()) - len(end), 0), detail=said
        )


def inner_loops(text: str, asked: Asked) -> Iterator[Finding]:
    """Find an exact loop in the middle of a long text: windows that deflate to nearly nothing are looked at closely."""
    if len(text) < 3 * _WINDOW or asked.many or asked.alike or asked.draw:
        return
    looks = 0
    for start in range(0, len(text) - _WINDOW, _WINDOW // 2):
        window = text[start : start + _WINDOW]
        raw = window.encode("utf-8", "surrogatepass")
        if len(zlib.compress(raw, 1)) >= _LOOP_RATIO * len(raw):
            continue
        covered, period = _periodic(window)
        unit = window[-period:]
        if covered >= _WINDOW // 2 and period >= 2 and len(set(unit)) > 1 and not RULER.union(" \n").issuperset(unit):
            strength = DOUBTFUL if _GRID.issuperset(unit) else 1.0
            position = start + _WINDOW - covered
            yield Finding(
                name="inner-loop",
                strength=strength,
                position=position,
                detail=f"{unit[:60]!r} {covered // period} times",
            )
            return
        looks += 1
        if looks == _LOOKS:
            return


def echoes(text: str, asked: Asked) -> Iterator[Finding]:
    """Find one word five times or more in a row in a text too short for `inner_loops`."""
    if len(text) >= 3 * _WINDOW or asked.many or asked.alike or asked.verse or asked.encoded:
        return
    for match in _ECHO.finditer(text):
        times = len(match[0].split())
        if match[1].casefold() not in asked.prompt.casefold():
            yield Finding(
                name="inner-loop",
                strength=0.9 if times >= _ECHOES_BAD else DOUBTFUL,
                position=match.start(),
                detail=f"{match[1]!r} {times} times in a row",
            )
            return


def _whole_json(text: str) -> bool:
    """Tell whether the text is one complete JSON value, which an endless loop never is."""
    inner = re.sub(r"^\s*```\w*\n|```\s*$", "", text).strip()
    if len(inner) > 200_000 or inner[:1] not in "[{" or inner[-1:] not in "]}":
        return False
    try:
        json.loads(inner)
    except (ValueError, RecursionError):
        return False
    return True


def _markup(end: str) -> bool:
    """Tell whether tags, table cells or members make up much of a piece of text."""
    return len(re.findall(r"</?\w+[^<>\n]*>|^\s*\|.*\|\s*$|^\s*\"[^\"\n]*\":", end, re.MULTILINE)) >= 4


def _periodic(tail: str) -> tuple[int, int]:
    """Return how many last characters repeat with one period, and the period; (0, 0) below three repeats.

    The Z function of the reversed tail: z[p] is how far the tail agrees with itself moved by p.
    """
    back = tail[::-1]
    size = len(back)
    z = [0] * size
    left = right = 0
    best = (0, 0)
    for i in range(1, size):
        if i < right:
            z[i] = min(right - i, z[i - left])
        while i + z[i] < size and back[z[i]] == back[i + z[i]]:
            z[i] += 1
        if i + z[i] > right:
            left, right = i, i + z[i]
        if i <= _PERIOD_MAX and z[i] >= 2 * i and z[i] + i > best[0]:
            best = (z[i] + i, i)
    return best
