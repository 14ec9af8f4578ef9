"""Many metrics of one scenario: p-values that keep the level for all of them together.

`holm` needs nothing but the p-values. `step_down` is the same procedure with the permutation distribution in place of
the sum: metrics that say the same (TTFT and prefill) or cannot say anything (a constant memory) cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain, combinations
from typing import Any

__all__ = ["holm", "step_down"]

_MOST_PERMUTATIONS = 200_000
"""10 + 10 starts have 184,756; beyond, Holm is used."""


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return Holm's adjusted p-values by name: the k-th smallest of n times n - k + 1, never falling, at most 1.

    Source: Holm 1979, Scandinavian Journal of Statistics 6. Holds under any dependence of the metrics.

    Raises:
        ValueError: A p-value is NaN or not between 0 and 1.
    """
    adjusted: dict[str, float] = {}
    highest = 0.0
    for place, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        if not 0 <= p <= 1:
            raise ValueError(f"p-value of {name} must be between 0 and 1, not {p:g}")
        highest = max(highest, min(1.0, p * (len(p_values) - place)))
        adjusted[name] = highest
    return adjusted


def step_down(sides: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> dict[str, float] | None:
    """Return adjusted p-values of exact one-sided Mann-Whitney tests by name; a loss is a smaller value.

    Step-down minP of Westfall and Young (1993, Resampling-based Multiple Testing, algorithm 2.8) over all ways to
    divide whole starts between the sides: a start keeps its metrics together, so their dependence is kept.

    Args:
        sides: Values now and of the other side by metric, one a start; in all metrics the starts are the same.

    Returns:
        None when the numbers of starts are not those of all metrics, or there are too many ways to divide them.
    """
    import numpy as np
    from scipy.stats import rankdata

    sizes = {(len(now), len(base)) for now, base in sides.values()}
    if len(sizes) != 1 or 0 in (size := sizes.pop()) or math.comb(sum(size), size[0]) > _MOST_PERMUTATIONS:
        return None
    chosen = _divisions(sum(size), size[0])
    p_values = {}
    for name, (now, base) in sides.items():
        # Doubled midranks are whole numbers, so that equal sums compare as equal.
        sums = np.rint(2 * rankdata((*now, *base))).astype(np.int64)[chosen].sum(axis=1)
        p_values[name] = np.searchsorted(np.sort(sums), sums, side="right") / len(sums)
    # The first division is the one that was seen.
    order = sorted(sides, key=lambda name: float(p_values[name][0]))
    smallest = np.ones(len(chosen))
    alone = {}
    for name in reversed(order):
        smallest = np.minimum(smallest, p_values[name])
        alone[name] = float(np.mean(smallest <= p_values[name][0]))
    adjusted: dict[str, float] = {}
    for name in order:
        adjusted[name] = max(alone[name], *adjusted.values(), 0.0)
    return adjusted


@lru_cache(maxsize=4)
def _divisions(total: int, size: int) -> Any:
    """Return every choice of `size` of `total` starts as an array, a row each, the first `size` of them first."""
    import numpy as np

    flat = np.fromiter(chain.from_iterable(combinations(range(total), size)), dtype=np.int64)
    return flat.reshape(-1, size)
