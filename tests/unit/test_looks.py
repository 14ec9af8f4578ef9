"""Planned looks: what each may spend, and that all together keep the level."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_moegpu.core.looks import planned_levels, planned_shares
from pytest_moegpu.core.stats import mann_whitney


def test_an_early_look_spends_the_highest_step_within_half_of_what_is_left() -> None:
    five, seven, ten = planned_levels([(5, 5), (7, 5), (10, 5)], 0.01)
    assert five == pytest.approx(1 / 252)
    # Half of what is left is 0.30 %; two divisions of 792 are 0.25 %, three do not come at once.
    assert seven == pytest.approx(2 / 792)
    assert ten == pytest.approx(0.01 - 1 / 252 - 2 / 792)


def test_a_look_that_cannot_reject_spends_nothing() -> None:
    assert planned_levels([(2, 5), (5, 5)], 0.01) == (0.0, 0.01)
    assert planned_levels([(5, 5)], 0.01) == (0.01,)
    # 4 against 5 reaches 1/126, which is more than half of 1 %.
    assert planned_levels([(4, 5), (6, 5)], 0.01) == (0.0, 0.01)
    assert planned_levels([(1, 5), (2, 5)], 0.01) == (0.0, 0.0)
    assert planned_levels([], 0.01) == ()


pairs = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=4).map(
    lambda drawn: [(sum(a for a, _ in drawn[: k + 1]), sum(b for _, b in drawn[: k + 1])) for k in range(len(drawn))]
)


@settings(deadline=None, max_examples=60)
@given(looks=pairs, alpha=st.floats(0.001, 0.2))
def test_levels_add_up_and_every_one_can_be_reached(looks: list[tuple[int, int]], alpha: float) -> None:
    levels = planned_levels(looks, alpha)
    assert len(levels) == len(looks)
    assert sum(levels) == pytest.approx(alpha) or set(levels) == {0.0}
    assert sum(levels) <= alpha * (1 + 1e-12)
    for (now, base), level in zip(looks, levels, strict=True):
        assert level == 0 or 1 / math.comb(now + base, now) <= level * (1 + 1e-9)


@pytest.mark.parametrize("looks", [(5, 8, 11), (6, 8, 10), (4, 5, 6, 7)])
def test_looks_together_keep_the_level(looks: tuple[int, ...]) -> None:
    rng, alpha, trials = random.Random(3), 0.05, 300
    levels, alarms = planned_levels([(n, n) for n in looks], alpha), 0
    for _ in range(trials):
        base, now = ([rng.gauss(100, 1) for _ in range(looks[-1])] for _ in range(2))
        alarms += any(mann_whitney(now[:n], base[:n], "less") <= a for n, a in zip(looks, levels, strict=True))
    assert alarms / trials <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / trials)


def test_shares_of_a_continuous_test_halve_and_add_up_to_one() -> None:
    assert planned_shares(1) == (1.0,)
    assert planned_shares(2) == (0.5, 0.5)
    assert planned_shares(4) == (0.5, 0.25, 0.125, 0.125)


@pytest.mark.parametrize("looks", [[(5, 5), (5, 5)], [(5, 5), (4, 6)], [(5, 6), (6, 5)]])
def test_looks_that_do_not_grow_are_refused(looks: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="looks must grow, not 5"):
        planned_levels(looks, 0.01)


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 start a side, not 0\\+5"):
        planned_levels([(0, 5)], 0.01)
    with pytest.raises(ValueError, match="alpha"):
        planned_levels([(5, 5)], 0.0)
    with pytest.raises(ValueError, match="count must be at least 1, not 0"):
        planned_shares(0)
