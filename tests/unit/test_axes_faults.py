"""Faults that show under one condition only: asked for, found, and told by what is broken."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_moegpu.checks.axes import judge
from pytest_moegpu.core.axes import AXES
from pytest_moegpu.core.evidence import Evidence, Part, RequestKind
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, Scenario, Settings, Workload
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from pytest_moegpu.session import workload
from pytest_moegpu.session.progress import Silent
from tests.fakes.conversing import KNOWN, Conversing
from tests.unit import builders

SETTINGS = Settings(context=2048, slots=4)
LOAD = Workload(axis_output_tokens=300, axis_requests=60, axis_idle_seconds=0.01)
SPEC = LaunchSpec(
    program=("x",),
    model_path="/m",
    model_name="m",
    settings=SETTINGS,
    host="127.0.0.1",
    port=1,
    api_key="k",
    device_kind=DeviceKind.CPU,
)


def asked(scenario: Scenario, answers: tuple[KnownAnswer, ...], **faults: Any) -> tuple[Evidence, Conversing]:
    server = Conversing(scenario.settings, SPEC, **faults)
    work = workload.Workload(
        server=server,
        scenario=scenario,
        answers=answers,
        context_tokens=(),
        recall_reach=None,
        enter=lambda _phase: None,
        progress=Silent(),
    )
    work.run(frozenset({Part.OUTPUT, Part.AXES}))
    return builders.evidence(builders.start(requests=tuple(work.records))), server


def judged(
    load: Workload = LOAD, settings: Settings = SETTINGS, answers: tuple[KnownAnswer, ...] = KNOWN, **faults: Any
) -> dict[str, Verdict]:
    """Ask a server with these faults, and return the verdicts by condition."""
    scenario = builders.scenario(settings=settings, workload=load)
    evidence, _ = asked(scenario, answers, **faults)
    verdicts = judge(evidence, scenario, builders.profile(DeviceKind.CPU))
    return {verdict.subject: verdict for verdict in verdicts}


def only_failed(verdicts: dict[str, Verdict], *names: str) -> Verdict:
    """Assert that these conditions fail and no others; return the first."""
    assert {name for name, verdict in verdicts.items() if not verdict.outcome.green} == set(names)
    assert verdicts[names[0]].outcome is Outcome.FAILED
    return verdicts[names[0]]


def test_a_healthy_server_passes_every_condition_and_says_what_was_asked() -> None:
    verdicts = judged()
    assert {name: verdict.outcome for name, verdict in verdicts.items()} == dict.fromkeys(AXES, Outcome.PASS)
    told = {name: dict(verdict.lines)["condition"] for name, verdict in verdicts.items()}
    assert told == {
        "long-output": "an answer of 300 tokens; KV cache f16",
        # The first one is off, and teaches how long the others are.
        "prompt-lengths": "prompts of 451, 511, 512, 513 tokens; KV cache f16",
        "second-turn": "after a question and its answer; KV cache f16",
        "cached": "the same prompt again, 179 tokens from the cache; KV cache f16",
        "concurrent": "4 prompts at once, 4 slots; KV cache f16",
        "after-requests": "60 requests in a row; KV cache f16",
        "after-idle": "after 0.01 s without a request; KV cache f16",
        "not-streamed": "as one answer, not streamed; KV cache f16",
        "thinking": "thinking off; KV cache f16",
    }
    assert verdicts["long-output"].reason == "counted to 310 without a fault in 300 tokens"
    assert verdicts["after-requests"].reason == "0 of 60 wrong: a rate of up to 4.9 % could have been missed"


def test_a_prompt_is_as_long_as_it_should_be_by_the_servers_own_count() -> None:
    scenario = builders.scenario(settings=SETTINGS, workload=Workload(axes=("prompt-lengths",)))
    evidence, _ = asked(scenario, KNOWN)
    records = evidence.starts[0].of_kind(RequestKind.AXIS)
    exact = {r.name: r.prompt_tokens for r in records}
    assert exact == {"prompt-lengths-511": 511, "prompt-lengths-512": 512, "prompt-lengths-513": 513}
    assert len(records) <= 5


def test_a_text_that_fades_names_where() -> None:
    verdict = only_failed(judged(fades=100), "long-output")
    assert verdict.failed_class is FailedClass.CORRECTNESS
    assert verdict.reason.startswith("the answer fades: counted right to 110, then broken text")
    assert "_get_set_ValueOf" in dict(verdict.lines)["got"]


def test_a_number_left_out_is_a_wrong_number() -> None:
    verdict = only_failed(judged(skips=150), "long-output")
    assert "counted right to 160, then a wrong number" in verdict.reason


def test_a_model_that_stops_counting_is_not_accused() -> None:
    verdict = judged(stops_counting=100)["long-output"]
    assert verdict.outcome is Outcome.PASS
    assert "it stopped counting after 110" in verdict.reason
    assert verdict.findings[0].startswith("note: start 1: after 110 stands 'and so on")


def test_one_length_that_breaks_is_named_beside_those_that_do_not() -> None:
    verdict = only_failed(judged(wrong_at=513), "prompt-lengths")
    assert "wrong at 513 tokens, right at" in verdict.reason
    assert "511, 512" in verdict.reason


def test_a_second_turn_that_breaks_was_right_in_the_first() -> None:
    verdict = only_failed(judged(wrong_in_second_turn=True), "second-turn")
    assert verdict.reason.startswith("4 of 4 wrong: 100.0 % (39.8 … 100.0 %)")


def test_what_was_said_a_turn_before_must_be_known() -> None:
    verdict = only_failed(judged(forgets_first_turn=True), "second-turn")
    assert verdict.reason.startswith("1 of 4 wrong")
    assert dict(verdict.lines)["got"] == "'I do not know.'"


def test_a_repeat_out_of_the_cache_is_held_against_the_cold_answer() -> None:
    verdict = only_failed(judged(wrong_from_cache=True), "cached")
    assert "right past the cache, wrong out of it" in verdict.reason


def test_a_secret_of_another_request_is_cross_talk() -> None:
    verdict = only_failed(judged(cross_talk=True), "concurrent")
    assert verdict.reason == "cross-talk: 1 of 4 hold the secret of another request: 25.0 % (0.6 … 80.6 %)"
    assert verdict.findings == ("alone, request concurrent-alone-1: right",)


def test_a_wrong_answer_beside_others_is_not_called_cross_talk() -> None:
    verdict = only_failed(judged(wrong_at_once=True), "concurrent")
    assert verdict.reason == "1 of 4 wrong: 25.0 % (0.6 … 80.6 %)"


def test_a_server_that_breaks_after_many_requests_says_from_which_on() -> None:
    load = Workload(axes=("after-requests",), axis_requests=60)
    verdict = only_failed(judged(load, broken_after=30), "after-requests")
    # 6 plain answers and 2 to learn the length of a sentence come before.
    assert verdict.reason.startswith("38 of 60 wrong: 63.3 % (49.9 … 75.4 %); all from request 23 on, none before")
    assert "each of these was right when asked plainly" in verdict.findings


def test_one_wrong_answer_in_twenty_fails_with_its_rate() -> None:
    load = Workload(axes=("after-requests",), axis_requests=60)
    verdict = only_failed(judged(load, one_wrong_in=20), "after-requests")
    assert verdict.reason == "2 of 60 wrong: 3.3 % (0.4 … 11.5 %); now and then"


def test_a_server_that_breaks_while_idle() -> None:
    load = Workload(axes=("after-idle", "not-streamed"), axis_idle_seconds=0.2)
    verdict = judged(load, broken_after_idle=0.1)["after-idle"]
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.startswith("1 of 3 wrong")


def test_an_answer_that_is_wrong_only_when_it_is_not_streamed() -> None:
    verdict = only_failed(judged(wrong_unstreamed=True), "not-streamed")
    assert verdict.reason.startswith("3 of 3 wrong")


def test_a_form_of_request_that_is_refused_accuses_nobody() -> None:
    verdict = judged(refuses_unstreamed=True)["not-streamed"]
    assert (verdict.outcome, verdict.failed_class) == (Outcome.INCONCLUSIVE, None)
    assert verdict.reason.startswith("refused: 3 of 3 requests failed")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("think_tag", "</think> is in the content: 9 of 9 answers: the server's parser or template, not its kernels"),
        ("reasons_only", "the answer is in the reasoning field only: 9 of 9 answers"),
        ("always_thinks", "thinking is off, and 9 of 9 answers reason: the switch is not honoured"),
    ],
)
def test_text_in_the_wrong_channel_is_no_fault_of_a_kernel(fault: str, said: str) -> None:
    faults: dict[str, Any] = {fault: True}
    verdict = only_failed(judged(**faults), "thinking")
    assert verdict.failed_class is FailedClass.ENVIRONMENT
    assert verdict.reason.startswith(said)


def test_near_ties_accuse_nobody() -> None:
    verdict = judged(wrong_unstreamed=True, all_near_ties=True)["not-streamed"]
    # The healthy model decides these by 3 nat, so that a near-tie on their way is itself the fault.
    assert verdict.outcome is Outcome.FAILED
    verdict = judged(wrong_in_second_turn=True, all_near_ties=True)["second-turn"]
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason.startswith("0 of 4 right, 4 at a near-tie")


def test_what_is_wrong_when_asked_plainly_judges_no_condition() -> None:
    mute = (KnownAnswer(prompt="Who are you?", expect=("nobody",), margin=3.0), *KNOWN[:1])
    verdicts = judged(answers=mute)
    assert {name for name, verdict in verdicts.items() if not verdict.outcome.green} == set()
    none = judged(answers=mute[:1])
    assert none["not-streamed"].outcome is Outcome.INCONCLUSIVE
    assert none["not-streamed"].reason.startswith("no known answer was right and sure")
    assert none["prompt-lengths"].outcome is Outcome.PASS


def test_witnesses_and_unsure_answers_are_not_asked_again() -> None:
    unsure = KnownAnswer(prompt=KNOWN[0].prompt, expect=KNOWN[0].expect, margin=0.9)
    scenario = builders.scenario(settings=SETTINGS, workload=Workload(axes=("not-streamed",)))
    _, server = asked(scenario, (unsure, *KNOWN[1:2]))
    assert {r.prompt for r in server.asked if not r.stream} == {KNOWN[1].prompt}


def test_a_condition_that_does_not_fit_is_named_and_not_judged() -> None:
    settings = Settings(context=400, prefix_cache=False)
    verdicts = judged(settings=settings)
    assert "cached" not in verdicts
    assert "prompt-lengths" not in verdicts
    assert verdicts["long-output"].findings == (
        "note: prompt-lengths is not asked: no length fits the context of 400 tokens",
        "note: cached is not asked: the prefix cache is off",
    )


def test_a_server_that_dies_is_not_asked_on() -> None:
    scenario = builders.scenario(settings=SETTINGS, workload=LOAD)
    evidence, server = asked(scenario, KNOWN, dies_after=20)
    assert len(server.asked) <= 21
    assert not [r for r in evidence.starts[0].of_kind(RequestKind.AXIS) if r.axis == "after-idle"]
