"""One thing noticed about the machine: how heavy it weighs, in which start, and which speeds it puts in doubt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pytest_moegpu.checks.common import grouped

__all__ = ["DECODE", "PROMPT", "SPEEDS", "Finding", "Weight", "told"]

PROMPT = frozenset({"prefill", "ttft"})
"""Metrics of the time before the first token."""
DECODE = frozenset({"decode"})
"""Metrics of the time after it."""
SPEEDS = PROMPT | DECODE
"""All metrics of speed."""


class Weight(StrEnum):
    """FAULT makes a run FAILED, DOUBT makes it INCONCLUSIVE, NOTE is shown."""

    FAULT = "fault"
    DOUBT = "doubt"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing noticed. `start` is None for what is of the run or between two starts; `line` quotes the kernel.

    `concerns` are the metrics that may not be believed beside it; a note concerns none. `memory`: the host had none.
    """

    weight: Weight
    text: str
    start: int | None = None
    concerns: frozenset[str] = SPEEDS
    line: str = ""
    memory: bool = False


def told(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Print findings, those of the run first, one that several starts share once and naming them."""
    kept = tuple(findings)
    of_run = dict.fromkeys(f.text for f in kept if f.start is None)
    return (*of_run, *grouped((f.start, f.text) for f in kept if f.start is not None))
