from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_moegpu.checks.stability import judge
from pytest_moegpu.core.evidence import Evidence, Phase, StartEvidence, StartFailure
from pytest_moegpu.core.model import DeviceKind
from pytest_moegpu.core.units import GIB
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from tests.unit.builders import (
    CPU_LOG,
    answers,
    beyond,
    evidence,
    gpu,
    health,
    kernel,
    phase,
    profile,
    scenario,
    start,
    watched,
)

FALLEN = "NVRM: Xid (PCI:0000:0f:00): 79, pid=4321, name=llama-server, GPU has fallen off the bus."
KILLED = "Out of memory: Killed process 4321 (llama-server) total-vm:48123456kB, anon-rss:31000000kB, file-rss:0kB"
DIED = StartFailure(phase=Phase.DECODE, cause="server died", exit_code=-6)


def one(*starts: StartEvidence, run: Evidence | None = None, kind: DeviceKind = DeviceKind.GPU) -> Verdict:
    (verdict,) = judge(run or evidence(*starts), scenario(), profile(kind))
    return verdict


def second(**changes: Any) -> Verdict:
    """Judge a run whose second of three starts has something to tell."""
    return one(watched(1), watched(2, **changes), watched(3))


def test_a_quiet_run_passes_and_says_what_was_read() -> None:
    verdict = one(watched(1), watched(2))
    assert (verdict.outcome, verdict.check, verdict.subject) == (Outcome.PASS, "stability", "device health")
    assert verdict.reason == "no fault in kernel log, ECC counters, clock event reasons over 2 starts"
    assert verdict.findings == ()
    assert verdict.lines == (
        ("read", "kernel log, ECC counters, clock event reasons (kernel log from /dev/kmsg)"),
        ("heat", "34 °C before the starts, at most 70 °C in prefill of start 2"),
    )


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ({"ecc_uncorrected": 2}, "start 2: device 0: 2 uncorrectable ECC errors"),
        ({"rows_remapped_uncorrected": 1}, "start 2: device 0: 1 memory rows remapped after uncorrectable errors"),
        ({"remap_pending": True}, "start 2: device 0: a memory row now waits to be remapped: reset the device"),
        ({"remap_failed": True}, "start 2: device 0: remapping a memory row failed, the device needs service"),
    ],
)
def test_a_fault_counter_that_moved_fails(after: dict[str, Any], said: str) -> None:
    changed = health(**after)
    verdict = one(
        watched(1),
        watched(2, health_after=(changed,)),
        watched(3, health_before=(changed,), health_after=(changed,)),
    )
    assert (verdict.outcome, verdict.failed_class, verdict.reason) == (Outcome.FAILED, FailedClass.STABILITY, said)


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ({"ecc_corrected": 7}, "start 2: device 0: 7 corrected ECC errors"),
        ({"rows_remapped_corrected": 1}, "start 2: device 0: 1 memory rows remapped after corrected errors"),
        ({"pcie_replays": 3}, "start 2: device 0: 3 PCIe packets sent again"),
    ],
)
def test_a_counter_of_what_was_put_right_is_a_note(after: dict[str, Any], said: str) -> None:
    verdict = one(watched(1), watched(2, health_after=(health(**after),)))
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings == (said,)


def test_counters_are_watched_between_starts_too_and_old_counts_blame_nobody() -> None:
    old = health(ecc_uncorrected=5, rows_remapped_uncorrected=2, remap_pending=True)
    before = {"health_before": (old,), "health_after": (old,)}
    known = one(watched(1, **before), watched(2, **before))
    assert known.outcome is Outcome.PASS
    assert known.findings == ("device 0: a memory row waits to be remapped since before the run: reset the device",)
    more = health(ecc_uncorrected=6)
    between = one(watched(1), watched(2, health_before=(more,), health_after=(more,)))
    assert between.outcome is Outcome.FAILED
    assert between.reason == "between starts 1 and 2: device 0: 6 uncorrectable ECC errors"
    anew = one(watched(1, health_before=(more,)))
    assert anew.outcome is Outcome.INCONCLUSIVE
    assert "ECC counters began anew" in anew.reason


