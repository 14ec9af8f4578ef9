"""Which known answers count: those that a golden environment gave with a margin, so that no token was nearly tied."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_moegpu.core.answers import is_right
from pytest_moegpu.core.evidence import Part, RequestKind, RequestRecord, StartEvidence
from pytest_moegpu.core.margins import is_witness
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.core.probekinds import KINDS

__all__ = ["LEAST_MARGIN", "calibrated", "few", "is_candidate", "joined", "margin_of", "margins_of"]

LEAST_MARGIN = 1.6
"""Smallest gap (nat) with which an answer counts.

A sound change of path moves a gap by up to `margins.GAP_FLOOR`, 1.06 nat; half as much again is for the paths that were
not tried.
"""
_NAME = re.compile(rf"(?:{'|'.join(KINDS)})-[1-9]-[a-z]{{2}}-\d+")


def is_candidate(record: RequestRecord) -> bool:
    """Tell whether a request was a generated probe that nothing is known of yet: it is kept, and judges nobody."""
    return record.margin is None and _NAME.fullmatch(record.name) is not None


def calibrated(answers: Iterable[KnownAnswer], margins: Mapping[str, float]) -> tuple[KnownAnswer, ...]:
    """Return answers with the margins (nat) that a baseline has for their names; one's own margin stays."""
    return tuple(
        replace(answer, margin=margins.get(answer.name)) if answer.name and answer.margin is None else answer
        for answer in answers
    )


def few(answers: Sequence[KnownAnswer], count: int | None) -> tuple[KnownAnswer, ...]:
    """Return at most `count` answers that judge, spread evenly over their list, and every witness; None: all."""
    judging = [place for place, answer in enumerate(answers) if not is_witness(answer.margin)]
    if count is None or len(judging) <= count:
        return tuple(answers)
    kept = {judging[number * len(judging) // count] for number in range(count)}
    return tuple(a for place, a in enumerate(answers) if place in kept or is_witness(a.margin))


def margin_of(record: RequestRecord) -> float | None:
    """Return the smallest gap (nat) on the way to a right answer; None when it is wrong or a token has no number."""
    known = record.error is None and record.tightest is not None and not record.logprobs_missing
    if not known or record.tightest is None or not record.expect:
        return None
    return record.tightest.nat if is_right(record.rule, record.expect, record.text) else None


def margins_of(starts: Sequence[StartEvidence]) -> dict[str, float]:
    """Return the names of the known answers that were right in every start, with the smallest gap (nat) of all.

    Only gaps of at least `LEAST_MARGIN` count. A start without the answers gives nothing to say against them.
    """
    found: dict[str, list[float | None]] = {}
    asked = [start for start in starts if Part.OUTPUT in start.parts]
    for start in asked:
        for record in start.of_kind(RequestKind.ANSWER):
            found.setdefault(record.name, []).append(margin_of(record))
    smallest = {
        name: min(gap for gap in gaps if gap is not None)
        for name, gaps in found.items()
        if None not in gaps and len(gaps) == len(asked)
    }
    return {name: round(gap, 3) for name, gap in smallest.items() if gap >= LEAST_MARGIN}


def joined(old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    """Return the margins that stand in two sessions, the smaller of each."""
    return {name: min(old[name], new[name]) for name in old if name in new}
