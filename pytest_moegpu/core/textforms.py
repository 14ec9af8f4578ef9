"""Broken forms: scripts at random, punctuation at random, names glued without end, JSON and Markdown that decay."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, pairwise

from pytest_moegpu.core.textasked import Asked
from pytest_moegpu.core.textfinding import DOUBTFUL, Finding
from pytest_moegpu.core.textlexicon import HAN_PAIRS

__all__ = ["ascii_noise", "decay", "glued", "han_salad", "random_pieces", "script_salad"]

_TAIL = 4000
_LONG = 20_000
_SCRIPTS = re.compile(
    "(?P<latin>[A-Za-zÀ-ɏ]{2,})|(?P<greek>[Ͱ-Ͽ]{2,})|(?P<cyrillic>[Ѐ-ԯ]+)|(?P<armenian>[\u0530-\u058f]+)"
    "|(?P<hebrew>[\u0590-\u05ff]+)|(?P<arabic>[\u0600-\u06ff]+)|(?P<indic>[\u0900-\u0dff]+)|(?P<thai>[\u0e00-\u0e7f]+)"
    "|(?P<georgian>[\u10a0-\u10ff]+)|(?P<hangul>[ᄀ-ᇿ가-힣]+)|(?P<han>[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+)"
)
# From the first join on, for the pattern engine finds those faster than names.
_GLUED = re.compile(r"(?<=[^\W_])[_-]{1,2}(?:[^\W_]{1,20}[_-]{1,2}){8,}[^\W_]{0,20}")
_NAME = 20
_SOUP = re.compile(r"[-,_'][-,_'.]{0,3}(?:,-|-,|_-|-_|'-|-'|,_|_,|,'|',)(?![\d ])")
_DOTTED = re.compile(r"[a-z],?\.{2,}[A-Za-z]")
_ORPHAN = re.compile(r",\s+-\s*,")
_BROKEN_KEY = re.compile(r'"[^"\n]{0,80}"\s*\n\s*:')
_STRING = re.compile(r'"([^"\n]{12,4000})"?')
_HAN = re.compile(r"[\u4e00-\u9fff]+")


def script_salad(text: str, asked: Asked) -> Iterator[Finding]:
    """Find lines that jump between three scripts or more, or letters of two scripts within words."""
    if text.isascii() or asked.languages:
        return
    switches = letters = lines = 0
    first: int | None = None
    scripts: set[str] = set()
    offset = 0
    for line in text.splitlines(keepends=True):
        runs = [] if line.isascii() else [(str(m.lastgroup), len(m[0])) for m in _SCRIPTS.finditer(line)]
        kinds = {name for name, _ in runs}
        if len(kinds) >= 3:
            switches += sum(a[0] != b[0] for a, b in pairwise(runs))
            letters += sum(size for _, size in runs)
            scripts |= kinds
            lines += 1
            first = offset if first is None else first
        offset += len(line)
    if first is not None and switches >= 6 and switches / letters > 0.05:
        rate = switches / letters
        sure = rate > 0.08 and (lines >= 2 or letters > 100 or (switches >= 10 and rate > 0.12))
        yield Finding(
            name="script-salad",
            strength=1.0 if sure else 0.6,
            position=first,
            detail=f"{switches} changes between {', '.join(sorted(scripts))} in {letters} letters",
        )


def ascii_noise(text: str, asked: Asked) -> Iterator[Finding]:
    """Find punctuation without order: many kinds with hardly a letter, or commas, dashes and quotes in one another."""
    if asked.encoded:
        return
    solid = [c for c in text[-_TAIL:] if not c.isspace()]
    marks = [c for c in solid if c in string.punctuation]
    changes = sum(1 for _ in groupby(solid)) / len(solid)
    letters = sum(c.isalpha() for c in solid) / len(solid)
    spaces = 1 - len(solid) / len(text[-_TAIL:])
    kinds = len(set(marks))
    soup = len(_SOUP.findall(text[-_TAIL:]))
    if soup >= 4 and soup > 0.02 * len(solid) and len(marks) > 0.3 * len(solid):
        yield Finding(
            name="ascii-noise", strength=0.9, position=0, detail=f"{soup} places where commas, dashes and quotes mix"
        )
        return
    orphans, dotted = len(_ORPHAN.findall(text[-_TAIL:])), len(_DOTTED.findall(text[-_TAIL:]))
    if (orphans >= 2 and not asked.alike) or (dotted >= 3 and dotted > 0.03 * len(solid)):
        yield Finding(
            name="ascii-noise",
            strength=DOUBTFUL,
            position=0,
            detail=f"{orphans} dashes between commas, {dotted} words glued by dots",
        )
        return
    if len(solid) >= 24 and letters < 0.25 and len(marks) >= 0.4 * len(solid) and kinds >= 10 and spaces < 0.25:
        yield Finding(
            name="ascii-noise",
            strength=1.0 if changes > 0.85 else DOUBTFUL,
            position=0,
            detail=f"{kinds} kinds of punctuation, {letters:.0%} letters",
        )


def glued(text: str, asked: Asked) -> Iterator[Finding]:
    """Find ten or more names glued by underscores or hyphens."""
    if asked.encoded:
        return
    for match in _GLUED.finditer(text):
        start = match.start()
        while match.start() - start < _NAME and start and text[start - 1].isalnum():
            start -= 1
        names = text[start : match.end()]
        if names in asked.prompt:
            continue
        parts = [p for p in re.split("[_-]", names) if p]
        if sum(p.isalpha() for p in parts) >= 0.8 * len(parts):
            # Names of tests are sentences.
            said = parts[0] == "test"
            sure = len(parts) >= 14 or ("_" in names and len(parts) >= 11 and not said)
            yield Finding(
                name="glued-identifiers",
                strength=1.0 if sure else DOUBTFUL,
                position=start,
                detail=f"{len(parts)} names in one: {names[:50]}…",
            )
            return


def decay(text: str) -> Iterator[Finding]:
    """Find JSON that no program writes: line ends before a colon, strings of the same few numbers."""
    if text.lstrip()[:1] not in "{[`":
        return
    head = text[:_LONG] + text[-_LONG:] if len(text) > 2 * _LONG else text
    broken = _BROKEN_KEY.search(head)
    if broken:
        yield Finding(
            name="structural-decay",
            strength=0.9,
            position=broken.start(),
            detail="a line end between a key and its colon",
        )
    for match in _STRING.finditer(head):
        numbers = re.findall(r"\d+", match[1])
        if len(numbers) >= 4 and sum(map(len, numbers)) > 0.45 * len(match[1]):
            shapes = {n.rstrip("0") for n in numbers}
            if len(shapes) <= 2 and any(n.endswith("00") for n in numbers):
                yield Finding(
                    name="structural-decay",
                    strength=0.9,
                    position=match.start(),
                    detail=f"a string of {len(numbers)} numbers that hardly differ: {match[1][:40]!r}",
                )
                return


def random_pieces(text: str, asked: Asked) -> Iterator[Finding]:
    """Find few kinds of words in an order that is no order: nearly as many kinds of pairs as chance would make."""
    if asked.encoded or asked.many or asked.alike:
        return
    words = re.findall(r"[^\W\d_]{2,}", text[-_TAIL:])
    kinds = Counter(words)
    n = len(words)
    if n < 36 or len(kinds) < 6 or len(kinds) > 0.6 * n:
        return
    pairs = list(pairwise(words))
    # How many kinds of pairs independent draws from these words would give on average.
    expected = 0.0
    top = kinds.most_common(60)
    rest = n - sum(c for _, c in top)
    for _, a in top:
        for _, b in top:
            expected += 1 - (1 - a * b / n / n) ** (n - 1)
    expected += min(2 * rest, n)
    seen = len(set(pairs)) / min(expected, n - 1)
    if seen > 0.93 and len(kinds) <= 0.4 * n:
        yield Finding(
            name="word-salad",
            strength=0.9 if len(kinds) <= 0.33 * n and n >= 50 else DOUBTFUL,
            position=0,
            detail=f"{len(kinds)} words in {n} places follow each other as by chance",
        )


def han_salad(text: str, asked: Asked) -> Iterator[Finding]:
    """Find common Chinese characters in random order: few of them, and hardly a common pair among them."""
    if text.isascii() or asked.many or asked.encoded:
        return
    runs = _HAN.findall(text[-_TAIL:])
    if re.search("[\u3040-\u30ff]", text):
        return
    characters = "".join(runs)
    pairs = [run[i : i + 2] for run in runs for i in range(len(run) - 1)]
    if len(pairs) < 30:
        return
    kinds = len(set(characters)) / len(characters)
    known = sum(p in HAN_PAIRS for p in pairs) / len(pairs)
    fresh = len(set(pairs)) / len(pairs)
    few = len(characters) >= 60 and kinds < 0.4 and len(characters) < 400 and fresh > 0.6
    if (few and known < 0.06) or (known < 0.02 and len(pairs) >= 80):
        yield Finding(
            name="word-salad",
            strength=0.9 if few else DOUBTFUL,
            position=0,
            detail=f"{known:.0%} of {len(pairs)} pairs of characters are common, {kinds:.0%} of the characters differ",
        )
