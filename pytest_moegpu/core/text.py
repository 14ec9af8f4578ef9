"""Signs of broken text: what a damaged model, a bad kernel or a wrong setting writes. Form only, never meaning.

The classes are those of public bug reports: one character for ever, closed loops, bytes that are no text, scripts at
random, control tokens. Word salad in one language shows no sign here; that takes known answers. Time is linear.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby, pairwise

from pytest_moegpu.core.textruns import RULER, in_place, run_strength

__all__ = ["Finding", "TextVerdict", "examine", "verdict"]

_BAD_FROM = 0.8
_SUSPECT_FROM = 0.4
# The strength of a sign that whole text may show as well.
_DOUBTFUL = 0.5

# A loop long enough to judge has its period well inside these; both bound the time.
_TAIL = 4000
_PERIOD_MAX = 500

_RUN = re.compile(r"(.)\1{11,}", re.DOTALL)
_THINK = re.compile(r"\s*<think>\s*</think>\s*")
_STRIKE = ("<s>", "</s>")
_GRID = frozenset("01 \t\n,;|.()[]{}")
_REFRAIN_MAX = 8
_MANY = r"(?:repeat|\btimes\b|identical|\bcopies\b|in a row|duplicate|[遍次]|重复|\bmal\b|\bfois\b|\bveces\b)"
_COUNT = r"(?:\d|[一二三四五六七八九十百千]|\b(?:ten|twenty|thirty|fifty|hundred|thousand|dozen)\b)"
_REPEAT = re.compile(rf"{_MANY}[^.\n]{{0,40}}{_COUNT}|{_COUNT}[^.\n]{{0,40}}{_MANY}", re.IGNORECASE)
_ALIKE = re.compile(r"identical|\bcopies\b", re.IGNORECASE)
_DRAW = re.compile(r"\bdraw|ruler|\bline of\b|long line|\brow of\b|ascii|banner|separator|divider", re.IGNORECASE)
_LANGUAGES = re.compile(r"languages|translat|alphabet|scripts?\b|unicode|greet", re.IGNORECASE)
_TOKEN = re.compile(
    r"<\|[\w/:.-]{1,40}\|>|</?(?:pad|unk|eos|bos|s|mask|think)>|<unused\d{1,9}>|<0x[0-9A-F]{2}>|\[(?:PAD|UNK)\]"
)
_SCRIPTS = re.compile(
    "(?P<latin>[A-Za-zÀ-ɏ]{2,})|(?P<greek>[Ͱ-Ͽ]{2,})|(?P<cyrillic>[Ѐ-ԯ]+)|(?P<hebrew>[\u0590-\u05ff]+)"
    "|(?P<arabic>[\u0600-\u06ff]+)|(?P<indic>[\u0900-\u0dff]+)|(?P<thai>[\u0e00-\u0e7f]+)|(?P<hangul>[ᄀ-ᇿ가-힣]+)"
    "|(?P<han>[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+)"
)


class TextVerdict(StrEnum):
    """What the findings of one text amount to."""

    GOOD = "good"
    SUSPECT = "suspect"
    BAD = "bad"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One sign of broken text: name, strength (0 to 1), character offset where it begins, and words for a person."""

    name: str
    strength: float
    position: int
    detail: str


