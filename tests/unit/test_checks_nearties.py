"""What the log-probabilities of known answers excuse, and what they prove."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_moegpu.checks.output import judge, judge_asked
from pytest_moegpu.core.evidence import Margin, RequestRecord
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from pytest_moegpu.report.terminal import failure_text, results_table
from tests.unit.builders import answers, evidence, margin, profile, scenario, start

FRENCH = "L'Étoile, la Marseillaise, la femme, la femme au martyre"
TIE = margin(0.02)


def asked(right: int, *wrong: RequestRecord, healthy: float | None = None) -> tuple[RequestRecord, ...]:
    """So many right answers to different questions, and these beside them; all of one healthy margin."""
    first = answers()[0]
    good = (replace(first, name=f"answer-{i}", prompt=f"{first.prompt} ({i})", margin=healthy) for i in range(right))
    return (*good, *(replace(r, prompt=f"{r.prompt} [{i}]") for i, r in enumerate(wrong)))


def french(tightest: Margin | None = TIE, healthy: float | None = None) -> RequestRecord:
    return replace(answers()[0], text=FRENCH, margin=healthy, tightest=tightest)


def known(*starts: tuple[RequestRecord, ...]) -> Verdict:
    run = evidence(*(start(i, requests=requests) for i, requests in enumerate(starts, 1)))
    return judge(run, scenario(), profile())[0]


def test_an_answer_behind_a_near_tie_accuses_nobody_and_is_shown() -> None:
    verdict = known(asked(9, french()), asked(9, french()))
    assert (verdict.outcome, verdict.reason) == (Outcome.PASS, "18 of 20 right, 2 near-ties")
    assert verdict.more == {"value": "18 of 20 right, 2 near-ties"}
    assert verdict.lines == (
        (
            "near-tie",
            "starts 1, 2: 'What is the capital of France? [0]': token 1 'L' -1.96, 'The' -1.98: 0.02 nat apart; "
            f"another engine or kernel may take either; got {FRENCH!r}",
        ),
    )
    assert results_table([verdict]).splitlines()[-1].startswith("near-tie  balanced-6k: starts 1, 2: 'What is")


def test_one_near_tie_is_counted_as_one() -> None:
    assert known(asked(9, french())).reason == "9 of 10 right, 1 near-tie"


@pytest.mark.parametrize("tightest", [None, margin(0.5), margin(2.0), margin(-0.5), margin(-3.0)])
def test_a_wrong_answer_without_a_near_tie_is_wrong(tightest: Margin | None) -> None:
    verdict = known(asked(9, french(tightest, healthy=1.2), healthy=1.2))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.CORRECTNESS)
    assert verdict.reason == "9 of 10 right"


def test_a_near_tie_that_the_healthy_model_does_not_have_is_the_fault() -> None:
    verdict = known(asked(9, french(healthy=2.64), healthy=2.64))
    assert (verdict.outcome, verdict.failed_class, verdict.reason) == (
        Outcome.FAILED,
        FailedClass.CORRECTNESS,
        "9 of 10 right",
    )
    assert dict(verdict.lines)["margin"] == (
        "token 1 'L' -1.96, 'The' -1.98: 0.02 nat apart, and the healthy model decides by 2.64 nat on its way: "
        "more than the 1.06 nat by which sound engines differ"
    )
    assert "margin" in failure_text(verdict)


def test_a_healthy_margin_within_the_floor_leaves_it_undecided() -> None:
    assert known(asked(9, french(margin(0.02), healthy=1.0), healthy=1.0)).outcome is Outcome.PASS
    assert known(asked(9, french(margin(0.02), healthy=1.09), healthy=1.09)).outcome is Outcome.FAILED


def test_many_near_ties_are_never_green() -> None:
    """A flat, broken distribution looks like near-ties everywhere."""
    assert known(asked(6, french(), french())).outcome is Outcome.PASS
    verdict = known(asked(5, french(), french()))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.INCONCLUSIVE, None)
    assert verdict.reason == (
        "5 of 7 right, 2 near-ties: a sound engine may go another way there, and a broken one as well"
    )
    nothing = known(asked(0, french(), french(), french(), french()))
    assert (nothing.outcome, nothing.reason[:26]) == (Outcome.INCONCLUSIVE, "0 of 4 right, 4 near-ties:")


def test_near_ties_do_not_hide_that_most_is_wrong() -> None:
    verdict = known(asked(2, french(), french(), french(None)))
    assert (verdict.outcome, verdict.reason) == (Outcome.FAILED, "2 of 5 right, 2 near-ties")


def test_a_question_behind_a_near_tie_does_not_count_as_asked() -> None:
    verdict = known((*asked(2), *asked(2), *asked(2), *asked(2), replace(french(), prompt="q")))
    assert (verdict.outcome, verdict.reason) == (
        Outcome.INCONCLUSIVE,
        "too few: 2 questions, at least 3 needed",
    )


def test_questions_somebody_chose_are_not_green_behind_a_near_tie() -> None:
    def chosen(*records: RequestRecord) -> Verdict:
        return judge_asked(evidence(start(requests=records)), scenario(), profile())[0]

    verdict = chosen(*asked(9, french()))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.INCONCLUSIVE, None)
    assert verdict.reason.startswith("9 of 10 right, 1 near-tie: ")
    assert [label for label, _ in verdict.lines] == ["start", "prompt", "expected", "got", "near-tie"]
    assert chosen(french(None)).outcome is Outcome.FAILED
    only = replace(answers()[0], margin=0.1)
    assert chosen(only).outcome is Outcome.INCONCLUSIVE


def witness(**changes: object) -> RequestRecord:
    first = replace(answers()[0], text="L", expect=("The",), margin=0.1, tightest=margin(0.157))
    return replace(first, **changes)  # type: ignore[arg-type]


def test_a_witness_is_shown_and_never_judged() -> None:
    verdict = known((*answers(), witness()), (*answers(), witness()))
    assert (verdict.outcome, verdict.reason) == (Outcome.PASS, "6 of 6 right")
    assert verdict.lines == (
        (
            "near-tie",
            "starts 1, 2: 'What is the capital of France?': token 1 'L' -1.96, 'The' -2.12: 0.16 nat apart "
            "(healthy model: 0.10 nat); shown, not judged",
        ),
    )
    assert verdict.findings == ()


def test_a_witness_of_an_engine_without_log_probabilities_or_answer() -> None:
    (line,) = known((*answers(), witness(text="The", tightest=None))).lines
    assert line[1].endswith("took 'The', no log-probabilities given (healthy model: 0.10 nat); shown, not judged")
    failed = known((*answers(), witness(text="", error="HTTP 500")))
    assert failed.outcome is Outcome.PASS
    assert failed.lines[0][1].endswith("error 'HTTP 500'; shown, not judged")


def test_a_witness_alone_judges_nothing() -> None:
    verdict = known((witness(), witness(prompt="b"), witness(prompt="c")))
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, "too few: 0 questions, at least 3 needed")


def test_a_token_that_is_not_the_likeliest_is_a_note() -> None:
    first, *others = answers()
    verdict = known((replace(first, tightest=margin(-3.0, "Paris", "Lyon", 4)), *others))
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings == (
        "start 1: note: 'What is the capital of France?': token 5 'Paris' -1.96, 'Lyon' 1.04: 3.00 nat apart: "
        "not the likeliest token, at temperature 0",
    )


def test_numbers_lost_beside_others_are_broken_kernels() -> None:
    first, second, third = answers()
    good = replace(second, tightest=margin(2.0))
    verdict = known((replace(first, logprobs_missing=3), good, third))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.CORRECTNESS)
    assert verdict.reason == "3 of 3 right, 1 with tokens whose log-probability is no number: broken kernels"
    assert dict(verdict.lines)["prompt"] == "'What is the capital of France?'"


def test_numbers_that_are_never_given_accuse_only_beside_a_wrong_answer() -> None:
    silent = tuple(replace(r, logprobs_missing=8) for r in answers())
    verdict = known(silent)
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings == (
        "note: the engine gives log-probabilities that are no numbers: near-ties cannot be seen",
    )
    wrong = known((replace(silent[0], text="!!!!"), *silent[1:]))
    assert wrong.reason == "2 of 3 right, 3 with tokens whose log-probability is no number: broken kernels"
