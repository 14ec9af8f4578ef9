"""Rates with exact intervals, against values that textbooks and R's binom.test print."""

from __future__ import annotations

import pytest

from pytest_moegpu.core.rates import interval, missed, say


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.3084971),
        (1, 10, 0.002528579, 0.4450161),
        (5, 10, 0.1870860, 0.8129140),
        (10, 10, 0.6915029, 1.0),
        (682, 925, 0.7076683, 0.7654066),
        (4, 20, 0.057334, 0.436614),
    ],
)
def test_the_interval_is_that_of_clopper_and_pearson(k: int, n: int, low: float, high: float) -> None:
    """682 of 925 is Mendel's count in the example of R's binom.test; 4 of 20 stands in Newcombe and others."""
    found = interval(k, n)
    assert list(found) == pytest.approx([low, high], abs=2e-6)


def test_another_level_gives_another_interval() -> None:
    wide, narrow = interval(3, 60, level=0.99), interval(3, 60, level=0.90)
    assert wide[0] < narrow[0] < 0.05 < narrow[1] < wide[1]


@pytest.mark.parametrize(("n", "rate"), [(1, 0.95), (59, 0.0495), (60, 0.0487), (200, 0.0149), (300, 0.00994)])
def test_the_largest_rate_missed_is_that_of_the_rule_of_three(n: int, rate: float) -> None:
    assert missed(n) == pytest.approx(rate, rel=5e-3)
    assert (1 - missed(n)) ** n == pytest.approx(0.05)


def test_a_rate_is_printed_with_its_interval() -> None:
    assert say(3, 60) == "3 of 60 wrong: 5.0 % (1.0 … 13.9 %)"
    assert say(0, 60) == "0 of 60 wrong: a rate of up to 4.9 % could have been missed"
    assert say(2, 2, "failed") == "2 of 2 failed: 100.0 % (15.8 … 100.0 %)"


@pytest.mark.parametrize(("k", "n"), [(-1, 3), (4, 3), (0, 0)])
def test_what_is_no_rate_is_refused(k: int, n: int) -> None:
    with pytest.raises(ValueError, match="is no rate"):
        interval(k, n)
    with pytest.raises(ValueError, match="is no rate"):
        say(k, n)
