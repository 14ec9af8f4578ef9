"""What a prompt asks for that would else look like broken text: repetition, drawings, lists of alike things, codes."""

from __future__ import annotations

import re
from functools import cached_property

from pytest_moegpu.core.textlexicon import ENGLISH

__all__ = ["DRAW", "LANGUAGES", "Asked", "asked_many"]

_MANY = (
    r"(?:repeat|\btimes\b|identical|\bcopies\b|in a row|duplicate|over and over|[遍次回번]|重复|繰り返|반복"
    r"|\bmal\b|\bfois\b|\bveces\b|\braz\b|\bраз\b|\bvezes\b|\bvolte\b)"
)
_COUNT = r"(?:\d|[一二三四五六七八九十百千]|\b(?:ten|twenty|thirty|fifty|hundred|thousand|dozen)\b)"
_REPEAT = re.compile(rf"{_MANY}[^.\n]{{0,40}}{_COUNT}|{_COUNT}[^.\n]{{0,40}}{_MANY}", re.IGNORECASE)
_ALIKE = re.compile(r"identical|\bcopies\b", re.IGNORECASE)
DRAW = re.compile(
    r"\bdraw|ruler|\bline of\b|long line|\brow of\b|ascii|banner|separator|divider|pattern", re.IGNORECASE
)
LANGUAGES = re.compile(r"languages|translat|alphabet|scripts?\b|unicode|greet|multilingual|transliterat", re.IGNORECASE)
_ENCODED = re.compile(
    r"base\s?(?:16|32|58|64|85)|\bhex|encod|encrypt|cipher|rot13|hash|sha-?\d|md5|uuid|guid|token|password|passphrase|"
    r"\bkeys?\b|signature|certificate|\bpem\b|random|regex|regular expression|minif|obfuscat|compress|dna\b|rna\b|"
    r"protein|genom|nucleotide|\bsmiles\b|morse|binary|bytes?\b|dump|\bpgn\b|\bfen\b|brainfuck|golf|serial|"
    r"chess (?:moves|notation|opening|game)|(?:moves|notation|opening|game) (?:of|in) (?:a )?chess|"
    r"assembl|scramble|anagram|jumbl|gibberish|nonsense|lorem|placeholder|pseudoword|tongue|onomatop|verlan|pig latin",
    re.IGNORECASE,
)
_ALIKE_FORM = re.compile(
    r"\blog(?:s|file)?\b|retr(?:y|ies)|table|csv|json|yaml|xml|array|matrix|grid|list|sql|rows?\b|zeros|ones\b|count|"
    r"identical|same|default|empty|config|ini\b|schedule|numbers|sequence|multiplication|board|diff\b|trace|dump|hex|"
    r"tree|countdown|scan|表|列表|清单|一覧|목록|tabell|liste|lista|таблиц|списо",
    re.IGNORECASE,
)
_SAME = re.compile(
    r"\blog(?:s|file)?\b|retr(?:y|ies)|array|matrix|grid|zeros|ones\b|identical|same|default|empty|board|dump|draw",
    re.IGNORECASE,
)
_NUMBERS = re.compile(
    r"\d|number|digit|factorial|power|googol|zero|binary|bits?\b|hex|hash|bytes?\b"
    r"|decimal|how (?:many|much|small|large|big)"
    r"|calculat|comput|equation|fraction|encod|word\b|third|zahl|nombre|número|число|数",
    re.IGNORECASE,
)
_VERSE = re.compile(
    r"song|poem|verse|lyric|chorus|refrain|chant|rhyme|lullab|hymn|ballad|anthem|villanelle|sestina|pantoum|mantra|"
    r"litany|prayer|rap\b|lied\b|gedicht|chanson|poème|canción|poema|песн|стих|诗|歌|시를|노래|詩",
    re.IGNORECASE,
)

_STEM = re.compile(r"\b([a-z]{4,5})[a-z]*")
_SMALL = frozenset(ENGLISH)
# A long prompt shares words with any text.
_MOST_STEMS = 60


def _stems(text: str) -> frozenset[str]:
    return frozenset(m[1] for m in _STEM.finditer(text.lower()) if m[0] not in _SMALL)


class Asked:
    """One prompt, read once; the questions are answered when they are put."""

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        self.draw = DRAW.search(prompt) is not None
        self.languages = LANGUAGES.search(prompt) is not None
        self.encoded = _ENCODED.search(prompt) is not None
        self.alike = _ALIKE_FORM.search(prompt) is not None
        self.same = _SAME.search(prompt) is not None
        self.numbers = _NUMBERS.search(prompt) is not None
        self.verse = _VERSE.search(prompt) is not None
        self.many = _REPEAT.search(prompt) is not None

    @cached_property
    def stems(self) -> frozenset[str]:
        """The first five letters of the words that the prompt is about; none of a long prompt."""
        stems = _stems(self.prompt)
        return stems if len(stems) <= _MOST_STEMS else frozenset()

    def shares(self, text: str) -> int | None:
        """Return how many words of the prompt come back in a text; None where the prompt is about nothing told."""
        return len(self.stems & _stems(text)) if self.stems else None

    def repeats(self, unit: str) -> float:
        """How far the prompt asks for many of `unit`: 1 by name, 0.5 by asking for some repetition, 0 not at all."""
        if not self.many:
            return 0.0
        return asked_many(self.prompt, unit)


def asked_many(prompt: str, unit: str) -> float:
    """As `Asked.repeats`, for a prompt that asks for some repetition."""
    if len(unit) == 1 and unit.isascii() and unit.isalnum():
        return 1.0 if re.search(rf"\b{unit}\b", prompt, re.IGNORECASE) else 0.0
    words = re.findall(r"\w+", unit.casefold())
    if not words:
        return 1.0 if unit.strip() in prompt else 0.0
    lowered = prompt.casefold()
    return 1.0 if _ALIKE.search(prompt) or all(word in lowered for word in words) else 0.5
