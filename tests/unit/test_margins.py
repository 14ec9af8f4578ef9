from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pytest_moegpu.backends.recipe import Recipe
from pytest_moegpu.core.evidence import Margin, RequestKind, TokenChoice
from pytest_moegpu.core.margins import GAP_FLOOR, NEAR_TIE, is_near_tie, is_witness, missing, tightest
from pytest_moegpu.core.sse import parse_events
from pytest_moegpu.core.timing import record

DATA = Path(__file__).parent.parent / "data" / "engines"


def choice(token: str, logprob: float, **top: float) -> TokenChoice:
    return TokenChoice(token=token, logprob=logprob, top=((token, logprob), *top.items()))


def margin(nat: float) -> Margin:
    return Margin(index=0, nat=nat, logprob=-1.0, token="a", other="b")


def test_the_smallest_gap_on_the_way_is_found_with_its_place() -> None:
    found = tightest((choice("The", -0.3, K=-3.0), choice(" L", -1.96, The=-1.98, La=-2.3), choice(".", -0.1, x=-4.0)))
    assert found is not None
    assert (found.index, found.token, found.other, found.logprob) == (1, " L", "The", -1.96)
    assert found.nat == pytest.approx(0.02)


def test_a_likelier_other_token_is_a_gap_below_zero() -> None:
    found = tightest((choice("a", -0.5, b=-3.0), choice("x", -2.0, y=-0.2)))
    assert found is not None
    assert (found.index, found.other) == (1, "y")
    assert found.nat == pytest.approx(-1.8)


def test_numbers_that_are_none_are_no_gap() -> None:
    nothing = (
        TokenChoice(token="a", logprob=math.nan, top=(("a", math.nan), ("b", -1.0))),
        TokenChoice(token="b", logprob=-math.inf, top=(("c", -1.0),)),
        TokenChoice(token="c", logprob=-1.0, top=(("c", -1.0), ("d", math.nan))),
        TokenChoice(token="d", logprob=-1.0),
    )
    assert tightest(nothing) is None
    assert missing(nothing) == 2
    assert tightest(()) is None
    assert missing(()) == 0


def test_a_near_tie_is_near_on_both_sides() -> None:
    assert [is_near_tie(margin(nat)) for nat in (0.0, 0.49, -0.49, NEAR_TIE, -NEAR_TIE, 2.0, -3.0)] == [
        *(True, True, True),
        *(False, False, False, False),
    ]
    assert not is_near_tie(None)


def test_a_witness_is_nearly_tied_in_the_healthy_model() -> None:
    assert is_witness(0.1)
    assert not is_witness(NEAR_TIE)
    assert not is_witness(2.6)
    assert not is_witness(None)


def test_the_floor_of_a_gap_is_twice_that_of_a_number() -> None:
    assert pytest.approx(1.06) == GAP_FLOOR
    # A calibrated answer of the catalog, 1.6 nat at least, is never excused by a near-tie.
    assert 1.6 - NEAR_TIE > GAP_FLOOR


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_margins_of_recorded_streams(engine: str) -> None:
    """bfloat16 numbers of two engines for "The capital of Japan is Tokyo.", whose full stop is the nearest choice."""
    body = (DATA / engine / "stream-logprobs.txt").read_bytes()
    made = record(RequestKind.ANSWER, "x", 0.0, 200, parse_events([(1.0, body)]), Recipe().read_event)
    assert made.tightest is not None
    assert (made.tightest.token, made.tightest.other) == (".", ",")
    assert made.tightest.nat == pytest.approx(1.0, abs=1e-6)
    assert made.logprobs_missing == 0


@pytest.mark.parametrize("engine", ["fastllm", "mlx"])
def test_engines_that_give_no_logprobs_in_a_stream_have_no_margin(engine: str) -> None:
    body = (DATA / engine / "stream-logprobs.txt").read_bytes()
    made = record(RequestKind.ANSWER, "x", 0.0, 200, parse_events([(1.0, body)]), Recipe().read_event)
    assert made.error is None
    assert "Japan" in made.text
    assert made.tightest is None
    assert made.logprobs_missing == 0


def test_a_kernel_that_computes_nothing_is_counted() -> None:
    """NaN as llama.cpp writes it (null) and as Python does, beside a number."""
    event = {"choices": [{"delta": {"content": "x"}, "logprobs": {"content": [{"token": "x", "logprob": None}]}}]}
    more = json.dumps(event).replace("null", "NaN")
    fine = json.dumps(event).replace("null", "-0.5")
    body = "".join(f"data: {data}\n\n" for data in (json.dumps(event), more, fine, "[DONE]")).encode()
    made = record(RequestKind.ANSWER, "x", 0.0, 200, parse_events([(1.0, body)]), Recipe().read_event)
    assert made.logprobs_missing == 2
