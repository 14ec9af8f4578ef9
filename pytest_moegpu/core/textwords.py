"""Word salad: how far a stretch of Latin text is from written English, code and other languages, by the word model.

A stretch is measured by sums, so that neighbours can be put together; the weights of the measures are fitted by
`bench/text_classes.py`. Scripts other than Latin are not judged here.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise

from pytest_moegpu.core.textlexicon import ENGLISH, LANGUAGES
from pytest_moegpu.core.textmodel import (
    ALPHABET,
    FIRST_WORD,
    TOKEN,
    WordModel,
    character_classes,
    character_numbers,
    word_class,
)

__all__ = ["MEASURES", "Sums", "Tokens", "blocks", "measures", "sums"]

_PART = re.compile(r"[A-ZÀ-Þ]?[a-zß-ÿĀ-ɏ]+|[A-ZÀ-Þ]+(?![a-z])")
_ODD = re.compile(
    r"(?<=\S) (?: +(?=\S)|[,.;?!](?![\w./]))"
    r"|[a-z](?:[?!;\"][a-z]|[A-Z]{2,}[a-z]|\.{2,}[A-Za-z]|(?<=[a-z]{2})[.,:][a-z]{2})"
    r"|\b[Aa] (?!one|once|eu|e-)[aeio][a-z]{2}"
)
_CAMEL = re.compile(r"(?<![\w.(])[a-z]+[A-Z]{1,3}[a-z]*\b")
_STRANGE = re.compile(r"[A-Za-z][^\x00-\u024f\s‘-‟–—…][A-Za-z]|[A-Za-z][\u0250-\u1fff\u2c00-\ud7ff]")
_ACCENTED = re.compile("[À-ɏḀ-ỿ]")
_LONG = re.compile(r"[A-Za-z]{17,}")
_CODE_MARKS = character_numbers("(){}[]=;<>_`/\\")
_MARKS = character_numbers(string.punctuation)
_UPPER = character_numbers(string.ascii_uppercase)
_DIGIT = character_numbers("0")[0]
_ENGLISH = frozenset(ENGLISH)
_FOREIGN: dict[str, tuple[str, ...]] = {
    word: tuple(name for name, words in LANGUAGES.items() if word in words)
    for word in frozenset().union(*LANGUAGES.values())
}


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Counts of one stretch; neighbours add up."""

    characters: int
    solid: int
    letters: int
    latin: int
    words: int
    known: int
    single: int
    english: int
    foreign: int
    pairs: int
    information: float
    unlikely: int
    function_pairs: int
    function_unlikely: int
    repeated: int
    kinds: int
    neighbours: int
    prose: float
    code: float
    odd: int
    strange: int
    camel: int
    code_marks: int
    marks: int
    digits: int
    upper: int
    accented: int
    capitals: int
    commas: int
    long: int

    def __add__(self, other: Sums) -> Sums:
        """Return the sums of both."""
        return Sums(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


class Tokens(dict[str, int]):
    """Token → class, worked out once for each token of a text."""

    def __missing__(self, token: str) -> int:
        self[token] = number = word_class(token)
        return number


def sums(text: str, model: WordModel, classes: Tokens) -> Sums:
    """Count one stretch of text; `classes` keeps what is known of tokens from one stretch to the next."""
    import numpy as np

    tokens = TOKEN.findall(text)
    words = _PART.findall(text)
    lowered = " ".join(words).lower().split(" ") if words else []
    repeated = Counter(lowered)
    languages: Counter[str] = Counter()
    for word, times in repeated.items():
        for language in _FOREIGN.get(word, ()):
            languages[language] += times
    ids = np.array([classes[t] for t in tokens], dtype=np.int64)
    information = model.pairs[ids[:-1], ids[1:]]
    both = (ids[:-1] >= FIRST_WORD) & (ids[1:] >= FIRST_WORD)
    c = character_classes(text)
    of = np.bincount(c, minlength=ALPHABET)
    trigrams = (c[:-2] * ALPHABET + c[1:-1]) * ALPHABET + c[2:]
    latin = sum(map(len, words))
    return Sums(
        characters=max(len(text) - 2, 0),
        solid=len(text) - int(of[0] + of[1]),
        letters=latin if text.isascii() else max(sum(map(str.isalpha, text)), latin),
        latin=latin,
        words=len(words),
        known=sum(len(w) * n for w, n in repeated.items() if len(w) > 1 and w in model.words),
        single=sum(n for w, n in Counter(words).items() if len(w) == 1 and w not in "aAI"),
        english=sum(n for w, n in repeated.items() if w in _ENGLISH),
        foreign=max(languages.values(), default=0),
        pairs=max(len(ids) - 1, 0),
        information=float(information.sum()),
        unlikely=int((information < -0.9).sum()),
        function_pairs=int(both.sum()),
        function_unlikely=int((information[both] < -0.9).sum()),
        repeated=max(repeated.values(), default=0),
        kinds=len(repeated),
        neighbours=len(set(pairwise(lowered))),
        prose=float(model.prose[trigrams].sum()) if len(text) > 2 else 0.0,
        code=float(model.code[trigrams].sum()) if len(text) > 2 else 0.0,
        odd=len(_ODD.findall(text)),
        strange=0 if text.isascii() else len(_STRANGE.findall(text)),
        camel=len(_CAMEL.findall(text)),
        code_marks=int(of[_CODE_MARKS].sum()),
        marks=int(of[_MARKS].sum()),
        digits=int(of[_DIGIT]),
        upper=int(of[_UPPER].sum()),
        accented=0 if text.isascii() else len(_ACCENTED.findall(text)),
        capitals=sum(map(str.istitle, words)) + sum(map(str.isupper, words)),
        commas=text.count(","),
        long=len(_LONG.findall(text)),
    )


MEASURES = (
    "known",
    "english",
    "foreign",
    "information",
    "unlikely",
    "function unlikely",
    "repeated",
    "kinds",
    "neighbours",
    "characters",
    "odd",
    "strange",
    "camel",
    "marks",
    "digits",
    "upper",
    "long",
    "single",
    "words per letter",
)


def measures(s: Sums) -> list[float]:
    """Return the measures of a stretch, in the order of `MEASURES`: shares, and means in nat."""
    words, letters = max(s.words, 1), max(s.latin, 1)
    return [
        s.known / letters,
        s.english / words,
        max(s.foreign / words - 0.5 * s.english / words, 0.0),
        s.information / max(s.pairs, 1),
        s.unlikely / max(s.pairs, 1),
        s.function_unlikely / (s.function_pairs + 3),
        s.repeated / (words + 3),
        s.kinds / words**0.8,
        s.neighbours / max(words - 1, 1),
        max(s.prose, s.code) / max(s.characters, 1),
        s.odd / words,
        s.strange / words,
        s.camel / words * max(1 - 12 * s.code_marks / max(s.solid, 1), 0.0),
        s.marks / max(s.solid, 1),
        s.digits / max(s.solid, 1),
        s.upper / letters,
        s.long / words,
        s.single / words,
        math.log(letters / words),
    ]


def blocks(text: str, size: int) -> Iterator[tuple[int, str]]:
    """Cut a text at blanks into blocks of about `size` characters, each with its offset."""
    start = 0
    while start < len(text):
        end = min(start + size, len(text))
        if end < len(text):
            blank = max(text.rfind(" ", start + size // 2, end), text.rfind("\n", start + size // 2, end))
            end = blank + 1 if blank > start else end
        yield start, text[start:end]
        start = end
