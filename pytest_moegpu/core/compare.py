"""Metric × baseline × tolerance → verdict. The direction of a metric is data (`METRICS`), never guessed from its name.

A loss is REGRESSED when it is significant (1 % over all planned looks) and at least 2 %, even inside the tolerance.
PASS is shown, not assumed: the 90 % interval must exclude a loss beyond the tolerance (two one-sided tests at 5 %).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_moegpu.core import stats
from pytest_moegpu.core.baseline import Baseline
from pytest_moegpu.core.evidence import Evidence, Phase
from pytest_moegpu.core.identity import (
    STACK_FIELDS,
    Difference,
    differences,
    not_allowed_to_vary,
    stack_changes,
)
from pytest_moegpu.core.model import Scenario
from pytest_moegpu.core.units import format_percent, format_value
from pytest_moegpu.core.verdict import Better, FailedClass, Metric, MetricKind, Outcome, Verdict

__all__ = ["ALPHA", "EQUIVALENCE_ALPHA", "INTERVAL_CONFIDENCE", "MIN_LOSS", "compare", "wants_more_starts"]

ALPHA = 0.01
"""One-sided level of a regression or an improvement, over all looks."""
EQUIVALENCE_ALPHA = 0.05
"""Level of each of the two one-sided tests that show equivalence."""
INTERVAL_CONFIDENCE = 0.99
"""Confidence of the interval that is reported."""
MIN_LOSS = 0.02
"""Smallest estimate of a loss that is called a regression, or the tolerance where that is narrower."""

_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """What the statistics say. `loss` is the relative change in the bad direction, `worst_loss` its bound at 5 %.

    `minimum` is the smallest loss that is called a regression.
    """

    p_loss: float
    p_gain: float
    estimate: stats.RatioEstimate
    equivalence: stats.RatioEstimate
    loss: float
    worst_loss: float
    minimum: float
    smallest_loss: float | None


def compare(
    metric: Metric,
    evidence: Evidence,
    scenario: Scenario,
    baseline: Baseline | None,
    *,
    varying: frozenset[str] | None = None,
    look: int = 0,
    looks: tuple[int, ...] = (),
) -> Verdict:
    """Judge one metric of a run against its baseline.

    Args:
        metric: One value a start, in the unit of its kind.
        evidence: The run: its identity and stack.
        scenario: Its `limits.tolerance` (relative, by metric name) goes before the metric's default.
        baseline: What to compare with, if there is one.
        varying: Words of `identity.VARYING_WORDS` whose parts of the stack may move; None lets all of it move.
        look: Which of the planned looks this is, from 0.
        looks: Planned numbers of starts, growing; empty for a single look at the whole level.

    Raises:
        ValueError: `look` is not one of `looks`, or `looks` do not grow.
    """
    verdict = Verdict(
        outcome=Outcome.NO_BASELINE,
        check="baseline",
        scenario=evidence.scenario,
        subject=metric.kind.title,
        phase=Phase.COMPARE,
        metric=metric.name,
    )
    problem = _problem(metric.values, f"{metric.name} values of this run")
    if not problem:
        verdict = replace(verdict, value=metric.median, values=metric.values)
    promote = "moegpu promote .moegpu/runs/<id>"
    if baseline is None:
        return replace(verdict, reason=f"nothing to compare with; if this run is good, keep it: {promote}")
    base = baseline.values(metric.name)
    if not base:
        return replace(verdict, reason=f"the baseline holds no {metric.name}; if this run is good, keep it: {promote}")

    changes = stack_changes(baseline.stack, evidence.stack)
    verdict = replace(verdict, lines=(("changed", _joined(changes) or "nothing under test"),))
    mismatch = _mismatch(metric.kind, evidence, baseline)
    if mismatch:
        reason = f"must match but differs: {_joined(mismatch)}"
        return replace(verdict, outcome=Outcome.NOT_COMPARABLE, reason=reason)
    forbidden = not_allowed_to_vary(changes, varying)
    if forbidden:
        allowed = ", ".join(sorted(varying or ())) or "nothing"
        reason = f"only {allowed} may vary, but this moved: {_joined(forbidden)}"
        return replace(verdict, outcome=Outcome.NOT_COMPARABLE, reason=reason)
    if problem:
        return replace(verdict, outcome=Outcome.INCONCLUSIVE, reason=problem)
    damaged = _problem(base, f"{metric.name} values of the baseline")
    if damaged:
        return replace(verdict, outcome=Outcome.ERROR, reason=damaged)

    alpha = _alpha_of_look(look, looks, len(base))
    tolerance = scenario.limits.tolerance.get(metric.name, metric.kind.tolerance)
    judged = _statistics(metric, base, alpha, min(MIN_LOSS, tolerance))
    outcome, reason = _decide(judged, alpha, tolerance, len(metric.values), len(base))
    estimate, higher = judged.estimate, metric.kind.better is Better.HIGHER
    return replace(
        verdict,
        outcome=outcome,
        reason=reason,
        failed_class=_failed_class(metric.kind) if outcome is Outcome.REGRESSED else None,
        baseline=Metric(name=metric.name, values=base).median,
        baseline_values=base,
        change=estimate.estimate - 1,
        interval=(estimate.low - 1, estimate.high - 1),
        confidence=estimate.confidence,
        allowed=-tolerance if higher else tolerance,
        smallest_loss=judged.smallest_loss,
        lines=(
            *_lines(metric, base, judged.smallest_loss, verdict.lines, evidence, baseline, changes),
            *_blameless(outcome, changes),
        ),
        more={"more_starts": "yes"} if outcome is Outcome.INCONCLUSIVE else {},
    )


def wants_more_starts(verdict: Verdict) -> bool:
    """Tell whether more starts can settle this verdict: it is INCONCLUSIVE for want of starts or precision."""
    return verdict.outcome is Outcome.INCONCLUSIVE and verdict.more.get("more_starts") == "yes"


def _problem(values: tuple[float, ...], what: str) -> str:
    try:
        stats.checked(values, what)
    except ValueError as error:
        return str(error)
    return ""


def _mismatch(kind: MetricKind, evidence: Evidence, baseline: Baseline) -> tuple[Difference, ...]:
    """Return every must-match difference; versions and units are compared even if the identity does not hold them."""
    key, unit = "check.version", f"unit.{kind.name}"
    base = {key: str(baseline.check_version), unit: baseline.units.get(kind.name, kind.unit)}
    now = {key: str(evidence.check_version), unit: kind.unit}
    direction = f"better.{kind.name}"
    base[direction], now[direction] = baseline.better.get(kind.name, kind.better), kind.better
    found = differences(baseline.identity, evidence.identity)
    seen = {d.field for d in found}
    return found + tuple(d for d in differences(base, now) if d.field not in seen)


def _alpha_of_look(look: int, looks: tuple[int, ...], n_base: int) -> float:
    if not looks and look == 0:
        return ALPHA
    if not 0 <= look < len(looks):
        raise ValueError(f"look {look} is not one of the {len(looks)} planned looks")
    return stats.planned_alphas(looks, n_base, ALPHA)[look]


def _statistics(metric: Metric, base: tuple[float, ...], alpha: float, minimum: float) -> _Judged:
    now = metric.values
    estimate = stats.ratio(now, base, INTERVAL_CONFIDENCE)
    equivalence = stats.ratio(now, base, 1 - 2 * EQUIVALENCE_ALPHA)
    less, greater = stats.mann_whitney(now, base, "less"), stats.mann_whitney(now, base, "greater")
    seen = stats.smallest_loss(base, len(now), alpha, now=now) if alpha else None
    if metric.kind.better is Better.HIGHER:
        p_loss, p_gain, loss, worst_loss = less, greater, 1 - estimate.estimate, 1 - equivalence.low
    else:
        p_loss, p_gain, loss, worst_loss = greater, less, estimate.estimate - 1, equivalence.high - 1
        # A fall of x is in log units the same as a rise of x / (1 - x).
        seen = seen / (1 - seen) if seen is not None and seen < 1 else None
    return _Judged(
        p_loss=p_loss,
        p_gain=p_gain,
        estimate=estimate,
        equivalence=equivalence,
        loss=loss,
        worst_loss=worst_loss,
        minimum=minimum,
        # A loss below the minimum is never reported, however sharp the test.
        smallest_loss=None if seen is None else max(seen, minimum),
    )


def _decide(judged: _Judged, alpha: float, tolerance: float, n_now: int, n_base: int) -> tuple[Outcome, str]:
    loss, allowed = judged.loss, format_percent(tolerance, signed=False)
    shown = format_percent(abs(loss), signed=False)
    if judged.p_loss <= alpha and loss >= judged.minimum - _ROUNDING:
        return Outcome.REGRESSED, f"a loss of {shown} is significant (p = {judged.p_loss:.2g}, level {alpha:.2g})"
    if judged.p_gain <= alpha and -loss > tolerance + _ROUNDING:
        return Outcome.IMPROVED, f"a gain of {shown} is significant (p = {judged.p_gain:.2g}, level {alpha:.2g})"
    wanted = 1 - 2 * EQUIVALENCE_ALPHA - _ROUNDING
    # A look that cannot show a loss must not wave one through that would be reported if it could.
    unseen = alpha == 0 and loss >= judged.minimum - _ROUNDING
    if not unseen and judged.equivalence.confidence >= wanted and judged.worst_loss <= tolerance + _ROUNDING:
        worst = format_percent(max(judged.worst_loss, 0.0), signed=False)
        return Outcome.PASS, f"a loss beyond {worst} is ruled out at 5 %, allowed {allowed}"
    return Outcome.INCONCLUSIVE, _why_inconclusive(judged, alpha, allowed, n_now, n_base)


def _why_inconclusive(judged: _Judged, alpha: float, allowed: str, n_now: int, n_base: int) -> str:
    to_pass = stats.starts_needed(n_base, EQUIVALENCE_ALPHA)
    level = alpha or ALPHA
    to_fail = stats.starts_needed(n_base, level)
    if n_now < to_pass:
        return (
            f"too few starts: {n_now} now, {n_base} in the baseline; "
            f"{to_pass} are needed to pass, {to_fail} to show a loss (level {level:.2g})"
        )
    if alpha == 0 and judged.loss >= judged.minimum:
        seen = format_percent(judged.loss, signed=False)
        return f"a loss of {seen} was seen, and {n_now} starts cannot show whether it is real: {to_fail} are needed"
    worst = format_percent(judged.worst_loss, signed=False)
    reason = f"interval too wide: a loss of {worst} is not ruled out, allowed {allowed}"
    if judged.p_loss > EQUIVALENCE_ALPHA or judged.loss < judged.minimum:
        return reason
    likely = f"; a loss of {format_percent(judged.loss, signed=False)} is likely (p = {judged.p_loss:.2g})"
    if n_now < to_fail:
        return f"{reason}{likely}, but too few starts to show it: {n_now} of {to_fail}"
    return f"{reason}{likely}, needs p <= {level:.2g}"


def _failed_class(kind: MetricKind) -> FailedClass:
    return FailedClass.MEMORY if kind.unit == "B" else FailedClass.PERFORMANCE


def _lines(
    metric: Metric,
    base: tuple[float, ...],
    seen: float | None,
    changed: tuple[tuple[str, str], ...],
    evidence: Evidence,
    baseline: Baseline,
    changes: tuple[Difference, ...],
) -> tuple[tuple[str, str], ...]:
    spread = stats.coefficient_of_variation(base)
    cv = "not known" if spread is None else format_percent(spread, signed=False)
    smallest = "none, too few starts" if seen is None else f"about {format_percent(seen, signed=False)}"
    plural = "" if len(base) == 1 else "s"
    starts = (
        f"{_series(metric.values, metric.kind.unit)}; baseline {len(base)} start{plural}, CV {cv}; "
        f"smallest loss this run could see: {smallest}"
    )
    moved = {c.field.partition(".")[0] for c in changes}
    known = (f for f in STACK_FIELDS if getattr(evidence.stack, f) and f not in moved)
    same = ", ".join(("GPU, model, settings, prompts", *map(_label, known)))
    lines = (("starts", starts), *changed, ("same", same))
    count = len(baseline.sessions)
    held = "1 session" if count == 1 else f"{count} sessions, pooled"
    # Simulated: with sessions that differ by 2 % (CV) the pooled test alarms falsely in 8 to 17 % of comparisons.
    return (*lines, ("note", f"baseline holds {held}: the spread between sessions is not part of the 1 % level"))


def _blameless(outcome: Outcome, changes: tuple[Difference, ...]) -> tuple[tuple[str, str], ...]:
    """A difference between two sessions of the same stack is no upgrade's doing, and that must be said."""
    if outcome not in (Outcome.REGRESSED, Outcome.IMPROVED) or changes:
        return ()
    return (("note", "nothing under test changed: this is the machine's spread between sessions, or was not recorded"),)


def _series(values: tuple[float, ...], unit: str) -> str:
    """Print values with their unit once, where all have the same."""
    pairs = [format_value(v, unit).rsplit(" ", 1) for v in values]
    if len({shown for _, shown in pairs}) > 1:
        return "  ".join(" ".join(pair) for pair in pairs)
    return f"{' '.join(number for number, _ in pairs)} {pairs[0][1]}"


def _label(field: str) -> str:
    """Return a stack field as words; a must-match field stays the key it is stored under."""
    head, _, library = field.partition(".")
    if head not in STACK_FIELDS:
        return field
    return f"library {library}" if library else field.replace("cuda", "CUDA").replace("_", " ")


def _joined(changes: tuple[Difference, ...]) -> str:
    return ", ".join(str(replace(c, field=_label(c.field))) for c in changes)
