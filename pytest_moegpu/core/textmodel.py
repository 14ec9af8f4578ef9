"""The small statistical model of written English and code that word salad is measured with.

Its tables are package data beside this file (`textmodel.bin`, made by `bench/text_model.py`), which is as fixed as the
code: it is read like a module is, once, when the first text is measured.
"""

from __future__ import annotations

import json
import lzma
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from pytest_moegpu.core.textlexicon import ENGLISH

__all__ = [
    "ALPHABET",
    "CLASSES",
    "FIRST_WORD",
    "TOKEN",
    "WordModel",
    "character_classes",
    "character_numbers",
    "pack",
    "shipped_model",
    "unpack",
    "word_class",
]

TOKEN = re.compile(r"[A-Za-zÀ-ɏ]+(?:['’][a-z]{1,2}(?![a-z]))?|\d+|[.!?]+|\n+|[,;:]|[^\sA-Za-zÀ-ɏ\d]")
"""What a text is cut into to count pairs of words."""

_SUFFIXES = ("ing", "ed", "ly", "tion", "ous", "al", "er", "est", "ity", "ment", "s", "y", "e")
_MARKS = (".", "\n", ",", "0", "#")
_OTHER = ("<capital>", "<word>", "<letter>")
CLASSES: dict[str, int] = {
    name: i for i, name in enumerate(dict.fromkeys((*_MARKS, *_OTHER, *(f"-{s}" for s in _SUFFIXES), *ENGLISH)))
}
"""Word class → its number. Small words are classes of their own, others go by their ending."""

FIRST_WORD = CLASSES[ENGLISH[0]]
"""Classes from this number on are small words."""

_PRINTED = "".join(chr(c) for c in range(33, 127))
ALPHABET = 4 + len(_PRINTED)
"""How many classes of characters: blank, line end, accented Latin, any other, and printed ASCII (digits as 0)."""

_STEP = 2.0
"""Tables hold halves of a nat, as int8."""


@dataclass(frozen=True, kw_only=True)
class WordModel:
    """What was counted, in nat.

    `words` are known; `pairs` is the pointwise mutual information of neighbouring word classes; `prose` and `code` are
    log-probabilities of a character behind two others.
    """

    words: frozenset[str]
    pairs: Any
    prose: Any
    code: Any


def word_class(token: str) -> int:
    """Return the class of one token of `TOKEN`."""
    lowered = token.lower()
    known = CLASSES.get(lowered)
    if known is not None:
        return known
    first = token[0]
    if first in ".!?":
        return CLASSES["."]
    if first == "\n":
        return CLASSES["\n"]
    if first in ",;:":
        return CLASSES[","]
    if first.isdigit():
        return CLASSES["0"]
    if not first.isalpha():
        return CLASSES["#"]
    if len(token) == 1:
        return CLASSES["<letter>"]
    if first.isupper():
        return CLASSES["<capital>"]
    for suffix in _SUFFIXES:
        if lowered.endswith(suffix):
            return CLASSES[f"-{suffix}"]
    return CLASSES["<word>"]


def character_numbers(characters: str) -> list[int]:
    """Return the classes of printed ASCII characters."""
    return [4 + _PRINTED.index("0" if c.isdigit() else c) for c in characters]


@cache
def _code_points() -> Any:
    import numpy as np

    table = np.full(0x250, 2, dtype=np.uint8)
    table[:33] = 0
    table[10] = 1
    for i, c in enumerate(_PRINTED):
        table[ord(c)] = 4 + (_PRINTED.index("0") if c.isdigit() else i)
    table[127:0xC0] = 3
    return table


def character_classes(text: str) -> Any:
    """Return the class of every character as an array of small numbers."""
    import numpy as np

    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    table = _code_points()
    return np.where(points < len(table), table[np.minimum(points, len(table) - 1)], 3).astype(np.int64)


def pack(words: list[str], pairs: Any, prose: Any, code: Any) -> bytes:
    """Write a model as the bytes that are shipped; the tables are in nat."""
    import numpy as np

    tables = [np.clip(np.round(t * _STEP), -127, 127).astype(np.int8).tobytes() for t in (pairs, prose, code)]
    head = json.dumps({"classes": len(CLASSES), "alphabet": ALPHABET, "words": words}, ensure_ascii=False).encode()
    return lzma.compress(len(head).to_bytes(4, "little") + head + b"".join(tables), preset=9)


def unpack(data: bytes) -> WordModel:
    """Read a model.

    Raises:
        ValueError: It was made with other classes than those of this code.
    """
    import numpy as np

    raw = lzma.decompress(data)
    size = int.from_bytes(raw[:4], "little")
    head = json.loads(raw[4 : 4 + size])
    if (head["classes"], head["alphabet"]) != (len(CLASSES), ALPHABET):
        raise ValueError("the word model was made with other classes: run `python -m bench.text_model` again")
    values = np.frombuffer(raw, dtype=np.int8, offset=4 + size).astype(np.float32) / _STEP
    ends = (len(CLASSES) ** 2, ALPHABET**3)
    return WordModel(
        words=frozenset(head["words"]),
        pairs=values[: ends[0]].reshape(len(CLASSES), len(CLASSES)),
        prose=values[ends[0] : ends[0] + ends[1]],
        code=values[ends[0] + ends[1] :],
    )


@cache
def shipped_model() -> WordModel:
    """Return the model that comes with the package."""
    return unpack((resources.files("pytest_moegpu.core") / "textmodel.bin").read_bytes())
