from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, permutation_test, t, ttest_ind

from pytest_moegpu.core.stats import (
    Alternative,
    center,
    checked,
    coefficient_of_variation,
    mann_whitney,
    ratio,
    rejection,
    smallest_loss,
    starts_needed,
    yuen,
)

ALTERNATIVES: tuple[Alternative, ...] = ("less", "greater", "two-sided")

speeds = st.lists(st.floats(50, 200), min_size=1, max_size=6)
whole = st.lists(st.integers(1, 6).map(float), min_size=1, max_size=5)


def by_enumeration(now: list[float], base: list[float], alternative: Alternative) -> float:
    pooled = now + base

    def u(chosen: tuple[int, ...]) -> float:
        rest = [v for i, v in enumerate(pooled) if i not in chosen]
        return sum((pooled[i] > v) + 0.5 * (pooled[i] == v) for i in chosen for v in rest)

    seen = u(tuple(range(len(now))))
    every = [u(chosen) for chosen in combinations(range(len(pooled)), len(now))]
    less = sum(value <= seen for value in every) / len(every)
    greater = sum(value >= seen for value in every) / len(every)
    return {"less": less, "greater": greater, "two-sided": min(1.0, 2 * min(less, greater))}[alternative]


@settings(deadline=None)
@given(now=whole, base=whole, alternative=st.sampled_from(ALTERNATIVES))
def test_p_is_that_of_brute_force_with_ties(now: list[float], base: list[float], alternative: Alternative) -> None:
    assert mann_whitney(now, base, alternative) == pytest.approx(by_enumeration(now, base, alternative), abs=1e-12)


