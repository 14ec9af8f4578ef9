"""What the statistics say of one metric, by the design of the comparison: interleaved starts, or stored sessions.

Interleaved: both sides were started in turn in one session, so starts are exchangeable and an exact rank test decides.
Stored: the other side was measured on another day, and the spread between sessions decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_moegpu.core import stats
from pytest_moegpu.core.between import SessionDifference, SessionSpread, session_difference
from pytest_moegpu.core.holm import holm, step_down
from pytest_moegpu.core.looks import planned_levels, planned_shares
from pytest_moegpu.core.verdict import Better, MetricKind

__all__ = [
    "ALPHA",
    "EQUIVALENCE_ALPHA",
    "FAR",
    "INTERVAL_CONFIDENCE",
    "LEAST_STARTS",
    "Design",
    "Judged",
    "Side",
    "judge_interleaved",
    "judge_stored",
]

ALPHA = 0.01
"""One-sided level of a regression or an improvement, over all looks and all metrics of a scenario."""
EQUIVALENCE_ALPHA = 0.05
"""Level of each of the two one-sided tests that show equivalence, over all looks."""
INTERVAL_CONFIDENCE = 0.99
"""Confidence of the interval that is reported of interleaved starts; of stored sessions it is 1 - 2 ALPHA."""
LEAST_STARTS = 3
"""Starts of either side below which a stored session is not judged: of two, one slow start is half of all."""
FAR = 0.10
"""A second test above this p-value contradicts one that rejects at ALPHA; see docs/reference/judging.md."""

_ROUNDING = 1e-9


class Design(StrEnum):
    """How the two sides were measured."""

    STORED = "stored"
    INTERLEAVED = "interleaved"


@dataclass(frozen=True, kw_only=True)
class Side:
    """One metric of both sides: a value a start now, and for each session of the other side the same."""

    kind: MetricKind
    now: tuple[float, ...]
    sessions: tuple[tuple[float, ...], ...]

    @property
    def base(self) -> tuple[float, ...]:
        """All starts of the other side."""
        return tuple(value for session in self.sessions for value in session)

    @property
    def sign(self) -> int:
        """1 where more is better, so that a log ratio times it is negative for a loss."""
        return 1 if self.kind.better is Better.HIGHER else -1


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What the statistics say of one metric.

    `p_loss` and `p_gain` are adjusted for the metrics of the scenario, `raw` is the smaller one as it was; a loss or a
    gain is significant at `level` or below, and 0 says that this look can show none. `loss` is the relative change in
    the bad direction, `worst_loss` its bound at the level of equivalence, None where too few starts give no bound.
    `alone` (share of one) is how far sessions may differ by themselves, None where they are not part of it.
    `settled` is True when more starts cannot change the answer.
    """

    p_loss: float
    p_gain: float
    raw: float
    level: float
    estimate: stats.RatioEstimate
    loss: float
    worst_loss: float | None
    smallest_loss: float | None
    metrics: int
    alone: float | None = None
    settled: bool = False
    notes: tuple[str, ...] = ()


def judge_interleaved(side: Side, family: Mapping[str, Side], looks: Sequence[int], look: int) -> Judged:
    """Judge starts that were made in turn: exact Mann-Whitney, Hodges-Lehmann ratio and its exact interval.

    Args:
        side: The metric to judge; `family` holds it as well.
        family: All metrics of the scenario that are compared, by name.
        looks: Planned starts of each side, growing; empty for one look.
        look: Which of them this is, from 0.
    """
    now, base = side.now, side.base
    pairs = [(count, count) for count in looks]
    level = planned_levels(pairs, ALPHA)[look] if pairs else ALPHA
    equal = planned_levels(pairs, EQUIVALENCE_ALPHA)[look] if pairs else EQUIVALENCE_ALPHA
    estimate = stats.ratio(now, base, INTERVAL_CONFIDENCE)
    p_loss, p_gain = _p_value(side, worse=True), _p_value(side, worse=False)
    return Judged(
        p_loss=_adjusted(family, side.kind.name, worse=True),
        p_gain=_adjusted(family, side.kind.name, worse=False),
        raw=min(p_loss, p_gain),
        level=level,
        estimate=estimate,
        loss=_as_loss(math.log(estimate.estimate), side),
        worst_loss=_ruled_out(side, equal),
        smallest_loss=_as_fall(stats.smallest_loss(base, len(now), level, now=now) if level else None, side),
        metrics=len(family),
        notes=_contradiction(side, min(p_loss, p_gain), worse=p_loss <= p_gain),
    )


