"""One sign of broken text, and what the signs of one text amount to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["DOUBTFUL", "Finding", "TextVerdict", "verdict"]

_BAD_FROM = 0.8
_SUSPECT_FROM = 0.4

DOUBTFUL = 0.5
"""The strength of a sign that whole text may show as well."""


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


def verdict(findings: Iterable[Finding]) -> TextVerdict:
    """Judge by the strongest finding: bad from 0.8, suspect from 0.4, else good."""
    strongest = max((f.strength for f in findings), default=0.0)
    if strongest >= _BAD_FROM:
        return TextVerdict.BAD
    return TextVerdict.SUSPECT if strongest >= _SUSPECT_FROM else TextVerdict.GOOD
