from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_moegpu.checks.throughput import judge, metrics, valid
from pytest_moegpu.core.evidence import DeviceProcess, Evidence, LogFacts, Phase, RequestRecord, StartFailure
from pytest_moegpu.core.model import DeviceKind
from pytest_moegpu.core.units import GIB, MIB
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from tests.unit.builders import CPU_LOG, GPU_LOG, answers, evidence, profile, scenario, start, stream


def by_name(run: Evidence, **limits: Any) -> dict[str, Verdict]:
    return {v.metric or v.subject: v for v in judge(run, scenario(**limits), profile())}


def speeds(*rates: float) -> Evidence:
    starts = (start(i, requests=(*answers(), stream(rate), stream(rate))) for i, rate in enumerate(rates, 1))
    return evidence(*starts)


def test_measured_without_a_limit_passes_and_says_so() -> None:
    verdicts = by_name(speeds(96.0, 100.0, 104.0))
    assert set(verdicts) == {"decode", "prefill", "ttft"}
    decode = verdicts["decode"]
    assert (decode.outcome, decode.reason) == (Outcome.PASS, "measured; no absolute limit set")
    assert decode.value == pytest.approx(100.0)
    assert decode.values == pytest.approx((96.0, 100.0, 104.0))
    assert verdicts["prefill"].value == pytest.approx(2000.0)
    assert verdicts["ttft"].value == pytest.approx(0.5)
    assert decode.lines == (("valid", "no throttling; GPU idle before start; 41/41 layers on GPU; client lag 0.1 ms"),)


def test_one_start_beyond_a_limit_fails() -> None:
    verdicts = by_name(speeds(96.0, 80.0), decode_min=90.0, ttft_max=0.4, prefill_min=1000.0)
    decode = verdicts["decode"]
    assert (decode.outcome, decode.failed_class) == (Outcome.FAILED, FailedClass.PERFORMANCE)
    assert decode.reason == "1 of 2 starts beyond the limit, furthest 80.0 tok/s"
    assert decode.log_path == "runs/x/server-2.log"
    assert verdicts["ttft"].reason == "2 of 2 starts beyond the limit, furthest 500.0 ms"
    assert verdicts["prefill"].outcome is Outcome.PASS


def test_a_single_start_is_noted() -> None:
    decode = by_name(speeds(100.0))["decode"]
    assert decode.outcome is Outcome.PASS
    assert decode.findings == ("1 start: no spread known",)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (stream(error="HTTP 500"), "1 of 2 requests failed: 'HTTP 500'"),
        (stream(output_tokens=40), "output length not reached in 1 of 2 requests (40 of 101 tokens, length)"),
        (stream(cached_tokens=60), "6.0 % of a prompt came from the cache, which inflates prefill"),
        (stream(client_lag=0.03), "client too slow: lag 15.0 ms, allowed 10.0 ms"),
    ],
)
def test_invalid_requests_are_inconclusive_even_beyond_a_limit(record: RequestRecord, said: str) -> None:
    run = evidence(start(1, requests=(*answers(), stream(), record)), start(2))
    verdict = by_name(run, decode_min=1e6)["decode"]
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, f"start 1: {said}")


def test_lag_is_held_against_the_shortest_time_measured() -> None:
    quick = [stream(client_lag=0.006, first_token=10.01) for _ in range(3)]
    (said,) = valid(evidence(start(requests=tuple(quick))), scenario(), profile())
    assert said == "start 1: client too slow: lag 6.0 ms, allowed 5.0 ms"
    slow = [stream(client_lag=0.006) for _ in range(3)]
    assert valid(evidence(start(requests=tuple(slow))), scenario(), profile()) == ()


def test_throttling_and_tenants_are_inconclusive_and_named() -> None:
    tenant = DeviceProcess(pid=7, device=0, name="game", used_bytes=300 * MIB)
    hot = {"prefill": 0, "decode": 0x24}
    run = evidence(start(1, event_reasons=hot), start(2, event_reasons=hot, foreign=(tenant,)))
    assert valid(run, scenario(), profile()) == (
        "starts 1, 2: throttled in decode: sw_thermal",
        "start 2: GPU shared with game (pid 7, 300 MiB)",
    )
    assert all(v.outcome is Outcome.INCONCLUSIVE for v in by_name(run).values())


def test_throttling_in_other_phases_or_at_the_power_cap_is_no_matter() -> None:
    run = evidence(start(event_reasons={"load": 0x20, "prefill": 0x4, "decode": 0x1}))
    assert valid(run, scenario(), profile()) == ()


def test_unread_throttling_and_event_counts_are_noted() -> None:
    run = evidence(start(event_reasons={}, requests=(*answers(), stream(token_source="events", cached_tokens=None))))
    verdicts = by_name(run)
    assert verdicts["decode"].outcome is Outcome.PASS
    assert len(verdicts["decode"].findings) == 4
    assert verdicts["prefill"].outcome is Outcome.INCONCLUSIVE
    assert verdicts["prefill"].value is None


def test_failed_output_leaves_no_speed_verdict() -> None:
    first, *others = answers()
    run = evidence(start(requests=(replace(first, text="It is Lyon."), *others, stream())))
    (verdict,) = judge(run, scenario(decode_min=1e6), profile())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason == "no speed verdict: output failed (known answers: 2 of 3 right)"


def test_output_that_was_not_asked_leaves_no_speed_verdict() -> None:
    (verdict,) = judge(evidence(start(requests=(stream(),))), scenario(), profile())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason.startswith("no speed verdict: output is ERROR")


def test_model_partly_on_the_cpu_is_not_comparable() -> None:
    run = evidence(start(log=replace(GPU_LOG, offloaded_layers=20)))
    (verdict,) = judge(run, scenario(decode_min=1e6), profile())
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    assert verdict.reason == "the model is not wholly on the GPU: start 1: 20/41 layers on GPU, expected 41"


def test_unknown_place_of_the_model_is_inconclusive() -> None:
    decode = by_name(evidence(start(log=LogFacts())))["decode"]
    assert decode.outcome is Outcome.INCONCLUSIVE
    assert "the log does not say how many layers" in decode.reason


def test_cpu_profile_has_no_gpu_notes() -> None:
    run = evidence(start(1, log=CPU_LOG, event_reasons={}), start(2, log=CPU_LOG, event_reasons={}))
    decode = judge(run, scenario(), profile(DeviceKind.CPU))[0]
    assert decode.outcome is Outcome.PASS
    assert not decode.findings
    assert decode.lines == (("valid", "client lag 0.1 ms"),)


def test_broken_start_and_no_requests_are_errors() -> None:
    failure = StartFailure(phase=Phase.PREFILL, cause="server died", exit_code=-11)
    assert judge(evidence(start(1), start(2, failure=failure)), scenario(), profile())[0].outcome is Outcome.ERROR
    assert judge(evidence(start(requests=answers())), scenario(), profile())[0].outcome is Outcome.ERROR


def test_metrics_are_medians_of_starts_and_only_what_was_measured() -> None:
    requests = (stream(90.0), stream(100.0), stream(500.0), stream(1.0, error="cut"))
    found = metrics(evidence(start(1, requests=requests), start(2, load_seconds=None)), scenario())
    assert found["decode"].values == pytest.approx((100.0, 100.0))
    assert found["peak_memory"].values == pytest.approx((21 * GIB - 10 * MIB,) * 2)
    assert found["load"].values == pytest.approx((4.0,))
    assert metrics(replace(evidence(), starts=()), scenario()) == {}
