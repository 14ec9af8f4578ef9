"""Metrics and verdicts: a number with a unit and a direction, and the judgement on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pytest_moegpu.core.evidence import Phase

__all__ = ["METRICS", "Better", "FailedClass", "Metric", "MetricKind", "Outcome", "Verdict", "worst"]


class Outcome(StrEnum):
    """What a check says. Only PASS and IMPROVED are green; NO_BASELINE skips."""

    PASS = "PASS"
    IMPROVED = "IMPROVED"
    NO_BASELINE = "NO_BASELINE"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    REGRESSED = "REGRESSED"
    FAILED = "FAILED"
    ERROR = "ERROR"

    @property
    def green(self) -> bool:
        """True when something was measured and found good."""
        return self in (Outcome.PASS, Outcome.IMPROVED)


class FailedClass(StrEnum):
    """Which kind of fault a FAILED or REGRESSED verdict stands for."""

    CORRECTNESS = "correctness"
    MEMORY = "memory"
    PERFORMANCE = "performance"
    STABILITY = "stability"
    ENVIRONMENT = "environment"


class Better(StrEnum):
    """Direction of a metric. Data, never guessed from a name."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, kw_only=True)
class MetricKind:
    """What a metric means: unit, direction, default relative tolerance, and whether it is compared with a baseline.

    `session_cv` is the spread between sessions (standard deviation in logs, a share of one) to assume until the stored
    sessions show it.
    """

    name: str
    title: str
    unit: str
    better: Better
    tolerance: float
    session_cv: float = 0.015
    compared: bool = True
    definition: str = ""


METRICS: dict[str, MetricKind] = {
    kind.name: kind
    for kind in (
        MetricKind(
            name="decode",
            title="decode",
            unit="tok/s",
            better=Better.HIGHER,
            tolerance=0.05,
            definition="(output tokens - 1) / (last token - first token), one stream, median of a start's requests",
        ),
        MetricKind(
            name="prefill",
            title="prefill",
            unit="tok/s",
            better=Better.HIGHER,
            tolerance=0.05,
            definition="uncached prompt tokens / TTFT, one stream, median of a start's requests",
        ),
        MetricKind(
            name="ttft",
            title="TTFT",
            unit="s",
            better=Better.LOWER,
            tolerance=0.05,
            definition="first token of content or reasoning - request sent, median of a start's requests",
        ),
        MetricKind(
            name="peak_memory",
            title="peak memory",
            unit="B",
            better=Better.LOWER,
            tolerance=0.05,
            session_cv=0.002,
            definition="highest device reading of a start outside long contexts - idle reading before it",
        ),
        MetricKind(
            name="load",
            title="load time",
            unit="s",
            better=Better.LOWER,
            tolerance=0.25,
            compared=False,
            definition="server process started - first token generated",
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One value per start, raw."""

    name: str
    values: tuple[float, ...]

    @property
    def kind(self) -> MetricKind:
        """Unit and direction of this metric."""
        return METRICS[self.name]

    @property
    def median(self) -> float:
        """Median over starts; the mean of the middle two for an even number."""
        ordered = sorted(self.values)
        half = len(ordered) // 2
        return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One judgement. All text shown to a person is rendered from this record alone.

    `change` is the relative change against the baseline (-0.167 for 16.7 % less), `interval` its confidence interval;
    `lines` are further facts as (label, text): starts, changed, same, valid, log, rerun.
    """

    outcome: Outcome
    check: str
    scenario: str
    subject: str
    phase: Phase
    reason: str = ""
    failed_class: FailedClass | None = None
    metric: str | None = None
    value: float | None = None
    values: tuple[float, ...] = ()
    limit: float | None = None
    baseline: float | None = None
    baseline_values: tuple[float, ...] = ()
    change: float | None = None
    interval: tuple[float, float] | None = None
    confidence: float | None = None
    allowed: float | None = None
    smallest_loss: float | None = None
    lines: tuple[tuple[str, str], ...] = ()
    findings: tuple[str, ...] = ()
    log_path: str = ""
    log_tail: tuple[str, ...] = ()
    more: dict[str, str] = field(default_factory=dict)


_SEVERITY = (
    Outcome.PASS,
    Outcome.IMPROVED,
    Outcome.NO_BASELINE,
    Outcome.INCONCLUSIVE,
    Outcome.NOT_COMPARABLE,
    Outcome.REGRESSED,
    Outcome.FAILED,
    Outcome.ERROR,
)


def worst(outcomes: tuple[Outcome, ...]) -> Outcome:
    """Return the most severe of some outcomes.

    Raises:
        ValueError: There are none: nothing judged is never green.
    """
    if not outcomes:
        raise ValueError("no outcome: nothing was judged")
    return max(outcomes, key=_SEVERITY.index)