def judge_stored(
    side: Side,
    family: Mapping[str, Side],
    spreads: Mapping[str, SessionSpread],
    looks: Sequence[int],
    look: int,
    *,
    tolerance: float,
    minimum: float,
) -> Judged:
    """Judge a run against stored sessions: a prediction interval that knows the spread between sessions.

    Args:
        side: The metric to judge; `family` holds it as well.
        family: All metrics of the scenario that are compared, by name.
        spreads: Between sessions, by name of the metric.
        looks: Planned starts of the run, growing; empty for one look.
        look: Which of them this is, from 0.
        tolerance: Relative loss that is allowed.
        minimum: Smallest relative loss that is called a regression.

    Raises:
        ValueError: No side has two starts in a session.
    """
    share = planned_shares(len(looks))[look] if looks else 1.0
    p_values: dict[str, float] = {}
    for name, member in family.items():
        difference = session_difference(member.now, member.sessions, spreads[name])
        tail = difference.tail(share)
        p_values[name] = tail if difference.log_ratio * member.sign <= 0 else 1 - tail
    name = side.kind.name
    difference = session_difference(side.now, side.sessions, spreads[name])
    width = difference.half_width(ALPHA, share)
    worst = _as_loss(difference.log_ratio - side.sign * difference.half_width(EQUIVALENCE_ALPHA, share), side)
    return Judged(
        p_loss=holm(p_values)[name],
        p_gain=holm({key: 1 - p for key, p in p_values.items()})[name],
        raw=min(p_values[name], 1 - p_values[name]),
        level=ALPHA,
        estimate=stats.RatioEstimate(
            estimate=math.exp(difference.log_ratio),
            low=math.exp(difference.log_ratio - width),
            high=math.exp(difference.log_ratio + width),
            confidence=1 - 2 * ALPHA,
        ),
        loss=_as_loss(difference.log_ratio, side),
        worst_loss=worst,
        smallest_loss=_as_loss(-side.sign * difference.smallest(ALPHA, 0.9, share), side),
        metrics=len(family),
        alone=_as_loss(-side.sign * difference.out_of_reach(ALPHA), side),
        settled=_settled(difference, side, tolerance, minimum),
    )


def _settled(difference: SessionDifference, side: Side, tolerance: float, minimum: float) -> bool:
    """Tell whether no number of further starts in this session could settle the verdict.

    They can move the estimate, by twice its own standard error, and take away the part of the interval that is theirs.
    """
    seen, move = -difference.log_ratio * side.sign, 2 * difference.own
    bound = _as_loss(-side.sign * (seen - move + difference.out_of_reach(EQUIVALENCE_ALPHA)), side)
    shown = max(difference.out_of_reach(ALPHA), abs(math.log1p(-side.sign * minimum)))
    return bound > tolerance and seen + move < shown


def _adjusted(family: Mapping[str, Side], name: str, *, worse: bool) -> float:
    """Return the p-value of a loss (or a gain) of one metric, adjusted for all of the family."""
    turned: dict[str, tuple[Sequence[float], Sequence[float]]] = {}
    for key, side in family.items():
        falls = (side.sign > 0) is worse
        now, base = (values if falls else tuple(-v for v in values) for values in (side.now, side.base))
        turned[key] = now, base
    together = step_down(turned)
    if together is None:
        together = holm({key: _p_value(side, worse=worse) for key, side in family.items()})
    return together[name]


def _alternative(side: Side, *, worse: bool) -> stats.Alternative:
    return "less" if (side.sign > 0) is worse else "greater"


def _p_value(side: Side, *, worse: bool) -> float:
    return stats.mann_whitney(side.now, side.base, _alternative(side, worse=worse))


def _ruled_out(side: Side, level: float) -> float | None:
    """Return the loss that the exact interval rules out at this level; None where too few starts have no such bound."""
    if not level:
        return None
    bound = stats.ratio(side.now, side.base, 1 - 2 * level)
    if bound.confidence < 1 - 2 * level - _ROUNDING:
        return None
    return 1 - bound.low if side.sign > 0 else bound.high - 1


def _as_loss(log_ratio: float, side: Side) -> float:
    """Return a log ratio as relative change in the bad direction."""
    return -math.expm1(log_ratio) if side.sign > 0 else math.expm1(log_ratio)


def _as_fall(fall: float | None, side: Side) -> float | None:
    """Return a relative fall in the bad direction: a fall of x is in log units a rise of x / (1 - x)."""
    if fall is None or side.sign > 0:
        return fall
    return fall / (1 - fall) if fall < 1 else None


def _contradiction(side: Side, p: float, *, worse: bool) -> tuple[str, ...]:
    """Say so when the rank test and that of trimmed means contradict each other."""
    trimmed = stats.yuen(side.now, side.base, _alternative(side, worse=worse))
    if trimmed is None or min(p, trimmed) > ALPHA or max(p, trimmed) <= FAR:
        return ()
    which = "their order differs, their size hardly" if p <= ALPHA else "most differ, some lie the other way"
    return (f"look at the single starts, {which}: Mann-Whitney p = {p:.2g}, Yuen's trimmed means p = {trimmed:.2g}",)
