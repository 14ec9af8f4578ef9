"""Which conditions fit a scenario, how much each asks, and how their answers are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_moegpu.catalog.schema import SCENARIOS, scenario_of
from pytest_moegpu.catalog.tables import read_table
from pytest_moegpu.core.axes import AXES, Axis, amounts, is_sure, left_out, planned
from pytest_moegpu.core.channels import answered, misplaced, spoken
from pytest_moegpu.core.counting import Counted, counted
from pytest_moegpu.core.evidence import Margin, RequestKind, RequestRecord
from pytest_moegpu.core.model import DeviceKind, Settings, Workload
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.errors import CatalogError
from tests.unit.builders import scenario

ANSWER = KnownAnswer(prompt="Two plus two?", expect=("4",), margin=2.0)
RIGHT = RequestRecord(kind=RequestKind.ANSWER, name="answer-1", sent=0.0, text="It is 4.", expect=("4",))


def tie(nat: float) -> Margin:
    return Margin(index=0, nat=nat, logprob=-0.1, token="a", other="b")


def test_a_gpu_is_asked_more_than_a_processor() -> None:
    it = scenario(settings=Settings(context=8192, slots=8))
    gpu, cpu = amounts(it, DeviceKind.GPU), amounts(it, DeviceKind.CPU)
    assert (gpu.output_tokens, gpu.requests, gpu.idle_seconds, gpu.concurrent) == (1000, 200, 60.0, 8)
    assert gpu.prompt_tokens == (511, 512, 513, 1024, 1067, 4096)
    assert (cpu.output_tokens, cpu.requests, cpu.idle_seconds, cpu.concurrent) == (160, 20, 2.0, 8)
    assert cpu.prompt_tokens == (511, 512, 513)


def test_lengths_follow_the_prefill_chunk_and_stay_within_the_context() -> None:
    it = scenario(settings=Settings(context=1080, prefill_chunk=256))
    assert amounts(it, DeviceKind.GPU).prompt_tokens == (255, 256, 257, 1024)
    assert amounts(it, DeviceKind.GPU).output_tokens == 960


def test_the_workload_says_how_much() -> None:
    load = Workload(axis_output_tokens=1500, axis_prompt_tokens=(700, 600), axis_requests=7, axis_idle_seconds=0.5)
    asked = amounts(scenario(settings=Settings(context=4096), workload=load), DeviceKind.CPU)
    assert (asked.output_tokens, asked.prompt_tokens, asked.requests) == (1500, (600, 700), 7)
    assert (asked.idle_seconds, asked.concurrent) == (0.5, 4)


def test_all_conditions_are_asked_in_their_order_unless_some_are_chosen() -> None:
    assert planned(scenario(), DeviceKind.CPU) == tuple(AXES)
    some = scenario(workload=Workload(axes=("thinking", "cached")))
    assert planned(some, DeviceKind.CPU) == (Axis.CACHED, Axis.THINKING)
    assert left_out(Axis.AFTER_IDLE, some, DeviceKind.CPU) == "the scenario does not ask it"


def test_an_unknown_condition_in_a_scenario_offers_the_nearest() -> None:
    with pytest.raises(
        CatalogError, match=r"workload\.axes: 'second-turns' is not allowed.*did you mean 'second-turn'"
    ):
        read_table({"workload": {"axes": ["second-turns"]}}, SCENARIOS, Path("x.toml"))


def test_a_scenario_reads_its_conditions() -> None:
    raw = {
        "schema": 1,
        "name": "mine",
        "title": "Mine",
        "settings": {"context": 2048},
        "workload": {"axes": ["after-idle"], "axis_idle": "90 s", "axis_requests": 5},
    }
    load = scenario_of(read_table(raw, SCENARIOS, Path("x.toml"))).workload
    assert (load.axes, load.axis_idle_seconds, load.axis_requests) == (("after-idle",), 90.0, 5)


@pytest.mark.parametrize(
    ("margin", "here", "sure"),
    [
        (2.0, 2.0, True),
        (2.0, None, True),
        (None, 1.5, True),
        (3.0, 0.6, True),
        (1.0, 3.0, False),
        (3.0, 0.4, False),
        (None, 1.0, False),
        (None, None, False),
    ],
)
def test_the_healthy_models_margin_says_whether_an_answer_may_judge_and_a_near_tie_here_that_it_may_not(
    margin: float | None, here: float | None, sure: bool
) -> None:
    record = replace(RIGHT, tightest=None if here is None else tie(here))
    assert is_sure(replace(ANSWER, margin=margin), record) is sure


def test_an_answer_that_was_wrong_or_failed_never_judges() -> None:
    assert not is_sure(ANSWER, replace(RIGHT, text="It is 5."))
    assert not is_sure(ANSWER, replace(RIGHT, error="HTTP 500"))


@pytest.mark.parametrize(
    ("text", "cut", "found"),
    [
        ("11, 12, 13,", True, Counted(last=13)),
        ("1, 2, 3\n4 5; 6.", False, Counted(last=6)),
        (" 11, 12, 1", True, Counted(last=12)),
        ("11, 12, 14, 15", True, Counted(last=12, position=6, rest="14, 15", miscounted=True)),
        ("11, 12, 1", False, Counted(last=12, position=6, rest="1", miscounted=True)),
        ("11, 12, 4", True, Counted(last=12, position=6, rest="4", miscounted=True)),
        ("11, 12, and so on", False, Counted(last=12, position=6, rest="and so on")),
        ("11, 12_get_set", True, Counted(last=12, position=6, rest="_get_set")),
        ("no numbers", False, Counted(position=0, rest="no numbers")),
        ("500, 501", False, Counted(position=0, rest="500, 501")),
        ("", False, Counted(position=0)),
    ],
)
def test_how_far_a_text_counts(text: str, cut: bool, found: Counted) -> None:
    assert counted(text, cut=cut) == found


def test_an_empty_think_pair_is_not_part_of_the_answer() -> None:
    assert spoken("<think>\n\n</think>\n\nIt is 4.") == "It is 4."
    assert spoken("It is 4.") == "It is 4."
    assert misplaced(replace(RIGHT, text="<think></think>It is 4.")) == ""


@pytest.mark.parametrize(
    ("changes", "said", "right"),
    [
        (
            {"text": "", "reasoning": "It is 4.", "finish_reason": "stop"},
            "the answer is in the reasoning field only",
            True,
        ),
        ({"text": "", "reasoning": "It is 4.", "finish_reason": "length"}, "", False),
        ({"text": "Hm.</think>It is 4."}, "</think> is in the content", True),
        ({"text": "<think>Hm, 4"}, "<think> is in the content", True),
        ({"text": "It is 5.", "reasoning": "It is 4.", "finish_reason": "stop"}, "", False),
    ],
)
def test_what_stands_in_the_wrong_field(changes: dict[str, str], said: str, right: bool) -> None:
    record = replace(RIGHT, **changes)  # type: ignore[arg-type]
    assert (misplaced(record), answered(record)) == (said, right)
