from __future__ import annotations

from typing import Any

from pytest_moegpu.checks.context import judge
from pytest_moegpu.core.evidence import Evidence, LogFacts, Phase, RequestRecord, StartFailure
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from tests.unit.builders import contexts, evidence, profile, recall, scenario, start, stream


def verdicts(run: Evidence, **limits: Any) -> tuple[Verdict, ...]:
    return judge(run, scenario(**limits), profile())


def deep(*records: RequestRecord, short: float | None = 100.0, **changes: Any) -> Verdict:
    """Judge the 95 % fill of a start with these requests, and decode of a short context at `short` tok/s."""
    requests = (recall(0.5), *records, *(() if short is None else (stream(short),)))
    return verdicts(evidence(start(requests=requests, **changes)))[-1]


def test_every_fill_has_its_verdict() -> None:
    half, whole = verdicts(evidence())
    assert (half.outcome, whole.outcome) == (Outcome.PASS, Outcome.PASS)
    assert (half.subject, whole.subject) == ("context 1024 tokens (50 %)", "context 1946 tokens (95 %)")
    assert whole.more == {"value": "recall 4 of 4", "tokens": "1946"}
    assert ("decode", "80.0 tok/s, 80.0 % of 100.0 tok/s when short") in whole.lines


def test_shares_of_whole_tokens_and_other_lengths_are_found() -> None:
    requests = (recall(1024 / 2048), recall(1946 / 2048), recall(300 / 2048), stream())
    found = verdicts(evidence(start(requests=requests)))
    assert [(v.outcome, v.subject) for v in found] == [
        (Outcome.PASS, "context 300 tokens (15 %)"),
        (Outcome.PASS, "context 1024 tokens (50 %)"),
        (Outcome.PASS, "context 1946 tokens (95 %)"),
    ]


def test_wrong_recall_fails_naming_depth_expected_and_got() -> None:
    verdict = deep(recall(0.95, 0.9), recall(0.95, 0.1, text="The password in the letter was owl."))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.CORRECTNESS)
    assert verdict.reason == "recall 1 of 2, wrong at depth 0.1; at least 100.0 % must be right"
    assert verdict.lines[:3] == (
        ("start", "1, request context-0.95-0.1, depth 0.1"),
        ("expected", "'heron'"),
        ("got", "'The password in the letter was owl.'"),
    )


def test_recall_share_may_be_lowered() -> None:
    records = (recall(0.95, 0.9), recall(0.95, 0.1, text="owl"))
    run = evidence(start(requests=(recall(0.5), *records, stream())))
    verdict = verdicts(run, recall_min_share=0.5)[-1]
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings == ("recall 1 of 2, which the scenario allows",)


def test_slow_decode_at_depth_fails() -> None:
    verdict = deep(recall(0.95), short=400.0)
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.PERFORMANCE)
    assert verdict.reason == "decode at depth is 20.0 % of short, at least 25 % needed"


def test_unjudged_speed_is_said() -> None:
    verdict = deep(recall(0.95), short=None)
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings == ("decode at depth not judged: no short-context decode was measured",)
    brief = deep(recall(0.95, output_tokens=4))
    assert brief.findings == ("decode at depth not judged: no answer of 8 tokens or more",)


def test_prompt_of_the_wrong_length_is_inconclusive() -> None:
    assert deep(recall(0.95, prompt_tokens=1752)).outcome is Outcome.PASS
    short = deep(recall(0.95, prompt_tokens=1000))
    assert (short.outcome, short.reason) == (Outcome.INCONCLUSIVE, "prompt too short: 1000 of 1946 tokens")
    assert deep(recall(0.95, prompt_tokens=None)).outcome is Outcome.INCONCLUSIVE


