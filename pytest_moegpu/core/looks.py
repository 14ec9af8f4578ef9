"""Planned looks: what each may spend of a level, so that a clear case stops early and all together keep the level.

An early look spends at most half of what is left, the last one the rest. Equal shares would let a first look of five
starts against five never reject: its smallest p is 1/252 = 0.4 %, a third of 1 % is less.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pytest_moegpu.core.stats import rejection

__all__ = ["planned_levels", "planned_shares"]


def planned_shares(count: int) -> tuple[float, ...]:
    """Return the share of a level that each of `count` looks may spend, for tests with a continuous p-value.

    Raises:
        ValueError: `count` is below 1.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    early = tuple(0.5**k for k in range(1, count))
    return (*early, 1 - sum(early))


def planned_levels(looks: Sequence[tuple[int, int]], alpha: float) -> tuple[float, ...]:
    """Return the level of each planned look at an exact rank test; together they keep `alpha` (Bonferroni).

    An exact test has steps, so an early look spends the highest step within half of what is left, and nothing where
    the lowest is above it. Levels add up to alpha, or are all 0 when the last look cannot reject.

    Args:
        looks: Starts of the run and of the other side at each look; neither may shrink, one must grow.
        alpha: One-sided level of all looks together, above 0 and below 1.

    Raises:
        ValueError: Looks do not grow, or an argument is out of range.
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be above 0 and below 1, not {alpha:g}")
    if any(min(look) < 1 for look in looks):
        raise ValueError(f"looks must be of at least 1 start a side, not {_shown(looks)}")
    if any(b == a or b[0] < a[0] or b[1] < a[1] for a, b in pairwise(looks)):
        raise ValueError(f"looks must grow, not {_shown(looks)}")
    levels: list[float] = []
    for now, base in looks[:-1]:
        levels.append(rejection(now, base, (alpha - sum(levels)) / 2)[1])
    if not looks or rejection(*looks[-1], alpha)[0] == 0:
        return (0.0,) * len(looks)
    return (*levels, alpha - sum(levels))


def _shown(looks: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{now}+{base}" for now, base in looks)
