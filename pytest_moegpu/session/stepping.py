"""The steps of an upgrade over a reboot: before, after, back, each refused where it would compare the wrong things."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

from pytest_moegpu.checks.base import Judge
from pytest_moegpu.checks.golden import Reference, judge_against
from pytest_moegpu.core.abarule import there_and_back
from pytest_moegpu.core.baseline import Baseline
from pytest_moegpu.core.evidence import Evidence
from pytest_moegpu.core.gateargs import GateOrder
from pytest_moegpu.core.gatepage import GatePage, Group
from pytest_moegpu.core.gatestate import GATE_SCHEMA, GateState, GateStep, advice, refusal
from pytest_moegpu.core.identity import differences, not_allowed_to_vary, parse_varying, stack_changes
from pytest_moegpu.core.record import RunRecord
from pytest_moegpu.core.verdict import METRICS, Verdict
from pytest_moegpu.errors import UserError
from pytest_moegpu.host.gatestate import boot_id, forget_gate, read_gate, write_gate
from pytest_moegpu.session.expected import read_expected
from pytest_moegpu.session.gating import group_of, runs_of
from pytest_moegpu.session.judge import Comparison
from pytest_moegpu.session.records import baseline_of, faults_of, finished
from pytest_moegpu.session.reference import golden_of

__all__ = ["make_step", "tell_state"]


def tell_state(step: str) -> str:
    """Say where the upgrade stands (`show`), or end it (`forget`)."""
    if step == "forget":
        return "forgotten; the runs are kept" if forget_gate() else "nothing was under way"
    state = read_gate()
    lines = [] if state is None else [f"{name:<7} run {one.run}, {one.at}" for name, one in state.made]
    return "\n".join([*lines, advice(state)])


def make_step(order: GateOrder, step: str, today: date) -> tuple[GatePage | None, str]:
    """Make one step; return the page, None at the first one, and what to do next.

    Raises:
        UserError: The step is out of order, its run is not of the stack that it must be of, or not good enough.
    """
    state = read_gate()
    if why := refusal(state, step):
        raise UserError(why)
    if len(order.runs) != 1:
        raise UserError(f"--step {step} takes one run, not {len(order.runs)}")
    ((folder, record),) = runs_of(order)
    if not record.evidence:
        raise UserError(f"run {record.id} measured nothing")
    if step == "before":
        if order.varying is not None:
            parse_varying(order.varying)
        for evidence in record.evidence:
            if bad := faults_of(record, evidence):
                raise UserError(f"run {record.id} is no measure for others: {evidence.scenario}: {'; '.join(bad)}")
        state = GateState(schema=GATE_SCHEMA, profile=record.profile, varying=order.varying)
        page = None
    else:
        assert state is not None
        if order.varying is not None and order.varying != state.varying:
            raise UserError(f"--varying {order.varying}: step before said {state.varying or 'nothing of it'}")
        page = _page(order, state, step, folder, record, today)
    made = GateStep(
        run=record.id,
        folder=str(folder.absolute()),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        boot_id=boot_id(),
    )
    state = replace(state, steps={**state.steps, step: made})
    write_gate(state)
    return page, advice(state)


def _page(order: GateOrder, state: GateState, step: str, folder: Path, record: RunRecord, today: date) -> GatePage:
    steps = {name: finished(Path(one.folder)) for name, one in state.steps.items()}
    known = {name: one.id for name, one in steps.items()}
    if record.id in known.values():
        raise UserError(f"run {record.id} was named before already: measure anew, then name that run")
    before = {(e.scenario, e.backend): e for e in steps["before"].evidence}
    now = {(e.scenario, e.backend): e for e in record.evidence}
    if lacking := sorted(scenario for scenario, _ in before.keys() - now.keys()):
        raise UserError(f"run {record.id} did not measure {', '.join(lacking)}, as step before did")
    for key, evidence in before.items():
        _right_stack(state, step, evidence, now[key])
    notes = []
    if state.steps["before" if step == "after" else "after"].boot_id == boot_id() is not None:
        notes.append("note      the machine was not booted since the step before")
    if step == "after":
        groups = tuple(_against(folder, record, now[key], steps["before"], e) for key, e in before.items())
    else:
        after = steps["after"]
        there = {(e.scenario, e.backend): e for e in after.evidence}
        groups = tuple(
            _there_and_back(
                Path(state.steps["after"].folder), after, there[key], (steps["before"], e), (record, now[key])
            )
            for key, e in before.items()
        )
    return GatePage(groups=groups, expected=read_expected(order.expected), today=today, notes=tuple(notes))


def _right_stack(state: GateState, step: str, before: Evidence, now: Evidence) -> None:
    """Make sure that what must have moved since the step before has, and nothing else.

    Raises:
        UserError: It has not; names what moved.
    """
    scenario = before.scenario
    if differing := differences(before.identity, now.identity):
        raise UserError(f"{scenario}: must match but differs: {', '.join(map(str, differing))}")
    changes = stack_changes(before.stack, now.stack)
    moved = ", ".join(map(str, changes))
    if step == "back":
        if changes:
            raise UserError(f"{scenario}: this is not the stack of step before: {moved}")
        return
    if not changes:
        raise UserError(f"{scenario}: the stack is still that of step before: nothing was upgraded, or not loaded")
    varying = parse_varying(state.varying) if state.varying is not None else None
    if other := not_allowed_to_vary(changes, varying):
        raise UserError(f"{scenario}: only {state.varying} may have moved, but this did: {', '.join(map(str, other))}")


def _against(folder: Path, record: RunRecord, evidence: Evidence, base: RunRecord, before: Evidence) -> Group:
    baseline = baseline_of(base, before)

    def judge(comparison: Comparison, now: Evidence) -> Verdict:
        return comparison.look(now, baseline, max(len(comparison.looks) - 1, 0))

    return group_of(folder, record, evidence, baseline, judge, _golden(baseline, before), f"moegpu promote {folder}")


def _there_and_back(
    folder: Path,
    record: RunRecord,
    after: Evidence,
    before: tuple[RunRecord, Evidence],
    back: tuple[RunRecord, Evidence],
) -> Group:
    first, last = baseline_of(*before), baseline_of(*back)
    both = replace(first, sessions=(*first.sessions, *last.sessions))
    bad = faults_of(*back)

    def judge(comparison: Comparison, now: Evidence) -> Verdict:
        if bad:
            return comparison.impossible(f"run {back[0].id} is no measure for others: {'; '.join(bad)}")
        verdict = comparison.look(now, _timeless(both, now), max(len(comparison.looks) - 1, 0))
        sides = first.values(comparison.metric), verdict.values, last.values(comparison.metric)
        if not all(sides) or verdict.change is None:
            return verdict
        kind = METRICS[comparison.metric]
        tolerance = comparison.scenario.limits.tolerance.get(comparison.metric, kind.tolerance)
        return there_and_back(verdict, *sides, tolerance)

    return group_of(folder, record, after, both, judge, _golden(first, before[1]), f"moegpu promote {folder}")


def _golden(baseline: Baseline, before: Evidence) -> Judge:
    """Return what holds log-probabilities against those of step before."""
    own = golden_of(before)
    reference = Reference(baseline=replace(baseline, golden=own), source="step before") if own is not None else None
    return judge_against(reference)


def _timeless(both: Baseline, after: Evidence) -> Baseline:
    """Give the session that came last the time of after: that it is later is the design, and no clock's fault."""
    at = after.starts[0].started_at
    return replace(both, sessions=tuple(replace(s, recorded_at=min(s.recorded_at, at)) for s in both.sessions))
