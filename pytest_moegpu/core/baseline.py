"""A promoted set of runs for one profile, scenario and backend."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_moegpu.core.golden import Golden
from pytest_moegpu.core.model import Stack

__all__ = ["BASELINE_SCHEMA", "Baseline", "BaselineSession"]

BASELINE_SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class BaselineSession:
    """One promoted run: raw values of each metric, one a start."""

    run: str
    recorded_at: str
    metrics: dict[str, tuple[float, ...]]
    noted: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What a later run is compared with. Raw values are kept, so that rules can change without measuring again.

    `golden` are the scores of the fixed texts; `margins` maps the name of a known answer that came out right in every
    promoted start to the smallest gap (nat) seen on the way to it.
    """

    schema: int
    profile: str
    scenario: str
    backend: str
    check_version: int
    identity: dict[str, str]
    stack: Stack
    sessions: tuple[BaselineSession, ...]
    units: dict[str, str] = field(default_factory=dict)
    better: dict[str, str] = field(default_factory=dict)
    golden: Golden | None = None
    margins: dict[str, float] = field(default_factory=dict)

    def values(self, metric: str) -> tuple[float, ...]:
        """Return all starts of all sessions for one metric, in order; empty when it was never recorded."""
        return tuple(v for s in self.sessions for v in s.metrics.get(metric, ()))