def test_a_gpu_that_the_probe_lost_fails_though_the_start_broke() -> None:
    lost = StartFailure(phase=Phase.DECODE, cause="the device cannot be read: the GPU is lost", kind="gpu-lost")
    verdict = one(watched(1), watched(2, failure=lost))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.STABILITY)
    assert verdict.reason == "start 2: the GPU was lost in decode: the device cannot be read: the GPU is lost"
    assert verdict.findings == ()


@pytest.mark.parametrize(
    ("kind", "words"), [("gpu-lost", "the GPU was lost"), ("nvlink-error", "uncorrectable NVLink error")]
)
def test_what_only_the_servers_log_says_of_the_device_is_no_verdict_on_it(kind: str, words: str) -> None:
    died = StartFailure(phase=Phase.DECODE, cause="its own words (exit code 1)", exit_code=1, kind=kind)
    alone = one(watched(1), watched(2, failure=died))
    assert (alone.outcome, alone.reason) == (Outcome.ERROR, "its own words (exit code 1)")
    assert alone.findings == (
        f"start 2: only the server's log says so: {words} in decode: its own words (exit code 1)",
    )
    beside = one(watched(1), watched(2, failure=died, kernel=kernel(FALLEN)))
    assert (beside.outcome, beside.failed_class) == (Outcome.FAILED, FailedClass.STABILITY)
    assert beside.reason == (
        f"start 2: {words} in decode: its own words (exit code 1); "
        "start 2: Xid 79 (GPU has fallen off the bus) on device 0"
    )
    elsewhere = one(watched(1), watched(2, failure=died, kernel=kernel(FALLEN.replace("0f", "10"))))
    assert elsewhere.outcome is Outcome.ERROR


def test_a_server_that_died_of_an_uncorrectable_memory_error_fails_the_device() -> None:
    died = StartFailure(phase=Phase.DECODE, cause="ECC (exit code 1)", exit_code=1, kind="uncorrectable-ecc")
    verdict = one(watched(1), watched(2, failure=died))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.STABILITY)
    assert verdict.reason == ("start 2: uncorrectable memory error of the GPU (ECC) in decode: ECC (exit code 1)")
    assert verdict.log_path == "runs/x/server-2.log"


def test_a_start_that_broke_without_a_fault_of_the_machine_is_told_as_it_is() -> None:
    verdict = one(watched(1, failure=DIED, health_after=(health(ecc_corrected=1),)))
    assert (verdict.outcome, verdict.reason, verdict.phase) == (Outcome.ERROR, "server died", Phase.DECODE)
    assert verdict.findings == ("start 1: device 0: 1 corrected ECC errors",)
    memory = replace(DIED, phase=Phase.LOAD, out_of_memory=True)
    assert one(watched(1, failure=memory)).failed_class is FailedClass.MEMORY
    assert one(run=replace(evidence(), starts=())).outcome is Outcome.ERROR


def test_heat_and_brakes_where_speed_is_measured_are_a_doubt() -> None:
    telemetry = {"load": phase(), "decode": phase(reasons={"hw_power_brake": 0.31, "sw_power_cap": 0.6})}
    verdict = second(telemetry=telemetry)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason == "start 2: throttled in decode: hw_power_brake (31.0 % of the readings)"
    loading = second(telemetry={"load": phase(reasons={"sw_thermal": 0.5})})
    assert loading.outcome is Outcome.PASS
    assert loading.findings == ("start 2: throttled in load: sw_thermal (50.0 % of the readings)",)
    deep = second(telemetry={"context": phase(reasons={"hw_thermal": 0.5})})
    assert deep.outcome is Outcome.INCONCLUSIVE


def test_evidence_without_telemetry_falls_back_to_the_bits_that_were_seen() -> None:
    verdict = second(telemetry={}, event_reasons={"load": 0x4, "prefill": 0x4, "decode": 0x44})
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, "start 2: throttled in decode: hw_thermal")