def examine(text: str, prompt: str = "", finish_reason: str | None = None) -> tuple[Finding, ...]:
    """Look for signs of broken text.

    Args:
        text: What the model wrote.
        prompt: What it was asked; a run, repetition, script or token that it asks for is no sign.
        finish_reason: `length` makes an endless tail likelier, `tool_calls` excuses an empty text.

    Returns:
        The findings, the strongest first; empty when there is no sign. Names: `empty`, `whitespace`,
        `one-character-run`, `periodic-tail`, `byte-noise`, `script-salad`, `special-tokens`, `ascii-noise`.
    """
    # A model told not to think may still open and close its thoughts.
    empty = _THINK.match(text)
    skipped = empty.end() if empty else 0
    text = text[skipped:]
    if not text.strip():
        if finish_reason == "tool_calls":
            return ()
        name, detail = ("whitespace", f"{len(text)} blank characters only") if text else ("empty", "no text at all")
        return (Finding(name=name, strength=1.0, position=skipped, detail=detail),)
    found = [
        *_runs(text, prompt, finish_reason),
        *_loop(text, prompt, finish_reason),
        *_bytes(text, prompt),
        *_scripts(text, prompt),
        *_tokens(text, prompt),
        *_ascii(text),
    ]
    placed = (replace(f, position=f.position + skipped) for f in found)
    return tuple(sorted(placed, key=lambda f: -f.strength))


def verdict(findings: Iterable[Finding]) -> TextVerdict:
    """Judge by the strongest finding: bad from 0.8, suspect from 0.4, else good."""
    strongest = max((f.strength for f in findings), default=0.0)
    if strongest >= _BAD_FROM:
        return TextVerdict.BAD
    return TextVerdict.SUSPECT if strongest >= _SUSPECT_FROM else TextVerdict.GOOD


def _asked(prompt: str, unit: str) -> float:
    """How far the prompt asks for many of `unit`: 1 by name, 0.5 by asking for some repetition, 0 not at all."""
    if not _REPEAT.search(prompt):
        return 0.0
    if len(unit) == 1 and unit.isascii() and unit.isalnum():
        return 1.0 if re.search(rf"\b{unit}\b", prompt, re.IGNORECASE) else 0.0
    words = re.findall(r"\w+", unit.casefold())
    if not words:
        return 1.0 if unit.strip() in prompt else 0.0
    lowered = prompt.casefold()
    return 1.0 if _ALIKE.search(prompt) or all(word in lowered for word in words) else 0.5


def _runs(text: str, prompt: str, finish_reason: str | None) -> Iterator[Finding]:
    """Find the worst run of one character that the prompt does not ask for."""
    begin, end = len(text) - len(text.lstrip()), len(text.rstrip())
    drawing = _DRAW.search(prompt) is not None
    wordy = re.search(r"[^\W_]{3}", text) is not None
    asked: dict[str, bool] = {}
    worst: Finding | None = None
    for match in _RUN.finditer(text):
        character, length = match[1], match.end() - match.start()
        share, at_end = length / max(1, end - begin), match.end() >= end
        endless = at_end and finish_reason == "length"
        strength = run_strength(text, match, share, endless=endless)
        if strength <= (worst.strength if worst else 0.0):
            continue
        if wordy and in_place(text, match, share, endless=endless, at_end=at_end):
            continue
        if character not in asked:
            asked[character] = (drawing and character in RULER) or _asked(prompt, character) == 1.0
        if not asked[character]:
            shown = (
                repr(character) if character.isprintable() and not character.isspace() else f"U+{ord(character):04X}"
            )
            worst = Finding(
                name="one-character-run", strength=strength, position=match.start(), detail=f"{length} times {shown}"
            )
    if worst:
        yield worst


def _loop(text: str, prompt: str, finish_reason: str | None) -> Iterator[Finding]:
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
    if all(c in RULER or c in " \n" for c in unit) and (covered <= 120 or _DRAW.search(prompt)):
        return
    share = covered / len(text.strip())
    if covered >= 200 or (covered >= 30 and share >= 0.5):
        strength = 1.0
    elif covered >= 40 and share >= 0.2:
        strength = 0.6
    else:
        return
    grid = _GRID.issuperset(unit) and "0" in unit and "\n" in tail[start:end]
    refrain = finish_reason == "stop" and "\n" in unit and covered // period <= _REFRAIN_MAX
    if grid or refrain:
        strength = min(strength, _DOUBTFUL)
    wanted = _asked(prompt, unit)
    if wanted < 1.0:
        yield Finding(
            name="periodic-tail",
            strength=strength * (1 - wanted),
            position=len(text.rstrip()) - len(tail) + start,
            detail=f"{unit[:60]!r} {covered // period} times, {share:.0%} of the text",
        )


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


