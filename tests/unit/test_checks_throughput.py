from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_moegpu.checks.doubts import valid
from pytest_moegpu.checks.throughput import judge, metrics
from pytest_moegpu.core.evidence import DeviceProcess, Evidence, LogFacts, Phase, Preflight, RequestRecord, StartFailure
from pytest_moegpu.core.model import DeviceKind, Workload
from pytest_moegpu.core.units import GIB, MIB
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from tests.unit.builders import (
    CPU_LOG,
    GPU_LOG,
    answers,
    evidence,
    health,
    kernel,
    phase,
    profile,
    scenario,
    start,
    stream,
    watched,
)

READ = {"prefill": 0, "decode": 0}


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
        (
            stream(gaps=(0.5, 0.5)),
            "101 tokens came in 3 events, too few to tell when each was decoded",
        ),
    ],
)
def test_invalid_requests_are_inconclusive_even_beyond_a_limit(record: RequestRecord, said: str) -> None:
    run = evidence(start(1, requests=(*answers(), stream(), record)), start(2))
    verdict = by_name(run, decode_min=1e6)["decode"]
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, f"start 1: {said}")


def doubted(*records: RequestRecord, load: Workload | None = None) -> dict[str, tuple[str, ...]]:
    """The doubts of each metric that has any, of one start with these requests."""
    run, asked = evidence(start(requests=records)), scenario(workload=load)
    found = {name: valid(run, asked, profile(), name) for name in ("decode", "prefill", "ttft")}
    return {name: said for name, said in found.items() if said}


def test_a_doubt_about_the_prompt_does_not_spoil_decode() -> None:
    cached = ("start 1: 6.0 % of a prompt came from the cache, which inflates prefill",)
    assert doubted(stream(), stream(cached_tokens=60)) == {"prefill": cached, "ttft": cached}
    run = evidence(start(1, requests=(*answers(), stream(cached_tokens=60))), start(2))
    verdicts = by_name(run)
    assert {name: v.outcome for name, v in verdicts.items()} == {
        "decode": Outcome.PASS,
        "prefill": Outcome.INCONCLUSIVE,
        "ttft": Outcome.INCONCLUSIVE,
    }


def test_lag_is_held_against_the_time_it_would_be_taken_from() -> None:
    """TTFT and prefill: 1.5 ms or 2 % of the TTFT; decode: 5 ms or 2 % of the time from the first token to the last."""
    prompt = ("start 1: client too slow: lag 11.0 ms, allowed 10.0 ms",)
    assert doubted(stream(client_lag=0.011)) == {"prefill": prompt, "ttft": prompt}
    # As on an H200: TTFT 32 ms, 101 tokens at 700 tok/s, a lag of 0.6 to 1.1 ms.
    quick = {"sent": 10.468, "first_event": 10.49}
    assert doubted(stream(700.0, client_lag=0.0011, **quick)) == {}
    prompt = ("start 1: client too slow: lag 3.0 ms, allowed 1.5 ms",)
    assert doubted(stream(700.0, client_lag=0.003, **quick)) == {"prefill": prompt, "ttft": prompt}
    decode = ("start 1: client too slow: lag 6.0 ms, allowed 5.0 ms",)
    assert doubted(stream(700.0, client_lag=0.006, sent=0.0)) == {"decode": decode}
    # As on a processor with two cores: TTFT 1.5 s, a lag of 5 ms and more.
    assert doubted(stream(60.0, client_lag=0.009, sent=9.0)) == {}


def test_one_late_request_is_no_doubt() -> None:
    assert doubted(stream(), stream(client_lag=0.2), stream()) == {}


def test_prompts_of_another_length_are_a_doubt() -> None:
    said = ("start 1: prompts of 800 tokens instead of 1024",)
    assert doubted(stream(prompt_tokens=800)) == dict.fromkeys(("decode", "prefill", "ttft"), said)
    assert doubted(stream(prompt_tokens=1177)) == {}
    assert "decode" in doubted(stream(prompt_tokens=1178))
    # SmolLM2's chat template adds 37 tokens to the 256 that are asked for.
    assert doubted(stream(prompt_tokens=297), load=Workload(prompt_tokens=256)) == {}