def test_a_slower_clock_and_a_moved_power_limit_are_doubts() -> None:
    clock = second(telemetry={"load": phase(), "prefill": phase(sm_clock_mhz=1500.0, reasons={"sw_power_cap": 0.49})})
    assert clock.outcome is Outcome.INCONCLUSIVE
    said = "SM clock of device 0 in prefill 1500 MHz, median over the starts 1800 MHz"
    assert clock.reason == f"start 2: {said}"
    capped = second(telemetry={"load": phase(), "prefill": phase(sm_clock_mhz=1500.0, reasons={"sw_power_cap": 0.5})})
    assert (capped.outcome, capped.findings) == (Outcome.PASS, (f"start 2: {said} (at the power cap)",))
    limit = health(power_limit_watts=300.0)
    moved = one(watched(1), watched(2, health_before=(limit,), health_after=(limit,)))
    assert moved.outcome is Outcome.INCONCLUSIVE
    assert moved.reason == "between starts 1 and 2: power limit of device 0 changed from 350 W to 300 W"
    rounded = health(power_limit_watts=349.5)
    assert one(watched(1), watched(2, health_after=(rounded,))).outcome is Outcome.PASS


def test_a_link_below_its_best_under_load_is_a_note() -> None:
    slow = {name: phase(pcie_generation=1, pcie_width=8) for name in ("load", "decode")}
    verdict = one(watched(1, telemetry=slow), watched(2, telemetry={**slow, "decode": phase(pcie_width=8)}))
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings == (
        "device 0: PCIe link at best generation 4 x8 under load, the device can do generation 4 x16",
    )


def test_what_was_not_read_is_said_and_not_claimed() -> None:
    silent = health(ecc_uncorrected=None)
    unread = phase(reason_readings=None, reasons={})
    telemetry = {"load": phase(), "output": phase(), "prefill": unread, "decode": phase(), "context": unread}
    run = (
        watched(1, kernel=kernel(problem="no permission"), health_before=(silent,)),
        watched(
            2,
            kernel=kernel(problem="no permission"),
            telemetry=telemetry,
            event_reasons={"load": 0, "output": 0, "decode": 0},
        ),
    )
    verdict = one(*run)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.findings == (
        "starts 1, 2: no permission",
        "start 1: ECC counters not given by device 0",
        "start 2: clock event reasons not read in prefill, context",
    )
    some = one(watched(1, kernel=None), watched(2))
    assert (some.outcome, some.reason) == (
        Outcome.PASS,
        "no fault in ECC counters, clock event reasons over 2 starts",
    )
    assert some.findings == ("start 1: the kernel log was not read",)


def test_clocks_alone_pass_but_say_that_faults_could_not_be_seen() -> None:
    """A consumer card without ECC on a host with a closed kernel log."""
    silent = health(ecc_corrected=None, ecc_uncorrected=None)
    closed = {"kernel": kernel(problem="closed; open it so"), "health_before": (silent,), "health_after": (silent,)}
    verdict = one(watched(1, **closed), watched(2, **closed))
    assert (verdict.outcome, verdict.more) == (Outcome.PASS, {"value": "faults not visible"})
    assert verdict.reason == (
        "nothing that shows a fault of the device could be read through all starts (kernel log, ECC counters); "
        "clocks were not held down by heat or hardware"
    )
    assert verdict.findings == ("starts 1, 2: closed; open it so", "starts 1, 2: ECC counters not given by device 0")
    warm = one(watched(1, **closed, telemetry={"load": phase(reasons={"sw_thermal": 0.5})}), watched(2, **closed))
    assert warm.outcome is Outcome.PASS
    assert warm.reason.endswith("; clocks were held down by heat or hardware only as noted")
    assert warm.findings[0] == "start 1: throttled in load: sw_thermal (50.0 % of the readings)"
    blind = one(watched(1, **closed, event_reasons={}, telemetry={}), watched(2, **closed))
    assert blind.outcome is Outcome.INCONCLUSIVE


