"""Rules that turn starts into alarms, for thousands of trials at once; see `bench/verdicts.py`.

Arrays are logs: `now` and `base` of shape (trials, starts, requests), stored sessions of (trials, sessions, starts).
Our own rules are those of `pytest_moegpu.core`, whose constants they use; `tests/unit/test_verdict_rule.py`
holds the two against each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pytest_moegpu.core.between import PRIOR_FREEDOM
from pytest_moegpu.core.compare import MIN_LOSS
from pytest_moegpu.core.designs import ALPHA, EQUIVALENCE_ALPHA
from pytest_moegpu.core.looks import planned_levels, planned_shares
from pytest_moegpu.core.stats import rejection

Array = NDArray[Any]
TOLERANCE = 0.05
LOSS = -math.log1p(-MIN_LOSS)
ALLOWED = -math.log1p(-TOLERANCE)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Which trials were called a loss, which were passed."""

    alarm: Array
    passed: Array


def starts_of(requests: Array) -> Array:
    """Return one value a start: the median over its requests."""
    return np.asarray(np.median(requests, axis=-1))


@lru_cache(maxsize=64)
def u_levels(n: int, m: int) -> Array:
    """Return P(U <= u) for every u of the exact null distribution."""
    counts = np.ones(1)
    # Generating function of U: the Gaussian binomial coefficient, by polynomial multiplication and division.
    for k in range(1, n + 1):
        up = np.zeros(m + k + 1)
        up[0], up[m + k] = 1, -1
        counts = np.convolve(counts, up)
        counts = np.cumsum(np.pad(counts, (0, -len(counts) % k)).reshape(-1, k), axis=0).ravel()[: len(counts) - k]
    levels: Array = np.cumsum(np.rint(counts)) / math.comb(n + m, n)
    return levels


def u_loss(now: Array, base: Array) -> Array:
    """Return the exact one-sided p-value that now is lower."""
    above = (now[:, :, None] > base[:, None, :]).sum(axis=(1, 2))
    p: Array = u_levels(now.shape[1], base.shape[1])[above]
    return p


def interleaved(now: Array, base: Array, level: float = ALPHA, equal: float = EQUIVALENCE_ALPHA) -> Answer:
    """Ours for interleaved starts: exact Mann-Whitney, Hodges-Lehmann estimate, equivalence by the exact interval."""
    pairs = np.sort((now[:, :, None] - base[:, None, :]).reshape(len(now), -1), axis=1)
    alarm = (u_loss(now, base) <= level * (1 + 1e-12)) & (np.median(pairs, axis=1) <= -LOSS)
    rank = rejection(now.shape[1], base.shape[1], equal)[0] if equal else 0
    passed = ~alarm & (pairs[:, rank - 1] >= -ALLOWED) if rank else np.zeros(len(now), bool)
    return Answer(alarm=alarm, passed=passed)


def in_looks(now: Array, base: Array, looks: tuple[int, ...]) -> tuple[Answer, Array]:
    """Ours with planned looks: the answer, and the starts of each side that it took."""
    pairs = [(count, count) for count in looks]
    levels, equal = planned_levels(pairs, ALPHA), planned_levels(pairs, EQUIVALENCE_ALPHA)
    alarm, passed = np.zeros((2, len(now)), bool)
    taken = np.full(len(now), looks[-1])
    for count, level, even in zip(looks, levels, equal, strict=True):
        answer = interleaved(now[:, :count], base[:, :count], level or 1e-9, even)
        # As in `core.compare`: what later looks may show is not waved through by an early one.
        estimate = np.median((now[:, :count, None] - base[:, None, :count]).reshape(len(now), -1), axis=1)
        fine = answer.passed & ((count == looks[-1]) | (estimate > -LOSS))
        still = ~(alarm | passed)
        taken[still & (answer.alarm | fine)] = count
        alarm, passed = alarm | (still & answer.alarm), passed | (still & fine)
    return Answer(alarm=alarm, passed=passed), taken