def test_a_rate_the_engine_denies_is_a_doubt() -> None:
    said = ("start 1: decode 100.0 tok/s here, 50.0 tok/s by the engine's clock",)
    assert doubted(stream(engine_timings={"predicted_per_second": 50.0})) == {"decode": said}
    assert "decode" in doubted(stream(engine_timings={"predicted_per_second": 112.0}))
    assert doubted(stream(engine_timings={"predicted_per_second": 95.0, "predicted_n": 101.0})) == {}


@pytest.mark.parametrize(("count", "sure"), [(50, False), (51, True)])
def test_tokens_that_came_in_few_events_are_a_doubt(count: int, sure: bool) -> None:
    assert ("decode" not in doubted(stream(gaps=(0.01,) * (count - 1)))) is sure


def test_a_start_without_a_value_is_named() -> None:
    run = evidence(start(1), start(2, requests=(*answers(), stream(prompt_tokens=None, cached_tokens=None))))
    verdicts = by_name(run, decode_min=50.0)
    assert verdicts["decode"].outcome is Outcome.PASS
    prefill = verdicts["prefill"]
    assert prefill.outcome is Outcome.INCONCLUSIVE
    assert prefill.values == pytest.approx((2000.0,))
    assert prefill.reason == "start 2: could not be computed: token counts or times are missing"


def test_throttling_and_tenants_are_inconclusive_and_named() -> None:
    tenant = DeviceProcess(pid=7, device=0, name="game", used_bytes=300 * MIB)
    hot = {"prefill": 0, "decode": 0x24}
    run = evidence(start(1, event_reasons=hot), start(2, event_reasons=hot, foreign=(tenant,)))
    assert valid(run, scenario(), profile()) == (
        "start 2: GPU shared with game (pid 7, 300 MiB)",
        "starts 1, 2: throttled in decode: sw_thermal",
    )
    assert all(v.outcome is Outcome.INCONCLUSIVE for v in by_name(run).values())


def test_throttling_concerns_the_speeds_of_its_phase() -> None:
    decode = evidence(start(event_reasons={"prefill": 0, "decode": 0x20}))
    assert {name: v.outcome for name, v in by_name(decode).items()} == {
        "decode": Outcome.INCONCLUSIVE,
        "prefill": Outcome.PASS,
        "ttft": Outcome.PASS,
    }
    prefill = evidence(start(event_reasons={"prefill": 0x40, "decode": 0}))
    assert by_name(prefill)["decode"].outcome is Outcome.PASS
    assert by_name(prefill)["ttft"].reason == "start 1: throttled in prefill: hw_thermal"


def test_a_reason_seen_for_a_moment_is_noted_and_not_called_no_throttling() -> None:
    def seen(share: float) -> Verdict:
        telemetry = {"prefill": phase(), "decode": phase(reasons={"hw_slowdown": share, "sw_power_cap": 0.5})}
        return by_name(evidence(watched(1, telemetry=telemetry), watched(2)))["decode"]

    long, short, never = seen(0.02), seen(0.019), seen(0.0)
    assert (long.outcome, long.reason) == (
        Outcome.INCONCLUSIVE,
        "start 1: throttled in decode: hw_slowdown (2.0 % of the readings)",
    )
    assert short.outcome is Outcome.PASS
    assert short.findings == ("start 1: throttled in decode: hw_slowdown (1.9 % of the readings)",)
    assert "no throttling" not in dict(short.lines)["valid"]
    assert dict(never.lines)["valid"].startswith("no throttling; ")


