"""The smallest loss that a comparison will find, told before it is made."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from pytest_moegpu.core.compare import compare
from pytest_moegpu.core.designs import Design
from pytest_moegpu.core.model import Limits
from pytest_moegpu.core.planned import planned_loss
from pytest_moegpu.core.verdict import Metric, Outcome
from tests.unit.test_compare import EVIDENCE, SCENARIO, baseline
from tests.unit.test_compare_stored import FIVE, sessions


def loss_at(count: int, stored: int, design: Design = Design.STORED, name: str = "decode") -> float:
    found = planned_loss(name, SCENARIO, sessions(*(FIVE,) * stored, name=name), (count,), design=design)
    assert found is not None
    ((starts, loss),) = found.losses
    assert starts == count
    assert loss is not None
    return loss


def test_one_line_says_it_for_every_look() -> None:
    found = planned_loss("decode", SCENARIO, sessions(FIVE), (3, 7))
    assert str(found) == (
        "decode: a loss of 9.3 % is found with 3, of 9.1 % with 7 starts, 9 times in 10 "
        "(baseline: 5 starts in 1 session)"
    )


def test_sessions_say_more_than_starts() -> None:
    assert loss_at(5, 1) > loss_at(7, 1) > loss_at(1000, 1) > loss_at(5, 3) > loss_at(5, 10)
    # What a session adds stays: with 1.5 % assumed, no number of starts gets below 8 % against one session.
    assert loss_at(1000, 1) > 0.08


def test_interleaved_starts_find_less() -> None:
    assert loss_at(5, 1, Design.INTERLEAVED) < 0.03 < loss_at(5, 10)
    assert loss_at(30, 6, Design.INTERLEAVED) == 0.02


def test_of_a_metric_that_is_better_when_lower_it_is_a_rise() -> None:
    fall, rise = loss_at(5, 1), loss_at(5, 1, name="ttft")
    assert 1 + rise == pytest.approx(1 / (1 - fall))
    assert loss_at(5, 1, name="peak_memory") < 0.03


def test_a_tolerance_below_two_percent_is_the_least() -> None:
    tight = replace(SCENARIO, limits=Limits(tolerance={"decode": 0.005}))
    flat = sessions((100.0, 100.1, 100.0, 100.1, 100.0))
    found = planned_loss("decode", tight, flat, (9,), design=Design.INTERLEAVED)
    assert found is not None
    assert found.losses == ((9, 0.005),)


def test_what_can_find_nothing_says_so() -> None:
    few = planned_loss("decode", SCENARIO, sessions((100.0,)), (3,))
    assert str(few) == "decode: no loss can be found with 3 starts (baseline: 1 start in 1 session)"
    early = planned_loss("decode", SCENARIO, sessions(FIVE), (2, 5))
    assert early is not None
    assert early.losses[0] == (2, None)
    assert early.losses[1][1] is not None
    assert planned_loss("decode", SCENARIO, baseline(FIVE, "prefill"), (5,)) is None
    assert planned_loss("decode", SCENARIO, sessions((100.0, math.nan, 1.0)), (5,)) is None
    for looks in ((), (0, 3), (5, 5)):
        with pytest.raises(ValueError, match="looks must grow from 1 on"):
            planned_loss("decode", SCENARIO, sessions(FIVE), looks)


def test_a_loss_of_the_size_told_is_found_about_nine_times_in_ten() -> None:
    rng, trials, found = random.Random(12), 200, 0

    def drawn(loss: float = 0.0) -> tuple[float, ...]:
        level = rng.gauss(math.log1p(-loss), 0.015)
        return tuple(100 * math.exp(level + rng.gauss(0, 0.008)) for _ in range(5))

    loss = loss_at(5, 10)
    for _ in range(trials):
        metric = Metric(name="decode", values=drawn(loss))
        outcome = compare(metric, EVIDENCE, SCENARIO, sessions(*(drawn() for _ in range(10)))).outcome
        found += outcome is Outcome.REGRESSED
    # The ten stored sessions of the plan show no spread, those of the trials that of 1.5 %.
    assert 0.55 <= found / trials <= 0.97
