from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moegpu.core.evidence import Phase
from pytest_moegpu.core.gate import decide
from pytest_moegpu.core.verdict import Outcome, Verdict


def verdicts(*outcomes: Outcome) -> list[Verdict]:
    return [
        Verdict(outcome=o, check="baseline", scenario="small", subject="decode", phase=Phase.COMPARE) for o in outcomes
    ]


@pytest.mark.parametrize(
    ("outcomes", "plain", "gated"),
    [
        ((), 2, 2),
        ((Outcome.PASS,), 0, 0),
        ((Outcome.PASS, Outcome.IMPROVED), 0, 0),
        ((Outcome.NO_BASELINE,), 2, 2),
        ((Outcome.PASS, Outcome.NO_BASELINE), 0, 2),
        ((Outcome.PASS, Outcome.INCONCLUSIVE), 2, 2),
        ((Outcome.PASS, Outcome.NOT_COMPARABLE), 2, 2),
        ((Outcome.PASS, Outcome.ERROR), 2, 2),
        ((Outcome.PASS, Outcome.REGRESSED), 1, 1),
        ((Outcome.FAILED,), 1, 1),
        ((Outcome.ERROR, Outcome.FAILED, Outcome.NO_BASELINE), 1, 1),
        ((Outcome.INCONCLUSIVE, Outcome.REGRESSED), 1, 1),
    ],
)
def test_exit_code(outcomes: tuple[Outcome, ...], plain: int, gated: int) -> None:
    assert decide(verdicts(*outcomes)).exit_code == plain
    assert decide(verdicts(*outcomes), gate=True).exit_code == gated


def test_headline_names_the_worst_first_and_counts() -> None:
    got = decide(verdicts(Outcome.PASS, Outcome.ERROR, Outcome.REGRESSED, Outcome.PASS))
    assert got.headline == "worse: 1 REGRESSED, 1 ERROR, 2 PASS"
    assert got.counts == {Outcome.REGRESSED: 1, Outcome.ERROR: 1, Outcome.PASS: 2}
    assert decide([]).headline == "no answer: nothing was judged"
    assert decide(verdicts(Outcome.PASS)).headline == "good: 1 PASS"


@given(st.lists(st.sampled_from(Outcome)), st.booleans())
def test_zero_means_something_was_green_and_nothing_was_bad(outcomes: list[Outcome], gate: bool) -> None:
    got = decide(verdicts(*outcomes), gate=gate)
    assert sum(got.counts.values()) == len(outcomes)
    if got.exit_code == 0:
        assert any(o.green for o in outcomes)
        assert all(o.green or o is Outcome.NO_BASELINE for o in outcomes)
    assert (got.exit_code == 1) == any(o in (Outcome.REGRESSED, Outcome.FAILED) for o in outcomes)
