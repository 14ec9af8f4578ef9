from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_moegpu.checks.crosscheck import judge, question
from pytest_moegpu.core.evidence import Evidence, Phase, RequestRecord, StartFailure
from pytest_moegpu.core.oneshot import OneShot
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from tests.unit.builders import answers, evidence, profile, scenario, start

FRANCE = "What is the capital of France?"
RIGHT, WRONG = "The capital of France is Paris.", "The capital of France is Lyon."
SAID = OneShot(
    argv=("llama-cli",), prompt=FRANCE, expect=("Paris",), text=RIGHT, exit_code=0, log_path="runs/x/cli.log"
)


def run(*texts: str, margin: float | None = 2.5, **changes: Any) -> Evidence:
    """A run whose starts answered the question about France like this; the other two are right and less sure."""
    first, *others = answers()
    starts = (
        start(i, requests=(replace(first, text=text, margin=margin), *(replace(r, margin=1.2) for r in others)))
        for i, text in enumerate(texts, 1)
    )
    return evidence(*starts, **({"oneshot": SAID} | changes))


def one(found: Evidence) -> Verdict:
    (verdict,) = judge(found, scenario(), profile())
    return verdict


def test_the_same_text_passes() -> None:
    verdict = one(run(RIGHT, RIGHT))
    assert (verdict.outcome, verdict.reason) == (Outcome.PASS, "the server and llama-cli agree")
    assert verdict.more == {"value": "same text"}


def test_the_same_answer_in_other_words_passes_and_says_so() -> None:
    verdict = one(run("It is Paris."))
    assert (verdict.outcome, verdict.more) == (Outcome.PASS, {"value": "same answer in other words"})


def test_a_server_that_is_wrong_alone_is_named_with_both_texts() -> None:
    verdict = one(run(RIGHT, WRONG))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.CORRECTNESS)
    assert verdict.reason == "the server is wrong and llama-cli is right: the server around the model, or its flags"
    assert verdict.lines == (
        ("prompt", repr(FRANCE)),
        ("expected", "'Paris'"),
        ("server", repr(WRONG)),
        ("llama-cli", repr(RIGHT)),
    )


def test_model_or_kernels_are_named_when_both_are_wrong() -> None:
    verdict = one(run(WRONG, oneshot=replace(SAID, text="@@@@")))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.CORRECTNESS)
    assert verdict.reason == "the server and llama-cli are both wrong: the model file, or the kernels"
    assert verdict.more == {"value": "both wrong"}


def test_a_one_shot_program_that_is_wrong_alone_accuses_nobody() -> None:
    verdict = one(run(RIGHT, oneshot=replace(SAID, text="")))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.INCONCLUSIVE, None)
    assert verdict.reason == "the server is right and llama-cli is wrong: is it of another build?"


def test_no_answer_is_an_error_that_says_why() -> None:
    missing = "server program 'llama-cli' is not on PATH: give it by MOEGPU_LLAMA_CLI"
    verdict = one(run(RIGHT, oneshot=replace(SAID, text="", problem=missing, log_tail=("last words",))))
    assert (verdict.outcome, verdict.reason) == (Outcome.ERROR, f"nothing was measured: {missing}")
    assert verdict.log_tail == ("last words",)
    assert one(run(RIGHT, oneshot=None)).reason == "nothing was measured: llama-cli was not run"


@pytest.mark.parametrize("margin", [None, 0.1, 1.06])
def test_questions_that_a_healthy_model_may_miss_are_not_asked(margin: float | None) -> None:
    found = evidence(start(requests=tuple(replace(r, margin=margin) for r in answers())), oneshot=SAID)
    assert question(found) is None
    verdict = one(found)
    assert (verdict.outcome, verdict.reason) == (
        Outcome.ERROR,
        "nothing was measured: no known answer of this model has a margin of more than 1.06 nat",
    )


def test_the_surest_question_is_asked_unless_the_server_missed_one() -> None:
    chosen = question(run(RIGHT))
    assert chosen is not None
    assert (chosen.prompt, chosen.expect, chosen.max_tokens) == (FRANCE, ("Paris",), 32)

    def asked(*records: RequestRecord) -> str | None:
        found = question(evidence(start(requests=records)))
        return found.prompt if found else None

    first, second, third = answers()
    assert asked(first, second, replace(third, margin=3.0)) == third.prompt
    missed = replace(second, text="5", output_tokens=4)
    assert asked(first, missed, replace(third, margin=3.0)) == second.prompt
    told = question(evidence(start(requests=(missed,))))
    assert told is not None
    assert told.max_tokens == 4
    # Several lines are shown in part by the program, and an answer that failed is no answer.
    assert asked(replace(first, prompt="a\nb"), replace(second, error="HTTP 500"), third) == third.prompt


def test_a_broken_start_is_told_instead() -> None:
    failure = StartFailure(phase=Phase.LOAD, cause="no such model", exit_code=1)
    verdict = one(evidence(start(failure=failure), oneshot=SAID))
    assert (verdict.outcome, verdict.reason) == (Outcome.ERROR, "no such model")
