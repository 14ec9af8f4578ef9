"""What a comparison will be able to see, told before any of it is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_moegpu.core import stats
from pytest_moegpu.core.baseline import Baseline
from pytest_moegpu.core.between import session_difference
from pytest_moegpu.core.compare import MIN_LOSS, side_of, spread_of
from pytest_moegpu.core.designs import ALPHA, LEAST_STARTS, Design
from pytest_moegpu.core.looks import planned_levels, planned_shares
from pytest_moegpu.core.model import Scenario
from pytest_moegpu.core.obstacles import bad_values
from pytest_moegpu.core.units import format_percent
from pytest_moegpu.core.verdict import METRICS, Better, Metric

__all__ = ["POWER", "PlannedLoss", "planned_loss"]

POWER = 0.9
"""How often a loss of the size told is found."""


@dataclass(frozen=True, kw_only=True)
class PlannedLoss:
    """The smallest loss (share of one, in the bad direction) that each planned look will find nine times in ten.

    `losses` holds a pair of starts and loss for each look; a loss is None where that look cannot find any.
    """

    metric: str
    losses: tuple[tuple[int, float | None], ...]
    base_starts: int
    sessions: int

    def __str__(self) -> str:
        """Return one line, such as `decode: a loss of 6.6 % is found with 3 starts, of 6.3 % with 7`."""
        found = [(count, loss) for count, loss in self.losses if loss is not None]
        held = f"baseline: {_counted(self.base_starts, 'start')} in {_counted(self.sessions, 'session')}"
        title = METRICS[self.metric].title
        if not found:
            most = self.losses[-1][0] if self.losses else 0
            return f"{title}: no loss can be found with {_counted(most, 'start')} ({held})"
        told = ", of ".join(f"{format_percent(loss, signed=False)} with {count}" for count, loss in found)
        first, _, rest = told.partition(" with ")
        return f"{title}: a loss of {first} is found with {rest} starts, 9 times in 10 ({held})"


def planned_loss(
    metric: str,
    scenario: Scenario,
    baseline: Baseline,
    looks: Sequence[int],
    *,
    design: Design = Design.STORED,
    kin: Sequence[Baseline] = (),
    session_cv: float | None = None,
) -> PlannedLoss | None:
    """Return the smallest loss that a planned comparison will find, if its starts spread as those of the baseline.

    It is told of one metric alone; where several are compared, one that is lost alone must be larger by a little.

    Args:
        metric: Name of a metric.
        scenario: Its tolerance, where below 2 %, is the smallest loss that is called one.
        baseline: What will be compared with.
        looks: Planned numbers of starts, growing, at least one.
        design: How the two sides will be measured.
        kin: Baselines of other scenarios of the profile, see `core.compare`.
        session_cv: Spread between sessions to assume for speeds, see `core.compare`.

    Returns:
        None when the baseline holds no usable values of this metric.

    Raises:
        ValueError: `looks` do not grow, or there are none.
    """
    base, kind = baseline.values(metric), METRICS[metric]
    if not base or bad_values(base, ""):
        return None
    if not looks or list(looks) != sorted(set(looks)) or looks[0] < 1:
        raise ValueError(f"looks must grow from 1 on, not {', '.join(map(str, looks)) or 'none'}")
    side = side_of(Metric(name=metric, values=base), baseline)
    least = min(MIN_LOSS, scenario.limits.tolerance.get(metric, kind.tolerance))
    losses: list[tuple[int, float | None]] = []
    interleaved = design is Design.INTERLEAVED
    # What a look may spend: a level of the exact test, or a share of one.
    spent = planned_levels([(n, n) for n in looks], ALPHA) if interleaved else planned_shares(len(looks))
    for count, level in zip(looks, spent, strict=True):
        logs: float | None = None
        if interleaved:
            fall = stats.smallest_loss(base, count, level) if level else None
            logs = -math.log1p(-fall) if fall is not None and fall < 1 else None
        elif min(count, len(base)) >= LEAST_STARTS and any(len(starts) > 1 for starts in side.sessions):
            spread = spread_of(kind, (baseline, *kin), session_cv)
            logs = session_difference(base, side.sessions, spread, planned=count).smallest(ALPHA, POWER, level)
        if logs is None:
            losses.append((count, None))
        else:
            loss = -math.expm1(-logs) if kind.better is Better.HIGHER else math.expm1(logs)
            losses.append((count, max(loss, least)))
    return PlannedLoss(metric=metric, losses=tuple(losses), base_starts=len(base), sessions=len(side.sessions))


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
