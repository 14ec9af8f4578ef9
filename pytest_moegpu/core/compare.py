"""Metric × baseline × tolerance → verdict. The direction of a metric is data (`METRICS`), never guessed from its name.

A loss is REGRESSED when it is significant (1 % over all planned looks and all metrics of the scenario) and at least
2 %, even inside the tolerance. PASS is shown, not assumed: a loss beyond the tolerance must be ruled out at 5 %.
What significant means depends on the design; see `core.designs` and docs/reference/judging.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_moegpu.core import stats
from pytest_moegpu.core.age import AGE, too_old
from pytest_moegpu.core.attribution import with_cause
from pytest_moegpu.core.baseline import Baseline
from pytest_moegpu.core.between import SessionSpread, session_spread
from pytest_moegpu.core.designs import ALPHA, EQUIVALENCE_ALPHA, Design, Judged, Side, judge_interleaved, judge_stored
from pytest_moegpu.core.evidence import Evidence, Phase
from pytest_moegpu.core.identity import (
    STACK_FIELDS,
    Difference,
    in_words,
    label,
    not_allowed_to_vary,
    refusal,
    stack_changes,
)
from pytest_moegpu.core.model import Scenario
from pytest_moegpu.core.obstacles import bad_values, mismatch, obstacle, other_machine
from pytest_moegpu.core.units import format_percent, format_value
from pytest_moegpu.core.verdict import METRICS, Better, FailedClass, Metric, MetricKind, Outcome, Verdict

__all__ = ["MIN_LOSS", "compare", "side_of", "spread_of", "wants_more_starts"]

MIN_LOSS = 0.02
"""Smallest estimate of a loss that is called a regression, or the tolerance where that is narrower."""

_ROUNDING = 1e-9
_SETTLE = "settle it in one session, `moegpu ab`, or with one before, one after and one back, `moegpu gate`"


def compare(
    metric: Metric,
    evidence: Evidence,
    scenario: Scenario,
    baseline: Baseline | None,
    *,
    varying: frozenset[str] | None = None,
    look: int = 0,
    looks: tuple[int, ...] = (),
    design: Design = Design.STORED,
    family: Mapping[str, Metric] | None = None,
    kin: Sequence[Baseline] = (),
    session_cv: float | None = None,
) -> Verdict:
    """Judge one metric of a run against its baseline.

    Args:
        metric: One value a start, in the unit of its kind.
        evidence: The run: its identity and stack.
        scenario: Its `limits.tolerance` (relative, by metric name) goes before the metric's default.
        baseline: What to compare with, if there is one.
        varying: Words of `identity.VARYING_WORDS` whose parts of the stack may move; None lets all of it move.
        look: Which of the planned looks this is, from 0.
        looks: Planned numbers of starts, growing; empty for a single look at the whole level. With interleaved starts
            each side has as many.
        design: How the two sides were measured.
        family: All metrics of the same evidence, by name: the level is kept for those together that are compared and
            that the baseline holds. None: this one alone.
        kin: Baselines of other scenarios of the same profile, whose sessions tell of the spread between sessions too.
        session_cv: Spread between sessions of the speeds (a share of one) to assume until the stored ones show it;
            None takes the default of each metric.

    Raises:
        ValueError: `look` is not one of `looks`, or `looks` do not grow.
    """
    _check_looks(look, looks)
    verdict = Verdict(
        outcome=Outcome.NO_BASELINE,
        check="baseline",
        scenario=evidence.scenario,
        subject=metric.kind.title,
        phase=Phase.COMPARE,
        metric=metric.name,
    )
    if not bad_values(metric.values, ""):
        verdict = replace(verdict, value=metric.median, values=metric.values)
    promote = "moegpu promote .moegpu/runs/<id>"
    if baseline is None:
        return replace(verdict, reason=f"nothing to compare with; if this run is good, keep it: {promote}")
    base = baseline.values(metric.name)
    if not base:
        return replace(verdict, reason=f"the baseline holds no {metric.name}; if this run is good, keep it: {promote}")

    changes = stack_changes(baseline.stack, evidence.stack)
    verdict = replace(verdict, lines=(("changed", in_words(changes) or "nothing under test"),))
    if refused := refusal(mismatch(metric.kind, evidence, baseline), not_allowed_to_vary(changes, varying), varying):
        return replace(verdict, outcome=Outcome.NOT_COMPARABLE, reason=refused)
    if found := obstacle(metric, evidence, baseline, design):
        more = {"more_starts": "yes"} if found.more_starts else {}
        return replace(verdict, outcome=found.outcome, reason=found.reason, more=more)

    tolerance = scenario.limits.tolerance.get(metric.name, metric.kind.tolerance)
    minimum = min(MIN_LOSS, tolerance)
    side = side_of(metric, baseline)
    sides = _family(metric, family, evidence, baseline, design)
    spreads = {name: spread_of(METRICS[name], (baseline, *kin), session_cv) for name in sides}
    if design is Design.INTERLEAVED:
        judged = judge_interleaved(side, sides, looks, look)
    else:
        judged = judge_stored(side, sides, spreads, looks, look, tolerance=tolerance, minimum=minimum)
    # A loss below the minimum is never reported, however sharp the test.
    seen = None if judged.smallest_loss is None else max(judged.smallest_loss, minimum)
    if seen is not None and _no_spread(side):
        seen = None
    outcome, reason = _decide(judged, side, tolerance, minimum, last=look >= len(looks) - 1)
    estimate = judged.estimate
    more_starts = outcome is Outcome.INCONCLUSIVE and not judged.settled
    old = too_old(
        (s.recorded_at for s in baseline.sessions),
        (s.started_at for s in evidence.starts),
        scenario.limits.baseline_age_seconds,
    )
    judged_one = replace(
        verdict,
        outcome=outcome,
        reason=reason,
        failed_class=_failed_class(metric.kind) if outcome is Outcome.REGRESSED else None,
        baseline=Metric(name=metric.name, values=base).median,
        baseline_values=base,
        change=estimate.estimate - 1,
        interval=(estimate.low - 1, estimate.high - 1),
        confidence=estimate.confidence,
        allowed=-tolerance if metric.kind.better is Better.HIGHER else tolerance,
        smallest_loss=seen,
        lines=(
            _starts_line(side, seen),
            *verdict.lines,
            ("same", _same(evidence, changes)),
            *(("note", said) for said in _notes(side, judged, spreads[metric.name], evidence, baseline, design)),
            *(((AGE, old),) if old and design is Design.STORED else ()),
            *_blameless(outcome, changes, design),
        ),
        more={"more_starts": "yes"} if more_starts else {},
    )
    return with_cause(judged_one, changes) if changes and design is Design.STORED else judged_one


def wants_more_starts(verdict: Verdict) -> bool:
    """Tell whether more starts can settle this verdict: it is INCONCLUSIVE for want of starts or precision."""
    return verdict.outcome is Outcome.INCONCLUSIVE and verdict.more.get("more_starts") == "yes"


def side_of(metric: Metric, baseline: Baseline) -> Side:
    """Return the values of both sides; sessions of the baseline without this metric are left out."""
    sessions = tuple(values for s in baseline.sessions if (values := s.metrics.get(metric.name)))
    return Side(kind=metric.kind, now=metric.values, sessions=sessions)


def spread_of(kind: MetricKind, baselines: Sequence[Baseline], session_cv: float | None) -> SessionSpread:
    """Return the spread between sessions of one metric, from all sessions of these baselines and what is assumed.

    Args:
        kind: The metric; its `session_cv` is assumed for memory always, for speeds where none is given.
        baselines: Of scenarios of one profile. What cannot be read as values of this metric is left out.
        session_cv: Spread to assume for speeds, a share of one.
    """
    held = [
        [(s.run, values) for s in b.sessions if (values := s.metrics.get(kind.name, ())) and not bad_values(values, "")]
        for b in baselines
    ]
    prior = kind.session_cv if session_cv is None or kind.unit == "B" else session_cv
    groups = [[values for _, values in sessions] for sessions in held if sessions]
    return session_spread(groups, prior, len({run for sessions in held for run, _ in sessions}))


def _check_looks(look: int, looks: tuple[int, ...]) -> None:
    if (looks or look) and not 0 <= look < len(looks):
        raise ValueError(f"look {look} is not one of the {len(looks)} planned looks")
    if list(looks) != sorted(set(looks)):
        raise ValueError(f"looks must grow, not {', '.join(map(str, looks))}")


def _family(
    metric: Metric, family: Mapping[str, Metric] | None, evidence: Evidence, baseline: Baseline, design: Design
) -> dict[str, Side]:
    """Return both sides of every metric that is compared and that can be, the one in question always among them."""
    members = {metric.name: metric} | {name: m for name, m in (family or {}).items() if m.kind.compared}
    return {
        name: side_of(member, baseline)
        for name, member in members.items()
        if baseline.values(name) and not obstacle(member, evidence, baseline, design)
    }


def _no_spread(side: Side) -> bool:
    """Tell whether speeds have no spread at all, so that it was not measured; the memory of a program may have none."""
    return side.kind.unit != "B" and all(len(set(values)) == 1 for values in (side.now, *side.sessions))


def _decide(judged: Judged, side: Side, tolerance: float, minimum: float, *, last: bool) -> tuple[Outcome, str]:
    loss, allowed = judged.loss, format_percent(tolerance, signed=False)
    shown = format_percent(abs(loss), signed=False)
    if judged.p_loss <= judged.level and loss >= minimum - _ROUNDING:
        return Outcome.REGRESSED, f"a loss of {shown} is significant ({_p(judged, judged.p_loss)}){_beyond(judged)}"
    if judged.p_gain <= judged.level and -loss > tolerance + _ROUNDING:
        return Outcome.IMPROVED, f"a gain of {shown} is significant ({_p(judged, judged.p_gain)}){_beyond(judged)}"
    # A loss that would be reported if it were significant is not waved through where later looks may show that it is.
    unseen = (judged.level == 0 or not last) and loss >= minimum - _ROUNDING
    ruled_out = judged.worst_loss is not None and judged.worst_loss <= tolerance + _ROUNDING
    if ruled_out and unseen:
        return Outcome.INCONCLUSIVE, f"a loss of {shown} was seen, and more starts may show whether it is real"
    if judged.worst_loss is not None and ruled_out:
        worst = format_percent(max(judged.worst_loss, 0.0), signed=False)
        return Outcome.PASS, f"a loss beyond {worst} is ruled out at 5 %, allowed {allowed}"
    if judged.alone is not None:
        return Outcome.INCONCLUSIVE, _why_stored(judged, allowed, minimum)
    return Outcome.INCONCLUSIVE, _why_interleaved(judged, side, allowed, minimum)


def _p(judged: Judged, p: float) -> str:
    """Print a p-value as it was and as it is when all metrics of the scenario are counted."""
    many = "" if judged.metrics == 1 else f", {p:.2g} among {judged.metrics} metrics"
    return f"p = {judged.raw:.2g}{many}, level {judged.level:.2g}"


def _beyond(judged: Judged) -> str:
    if judged.alone is None:
        return ""
    return f": sessions alone differ by up to {format_percent(judged.alone, signed=False)}"


def _why_stored(judged: Judged, allowed: str, minimum: float) -> str:
    worst = format_percent(judged.worst_loss or 0.0, signed=False)
    alone = format_percent(judged.alone or 0.0, signed=False)
    likely = ""
    if judged.p_loss <= EQUIVALENCE_ALPHA and judged.loss >= minimum:
        seen = format_percent(judged.loss, signed=False)
        likely = f"; a loss of {seen} is likely ({_p(judged, judged.p_loss)})"
    return (
        f"interval too wide: a loss of {worst} is not ruled out, allowed {allowed}{likely}. "
        f"Sessions alone differ by up to {alone}: {_SETTLE}"
    )


def _why_interleaved(judged: Judged, side: Side, allowed: str, minimum: float) -> str:
    n_now, n_base, level = len(side.now), len(side.base), judged.level or ALPHA
    to_fail = stats.starts_needed(n_base, level)
    if judged.worst_loss is None:
        to_pass = stats.starts_needed(n_base, EQUIVALENCE_ALPHA)
        return (
            f"too few starts: {n_now} now, {n_base} in the baseline; "
            f"{to_pass} are needed to pass, {to_fail} to show a loss (level {level:.2g})"
        )
    worst = format_percent(judged.worst_loss, signed=False)
    reason = f"interval too wide: a loss of {worst} is not ruled out, allowed {allowed}"
    if judged.p_loss > EQUIVALENCE_ALPHA or judged.loss < minimum:
        return reason
    seen = format_percent(judged.loss, signed=False)
    likely = f"; a loss of {seen} is likely ({_p(judged, judged.p_loss)})"
    if n_now < to_fail:
        return f"{reason}{likely}, but too few starts to show it: {n_now} of {to_fail}"
    return f"{reason}{likely}"


def _failed_class(kind: MetricKind) -> FailedClass:
    return FailedClass.MEMORY if kind.unit == "B" else FailedClass.PERFORMANCE


def _starts_line(side: Side, seen: float | None) -> tuple[str, str]:
    base = side.base
    spread = stats.coefficient_of_variation(base)
    cv = "not known" if spread is None else format_percent(spread, signed=False)
    smallest = "none" if seen is None else f"about {format_percent(seen, signed=False)}"
    plural = "" if len(base) == 1 else "s"
    return (
        "starts",
        f"{_series(side.now, side.kind.unit)}; baseline {len(base)} start{plural}, CV {cv}; "
        f"smallest loss this run could see: {smallest}",
    )


def _same(evidence: Evidence, changes: tuple[Difference, ...]) -> str:
    moved = {c.field.partition(".")[0] for c in changes}
    known = (f for f in STACK_FIELDS if getattr(evidence.stack, f) and f not in moved)
    return ", ".join(("GPU, model, settings, prompts", *map(label, known)))


def _notes(
    side: Side, judged: Judged, spread: SessionSpread, evidence: Evidence, baseline: Baseline, design: Design
) -> tuple[str, ...]:
    notes = list(judged.notes)
    if _no_spread(side):
        notes.append("all starts gave one value to the last digit: their spread was not measured")
    if design is Design.STORED:
        count = len(side.sessions)
        cv = format_percent(spread.cv, signed=False)
        held = "1 session" if count == 1 else f"{count} sessions"
        if spread.measured is None:
            notes.append(f"baseline holds {held}: sessions are taken to differ by {cv} (CV), which was not measured")
        else:
            measured = format_percent(spread.measured, signed=False)
            notes.append(f"baseline holds {held}; sessions differ by {measured} (CV), {cv} is reckoned with")
        if machines := other_machine(evidence, baseline):
            notes.append(f"baseline{machines}: what machines differ by is not reckoned with")
    return tuple(notes)


def _blameless(outcome: Outcome, changes: tuple[Difference, ...], design: Design) -> tuple[tuple[str, str], ...]:
    """A difference between two sessions of the same stack is no upgrade's doing, and that must be said."""
    if outcome not in (Outcome.REGRESSED, Outcome.IMPROVED) or changes or design is Design.INTERLEAVED:
        return ()
    return (("note", "nothing under test changed: this is the machine's spread between sessions, or was not recorded"),)


def _series(values: tuple[float, ...], unit: str) -> str:
    """Print values with their unit once, where all have the same."""
    pairs = [format_value(v, unit).rsplit(" ", 1) for v in values]
    if len({shown for _, shown in pairs}) > 1:
        return "  ".join(" ".join(pair) for pair in pairs)
    return f"{' '.join(number for number, _ in pairs)} {pairs[0][1]}"