def test_request_errors_are_memory_or_stability() -> None:
    memory = deep(recall(0.95, error="CUDA error: out of memory", text=""))
    assert (memory.outcome, memory.failed_class) == (Outcome.FAILED, FailedClass.MEMORY)
    cut = recall(0.95, error="stream cut", text="", finished=None)
    told = deep(cut, log=LogFacts(oom_lines=("allocating 99.00 MiB on device 0: cudaMalloc failed: out of memory",)))
    assert told.failed_class is FailedClass.MEMORY
    assert deep(cut).failed_class is FailedClass.STABILITY
    other = deep(recall(0.95, error="HTTP 400: too long", text=""))
    assert (other.failed_class, other.reason) == (FailedClass.STABILITY, "1 of 1 requests failed")
    assert ("error", "'HTTP 400: too long'") in other.lines


def test_an_out_of_memory_line_does_not_explain_every_failure() -> None:
    """A server that tried again with less and lived on has such a line in its log."""
    refused = recall(0.95, error="HTTP 500: bad grammar", text="", status=500)
    verdict = deep(refused, log=LogFacts(oom_lines=("failed to allocate compute buffers",)))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.STABILITY)


def test_a_failed_request_of_a_start_that_ran_out_of_memory_is_a_memory_fault() -> None:
    failure = StartFailure(phase=Phase.CONTEXT, cause="cudaMalloc failed", out_of_memory=True)
    found = verdicts(evidence(start(requests=(recall(0.95, error="reset", text=""), stream()), failure=failure)))
    assert [v.failed_class for v in found] == [FailedClass.MEMORY, FailedClass.MEMORY]


def test_a_prompt_longer_than_the_context_accuses_nobody() -> None:
    error = "HTTP 400: request (2060 tokens) exceeds the available context size"
    verdict = deep(recall(0.95, error=error, text="", status=400), recall(0.95, 0.1))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.INCONCLUSIVE, None)
    assert verdict.reason == "1 of 2 prompts were longer than the context, which is our fault"
    assert ("error", repr(error)) in verdict.lines
    wrong = deep(recall(0.95, error=error, text="", status=400), recall(0.95, 0.1, text="owl"))
    assert (wrong.outcome, wrong.failed_class) == (Outcome.FAILED, FailedClass.CORRECTNESS)


def test_a_doubted_speed_at_depth_is_inconclusive() -> None:
    hot = deep(recall(0.95), short=400.0, event_reasons={"prefill": 0, "decode": 0, "context": 0x40})
    assert hot.outcome is Outcome.INCONCLUSIVE
    assert hot.reason == "decode at depth is 20.0 % of short, not judged: start 1: throttled in context: hw_thermal"
    late = deep(recall(0.95, client_lag=0.03), short=400.0)
    assert late.outcome is Outcome.INCONCLUSIVE
    assert late.reason.endswith("not judged: client too slow: lag 30.0 ms, allowed 10.0 ms")
    # A doubt that only concerns the prompts says nothing about decode, and a speed that is high enough needs none.
    assert deep(recall(0.95, client_lag=0.009), short=400.0).outcome is Outcome.FAILED
    assert deep(recall(0.95, client_lag=0.03)).outcome is Outcome.PASS


def test_fill_that_was_not_asked_is_an_error() -> None:
    half, whole = verdicts(evidence(start(requests=(recall(0.5), stream()))))
    assert (half.outcome, whole.outcome) == (Outcome.PASS, Outcome.ERROR)
    assert whole.reason == "nothing was measured: no request of this length was sent"


def test_break_at_depth_is_told_beside_the_fills_that_were_asked() -> None:
    failure = StartFailure(phase=Phase.CONTEXT, cause="cudaMalloc failed", out_of_memory=True)
    found = verdicts(evidence(start(requests=(recall(0.5), stream()), failure=failure)))
    assert [(v.outcome, v.subject) for v in found] == [
        (Outcome.FAILED, "context"),
        (Outcome.PASS, "context 1024 tokens (50 %)"),
    ]


def test_break_before_is_one_error() -> None:
    failure = StartFailure(phase=Phase.DECODE, cause="server died")
    (verdict,) = verdicts(evidence(start(requests=contexts(), failure=failure)))
    assert (verdict.outcome, verdict.phase) == (Outcome.ERROR, Phase.DECODE)


def test_nothing_asked_is_an_error() -> None:
    (verdict,) = verdicts(evidence(start(requests=(stream(),))))
    assert verdict.outcome is Outcome.ERROR