def centers(starts: Array) -> Array:
    """Return the Hodges-Lehmann location along the last axis."""
    i, j = np.array(list(itertools.combinations_with_replacement(range(starts.shape[-1]), 2))).T
    return np.asarray(np.median((starts[..., i] + starts[..., j]) / 2, axis=-1))


def stored(
    now: Array, sessions: Array, prior: float, share: float = 1.0, freedom: int = PRIOR_FREEDOM, minimum: float = LOSS
) -> Answer:
    """Ours against stored sessions: the prediction interval of `core.between`."""
    _, held, count = sessions.shape
    within = now.var(axis=1, ddof=1) * (now.shape[1] - 1) + sessions.var(axis=2, ddof=1).sum(axis=1) * (count - 1)
    noise_freedom = now.shape[1] - 1 + held * (count - 1)
    noise = within / noise_freedom * math.pi / 3
    middle = centers(sessions)
    squares = np.zeros(len(now))
    if held > 1:
        added = sessions.var(axis=2, ddof=1).mean(axis=1) * math.pi / 3 / count
        squares = np.maximum((held - 1) * (middle.var(axis=1, ddof=1) - added), 0)
    between = (freedom * prior**2 + squares) / (freedom + held - 1) * (1 + 1 / held)
    start = noise * (1 / now.shape[1] + 1 / count / held)
    loss = middle.mean(axis=1) - centers(now)

    def width(level: float) -> Array:
        quantiles = stats.t.isf(level, freedom + held - 1), stats.t.isf(level * share, noise_freedom)
        return np.asarray(np.sqrt(quantiles[0] ** 2 * between + quantiles[1] ** 2 * start))

    alarm = (loss >= width(ALPHA)) & (loss >= minimum)
    return Answer(alarm=alarm, passed=~alarm & (loss + width(EQUIVALENCE_ALPHA) <= ALLOWED))


def stored_looks(now: Array, sessions: Array, prior: float, looks: tuple[int, ...]) -> Answer:
    """Ours against stored sessions, with planned looks."""
    alarm, passed = np.zeros((2, len(now)), bool)
    for count, share in zip(looks, planned_shares(len(looks)), strict=True):
        answer = stored(now[:, :count], sessions, prior, share)
        still = ~(alarm | passed)
        seen = centers(sessions).mean(axis=1) - centers(now[:, :count])
        fine = answer.passed & ((count == looks[-1]) | (seen < LOSS))
        alarm, passed = alarm | (still & answer.alarm), passed | (still & fine)
    return Answer(alarm=alarm, passed=passed)


def welch(now: Array, base: Array) -> tuple[Array, Array, Array]:
    """Return the difference of means, its standard error and Welch's degrees of freedom."""
    a, b = (side.var(axis=1, ddof=1) / side.shape[1] for side in (now, base))
    freedom = (a + b) ** 2 / (a**2 / (now.shape[1] - 1) + b**2 / (base.shape[1] - 1))
    return now.mean(axis=1) - base.mean(axis=1), np.sqrt(a + b), freedom


def _below(p: Array) -> Answer:
    return Answer(alarm=p <= ALPHA, passed=np.zeros(len(p), bool))


def welch_of_starts(now: Array, base: Array) -> Answer:
    difference, error, freedom = welch(starts_of(now), starts_of(base))
    return _below(stats.t.cdf(difference / error, freedom))


def pooled_welch(now: Array, base: Array) -> Answer:
    """All requests of all starts as one sample."""
    difference, error, freedom = welch(now.reshape(len(now), -1), base.reshape(len(base), -1))
    return _below(stats.t.cdf(difference / error, freedom))


def yuen(now: Array, base: Array) -> Answer:
    return _below(yuen_p(starts_of(now), starts_of(base)))


def yuen_p(now: Array, base: Array) -> Array:
    found = stats.ttest_ind(now, base, axis=1, equal_var=False, trim=0.2, alternative="less")
    return np.asarray(found.pvalue)


