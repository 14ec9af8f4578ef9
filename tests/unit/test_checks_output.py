from __future__ import annotations

from dataclasses import replace

from pytest_moegpu.checks.output import judge, judge_asked
from pytest_moegpu.core.evidence import Phase, RequestRecord, StartFailure
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from tests.unit.builders import PROSE, answers, evidence, profile, scenario, start, stream


def both(*starts: tuple[RequestRecord, ...]) -> tuple[Verdict, Verdict]:
    run = evidence(*(start(i, requests=requests) for i, requests in enumerate(starts, 1)))
    known, form = judge(run, scenario(), profile())
    return known, form


def test_right_answers_in_good_text_pass() -> None:
    known, form = both(answers(), answers())
    assert (known.outcome, form.outcome) == (Outcome.PASS, Outcome.PASS)
    assert known.reason == "6 of 6 right"
    assert known.findings == ()


def test_case_does_not_matter() -> None:
    first, *others = answers()
    known, _ = both((replace(first, text="It is PARIS, of course."), *others))
    assert known.outcome is Outcome.PASS


def test_wrong_answer_fails_and_is_quoted() -> None:
    first, *others = answers()
    known, _ = both(answers(), (replace(first, text="The capital of France is Lyon, " + "as all know " * 20), *others))
    assert (known.outcome, known.failed_class, known.reason) == (
        Outcome.FAILED,
        FailedClass.CORRECTNESS,
        "5 of 6 right",
    )
    lines = dict(known.lines)
    assert lines["start"] == "2, request answer-0"
    assert lines["prompt"] == "'What is the capital of France?'"
    assert lines["expected"] == "'Paris'"
    assert lines["got"].startswith("'The capital of France is Lyon")
    assert len(lines["got"]) == 122
    assert "different answers" in known.findings[0]
    assert known.log_path == "runs/x/server-2.log"


def test_failed_request_is_a_stability_fault() -> None:
    first, *others = answers()
    known, _ = both((replace(first, text="", error="HTTP 500: slot died"), *others))
    assert (known.outcome, known.failed_class) == (Outcome.FAILED, FailedClass.STABILITY)
    assert ("error", "'HTTP 500: slot died'") in known.lines


def test_too_few_questions_are_inconclusive_however_often_asked() -> None:
    known, _ = both(answers()[:2], answers()[:2])
    assert known.outcome is Outcome.INCONCLUSIVE
    assert known.reason == "too few: 2 questions, at least 3 needed"


def test_answer_cut_off_while_reasoning_is_inconclusive() -> None:
    first, *others = answers()
    thought = "The user asks for the capital of France, so I should recall"
    known, _ = both((replace(first, text="", reasoning=thought, finish_reason="length"), *others))
    assert known.outcome is Outcome.INCONCLUSIVE


def test_different_right_answers_are_a_note() -> None:
    first, *others = answers()
    known, _ = both(answers(), (replace(first, text="Paris is its capital."), *others))
    assert known.outcome is Outcome.PASS
    assert known.findings[0].startswith("note: 2 different answers to 'What is the capital of France?'")


def test_broken_text_anywhere_fails() -> None:
    known, form = both((*answers(), stream(text="@" * 300)))
    assert known.outcome is Outcome.PASS
    assert (form.outcome, form.failed_class, form.phase) == (Outcome.FAILED, FailedClass.CORRECTNESS, Phase.DECODE)
    assert dict(form.lines)["text"].startswith("'@@@@")
    assert "at character" in dict(form.lines)["finding"]


def test_nothing_asked_is_an_error() -> None:
    (verdict,) = judge(evidence(start(requests=(stream(),))), scenario(), profile())
    assert verdict.outcome is Outcome.ERROR
    assert verdict.reason == "nothing was measured: no answer request was sent in any start"


def test_no_text_at_all_is_an_error() -> None:
    _, form = both(tuple(replace(a, error="refused", text="") for a in answers()))
    assert form.outcome is Outcome.ERROR


def test_break_after_the_answers_does_not_spoil_them() -> None:
    later = StartFailure(phase=Phase.DECODE, cause="server died")
    known, _ = judge(evidence(start(failure=later)), scenario(), profile())
    assert known.outcome is Outcome.PASS
    (verdict,) = judge(evidence(start(failure=replace(later, phase=Phase.OUTPUT))), scenario(), profile())
    assert verdict.outcome is Outcome.ERROR


def uncalibrated(right: int, of: int = 4) -> tuple[RequestRecord, ...]:
    """Answers to questions whose margin was never measured for this model, so many of them right."""
    first = answers()[0]
    return tuple(
        replace(
            first,
            name=f"answer-{i}",
            prompt=f"{first.prompt} ({i})",
            margin=None,
            text=first.text if i < right else "It is Lyon, said she.",
        )
        for i in range(of)
    )


def test_uncalibrated_misses_accuse_nobody_while_half_are_right() -> None:
    for right in (2, 3):
        known, form = both(uncalibrated(right))
        assert (known.outcome, known.failed_class) == (Outcome.INCONCLUSIVE, None)
        assert known.reason == (
            f"{right} of 4 right, but these questions were never calibrated for this model: a healthy one may miss some"
        )
        assert dict(known.lines)["got"] == "'It is Lyon, said she.'"
        assert form.outcome is Outcome.PASS