def test_a_device_that_only_held_the_weights_is_said_to() -> None:
    idle = watched(1, requests=(), telemetry={"load": phase()}, event_reasons={"load": 0x4}, peaks={"load": GIB})
    assert (
        one(idle).reason == "no fault in kernel log, ECC counters, clock event reasons over 1 start, while loading only"
    )
    closed = replace(idle, kernel=None, health_before=())
    assert one(closed).reason.endswith("; clocks were not held down by heat or hardware, while loading only")
    assert not one(idle, watched(2)).reason.endswith("while loading only")


def test_nothing_read_of_a_gpu_is_no_pass() -> None:
    blind = watched(1, kernel=None, health_before=(), health_after=(), event_reasons={}, telemetry={})
    verdict = one(blind)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason == "nothing that tells of the health of the device could be read through all starts"
    assert len(verdict.findings) == 3


def test_a_profile_without_a_gpu_is_judged_by_what_there_is() -> None:
    cpu = {"log": CPU_LOG, "event_reasons": {}, "telemetry": {}, "health_before": (), "health_after": ()}
    gpus = (gpu(kind=DeviceKind.CPU, pci_bus_id=None),)
    verdict = one(run=evidence(watched(1, **cpu), gpus=gpus), kind=DeviceKind.CPU)
    assert (verdict.outcome, verdict.subject) == (Outcome.PASS, "server life")
    assert verdict.reason == "the server lived through 1 start; nothing is said about hardware"
    idle = one(run=evidence(watched(1, **cpu, requests=()), gpus=gpus), kind=DeviceKind.CPU)
    assert idle.reason == "the server lived through 1 start, while loading only; nothing is said about hardware"
    assert verdict.more == {"value": "1 start"}
    assert verdict.findings == ()
    killed = evidence(watched(1, **cpu, kernel=kernel(KILLED), failure=replace(DIED, exit_code=-9)), gpus=gpus)
    assert one(run=killed, kind=DeviceKind.CPU).failed_class is FailedClass.MEMORY


ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


def test_an_engine_dead_behind_a_front_that_lives_fails() -> None:
    """vLLM answers HTTP 200 with an error object, then 503 on /health, and its process stays."""
    lost = tuple(replace(r, error=ENGINE_DEAD, text="") for r in answers())
    run = evidence(watched(requests=lost, health_at_end="health says HTTP 503"))
    (verdict,) = judge(run, scenario(), profile())
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.STABILITY)
    assert verdict.reason == (
        "start 1: the server lived on, but not its engine: after the last request health says HTTP 503; "
        f"3 of 3 requests failed, the first with {ENGINE_DEAD!r}"
    )


def test_an_engine_that_says_it_died_fails_whatever_health_says() -> None:
    first, *others = answers()
    (verdict,) = judge(evidence(watched(requests=(replace(first, error=ENGINE_DEAD), *others))), scenario(), profile())
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.STABILITY)
    assert verdict.reason == f"start 1: the engine died under a request: {ENGINE_DEAD!r}; 1 of 3 requests failed"
    other = replace(first, error="HTTP 500: slot died")
    assert judge(evidence(watched(requests=(other, *others))), scenario(), profile())[0].outcome is Outcome.PASS


def test_an_engine_that_died_is_told_of_a_processor_too() -> None:
    run = evidence(start(log=CPU_LOG, health_at_end="health does not answer"), gpus=())
    (verdict,) = judge(run, scenario(), profile(DeviceKind.CPU))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.STABILITY)


def test_a_refused_prompt_beyond_the_context_is_no_failed_request() -> None:
    """Beside an Xid of an application: the server answered everything it should."""
    xid = kernel("NVRM: Xid (PCI:0000:0f:00): 13, pid=4321, name=llama-server, Graphics Exception")
    (verdict,) = judge(evidence(watched(requests=(*answers(), beyond()), kernel=xid)), scenario(), profile())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    failed = (*answers(), beyond(too_long=False))
    (verdict,) = judge(evidence(watched(requests=failed, kernel=xid)), scenario(), profile())
    assert verdict.outcome is Outcome.FAILED