def brunner_munzel(now: Array, base: Array) -> Answer:
    """As SciPy computes it: NaN, so no alarm, where the sides are wholly apart."""
    now, base = starts_of(now), starts_of(base)
    n, m = now.shape[1], base.shape[1]
    ranks = stats.rankdata(np.concatenate([now, base], axis=1), axis=1)
    mean_now, mean_base = ranks[:, :n].mean(axis=1), ranks[:, n:].mean(axis=1)
    s_now = ((ranks[:, :n] - stats.rankdata(now, axis=1) - (mean_now - (n + 1) / 2)[:, None]) ** 2).sum(axis=1) / (
        n - 1
    )
    s_base = ((ranks[:, n:] - stats.rankdata(base, axis=1) - (mean_base - (m + 1) / 2)[:, None]) ** 2).sum(axis=1)
    s_now, s_base = s_now / (n - 1), s_base / (m - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = n * m * (mean_base - mean_now) / ((n + m) * np.sqrt(n * s_now + m * s_base))
        freedom = (n * s_now + m * s_base) ** 2 / ((n * s_now) ** 2 / (n - 1) + (m * s_base) ** 2 / (m - 1))
        p = stats.t.sf(statistic, freedom)
    return _below(np.where(np.isfinite(p), p, 1.0))


def bootstrap(now: Array, base: Array, resamples: int = 500) -> Answer:
    """Percentile bootstrap of the difference of means of starts: 1 % of it at or above 0."""
    rng = np.random.default_rng(99)
    now, base = starts_of(now), starts_of(base)

    def means(side: Array) -> Array:
        # The same draws in every trial: trials are independent of each other by their data.
        weights = rng.multinomial(side.shape[1], np.full(side.shape[1], 1 / side.shape[1]), size=resamples)
        return np.asarray(side @ weights.T / side.shape[1])

    return Answer(alarm=np.quantile(means(now) - means(base), 1 - ALPHA, axis=1) < 0, passed=np.zeros(len(now), bool))


def inference_doctor(now: Array, base: Array) -> Answer:
    """Welch's 90 % interval of the log ratio of run means against a threshold of 10 %."""
    difference, error, freedom = welch(*(np.log(np.exp(side).mean(axis=-1)) for side in (now, base)))
    width, limit = stats.t.isf(0.05, freedom) * error, math.log(0.9)
    return Answer(alarm=difference + width < limit, passed=difference - width > limit)


def fixed_median(share: float) -> Callable[[Array, Array], Answer]:
    """The median over starts against the median over starts of the baseline, with a fixed share."""

    def rule(now: Array, base: Array) -> Answer:
        alarm = np.median(starts_of(now), axis=1) - np.median(starts_of(base), axis=1) < math.log1p(-share)
        return Answer(alarm=alarm, passed=~alarm)

    return rule


def compare_fail(share: float) -> Callable[[Array, Array], Answer]:
    """pytest-benchmark's `compare-fail=mean:5%`: mean time of the rounds of one start against one stored start."""

    def rule(now: Array, base: Array) -> Answer:
        times = [np.exp(-side[:, 0]).mean(axis=-1) for side in (now, base)]
        alarm = times[0] > times[1] * (1 + share)
        return Answer(alarm=alarm, passed=~alarm)

    return rule


def ours(now: Array, base: Array) -> Answer:
    return interleaved(starts_of(now), starts_of(base))


RULES: dict[str, Callable[[Array, Array], Answer]] = {
    "ours (Mann-Whitney of starts)": ours,
    "Yuen of starts": yuen,
    "Welch of starts": welch_of_starts,
    "Brunner-Munzel of starts (SciPy)": brunner_munzel,
    "percentile bootstrap of starts": bootstrap,
    "pooled Welch of requests": pooled_welch,
    "inference-doctor": inference_doctor,
    "compare-fail mean:5%": compare_fail(0.05),
    "compare-fail mean:10%": compare_fail(0.10),
    "medians, fixed 5 %": fixed_median(0.05),
    "medians, fixed 10 %": fixed_median(0.10),
}