def test_uncalibrated_answers_mostly_wrong_fail() -> None:
    for right in (0, 1):
        known, _ = both(uncalibrated(right))
        assert (known.outcome, known.failed_class) == (Outcome.FAILED, FailedClass.CORRECTNESS)
        assert known.reason == f"{right} of 4 right"


def test_uncalibrated_answers_all_right_pass() -> None:
    known, _ = both(uncalibrated(4))
    assert (known.outcome, known.reason) == (Outcome.PASS, "4 of 4 right")


def test_questions_of_ones_own_beside_calibrated_ones_are_a_note() -> None:
    known, form = both((*answers(), *uncalibrated(1, of=2)))
    assert (known.outcome, known.reason) == (Outcome.PASS, "3 of 3 right")
    assert known.findings == (
        "note: start 1: 'What is the capital of France? (1)' is not calibrated and not judged here: "
        "got 'It is Lyon, said she.'",
    )
    assert form.outcome is Outcome.PASS
    failed = replace(uncalibrated(1, of=1)[0], text="", error="HTTP 400: too long")
    assert both((*answers(), failed))[0].findings[0].endswith("not judged here: error 'HTTP 400: too long'")


def test_a_calibrated_miss_counts_beside_questions_of_ones_own() -> None:
    first, *others = answers()
    known, _ = both((replace(first, text="It is Lyon."), *others, *uncalibrated(4)))
    assert (known.outcome, known.failed_class) == (Outcome.FAILED, FailedClass.CORRECTNESS)
    assert known.reason == "2 of 3 right"


def test_half_is_counted_over_the_answered_ones() -> None:
    """Two right, one wrong, two without an answer: the failed requests are the fault, not the text."""
    lost = tuple(
        replace(r, name="lost", prompt=f"lost {r.name}", text="", error="HTTP 500") for r in uncalibrated(2, 2)
    )
    known, _ = both((*uncalibrated(2, of=3), *lost))
    assert (known.outcome, known.failed_class) == (Outcome.FAILED, FailedClass.STABILITY)
    assert known.reason == "2 of 5 right, 2 requests failed"
    # One right of two answered is half, though it is a third of three asked.
    known, _ = both((*uncalibrated(1, of=2), lost[0]))
    assert known.failed_class is FailedClass.STABILITY


def test_errors_that_outnumber_the_wrong_answers_are_a_stability_fault() -> None:
    first, second, third = answers()
    wrong, lost = replace(first, text="It is Lyon."), replace(third, text="", error="HTTP 500")
    known, _ = both((wrong, replace(second, text="", error="HTTP 500"), lost))
    assert (known.failed_class, known.reason) == (FailedClass.STABILITY, "0 of 3 right, 2 requests failed")
    known, _ = both((wrong, second, lost))
    assert known.failed_class is FailedClass.CORRECTNESS


def test_a_text_kept_from_ending_may_trail_off() -> None:
    for tail in ("!" * 60, "\n" * 60, "so it was. " * 30):
        _, form = both((*answers(), stream(text=PROSE + tail)))
        assert form.outcome is Outcome.PASS, tail
        _, form = both((*answers(), stream(text=PROSE + tail, wanted_output_tokens=None)))
        assert form.outcome is Outcome.FAILED, tail
    for text in ("Once upon" + "!" * 60, PROSE + "!" * 60 + " and then they all went home again, said he"):
        assert both((*answers(), stream(text=text)))[1].outcome is Outcome.FAILED, text


def test_half_is_counted_over_all_starts() -> None:
    known, _ = both(uncalibrated(4), uncalibrated(0))
    assert (known.outcome, known.reason[:12]) == (Outcome.INCONCLUSIVE, "4 of 8 right")


def test_questions_somebody_chose_are_judged_strictly() -> None:
    def chosen(right: int, of: int) -> Verdict:
        return judge_asked(evidence(start(requests=uncalibrated(right, of))), scenario(), profile())[0]

    assert chosen(1, 1).outcome is Outcome.PASS
    assert (chosen(3, 4).outcome, chosen(3, 4).failed_class) == (Outcome.FAILED, FailedClass.CORRECTNESS)
    assert chosen(0, 1).reason == "0 of 1 right"


def test_wrong_answers_have_a_rate_with_its_interval() -> None:
    asked = answers()
    wrong = replace(asked[0], text="The capital of France is Lyon.")
    verdict = both((wrong, *asked[1:]))[0]
    assert dict(verdict.lines)["rate"] == "1 of 3 wrong: 33.3 % (0.8 … 90.6 %)"


def test_an_answer_in_the_reasoning_field_alone_is_a_fault_of_the_parser() -> None:
    asked = answers()
    strayed = replace(asked[0], text="", reasoning=asked[0].text)
    verdict = both((strayed, *asked[1:]))[0]
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.ENVIRONMENT)
    assert verdict.reason == (
        "2 of 3 right; the answer is in the reasoning field only: the server's parser or template, not its kernels"
    )


def test_the_rule_of_a_question_decides_and_an_empty_think_pair_does_not() -> None:
    asked = answers()
    exact = replace(asked[0], rule="line", expect=("Paris",), text="<think>\n\n</think>\n\nParis")
    assert both((exact, *asked[1:]))[0].outcome is Outcome.PASS
    longer = replace(exact, text="The capital of France is Paris, I think.")
    assert both((longer, *asked[1:]))[0].outcome is Outcome.FAILED