def _bytes(text: str, prompt: str) -> Iterator[Finding]:
    """Find characters that no writer types: U+FFFD, controls, private and unassigned ones."""
    allowed = set(prompt) | set("\n\r\t\f")
    noise = [i for i, c in enumerate(text) if not c.isprintable() and c not in allowed and _is_noise(c)]
    noise += [i for i, c in enumerate(text) if c == "\ufffd" and c not in allowed]
    # A stream cut within a character leaves one at the very end.
    if not noise or noise == [len(text) - 1]:
        return
    share = len(noise) / len(text)
    yield Finding(
        name="byte-noise",
        strength=1.0 if len(noise) >= 2 and share > 0.005 else 0.5,
        position=min(noise),
        detail=f"{len(noise)} characters that are no text, {share:.1%} of all",
    )


def _is_noise(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Co", "Cn", "Cs")


def _scripts(text: str, prompt: str) -> Iterator[Finding]:
    """Find lines that jump between three scripts or more, unless the prompt is about languages."""
    if text.isascii() or _LANGUAGES.search(prompt):
        return
    switches = letters = lines = 0
    first: int | None = None
    scripts: set[str] = set()
    offset = 0
    for line in text.splitlines(keepends=True):
        runs = [(str(m.lastgroup), len(m[0])) for m in _SCRIPTS.finditer(line)]
        kinds = {name for name, _ in runs}
        if len(kinds) >= 3:
            switches += sum(a[0] != b[0] for a, b in pairwise(runs))
            letters += sum(size for _, size in runs)
            scripts |= kinds
            lines += 1
            first = offset if first is None else first
        offset += len(line)
    if first is not None and switches >= 6 and switches / letters > 0.05:
        yield Finding(
            name="script-salad",
            strength=1.0 if switches / letters > 0.08 and (lines >= 2 or letters > 200) else 0.6,
            position=first,
            detail=f"{switches} changes between {', '.join(sorted(scripts))} in {letters} letters",
        )


def _tokens(text: str, prompt: str) -> Iterator[Finding]:
    """Find control tokens of chat templates written as text."""
    hits = [m for m in _TOKEN.finditer(text) if m[0] not in prompt]
    if not hits:
        return
    share = sum(len(m[0]) for m in hits) / len(text.strip())
    # `<s>` alone is HTML, and one stray token is a template's fault rather than the machine's.
    telling = [m for m in hits if m[0] not in _STRIKE]
    if not telling:
        return
    strength = 1.0 if share >= 0.5 or len(telling) >= 4 else _DOUBTFUL
    yield Finding(
        name="special-tokens",
        strength=strength,
        position=hits[0].start(),
        detail=f"{len(hits)} control tokens such as {hits[0][0]}, {share:.0%} of the text",
    )


def _ascii(text: str) -> Iterator[Finding]:
    """Find many kinds of punctuation with hardly a letter, without the shape of a table or drawing."""
    solid = [c for c in text[-_TAIL:] if not c.isspace()]
    marks = [c for c in solid if c in string.punctuation]
    changes = sum(1 for _ in groupby(solid)) / len(solid)
    letters = sum(c.isalpha() for c in solid) / len(solid)
    spaces = 1 - len(solid) / len(text[-_TAIL:])
    kinds = len(set(marks))
    if len(solid) >= 24 and letters < 0.25 and len(marks) >= 0.4 * len(solid) and kinds >= 10 and spaces < 0.25:
        yield Finding(
            name="ascii-noise",
            strength=1.0 if changes > 0.85 else 0.5,
            position=0,
            detail=f"{kinds} kinds of punctuation, {letters:.0%} letters",
        )