def test_a_power_limit_that_moved_and_memory_nobody_holds_concern_all_speeds() -> None:
    moved = evidence(watched(1), watched(2, health_after=(health(power_limit_watts=300.0),)))
    said = ("start 2: power limit of device 0 changed from 350 W to 300 W",)
    assert [valid(moved, scenario(), profile(), name) for name in ("decode", "prefill", "ttft")] == [said] * 3
    grown = evidence(watched(1), watched(2, idle_bytes=75 * MIB))
    words = "65 MiB more in use before the start than before the run, and no process is listed that holds it"
    assert valid(grown, scenario(), profile()) == (f"start 2: {words}",)
    assert valid(evidence(watched(1), watched(2, idle_bytes=74 * MIB)), scenario(), profile()) == ()
    tenant = DeviceProcess(pid=7, device=0, name="game", used_bytes=65 * MIB)
    known = evidence(watched(1, idle_bytes=75 * MIB, foreign=(tenant,)))
    assert valid(known, scenario(), profile()) == ("start 1: GPU shared with game (pid 7, 65 MiB)",)


def test_a_faulty_device_has_no_speed_to_be_judged() -> None:
    run = evidence(watched(1), watched(2, kernel=kernel("NVRM: Xid (PCI:0000:0f:00): 63, pid=4321, Row Remapper")))
    verdicts = by_name(run, decode_min=1e6)
    assert {v.outcome for v in verdicts.values()} == {Outcome.INCONCLUSIVE}
    assert verdicts["decode"].reason == "start 2: Xid 63 (memory row remapping or page retirement) on device 0"


def test_throttling_in_other_phases_or_at_the_power_cap_is_no_matter() -> None:
    run = evidence(start(event_reasons={"load": 0x20, "prefill": 0x4, "decode": 0x1}))
    assert valid(run, scenario(), profile()) == ()


def test_unread_throttling_and_event_counts_are_noted() -> None:
    run = evidence(start(event_reasons={}, requests=(*answers(), stream(token_source="events", cached_tokens=None))))
    verdicts = by_name(run)
    assert verdicts["decode"].outcome is Outcome.PASS
    assert len(verdicts["decode"].findings) == 4
    assert verdicts["decode"].findings[-1] == "start 1: throttling not read in prefill and decode"
    assert verdicts["decode"].more == {"throttling": "not read"}
    assert verdicts["prefill"].outcome is Outcome.INCONCLUSIVE
    assert verdicts["prefill"].value is None


def test_no_throttling_is_said_only_when_every_phase_of_every_start_was_read() -> None:
    decode = by_name(evidence(start(1), start(2, event_reasons={"decode": 0})))["decode"]
    assert decode.outcome is Outcome.PASS
    assert decode.findings == ("start 2: throttling not read in prefill",)
    assert decode.more == {"throttling": "not read"}
    assert "no throttling" not in dict(decode.lines)["valid"]
    assert by_name(evidence())["decode"].more == {}


@pytest.mark.parametrize("bit", [0x2, 0x100])
def test_clocks_set_by_hand_are_shown(bit: int) -> None:
    decode = by_name(evidence(start(event_reasons={"prefill": 0, "decode": bit})))["decode"]
    assert decode.outcome is Outcome.PASS
    assert dict(decode.lines)["valid"].startswith("no throttling; clocks set by hand; ")
    assert "by hand" not in dict(by_name(evidence(start(event_reasons={"load": bit, **READ})))["decode"].lines)["valid"]


def test_a_gpu_is_called_idle_only_when_that_is_known() -> None:
    known = by_name(evidence())["decode"]
    assert "GPU idle before start" in dict(known.lines)["valid"]
    for before in (Preflight(idle_bytes=0, notes=("processes on the device are not known: x",)), Preflight()):
        assert "idle" not in dict(by_name(evidence(preflight=before))["decode"].lines)["valid"]


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
    found = metrics(evidence(start(1, requests=requests), start(2, load_seconds=None)))
    assert found["decode"].values == pytest.approx((100.0, 100.0))
    assert found["peak_memory"].values == pytest.approx((21 * GIB - 10 * MIB,) * 2)
    assert found["load"].values == pytest.approx((4.0,))
    assert metrics(replace(evidence(), starts=())) == {}
