from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_moegpu.checks.memory import RETURN_SLACK_BYTES, judge
from pytest_moegpu.checks.throughput import metrics
from pytest_moegpu.core.evidence import DeviceProcess, Evidence, Phase, Preflight, StartEvidence, StartFailure
from pytest_moegpu.core.model import DeviceKind
from pytest_moegpu.core.units import GIB, MIB
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from tests.unit.builders import evidence, phase, profile, scenario, start, stream, watched

TENANT = DeviceProcess(pid=7, device=0, name="game", used_bytes=3 * GIB)


def both(*starts: StartEvidence, run: Evidence | None = None, **limits: Any) -> tuple[Verdict, Verdict]:
    peak, idle = judge(run or evidence(*starts), scenario(**limits), profile())
    return peak, idle


def test_within_budget_and_back_to_idle_passes() -> None:
    peak, idle = both(memory_budget_bytes=22 * GIB)
    assert (peak.outcome, idle.outcome) == (Outcome.PASS, Outcome.PASS)
    assert (peak.value, peak.limit) == (21 * GIB - 10 * MIB, 22 * GIB)
    assert ("parts", "weights 20.00 GiB, KV 500 MiB, compute 400 MiB") in peak.lines
    assert peak.phase is Phase.DECODE


def test_over_budget_fails_by_how_much_even_with_few_readings() -> None:
    peak, _ = both(start(1), start(2, peaks={"prefill": 23 * GIB}, samples=3), memory_budget_bytes=22 * GIB)
    assert (peak.outcome, peak.failed_class, peak.phase) == (Outcome.FAILED, FailedClass.MEMORY, Phase.PREFILL)
    assert peak.reason == "1014 MiB over the budget of the scenario"
    assert peak.lines[0] == ("peak", "start 2, phase prefill")
    assert "only 3 memory readings" in peak.findings[0]


def test_without_a_budget_the_device_less_its_reserve_is_one() -> None:
    assert both()[0].outcome is Outcome.PASS
    peak, _ = both(memory_reserve_bytes=4 * GIB)
    assert peak.outcome is Outcome.FAILED
    # Free and in use when idle, 23 GiB + 10 MiB, less the reserve and what is in use; nobody gets the whole 24 GiB.
    assert peak.limit == 19 * GIB
    assert peak.reason.endswith("over the device's usable 23.01 GiB less 4.00 GiB reserve and 10 MiB idle")
    unknown = evidence(preflight=Preflight(idle_bytes=10 * MIB, total_bytes=24 * GIB))
    assert both(run=unknown, memory_reserve_bytes=4 * GIB)[0].limit == 20 * GIB - 10 * MIB


def test_a_stranger_on_the_device_makes_both_inconclusive() -> None:
    peaks = {"load": 20 * GIB, "decode": 24 * GIB}
    peak, idle = both(
        start(1), start(2, foreign=(TENANT,), peaks=peaks, after_bytes=3 * GIB), memory_budget_bytes=22 * GIB
    )
    assert (peak.outcome, peak.failed_class) == (Outcome.INCONCLUSIVE, None)
    assert (idle.outcome, idle.failed_class) == (Outcome.INCONCLUSIVE, None)
    assert peak.reason == idle.reason == "start 2: GPU shared with game (pid 7, 3.00 GiB)"
    alone, kept = both(start(1, foreign=(TENANT,), peaks=peaks, after_bytes=3 * GIB), memory_budget_bytes=22 * GIB)
    assert (alone.outcome, kept.outcome) == (Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE)


def test_a_stranger_excuses_neither_another_start_nor_our_own_processes() -> None:
    over, left = both(
        start(1, peaks={"decode": 23 * GIB}),
        start(2, foreign=(TENANT,), peaks={"decode": 24 * GIB}, left_over=(71,)),
        memory_budget_bytes=22 * GIB,
    )
    assert (over.outcome, over.value) == (Outcome.FAILED, 23 * GIB - 10 * MIB)
    assert (left.outcome, left.reason) == (Outcome.FAILED, "start 2: processes left over: pid 71")


def test_readings_of_loading_alone_are_no_peak() -> None:
    loading = {"load": 20 * GIB, "output": 20 * GIB, "stop": 20 * GIB}
    peak, _ = both(start(1), start(2, peaks=loading), memory_budget_bytes=22 * GIB)
    assert peak.outcome is Outcome.INCONCLUSIVE
    assert peak.reason == "start 2: memory was read in neither prefill nor decode"
    unseen, _ = both(start(1, peaks={"load": 20 * GIB, "prefill": 20 * GIB}))
    assert (unseen.outcome, unseen.reason) == (Outcome.INCONCLUSIVE, "start 1: memory was not read in decode")
    short = start(1, peaks={"load": 20 * GIB, "prefill": 20 * GIB}, requests=(stream(rate=1e4),) * 3)
    assert both(short)[0].outcome is Outcome.PASS, "a decode of some milliseconds may fall between two readings"


def test_a_probe_that_hung_leaves_the_peak_open() -> None:
    assert both(watched(1, sampler_gap=0.3))[0].outcome is Outcome.PASS
    blind, _ = both(watched(1, sampler_gap=4.0))
    assert (blind.outcome, blind.reason) == (Outcome.INCONCLUSIVE, "start 1: memory was not read for 4.00 s")
    over, _ = both(watched(1, sampler_gap=4.0), memory_budget_bytes=20 * GIB)
    assert over.outcome is Outcome.FAILED, "what was seen over the budget is over it all the same"


def test_a_device_that_holds_less_than_the_weights_was_another_one() -> None:
    other, _ = both(start(1, peaks=dict.fromkeys(("load", "prefill", "decode"), 11 * MIB)))
    assert other.outcome is Outcome.INCONCLUSIVE
    assert other.reason == "start 1: the device grew by less than the 20.00 GiB of weights the log puts on it"


