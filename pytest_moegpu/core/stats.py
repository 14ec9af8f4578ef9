"""Start-level statistics: exact tests, distribution-free intervals, and what a number of starts can show.

One value is one server start. Values must be positive and finite; every function raises ValueError otherwise.
All tests and intervals are exact for the sample sizes at hand, so they hold for three starts as for thirty.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import Literal

__all__ = [
    "Alternative",
    "RatioEstimate",
    "center",
    "checked",
    "coefficient_of_variation",
    "mann_whitney",
    "ratio",
    "rejection",
    "smallest_loss",
    "starts_needed",
    "yuen",
]

Alternative = Literal["less", "greater", "two-sided"]

# 1 - 0.9 is a hair under 0.1: an exactly reached level must count as reached.
_SLACK = 1 + 1e-12


@dataclass(frozen=True, kw_only=True)
class RatioEstimate:
    """Ratio now / base with its interval; `confidence` is the level the interval really has, a share of one."""

    estimate: float
    low: float
    high: float
    confidence: float


def checked(values: Sequence[float], what: str = "values") -> tuple[float, ...]:
    """Return the values as a tuple if each is a positive finite number.

    Args:
        values: One number a start.
        what: What to call them in the message.

    Raises:
        ValueError: There are none, or one is NaN, infinite, zero or negative; the message names the bad ones.
    """
    if not values:
        raise ValueError(f"no {what}: nothing was measured")
    bad = [v for v in values if not (math.isfinite(v) and v > 0)]
    if bad:
        raise ValueError(f"{what} must be positive finite numbers, not {', '.join(f'{v:g}' for v in bad)}")
    return tuple(float(v) for v in values)


def mann_whitney(now: Sequence[float], base: Sequence[float], alternative: Alternative) -> float:
    """Return the exact p-value of the Mann-Whitney U test over starts.

    Without ties this is `scipy.stats.mannwhitneyu(method="exact")`. With ties it is the exact permutation distribution
    of the midrank sum by the shift algorithm (Streitberg and Roehmel 1986): the p-value of an exhaustive
    `scipy.stats.permutation_test` on U, at a cost that stays small where C(n+m, n) does not.

    Args:
        now: One value a start.
        base: One value a start of the baseline.
        alternative: `less` asks whether now tends to be smaller than base, `greater` the reverse.
            `two-sided` is twice the smaller one, at most 1.

    Raises:
        ValueError: A side is empty or holds NaN, an infinite, zero or negative value.
    """
    now, base = checked(now, "values now"), checked(base, "baseline values")
    pooled = now + base
    if len(set(pooled)) == len(pooled):
        from scipy.stats import mannwhitneyu

        return float(mannwhitneyu(now, base, alternative=alternative, method="exact").pvalue)

    def doubled_midrank(value: float) -> int:
        return 2 * sum(v < value for v in pooled) + sum(v == value for v in pooled) + 1

    counts = _sum_counts(tuple(sorted(map(doubled_midrank, pooled))), len(now))
    seen = sum(map(doubled_midrank, now))
    total = math.comb(len(pooled), len(now))
    less = sum(count for rank_sum, count in counts.items() if rank_sum <= seen) / total
    greater = sum(count for rank_sum, count in counts.items() if rank_sum >= seen) / total
    return {"less": less, "greater": greater, "two-sided": min(1.0, 2 * min(less, greater))}[alternative]


def ratio(now: Sequence[float], base: Sequence[float], confidence: float) -> RatioEstimate:
    """Return the Hodges-Lehmann ratio now / base with its exact distribution-free interval.

    The estimate is exp(median of all pairwise log differences); the interval ends are order statistics of these
    differences, chosen by the null distribution of U (Hollander, Wolfe and Chicken, Nonparametric Statistical Methods,
    section 4.3). With ties its real confidence is at least the stated one.

    Args:
        now: One value a start.
        base: One value a start of the baseline.
        confidence: Two-sided confidence wanted, above 0 and below 1. With too few starts to reach it the whole range
            of differences is returned with the smaller confidence that range has.

    Raises:
        ValueError: A side is empty or holds NaN, an infinite, zero or negative value; `confidence` is out of range.
    """
    now, base = checked(now, "values now"), checked(base, "baseline values")
    _check_share(confidence, "confidence")
    differences = sorted(math.log(a / b) for a in now for b in base)
    rank, tail = rejection(len(now), len(base), (1 - confidence) / 2)
    if rank == 0:
        rank, tail = 1, 1 / math.comb(len(now) + len(base), len(now))
    return RatioEstimate(
        estimate=math.exp(statistics.median(differences)),
        low=math.exp(differences[rank - 1]),
        high=math.exp(differences[-rank]),
        confidence=1 - 2 * tail,
    )


def smallest_loss(
    base: Sequence[float], n_now: int, alpha: float, power: float = 0.9, now: Sequence[float] = ()
) -> float | None:
    """Return the smallest relative fall (share of one) that the exact one-sided test sees with the given power.

    Shift in log units = (t[1-a] + t[power]) * s * sqrt((1/n + 1/m) * pi/3): the two-sample formula with the
    Mann-Whitney efficiency 3/pi for normal data (Lehmann, Nonparametrics, section 2.4), `a` the level the exact test
    really has and Student quantiles (n+m-2 degrees of freedom), as normal ones promise too much below ten starts.
    A rise of the same size in log units is x / (1 - x).

    Args:
        base: One value a start of the baseline; their log spread is `s`.
        n_now: Number of starts to compare with them.
        alpha: One-sided level of the test, above 0 and below 1.
        power: Chance to see the loss, above 0 and below 1.
        now: Values of the run, if there are any: `s` is then pooled over both sides.

    Returns:
        None when so few starts can never reach alpha, or when no side has two values to take a spread from.

    Raises:
        ValueError: Values are bad, `n_now` is below 1, or a share is out of range.
    """
    from scipy.stats import t

    sides = [checked(base, "baseline values")] + ([checked(now, "values now")] if now else [])
    _check_count(n_now, "n_now")
    _check_share(power, "power")
    rank, level = rejection(n_now, len(base), alpha)
    freedom = sum(len(side) - 1 for side in sides)
    if rank == 0 or freedom == 0:
        return None
    squares = sum((len(side) - 1) * statistics.variance(map(math.log, side)) for side in sides if len(side) > 1)
    quantiles = t.ppf((1 - level, power), n_now + len(base) - 2).sum()
    shift = quantiles * math.sqrt(squares / freedom * (1 / n_now + 1 / len(base)) * math.pi / 3)
    return float(-math.expm1(-max(shift, 0.0)))


def starts_needed(n_base: int, alpha: float) -> int:
    """Return the smallest number of starts whose exact one-sided test can reach p <= alpha: 1 / C(n+m, n) <= alpha.

    Args:
        n_base: Number of starts of the baseline, at least 1.
        alpha: One-sided level, above 0 and below 1.

    Raises:
        ValueError: An argument is out of range.
    """
    _check_count(n_base, "n_base")
    _check_share(alpha, "alpha")
    n_now = 1
    while not _reaches(n_now, n_base, alpha):
        n_now += 1
    return n_now


def rejection(n: int, m: int, alpha: float) -> tuple[int, float]:
    """Return how many of the smallest U values one side of a level-alpha test rejects, and the level this has.

    Both are 0 when not even complete separation reaches alpha.

    Args:
        n: Number of starts of one side, at least 1.
        m: Number of starts of the other.
        alpha: One-sided level, above 0 and below 1.

    Raises:
        ValueError: `alpha` is out of range.
    """
    _check_share(alpha, "alpha")
    n, m = sorted((n, m))
    counts = _sum_counts(tuple(range(1, n + m + 1)), n)
    total = math.comb(n + m, n)
    lowest, rank, below = n * (n + 1) // 2, 0, 0
    while below + counts[lowest + rank] <= alpha * total * _SLACK:
        below += counts[lowest + rank]
        rank += 1
    return rank, below / total


def center(values: Sequence[float]) -> float:
    """Return the log of the Hodges-Lehmann location: the median of the means of all pairs of logs, each with itself.

    Up to 29 % of slow starts cannot carry it away, and on normal noise its variance is that of the mean times pi/3
    (Lehmann, Nonparametrics, section 2.4 and appendix).

    Raises:
        ValueError: There are no values, or one is NaN, infinite, zero or negative.
    """
    logs = sorted(map(math.log, checked(values)))
    return statistics.median((a + b) / 2 for a, b in combinations_with_replacement(logs, 2))


def yuen(now: Sequence[float], base: Sequence[float], alternative: Alternative) -> float | None:
    """Return the p-value of Yuen's test on the logs: Welch's t of means trimmed by 20 % at each end.

    It asks after the size of a shift where Mann-Whitney asks after its order, and lets slow starts drop out
    (Yuen 1974; `scipy.stats.ttest_ind(trim=0.2, equal_var=False)`). Below five starts nothing is trimmed.

    Returns:
        None when a side has fewer than two values, or no spread is left after trimming: there is nothing to test with.

    Raises:
        ValueError: A side is empty or holds NaN, an infinite, zero or negative value.
    """
    from scipy.special import stdtr

    sides = [sorted(map(math.log, checked(v, what))) for v, what in ((now, "values now"), (base, "baseline values"))]
    if min(map(len, sides)) < 2:
        return None
    means, errors, kept = [], [], []
    for logs in sides:
        cut = len(logs) // 5
        inner = logs[cut : len(logs) - cut]
        pulled = [inner[0]] * cut + inner + [inner[-1]] * cut
        means.append(statistics.fmean(inner))
        errors.append(statistics.variance(pulled) * (len(logs) - 1) / (len(inner) * (len(inner) - 1)))
        kept.append(len(inner))
    if sum(errors) == 0:
        return None
    freedom = sum(errors) ** 2 / sum(error**2 / (count - 1) for error, count in zip(errors, kept, strict=True))
    less = float(stdtr(freedom, (means[0] - means[1]) / math.sqrt(sum(errors))))
    return {"less": less, "greater": 1 - less, "two-sided": 2 * min(less, 1 - less)}[alternative]


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Return sample standard deviation / mean, a share of one; None for a single value, whose spread is not known.

    Raises:
        ValueError: There are no values, or one is NaN, infinite, zero or negative.
    """
    values = checked(values)
    return statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else None


@lru_cache(maxsize=64)
def _sum_counts(scores: tuple[int, ...], size: int) -> Mapping[int, int]:
    """Count the subsets of `size` scores by their sum; for scores 1 … N these are Gaussian binomial coefficients."""
    table: list[Counter[int]] = [Counter({0: 1}), *(Counter[int]() for _ in range(size))]
    for score in scores:
        for chosen in range(size, 0, -1):
            for rank_sum, count in table[chosen - 1].items():
                table[chosen][rank_sum + score] += count
    return table[size]


def _reaches(n: int, m: int, alpha: float) -> bool:
    return alpha * math.comb(n + m, n) * _SLACK >= 1


def _check_count(number: int, what: str) -> None:
    if number < 1:
        raise ValueError(f"{what} must be at least 1, not {number}")


def _check_share(share: float, what: str) -> None:
    if not 0 < share < 1:
        raise ValueError(f"{what} must be above 0 and below 1, not {share:g}")
