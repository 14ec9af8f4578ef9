from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moegpu.core.verdict import METRICS, Better, Metric, Outcome, worst

LADDER = (
    Outcome.PASS,
    Outcome.IMPROVED,
    Outcome.NO_BASELINE,
    Outcome.INCONCLUSIVE,
    Outcome.NOT_COMPARABLE,
    Outcome.REGRESSED,
    Outcome.FAILED,
    Outcome.ERROR,
)


def test_the_ladder_holds_every_outcome_once() -> None:
    assert sorted(LADDER) == sorted(Outcome)


@given(st.lists(st.sampled_from(Outcome), min_size=1))
def test_worst_is_the_highest_on_the_ladder(outcomes: list[Outcome]) -> None:
    assert LADDER.index(worst(tuple(outcomes))) == max(map(LADDER.index, outcomes))


def test_worst_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing was judged"):
        worst(())


def test_only_pass_and_improved_are_green() -> None:
    assert {o for o in Outcome if o.green} == {Outcome.PASS, Outcome.IMPROVED}


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=9))
def test_median(values: list[float]) -> None:
    assert Metric(name="decode", values=tuple(values)).median == pytest.approx(statistics.median(values))


def test_directions_are_data() -> None:
    assert {n for n, kind in METRICS.items() if kind.better is Better.HIGHER} == {"decode", "prefill"}
    assert {n for n, kind in METRICS.items() if not kind.compared} == {"load"}
    assert Metric(name="ttft", values=(1.0,)).kind.unit == "s"
