"""KV cache and context smaller than asked for, requests that lost their cache, and prompts beyond all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_moegpu.checks import context, memory, stability, throughput
from pytest_moegpu.core.evidence import Evidence, LogFacts, Phase, RequestRecord, StartEvidence, StartFailure
from pytest_moegpu.core.model import Settings
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from tests.unit.builders import GPU_LOG, answers, beyond, contexts, evidence, profile, scenario, start, stream

SLOTS = Settings(context=2048, slots=4)


def of_memory(*starts: StartEvidence, settings: Settings | None = None, **changes: Any) -> tuple[Verdict, ...]:
    return memory.judge(evidence(*starts, **changes), scenario(settings=settings), profile())


def test_a_kv_cache_smaller_than_the_context_fails_with_both_numbers() -> None:
    """SGLang with --max-total-tokens 256 says that it is ready."""
    kv, *others = of_memory(start(1, kv_tokens=256), start(2, kv_tokens=256))
    assert (kv.outcome, kv.failed_class, kv.subject) == (Outcome.FAILED, FailedClass.MEMORY, "KV cache")
    assert kv.reason == "starts 1, 2: the KV cache holds 256 tokens, and one request may have 2048"
    assert kv.more == {"value": "256 of 2048 tokens"}
    assert "settings.memory_share" in dict(kv.lines)["next"]
    assert kv.log_path == "runs/x/server-1.log"
    assert [v.subject for v in others] == ["peak memory", "return to idle"]


def test_a_small_kv_cache_is_told_though_the_start_broke_of_it() -> None:
    failure = StartFailure(phase=Phase.PREFILL, cause="server died", exit_code=1)
    found = of_memory(start(kv_tokens=256, failure=failure))
    assert [(v.outcome, v.subject) for v in found[:2]] == [(Outcome.FAILED, "KV cache"), (Outcome.ERROR, "memory")]


def test_a_kv_cache_for_one_request_but_not_for_all_is_noted() -> None:
    peak, _ = of_memory(start(kv_tokens=5000, kv_use=0.125), settings=SLOTS)
    assert peak.outcome is Outcome.PASS
    assert dict(peak.lines)["KV cache"] == "5000 tokens for 4 of 2048, 12.5 % in use at the end"
    assert peak.findings == (
        "start 1: the KV cache holds 5000 tokens, not the 8192 of 4 full requests at once: "
        "some then wait or are computed again",
    )


@pytest.mark.parametrize("tokens", [8192, 46592])
def test_a_kv_cache_that_is_large_enough_is_a_fact(tokens: int) -> None:
    peak, _ = of_memory(start(kv_tokens=tokens), settings=SLOTS)
    assert peak.findings == ()
    assert dict(peak.lines)["KV cache"] == f"{tokens} tokens for 4 of 2048"


def test_a_kv_cache_that_is_not_known_is_not_judged() -> None:
    peak, _ = of_memory(start())
    assert "KV cache" not in dict(peak.lines)


def test_lost_caches_put_all_speeds_in_doubt_and_are_noted() -> None:
    once = start(kv_tokens=2048, preemptions=2.0)
    said = "start 1: 2 times a request lost its KV cache and was computed again: the cache of 2048 tokens is too small"
    speeds = throughput.judge(evidence(once), scenario(), profile())
    assert [v.outcome for v in speeds] == [Outcome.INCONCLUSIVE] * 3
    assert {v.reason for v in speeds} == {said}
    assert of_memory(once)[0].findings == (said,)
    for none in (0.0, None):
        fine = throughput.judge(evidence(start(kv_tokens=2048, preemptions=none)), scenario(), profile())
        assert [v.outcome for v in fine] == [Outcome.PASS] * 3


def test_the_memory_of_an_attached_server_is_not_known_but_its_kv_cache_is() -> None:
    attached = start(idle_bytes=None, after_bytes=None, kv_tokens=256)
    kv, other = of_memory(attached, attached="http://127.0.0.1:8000")
    assert (kv.outcome, kv.subject) == (Outcome.FAILED, "KV cache")
    assert (other.outcome, other.failed_class) == (Outcome.INCONCLUSIVE, None)
    assert other.reason == (
        "attached to http://127.0.0.1:8000, which was there before: what the device held without it is not known"
    )
    assert dict(other.lines)["next"] == "leave this check away: -k 'not memory'"


def of_context(run: Evidence) -> tuple[Verdict, ...]:
    return context.judge(run, scenario(), profile())


@pytest.mark.parametrize("told", [{"served_context": 1024}, {"log": replace(GPU_LOG, context=1024)}])
def test_less_context_than_was_asked_for_fails(told: dict[str, Any]) -> None:
    served, *fills = of_context(evidence(start(**told)))
    assert (served.outcome, served.failed_class) == (Outcome.FAILED, FailedClass.ENVIRONMENT)
    assert served.reason == "start 1: the server allows 1024 tokens, asked for were 2048"
    assert len(fills) == 2


def test_what_the_server_says_goes_before_its_log() -> None:
    fine = start(served_context=2048, log=LogFacts(offloaded_layers=41, total_layers=41, context=512))
    assert [v.outcome for v in of_context(evidence(fine))] == [Outcome.PASS, Outcome.PASS]


def test_less_context_is_told_beside_a_broken_start() -> None:
    failure = StartFailure(phase=Phase.DECODE, cause="server died")
    served, broke = of_context(evidence(start(served_context=1024, failure=failure)))
    assert (served.subject, broke.outcome) == ("context served", Outcome.ERROR)


def with_beyond(record: RequestRecord, *before: RequestRecord, **changes: Any) -> StartEvidence:
    requests = (*answers(), *before, stream(), *contexts(), record)
    return start(requests=requests, **changes)


def last(record: RequestRecord, **changes: Any) -> Verdict:
    return of_context(evidence(with_beyond(record, **changes)))[-1]


def test_a_refusal_in_words_is_right() -> None:
    verdict = last(beyond())
    assert (verdict.outcome, verdict.subject) == (Outcome.PASS, "prompt of 2662 tokens (130.0 %)")
    assert verdict.reason == "longer than the context, and refused in words"
    assert verdict.more == {"value": "refused", "tokens": "beyond"}
    assert verdict.findings == ()


def test_it_is_not_judged_where_it_was_not_sent() -> None:
    assert [v.more["tokens"] for v in of_context(evidence())] == ["1024", "1946"]


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (2047, "answered, with a context of 2048; it counts 2047 tokens of the prompt: cut in silence?"),
        (2680, "answered, and 2680 tokens read: more than the context of 2048 that was asked for"),
        (None, "answered, with a context of 2048; how much of the prompt it read is not told: cut in silence?"),
    ],
)
def test_an_answer_is_a_finding_with_what_was_read(read: int | None, said: str) -> None:
    verdict = last(beyond(error=None, too_long=False, status=200, first_token=20.05, text="Yes", prompt_tokens=read))
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings == (said,)
    assert verdict.more["value"] == "answered"


def test_a_refusal_in_other_words_is_a_finding() -> None:
    verdict = last(beyond(error="HTTP 500: internal error", status=500, too_long=False))
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings == ("refused, but not in words that speak of the length: 'HTTP 500: internal error'",)


@pytest.mark.parametrize("changes", [{"status": None}, {"status": 200, "first_token": 20.05}])
def test_neither_answer_nor_refusal_fails(changes: dict[str, Any]) -> None:
    verdict = last(beyond(error="timed out after 600 s", too_long=False, finished=None, **changes))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.STABILITY)
    assert verdict.reason == "a prompt longer than the context got neither a whole answer nor a refusal"
    assert ("error", "'timed out after 600 s'") in verdict.lines


DIED = StartFailure(phase=Phase.BEYOND, cause="signal 6 (SIGABRT)", exit_code=-6)


def test_a_server_that_dies_of_it_fails_stability_and_spoils_nothing_else() -> None:
    run = evidence(with_beyond(beyond(error="connection reset", status=None, too_long=False), failure=DIED))
    *fills, verdict = of_context(run)
    assert [v.outcome for v in fills] == [Outcome.PASS, Outcome.PASS]
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.STABILITY)
    assert verdict.reason == "the server did not survive a prompt longer than its context: signal 6 (SIGABRT)"
    (stable,) = stability.judge(run, scenario(), profile())
    assert (stable.outcome, stable.failed_class) == (Outcome.FAILED, FailedClass.STABILITY)
    assert stable.reason == "start 1: a prompt longer than the context ended the engine: signal 6 (SIGABRT)"
    assert not any(finding.startswith("start 1: the start broke") for finding in stable.findings)
    assert memory.judge(run, scenario(), profile())[0].outcome is Outcome.PASS


def test_an_engine_that_is_dead_after_it_fails() -> None:
    run = evidence(with_beyond(beyond(), health_at_end="health says loading"))
    assert of_context(run)[-1].reason.endswith("longer than its context: health says loading")
    (stable,) = stability.judge(run, scenario(), profile())
    assert stable.reason == "start 1: a prompt longer than the context ended the engine: health says loading"


def test_a_long_prompt_is_not_blamed_for_an_engine_that_had_failed_before() -> None:
    lost = stream(error="EngineCore encountered an issue", text="")
    run = evidence(with_beyond(beyond(too_long=False, error="HTTP 500", status=500), lost, health_at_end="HTTP 503"))
    (stable,) = stability.judge(run, scenario(), profile())
    assert stable.reason.startswith("start 1: the server lived on, but not its engine: after the last request HTTP 503")
    assert of_context(run)[-1].outcome is Outcome.PASS


def test_the_peak_beyond_the_context_is_not_compared_with_other_starts() -> None:
    one = start(peaks={"load": 20, "decode": 30, "context": 40, "beyond": 50}, idle_bytes=10)
    assert (one.peak_bytes, one.comparable_peak_bytes) == (40, 20)
