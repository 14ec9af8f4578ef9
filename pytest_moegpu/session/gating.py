"""`moegpu gate`: stored runs held against the stored baselines, one page and one exit code."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from pytest_moegpu.checks import base as checks
from pytest_moegpu.checks import get_check
from pytest_moegpu.checks.throughput import metrics
from pytest_moegpu.core.baseline import Baseline
from pytest_moegpu.core.designs import LEAST_STARTS
from pytest_moegpu.core.evidence import Evidence
from pytest_moegpu.core.gateargs import GateOrder
from pytest_moegpu.core.gatepage import GatePage, Group, in_order
from pytest_moegpu.core.identity import parse_varying, stack_changes
from pytest_moegpu.core.record import RunRecord
from pytest_moegpu.core.verdict import METRICS, Verdict
from pytest_moegpu.errors import RecordError, UserError
from pytest_moegpu.host.store import RunStore, baseline_path, read_baseline
from pytest_moegpu.session.comparing import kin_of
from pytest_moegpu.session.expected import read_expected
from pytest_moegpu.session.judge import Comparison
from pytest_moegpu.session.records import as_asked, finished
from pytest_moegpu.session.reference import GOLDEN, References

__all__ = ["Judge", "comparison_of", "group_of", "page_of", "runs_of"]

Judge = Callable[[Comparison, Evidence], Verdict]
"""How one metric of one scenario is compared."""

_ANEW = ("output", "offload", "memory", "throughput", "stability")
_LAST = "last"


def page_of(order: GateOrder, today: date) -> GatePage:
    """Judge runs against the stored baselines.

    Raises:
        UserError: A run is named twice, or two hold the same scenario; a rehearsal; or a file cannot be read.
    """
    expected = read_expected(order.expected)
    records = runs_of(order)
    groups = tuple(_against_stored(order, folder, record, e) for folder, record in records for e in record.evidence)
    return GatePage(groups=groups, expected=expected, today=today, notes=_empty(records))


def runs_of(order: GateOrder) -> list[tuple[Path, RunRecord]]:
    """Read the runs of a gate.

    Raises:
        RecordError: One cannot be read or was not finished.
        UserError: One is named twice, two hold the same scenario, or one is a rehearsal.
    """
    store = RunStore(order.root)
    found = [(folder, finished(folder)) for folder in (store.find("latest" if n == _LAST else n) for n in order.runs)]
    held: dict[tuple[str, str, str], str] = {}
    for _, record in found:
        for evidence in record.evidence:
            if any(gpu.emulated_on for gpu in evidence.gpus):
                raise UserError(f"run {record.id} is a rehearsal (--moegpu-emulate-vram): no result of the real card")
            key = (evidence.profile, evidence.scenario, evidence.backend)
            if key in held:
                same = held[key] == record.id
                both = f"run {record.id} is named twice" if same else f"runs {held[key]} and {record.id}"
                raise UserError(f"{both}: {', '.join(key)} can be decided on once; name one of them")
            held[key] = record.id
    return found


def _empty(records: Sequence[tuple[Path, RunRecord]]) -> tuple[str, ...]:
    return tuple(f"run {record.id} measured nothing" for _, record in records if not record.evidence)


def _against_stored(order: GateOrder, folder: Path, record: RunRecord, evidence: Evidence) -> Group:
    path = baseline_path(order.baselines, evidence.profile, evidence.scenario, evidence.backend)
    problem = ""
    baseline: Baseline | None = None
    try:
        baseline = read_baseline(path) if path.exists() else None
    except RecordError as error:
        problem = str(error)
    varying = parse_varying(order.varying) if order.varying is not None else None
    kin = kin_of(order.baselines, baseline) if baseline is not None else ()

    if baseline is not None and record.id in (session.run for session in baseline.sessions):
        problem = f"run {record.id} is part of the baseline itself: nothing was compared"

    def judge(comparison: Comparison, now: Evidence) -> Verdict:
        if problem:
            return comparison.impossible(problem)
        return replace(comparison, varying=varying, kin=kin).look(now, baseline, max(len(comparison.looks) - 1, 0))

    words = ["moegpu", "promote", str(folder)]
    if order.baselines != Path("baselines"):
        words += ["--baselines", str(order.baselines)]
    golden = References(
        folder=order.baselines,
        profile=evidence.profile,
        backend=evidence.backend,
        model_sha256=evidence.identity.get("model.sha256", ""),
    )
    return group_of(folder, record, evidence, baseline, judge, golden.judge, shlex.join(words))


def group_of(
    folder: Path,
    record: RunRecord,
    evidence: Evidence,
    baseline: Baseline | None,
    judge: Judge,
    golden: checks.Judge,
    promote: str,
) -> Group:
    """Judge one scenario of a run: what it said itself, its checks anew over all starts, and every compared metric.

    The log-probabilities are held against this baseline with `golden`, where the run has asked for them.

    Raises:
        RecordError: The run does not hold the scenario as it was asked.
    """
    scenario, profile = as_asked(record, evidence)
    anew = [v for name in _ANEW for v in get_check(name).judge(evidence, scenario, profile)]
    told = [v for v in record.verdicts if v.scenario == evidence.scenario and v.check != "baseline"]
    if any(v.check == GOLDEN for v in told):
        told = [v for v in told if v.check != GOLDEN]
        anew += golden(evidence, scenario, profile)
    keys = {(v.check, v.subject, v.metric, v.outcome) for v in anew}
    kept = [v for v in told if (v.check, v.subject, v.metric, v.outcome) not in keys]
    held = metrics(evidence).keys() | (baseline.units.keys() if baseline is not None else set())
    compared = [
        judge(comparison_of(name, record, evidence), evidence)
        for name, kind in METRICS.items()
        if kind.compared and name in held
    ]
    moved = stack_changes(baseline.stack, evidence.stack) if baseline is not None else ()
    return Group(
        profile=evidence.profile,
        scenario=evidence.scenario,
        backend=evidence.backend,
        run=str(folder),
        verdicts=in_order([*kept, *anew, *compared]),
        changed=(", ".join(map(str, moved)) or "nothing under test") if baseline is not None else "no baseline",
        promote=promote,
    )


def comparison_of(metric: str, record: RunRecord, evidence: Evidence) -> Comparison:
    """Return the comparison of a metric of a stored run, over all of its starts.

    A run may have looked before at fewer starts, so this counts as the second look.

    Raises:
        RecordError: The run does not hold the scenario as it was asked.
    """
    scenario, profile = as_asked(record, evidence)
    count = len(evidence.starts)
    return Comparison(
        metric=metric,
        scenario=scenario,
        profile=profile,
        looks=(LEAST_STARTS, count) if count > LEAST_STARTS else (),
        session_cv=scenario.limits.session_cv,
    )