@settings(deadline=None)
@given(
    values=st.lists(st.integers(1, 1000).map(float), min_size=2, max_size=8, unique=True),
    alternative=st.sampled_from(ALTERNATIVES),
    data=st.data(),
)
def test_p_is_that_of_brute_force_without_ties(
    values: list[float], alternative: Alternative, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(values) - 1))
    now, base = values[:cut], values[cut:]
    assert mann_whitney(now, base, alternative) == pytest.approx(by_enumeration(now, base, alternative), abs=1e-12)


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_ties_agree_with_scipys_exhaustive_permutation_test(alternative: Alternative) -> None:
    now, base = [96.0, 97.0, 97.0, 99.0], [97.0, 98.0, 98.0, 99.0, 99.0]

    def u(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(mannwhitneyu(a, b, axis=axis, method="asymptotic").statistic)

    theirs = permutation_test((now, base), u, vectorized=True, n_resamples=np.inf, alternative=alternative)
    assert mann_whitney(now, base, alternative) == pytest.approx(float(theirs.pvalue), abs=1e-12)


def test_ties_stay_cheap_where_enumeration_cannot_be_done() -> None:
    assert mann_whitney([2.0] * 20, [3.0] * 20, "less") == pytest.approx(1 / math.comb(40, 20))


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_no_spread_and_equal_values_give_p_one(alternative: Alternative) -> None:
    assert mann_whitney([7.0] * 5, [7.0] * 7, alternative) == 1.0


@settings(deadline=None)
@given(now=speeds, base=speeds, order=st.randoms())
def test_order_does_not_matter(now: list[float], base: list[float], order: random.Random) -> None:
    mixed_now, mixed_base = order.sample(now, len(now)), order.sample(base, len(base))
    assert mann_whitney(mixed_now, mixed_base, "less") == pytest.approx(mann_whitney(now, base, "less"), abs=1e-12)
    assert ratio(mixed_now, mixed_base, 0.9) == ratio(now, base, 0.9)


@settings(deadline=None)
@given(now=speeds, base=speeds, exponent=st.integers(-40, 40))
def test_scaling_both_sides_changes_nothing(now: list[float], base: list[float], exponent: int) -> None:
    # A power of two scales without rounding, so no tie appears or goes.
    scaled_now, scaled_base = [v * 2.0**exponent for v in now], [v * 2.0**exponent for v in base]
    assert mann_whitney(scaled_now, scaled_base, "two-sided") == mann_whitney(now, base, "two-sided")
    assert ratio(scaled_now, scaled_base, 0.95) == ratio(now, base, 0.95)


@settings(deadline=None)
@given(now=speeds, base=speeds)
def test_swapping_sides_inverts_ratio_and_test(now: list[float], base: list[float]) -> None:
    there, back = ratio(now, base, 0.9), ratio(base, now, 0.9)
    assert back.estimate == pytest.approx(1 / there.estimate)
    assert back.low == pytest.approx(1 / there.high)
    assert back.high == pytest.approx(1 / there.low)
    assert back.confidence == pytest.approx(there.confidence)
    assert mann_whitney(now, base, "less") == pytest.approx(mann_whitney(base, now, "greater"), abs=1e-12)


@settings(deadline=None)
@given(now=speeds, base=speeds, confidence=st.floats(0.05, 0.999))
def test_estimate_lies_in_its_interval_and_in_the_range(now: list[float], base: list[float], confidence: float) -> None:
    got = ratio(now, base, confidence)
    assert got.low <= got.estimate <= got.high
    assert min(now) / max(base) <= got.low * (1 + 1e-9)
    assert got.high <= max(now) / min(base) * (1 + 1e-9)


def test_ratio_by_hand() -> None:
    got = ratio([90.0, 99.0, 108.0], [100.0, 100.0, 100.0], 0.9)
    assert got.estimate == pytest.approx(0.99)
    assert got.low == pytest.approx(0.90)
    assert got.high == pytest.approx(1.08)
    assert got.confidence == pytest.approx(0.90)


def test_interval_of_five_and_five_leaves_out_the_tabled_number_of_differences() -> None:
    # Tables of U for 5 and 5: P(U <= 4) = 12/252 is the largest below 5 %, so the fifth difference is the end.
    now, base = [1.0, 2.0, 4.0, 8.0, 16.0], [1.1, 1.3, 1.7, 1.9, 2.3]
    ordered = sorted(a / b for a, b in product(now, base))
    got = ratio(now, base, 0.90)
    assert got.low == pytest.approx(ordered[5 - 1])
    assert got.high == pytest.approx(ordered[-5])
    assert got.confidence == pytest.approx(1 - 2 * 12 / 252)


@pytest.mark.parametrize(("n", "m", "achieved"), [(1, 1, 0.0), (2, 2, 1 - 2 / 6), (3, 3, 0.9), (4, 4, 1 - 2 / 70)])
def test_too_few_starts_give_the_full_range_and_its_own_confidence(n: int, m: int, achieved: float) -> None:
    now, base = [100.0 + i for i in range(n)], [200.0 + i for i in range(m)]
    got = ratio(now, base, 0.99)
    assert got.confidence == pytest.approx(achieved)
    assert got.low == pytest.approx(min(now) / max(base))
    assert got.high == pytest.approx(max(now) / min(base))


@pytest.mark.parametrize(("n", "m", "confidence"), [(3, 3, 0.9), (5, 5, 0.9), (5, 7, 0.99), (2, 2, 0.99)])
def test_interval_covers_the_true_ratio_as_often_as_it_says(n: int, m: int, confidence: float) -> None:
    rng, true_ratio, trials = random.Random(7), 0.95, 400
    covered, said = 0, 0.0
    for _ in range(trials):
        now = [true_ratio * math.exp(rng.gauss(0, 0.02)) for _ in range(n)]
        got = ratio(now, [math.exp(rng.gauss(0, 0.02)) for _ in range(m)], confidence)
        covered += got.low <= true_ratio <= got.high
        said = got.confidence
    # Four standard errors of the share.
    assert covered / trials == pytest.approx(said, abs=4 * math.sqrt(said * (1 - said) / trials))


def base_with_spread(cv: float, starts: int) -> list[float]:
    logs = [statistics.NormalDist().inv_cdf((i + 0.5) / starts) for i in range(starts)]
    return [100 * math.exp(cv * x / statistics.stdev(logs)) for x in logs]


def loss_seen(base: list[float], now: Sequence[float] = ()) -> float:
    loss = smallest_loss(base, len(base), 0.01, now=now)
    assert loss is not None
    return loss


@pytest.mark.parametrize(("n", "m"), [(5, 5), (7, 5), (10, 10)])
def test_smallest_loss_is_seen_about_as_often_as_promised(n: int, m: int) -> None:
    rng, trials, alpha = random.Random(11), 400, 0.01
    loss, seen = smallest_loss(base_with_spread(0.01, m), n, alpha) or 0.0, 0
    for _ in range(trials):
        base = [math.exp(rng.gauss(0, 0.01)) for _ in range(m)]
        now = [(1 - loss) * math.exp(rng.gauss(0, 0.01)) for _ in range(n)]
        seen += mann_whitney(now, base, "less") <= alpha
    # The formula is an approximation: 0.85 to 0.89 at these sizes, plus the simulation's own noise.
    assert 0.82 <= seen / trials <= 0.95


def test_smallest_loss_shrinks_with_starts_and_grows_with_spread() -> None:
    few, many = loss_seen(base_with_spread(0.01, 5)), loss_seen(base_with_spread(0.01, 10))
    assert many < few < loss_seen(base_with_spread(0.03, 10))


def test_smallest_loss_counts_the_spread_of_the_run_too() -> None:
    base = base_with_spread(0.01, 5)
    assert loss_seen(base, now=base) == pytest.approx(loss_seen(base))
    assert loss_seen(base, now=base_with_spread(0.05, 5)) > 3 * loss_seen(base)


@pytest.mark.parametrize(("base", "n_now"), [([100.0] * 4, 4), ([100.0, 101.0], 3), ([100.0], 99)])
def test_smallest_loss_is_not_known_for_too_few_starts(base: list[float], n_now: int) -> None:
    assert smallest_loss(base, n_now, 0.01) is None


def test_smallest_loss_lies_between_nothing_and_everything() -> None:
    assert loss_seen([100.0] * 5) == 0.0
    assert 0.99 < loss_seen([1.0, 10.0, 100.0, 1000.0, 10000.0]) < 1


@pytest.mark.parametrize(
    ("n_base", "alpha", "needed"),
    [(3, 0.05, 3), (5, 0.01, 4), (4, 0.01, 5), (7, 0.01, 3), (1, 0.05, 19), (2, 0.01, 13)],
)
def test_starts_needed(n_base: int, alpha: float, needed: int) -> None:
    assert starts_needed(n_base, alpha) == needed


@settings(deadline=None)
@given(n_base=st.integers(1, 12), alpha=st.floats(0.005, 0.5))
def test_starts_needed_is_the_first_that_reaches_alpha(n_base: int, alpha: float) -> None:
    needed = starts_needed(n_base, alpha)
    assert 1 / math.comb(n_base + needed, needed) <= alpha * (1 + 1e-9)
    assert needed == 1 or 1 / math.comb(n_base + needed - 1, n_base) > alpha


def test_coefficient_of_variation() -> None:
    assert coefficient_of_variation([9.0, 10.0, 11.0]) == pytest.approx(0.1)
    assert coefficient_of_variation([5.0, 5.0]) == 0.0
    assert coefficient_of_variation([5.0]) is None


def test_center_is_that_of_the_walsh_averages() -> None:
    # Logs 0, 1, 2, 9: the ten means of pairs are 0 .5 1 1 1.5 2 4.5 5 5.5 9, their median (1.5 + 2) / 2.
    assert center([math.exp(x) for x in (9, 0, 2, 1)]) == pytest.approx(1.75)
    assert center([7.0]) == pytest.approx(math.log(7))


def test_one_slow_start_of_five_hardly_moves_the_center() -> None:
    steady, slowed = [100.0, 100.5, 99.5, 100.2, 99.8], [100.0, 100.5, 99.5, 100.2, 50.0]
    assert abs(center(slowed) - center(steady)) < 0.004
    assert abs(statistics.fmean(map(math.log, slowed)) - statistics.fmean(map(math.log, steady))) > 0.1


def test_yuen_by_hand() -> None:
    """Five a side: one is cut off at each end, which leaves h = 3; squared error of a side: SSw / (h (h - 1))."""
    now, base = [1.0, 2.0, 3.0, 4.0, 50.0], [2.0, 5.0, 6.0, 8.0, 9.0]

    def side(logs: list[float]) -> tuple[float, float]:
        pulled = [logs[1], *logs[1:4], logs[3]]
        return statistics.fmean(logs[1:4]), statistics.variance(pulled) * 4 / (3 * 2)

    (mean_now, d_now), (mean_base, d_base) = (side([math.log(v) for v in values]) for values in (now, base))
    freedom = (d_now + d_base) ** 2 / (d_now**2 / 2 + d_base**2 / 2)
    wanted = float(t.cdf((mean_now - mean_base) / math.sqrt(d_now + d_base), freedom))
    assert yuen(now, base, "less") == pytest.approx(wanted)
    assert yuen(base, now, "greater") == pytest.approx(wanted)
    assert yuen(now, base, "greater") == pytest.approx(1 - wanted)
    assert yuen(now, base, "two-sided") == pytest.approx(2 * wanted)


@settings(deadline=None, max_examples=40)
@given(data=st.data(), n=st.integers(3, 11), m=st.integers(3, 11), alternative=st.sampled_from(ALTERNATIVES))
def test_yuen_is_scipys_trimmed_welch(data: st.DataObject, n: int, m: int, alternative: Alternative) -> None:
    now, base = ([100.0 + k for k in data.draw(st.permutations(range(40)))[:count]] for count in (n, m))
    theirs = ttest_ind(np.log(now), np.log(base), equal_var=False, trim=0.2, alternative=alternative)
    assert yuen(now, base, alternative) == pytest.approx(float(theirs.pvalue))


@pytest.mark.parametrize(
    ("now", "base"),
    [([100.0], [99.0, 101.0]), ([100.0] * 5, [90.0] * 5), ([1.0, 7.0, 7.0, 7.0, 9.0], [2.0, 8.0, 8.0, 8.0, 11.0])],
)
def test_yuen_has_no_answer_without_a_spread(now: list[float], base: list[float]) -> None:
    assert yuen(now, base, "less") is None


@settings(deadline=None, max_examples=40)
@given(now=st.lists(st.floats(50, 200), min_size=3, max_size=9, unique=True), exponent=st.integers(-20, 20))
def test_yuen_does_not_mind_units_or_order(now: list[float], exponent: int) -> None:
    base = [90.0, 101.0, 97.0, 99.0, 105.0, 111.0]
    there = yuen(now, base, "less")
    scaled = yuen([v * 2.0**exponent for v in reversed(now)], [v * 2.0**exponent for v in base], "less")
    assert there is not None
    assert scaled == pytest.approx(there, rel=1e-6, abs=1e-12)


def test_rejection_is_the_table_of_u() -> None:
    # Tables of U for 5 and 5 at 1 %: U <= 1 is the last within, 2 of 252 divisions; at 0.3 % not even one is.
    rank, level = rejection(5, 5, 0.01)
    assert rank == 2
    assert level == pytest.approx(2 / 252)
    assert rejection(5, 5, 0.003) == (0, 0.0)


BAD = [([], "nothing was measured"), ([math.nan], "nan"), ([math.inf], "inf"), ([0.0], "0"), ([100.0, -1.0], "-1")]


@pytest.mark.parametrize(("bad", "shown"), BAD)
@pytest.mark.parametrize(
    "use",
    [
        lambda bad: mann_whitney(bad, [1.0], "less"),
        lambda bad: mann_whitney([1.0], bad, "less"),
        lambda bad: ratio(bad, [1.0], 0.9),
        lambda bad: ratio([1.0], bad, 0.9),
        lambda bad: smallest_loss(bad, 5, 0.01),
        lambda bad: yuen(bad, [1.0, 2.0], "less"),
        lambda bad: yuen([1.0, 2.0], bad, "less"),
        center,
        coefficient_of_variation,
        checked,
    ],
)
def test_bad_values_are_refused_and_named(use: Callable[[list[float]], object], bad: list[float], shown: str) -> None:
    with pytest.raises(ValueError, match=shown):
        use(bad)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: ratio([1.0], [1.0], 1.0), "confidence must be above 0 and below 1, not 1"),
        (lambda: ratio([1.0], [1.0], math.nan), "confidence"),
        (lambda: smallest_loss([1.0, 2.0], 0, 0.01), "n_now must be at least 1, not 0"),
        (lambda: smallest_loss([1.0, 2.0], 5, 0.01, power=1.5), "power"),
        (lambda: smallest_loss([1.0, 2.0], 5, 2.0), "alpha"),
        (lambda: smallest_loss([1.0, 2.0], 5, 0.01, now=[math.nan]), "values now"),
        (lambda: starts_needed(0, 0.01), "n_base"),
        (lambda: starts_needed(5, 0.0), "alpha"),
        (lambda: rejection(5, 5, 1.0), "alpha"),
    ],
)
def test_arguments_out_of_range_are_refused(use: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        use()