def test_the_compared_peak_is_that_of_phases_every_start_goes_through() -> None:
    peaks = {"load": 20 * GIB, "decode": 21 * GIB, "context": 22 * GIB, "stop": 23 * GIB}
    run = evidence(start(1, peaks=peaks))
    assert metrics(run)["peak_memory"].values == (21 * GIB - 10 * MIB,)
    assert both(run=run)[0].value == 23 * GIB - 10 * MIB


def test_few_or_no_readings_are_inconclusive() -> None:
    few, _ = both(start(1, samples=9), memory_budget_bytes=22 * GIB)
    assert few.outcome is Outcome.INCONCLUSIVE
    assert few.reason == "start 1: only 9 memory readings, at least 10 needed"
    none, idle = both(start(1, peaks={}, after_bytes=None))
    assert (none.outcome, idle.outcome) == (Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE)


def test_one_unread_start_is_inconclusive() -> None:
    peak, _ = both(start(1), start(2, peaks={}))
    assert (peak.outcome, peak.reason) == (Outcome.INCONCLUSIVE, "start 2: memory was not read")


def test_memory_kept_or_a_process_left_is_a_leak() -> None:
    kept = 10 * MIB + RETURN_SLACK_BYTES
    assert both(start(1, after_bytes=kept))[1].outcome is Outcome.PASS
    _, idle = both(start(1), start(2, after_bytes=kept + MIB, left_over=(71, 72)))
    assert (idle.outcome, idle.failed_class, idle.phase) == (Outcome.FAILED, FailedClass.STABILITY, Phase.STOP)
    assert idle.reason == "start 2: processes left over: pid 71, 72, 65 MiB not given back"


def test_out_of_memory_fails_and_the_leak_is_still_judged() -> None:
    failure = StartFailure(phase=Phase.LOAD, cause="cudaMalloc failed", out_of_memory=True)
    broken, idle = both(start(1, failure=failure, after_bytes=2 * GIB))
    assert (broken.outcome, broken.failed_class) == (Outcome.FAILED, FailedClass.MEMORY)
    assert broken.reason == "out of memory: cudaMalloc failed"
    assert idle.outcome is Outcome.FAILED


BACK = StartFailure(phase=Phase.STOP, cause="memory did not come back: 2.00 GiB above idle after 30 s; held by pid 71")


def test_a_stop_that_left_memory_is_an_error_of_the_return_and_hides_no_peak() -> None:
    peaks = {"load": 20 * GIB, "decode": 21 * GIB, "stop": 21 * GIB}
    held = start(2, failure=BACK, peaks=peaks, after_bytes=2 * GIB, left_over=(71,))
    within, idle = both(start(1), held, memory_budget_bytes=22 * GIB)
    assert (within.outcome, within.value) == (Outcome.PASS, 21 * GIB - 10 * MIB)
    assert (idle.outcome, idle.subject, idle.phase) == (Outcome.ERROR, "return to idle", Phase.STOP)
    assert idle.reason == BACK.cause
    assert idle.lines[0] == ("starts", "start 2 of 2 broke")
    over, _ = both(start(1), held, memory_budget_bytes=20 * GIB)
    assert (over.outcome, over.failed_class) == (Outcome.FAILED, FailedClass.MEMORY)


def test_a_stop_that_failed_before_it_was_read_leaves_the_peak_open() -> None:
    lost = start(2, failure=replace(BACK, cause="the device could not be read"), after_bytes=None)
    open_end, idle = both(start(1), lost, memory_budget_bytes=22 * GIB)
    assert (open_end.outcome, open_end.reason) == (Outcome.INCONCLUSIVE, "start 2: memory was not read to the end")
    assert (idle.outcome, idle.reason) == (Outcome.ERROR, "the device could not be read")
    over, _ = both(start(1), lost, memory_budget_bytes=20 * GIB)
    assert over.outcome is Outcome.FAILED


def test_readings_far_apart_are_a_finding_on_a_gpu() -> None:
    near = {name: phase(gap_seconds=0.02) for name in ("load", "decode")}
    assert both(watched(1, telemetry=near))[0].findings == ()
    wide = {"load": phase(gap_seconds=0.034), "decode": phase(gap_seconds=0.011), "context": phase(gap_seconds=0.05)}
    peak, _ = both(watched(1), watched(2, telemetry=wide))
    assert peak.outcome is Outcome.PASS
    assert peak.findings == (
        "readings up to 34.0 ms in load, 50.0 ms in context apart: a shorter peak there could have passed unseen",
    )
    on_cpu, _ = judge(evidence(watched(1, telemetry=wide)), scenario(), profile(DeviceKind.CPU))
    assert on_cpu.findings == ()


def test_server_that_was_never_up_has_no_idle_verdict() -> None:
    failure = StartFailure(phase=Phase.LAUNCH, cause="no such program")
    verdicts = judge(evidence(start(1, failure=failure, after_bytes=None)), scenario(), profile())
    assert [v.outcome for v in verdicts] == [Outcome.ERROR]


def test_peak_of_loading_alone_is_not_judged() -> None:
    peak, _ = both(start(1, requests=()))
    assert peak.outcome is Outcome.ERROR
    assert peak.reason == "nothing was measured: no throughput request was sent in any start"


def test_unknown_device_size_without_a_budget_is_inconclusive() -> None:
    unsized, _ = both(run=evidence(start(1), gpus=(), preflight=Preflight()))
    assert unsized.outcome is Outcome.INCONCLUSIVE
    assert "the size of the device is not known" in unsized.reason
