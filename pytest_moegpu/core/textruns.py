"""Runs of one character: how strong a sign of broken text each is, and where whole text holds one."""

from __future__ import annotations

import re
import string
import unicodedata

__all__ = ["RULER", "in_place", "run_strength"]

RULER = frozenset("-=*_#~.+|:─━═—·")
"""Characters that lines are drawn with."""

# The strength of a sign that whole text may show as well.
_DOUBTFUL = 0.5

_ENCODED = re.compile(r"[A-Za-z0-9+/=]{20}")
_WORD_PART = frozenset(string.ascii_letters + string.digits + "+/=_-.,")
_NUMBER = re.compile(r"[-+]?(?:0[xXbBoO][0-9a-fA-F]+|\d[\d.,_]*(?:[eE][-+]?\d+)?)[.,]*")
_HEX = re.compile(r"[0-9a-fA-F-]+")
_FILLS_HEX = frozenset("0fF")
_FILLS_BASE64 = frozenset("A0/=")
# How far on either side a word is looked at, which bounds the time.
_AROUND = 60


def run_strength(text: str, match: re.Match[str], share: float, *, endless: bool) -> float:
    """Return how strong a sign a run is; emoji and the inside of a number are no more than doubtful.

    Args:
        text: The whole text.
        match: The run in it, its character in group 1.
        share: Part of the text that it takes.
        endless: It was still going on when the answer was cut off.
    """
    character = match[1]
    strength = _strength(character, match.end() - match.start(), share, endless=endless)
    explained = strength > _DOUBTFUL and (_is_emoji(character) or _in_number(text, match))
    return _DOUBTFUL if explained else strength


def in_place(text: str, match: re.Match[str], share: float, *, endless: bool, at_end: bool) -> bool:
    """Tell whether a run is a ruler, a blank to fill in, or part of an encoded word."""
    start, end = match.span()
    if match[1] in RULER:
        own_line = not re.search(r"\w", text[max(start - 200, 0) : start].rpartition("\n")[2])
        longest = (40 if own_line else 24) if endless else 80 if at_end else 200
        return end - start <= longest and (own_line or share < 0.5)
    before, after = text[max(start - 20, 0) : start], text[end : end + 20]
    return share < 0.5 and not at_end and bool(_ENCODED.fullmatch(before) or _ENCODED.fullmatch(after))


def _strength(character: str, length: int, share: float, *, endless: bool) -> float:
    if character in " \t":
        return 0.9 if endless and length >= 40 else 0.0
    if character.isspace():
        return 0.9 if length >= 16 else 0.0
    if length >= 30 or share >= 0.5:
        return 1.0
    return 0.5 if length >= 20 else 0.0


def _is_emoji(character: str) -> bool:
    return character >= "\u2600" and character != "\ufffd" and unicodedata.category(character) == "So"


def _in_number(text: str, match: re.Match[str]) -> bool:
    """Tell whether a run is part of a longer number, hexadecimal or base64 word, which may well hold one."""
    character, (start, end) = match[1], match.span()
    if character not in _WORD_PART:
        return False
    begin, stop = start, end
    while begin > max(start - _AROUND, 0) and text[begin - 1] in _WORD_PART:
        begin -= 1
    while stop < min(end + _AROUND, len(text)) and text[stop] in _WORD_PART:
        stop += 1
    others = (text[begin:start] + text[end:stop]).rstrip(".,")
    if not others:
        return False
    # One digit stands for the whole run: the patterns ask what kind of word it is, not how long.
    word = text[begin:start] + character + text[end:stop]
    if character.isdigit() and _NUMBER.fullmatch(word):
        return True
    if character in _FILLS_HEX and len(others) >= 4 and _HEX.fullmatch(word) and any(c.isdigit() for c in others):
        return True
    mixed = all(any(test(c) for c in others) for test in (str.isdigit, str.islower, str.isupper))
    return character in _FILLS_BASE64 and len(others) >= 12 and mixed
