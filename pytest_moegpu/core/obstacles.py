"""Why a metric cannot be compared at all: an outcome and a reason, before any statistics.

Bad input has a named verdict and shows no number that looks like a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from pytest_moegpu.core import stats
from pytest_moegpu.core.baseline import Baseline
from pytest_moegpu.core.designs import LEAST_STARTS, Design
from pytest_moegpu.core.evidence import Evidence
from pytest_moegpu.core.identity import Difference, differences
from pytest_moegpu.core.verdict import Metric, MetricKind, Outcome

__all__ = ["Obstacle", "bad_values", "mismatch", "obstacle", "other_machine"]

_MOST_RATIO = 100.0
"""Starts of one session that differ by more are not of one unit, or not of one thing."""


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """What a comparison failed at; `more_starts` when more of them would help."""

    outcome: Outcome
    reason: str
    more_starts: bool = False


def bad_values(values: tuple[float, ...], what: str) -> str:
    """Return what is wrong with values of one session; empty when each is a positive number of the same magnitude."""
    try:
        stats.checked(values, what)
    except ValueError as error:
        return f"{error}{' (a clock stepped back?)' if any(v < 0 for v in values) else ''}"
    if max(values) > _MOST_RATIO * min(values):
        return f"{what} go from {min(values):g} to {max(values):g}: not of one unit"
    return ""


def mismatch(kind: MetricKind, evidence: Evidence, baseline: Baseline) -> tuple[Difference, ...]:
    """Return every must-match difference; versions and units are compared even if the identity does not hold them."""
    key, unit, direction = "check.version", f"unit.{kind.name}", f"better.{kind.name}"
    base = {key: str(baseline.check_version), unit: baseline.units.get(kind.name, kind.unit)}
    now = {key: str(evidence.check_version), unit: kind.unit}
    base[direction], now[direction] = baseline.better.get(kind.name, kind.better), kind.better
    found = differences(baseline.identity, evidence.identity)
    seen = {d.field for d in found}
    return found + tuple(d for d in differences(base, now) if d.field not in seen)


def obstacle(metric: Metric, evidence: Evidence, baseline: Baseline, design: Design) -> Obstacle | None:
    """Return the first reason why these values cannot be compared, None when they can."""
    name = metric.name
    if problem := bad_values(metric.values, f"{name} values of this run"):
        return Obstacle(outcome=Outcome.INCONCLUSIVE, reason=problem)
    sessions = [s for s in baseline.sessions if s.metrics.get(name)]
    for session in sessions:
        if problem := bad_values(session.metrics[name], f"{name} values of the baseline"):
            return Obstacle(outcome=Outcome.ERROR, reason=problem)
    runs = [session.run for session in sessions]
    if twice := sorted({run for run in runs if runs.count(run) > 1}):
        return Obstacle(outcome=Outcome.ERROR, reason=f"the baseline holds a run more than once: {', '.join(twice)}")
    if len(metric.values) == 1:
        others = f"{len(baseline.values(name))} in the baseline{other_machine(evidence, baseline)}"
        reason = f"1 start now, {others}: its spread is not known, {LEAST_STARTS} starts or more are needed"
        return Obstacle(outcome=Outcome.INCONCLUSIVE, reason=reason, more_starts=True)
    if later := _recorded_later(evidence, baseline):
        return Obstacle(outcome=Outcome.INCONCLUSIVE, reason=later)
    if design is Design.INTERLEAVED:
        if machines := other_machine(evidence, baseline):
            return Obstacle(outcome=Outcome.NOT_COMPARABLE, reason=f"not interleaved{machines}")
        return None
    base = len(baseline.values(name))
    if base < LEAST_STARTS or len(metric.values) < LEAST_STARTS:
        reason = (
            f"too few starts: {len(metric.values)} now, {base} in the baseline; {LEAST_STARTS} of each are needed"
            f"{'; record the baseline again with 5' if base < LEAST_STARTS else ''}"
        )
        return Obstacle(outcome=Outcome.INCONCLUSIVE, reason=reason, more_starts=base >= LEAST_STARTS)
    return None


def other_machine(evidence: Evidence, baseline: Baseline) -> str:
    """Say which machines the two sides come from, where both are known and differ; else empty."""
    for key in ("gpu.uuid", "host"):
        now = evidence.noted.get(key)
        base = sorted({told for s in baseline.sessions if (told := s.noted.get(key))})
        if now and base and base != [now]:
            return f", of another machine ({key} {', '.join(base)} → {now})"
    return ""


def _recorded_later(evidence: Evidence, baseline: Baseline) -> str:
    """Say so when a session of the baseline was recorded after this run; empty when not, or when a time is missing."""
    times = [when for start in evidence.starts if (when := _moment(start.started_at)) is not None]
    if not times:
        return ""
    for session in baseline.sessions:
        recorded = _moment(session.recorded_at)
        if recorded is not None and recorded > max(times):
            return (
                f"run {session.run} of the baseline was recorded at {session.recorded_at}, after this run of "
                f"{max(times).isoformat(timespec='seconds')}: a clock stepped back, or the runs are in the wrong order"
            )
    return ""


def _moment(text: str) -> datetime | None:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
