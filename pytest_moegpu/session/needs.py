"""What the selected tests need of a scenario."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_moegpu.core.evidence import Part
from pytest_moegpu.core.model import KnownAnswer

__all__ = ["Needs"]


@dataclass
class Needs:
    """What the selected tests want from one scenario, gathered before anything is started."""

    parts: set[Part] = field(default_factory=set)
    answers: dict[KnownAnswer, None] = field(default_factory=dict)
    context_tokens: set[int] = field(default_factory=set)
