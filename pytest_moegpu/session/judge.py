"""From evidence to finished verdicts: the comparison with the stored baseline, and the lines only a run can add."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_moegpu.checks import get_check
from pytest_moegpu.checks.throughput import metrics
from pytest_moegpu.core.baseline import Baseline
from pytest_moegpu.core.compare import compare, wants_more_starts
from pytest_moegpu.core.evidence import Evidence, Phase
from pytest_moegpu.core.identity import parse_varying
from pytest_moegpu.core.verdict import METRICS, Outcome, Verdict
from pytest_moegpu.errors import RecordError
from pytest_moegpu.host.process import tail
from pytest_moegpu.host.store import baseline_path, read_baseline

if TYPE_CHECKING:
    from pytest_moegpu.session.session import Session

__all__ = ["compare_metric", "finish"]

# The check that must stand before a metric is compared: a number that is not valid has no baseline verdict.
_GUARD = {"peak_memory": "memory"}
_BLOCKING = (Outcome.ERROR, Outcome.INCONCLUSIVE, Outcome.NOT_COMPARABLE)


def compare_metric(session: Session, metric: str, name: str) -> Verdict:
    """Judge a metric against its baseline; undecided cases get more starts, at the looks planned beforehand."""
    scenario = session.target.scenario(name)
    guard = get_check(_GUARD.get(metric, "throughput"))
    evidence = session.evidence(name, guard.needs)
    blank = Verdict(
        outcome=Outcome.ERROR,
        check="baseline",
        scenario=name,
        subject=METRICS[metric].title,
        phase=Phase.COMPARE,
        metric=metric,
    )
    guarding = guard.judge(evidence, scenario, session.target.profile)
    measured = metrics(evidence, scenario)
    for verdict in guarding:
        blocked = verdict.outcome in _BLOCKING or (metric not in measured and not verdict.outcome.green)
        if blocked and verdict.metric in (metric, None):
            return replace(verdict, check="baseline", metric=metric, subject=METRICS[metric].title)
    if metric not in measured:
        return replace(blank, reason=f"nothing was measured: no start gave a value of {metric}")
    try:
        baseline = _baseline(session, name)
    except RecordError as error:
        return replace(blank, reason=str(error))
    options = session.options
    looks = tuple(sorted({options.starts, options.max_starts}))
    for look, starts in enumerate(looks):
        if starts > len(evidence.starts):
            evidence = session.more_starts(name, starts)
            if evidence.failure is not None:
                return guard.judge(evidence, scenario, session.target.profile)[0]
        verdict = _compare(metric, replace(evidence, starts=evidence.starts[:starts]), session, baseline, look, looks)
        if not wants_more_starts(verdict):
            break
    valid = tuple(line for g in guarding for line in g.lines if line[0] == "valid" and g.metric in (metric, None))
    return replace(verdict, lines=(*verdict.lines, *valid), log_path=evidence.starts[-1].log_path)


def _compare(
    metric: str, evidence: Evidence, session: Session, baseline: Baseline | None, look: int, looks: tuple[int, ...]
) -> Verdict:
    scenario = session.target.scenario(evidence.scenario)
    varying = session.options.varying
    return compare(
        metrics(evidence, scenario)[metric],
        evidence,
        scenario,
        baseline,
        varying=parse_varying(varying) if varying is not None else None,
        look=look,
        looks=looks,
    )


def _baseline(session: Session, name: str) -> Baseline | None:
    path = baseline_path(session.options.baselines, session.target.profile.name, name, session.target.backend.name)
    return read_baseline(path) if path.exists() else None


def finish(verdict: Verdict, folder: Path, rerun: str) -> Verdict:
    """Add what only the run knows: its folder in the promote command, the tail of the log, the line that asks again."""
    last = verdict.log_tail
    if verdict.log_path and not last and not verdict.outcome.green:
        last = tail(Path(verdict.log_path))
    return replace(
        verdict,
        reason=verdict.reason.replace(".moegpu/runs/<id>", str(folder)),
        lines=(*verdict.lines, ("rerun", rerun)),
        log_tail=last,
    )
