"""What the selected tests need of a scenario."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_moegpu.core.evidence import Evidence, Part
from pytest_moegpu.core.modelfacts import KnownAnswer

__all__ = ["FIRST_START_ONLY", "Needs", "holds"]

FIRST_START_ONLY = frozenset({Part.CONTEXT, Part.AXES})
"""Parts that ask whether something works, not how fast: the first start answers that."""


@dataclass
class Needs:
    """What the selected tests want from one scenario, gathered before anything is started.

    `compared` are the metrics that will be held against the baseline, as far as that is known.
    """

    parts: set[Part] = field(default_factory=set)
    answers: dict[KnownAnswer, None] = field(default_factory=dict)
    context_tokens: set[int] = field(default_factory=set)
    compared: dict[str, None] = field(default_factory=dict)


def holds(evidence: Evidence, parts: frozenset[Part]) -> bool:
    """Tell whether every start has these parts, but for those that the first one answers."""
    had = [frozenset(start.parts) for start in evidence.starts]
    return all(parts - FIRST_START_ONLY <= held for held in had) and parts <= frozenset().union(*had)
