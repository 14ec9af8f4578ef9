from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_moegpu.checks.stability import judge
from pytest_moegpu.core.evidence import DeviceProcess, Evidence, Phase, StartEvidence, StartFailure
from pytest_moegpu.core.model import DeviceKind
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from tests.unit.builders import (
    CPU_LOG,
    answers,
    evidence,
    gpu,
    health,
    kernel,
    phase,
    profile,
    scenario,
    stream,
    watched,
)

FALLEN = "NVRM: Xid (PCI:0000:0f:00): 79, pid=4321, name=llama-server, GPU has fallen off the bus."
FAULT_31 = (
    "NVRM: Xid (PCI:0000:0f:00): 31, pid=4321, name=llama-server, Ch 00000010, intr 00000000. MMU Fault: ENGINE CE2 "
    "HUBCLIENT_CE0 faulted @ 0x7f29_5b8c9000. Fault is of type FAULT_PRIV_VIOLATION ACCESS_TYPE_VIRT_READ"
)
CLEANUP = "NVRM: Xid (PCI:0000:0f:00): 45, pid='<unknown>', name=<unknown>, Ch 00000008"
IOMMU = "nvidia 0000:0f:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x001c address=0xd0826240 flags=0x0020]"
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
    ("line", "said"),
    [
        (FALLEN, "Xid 79 (GPU has fallen off the bus) on device 0"),
        (IOMMU, "IOMMU page fault (on AMD hosts try iommu=pt) on device 0"),
        ("NVRM: Xid (PCI:0000:0f:00): 999, something new", "Xid 999 (not in the table) on device 0"),
        (
            "NVRM: Xid (PCI:0000:0f:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            "Xid 154 (GPU recovery action changed) on device 0",
        ),
    ],
)
def test_a_fault_of_our_device_in_the_kernel_log_fails(line: str, said: str) -> None:
    verdict = second(kernel=kernel(line, line))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.STABILITY)
    assert verdict.reason == f"start 2: {said}, 2 times"
    assert verdict.lines[0][0] == "kernel"
    assert line[:60] in verdict.lines[0][1]
    assert verdict.log_path == "runs/x/server-2.log"


def test_a_fault_of_another_device_is_a_note_and_of_none_named_a_doubt() -> None:
    verdict = second(kernel=kernel(FALLEN.replace("0f", "10"), IOMMU.replace("0f", "10")))
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings == ("start 2: Xid 79 (GPU has fallen off the bus) on a device that is not of this run",)
    nowhere = second(kernel=kernel("NVRM: GPU has fallen off the bus and is not responding to commands."))
    assert nowhere.outcome is Outcome.INCONCLUSIVE
    assert nowhere.reason == "start 2: GPU has fallen off the bus, not known on which device"
    nameless = one(run=evidence(watched(1, kernel=kernel(FALLEN)), gpus=(gpu(pci_bus_id=None),)))
    assert nameless.outcome is Outcome.INCONCLUSIVE


def test_messages_that_blame_nobody_are_notes() -> None:
    lines = (
        "NVRM: Xid (PCI:0000:0f:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
        "nvidia 0000:0f:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
        "NVRM: _issueRpcAndWait: rpcRecvPoll timedout for fn 76 sequence 4129!",
    )
    verdict = second(kernel=kernel(*lines))
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings == (
        "start 2: Xid 154 (GPU recovery action changed) on device 0",
        "start 2: corrected PCIe error on device 0",
        "start 2: GSP firmware trouble without an Xid, not known on which device",
    )


def test_an_application_xid_fails_only_beside_a_death_or_a_failed_request() -> None:
    said = "start 2: Xid 31 (GPU memory page fault) on device 0"
    alone = second(kernel=kernel(FAULT_31))
    assert (alone.outcome, alone.reason) == (Outcome.INCONCLUSIVE, said)
    failed = second(kernel=kernel(FAULT_31), requests=(*answers(), stream(error="HTTP 500")))
    assert (failed.outcome, failed.failed_class, failed.reason) == (Outcome.FAILED, FailedClass.STABILITY, said)
    dead = second(kernel=kernel(FAULT_31), failure=DIED)
    assert (dead.outcome, dead.reason) == (Outcome.FAILED, said)
    assert dead.findings == ("start 2: the start broke: server died",)


def test_the_clean_up_after_a_process_counts_only_when_it_ended_by_itself() -> None:
    assert second(kernel=kernel(CLEANUP)).outcome is Outcome.PASS
    stopped = StartFailure(phase=Phase.STOP, cause="memory did not come back")
    ended = second(kernel=kernel(CLEANUP), failure=stopped)
    assert (ended.outcome, ended.reason) == (Outcome.ERROR, "memory did not come back")
    assert ended.findings == ("start 2: Xid 45 (preemptive cleanup of an ended application) on device 0",)
    never_ready = StartFailure(phase=Phase.READY, cause="not ready within 600 s")
    assert second(kernel=kernel(CLEANUP), failure=never_ready).outcome is Outcome.ERROR
    assert second(kernel=kernel(CLEANUP), failure=DIED).outcome is Outcome.FAILED


def test_a_server_killed_by_the_kernel_fails_for_memory() -> None:
    verdict = second(kernel=kernel(KILLED), failure=replace(DIED, exit_code=-9))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.MEMORY)
    assert verdict.reason == "start 2: the kernel killed llama-server (pid 4321) for want of host memory"
    worker = DeviceProcess(pid=4400, device=0, name="VLLM::EngineCore")
    own = second(kernel=kernel(KILLED.replace("4321", "4400")), processes=(worker,))
    assert own.outcome is Outcome.FAILED
    other = second(kernel=kernel(KILLED.replace("4321", "99")))
    assert other.outcome is Outcome.PASS
    assert other.findings[0].endswith("for want of host memory, which is not known to be ours")
    both = second(kernel=kernel(KILLED, FALLEN))
    assert both.failed_class is FailedClass.STABILITY


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


def test_a_lost_gpu_fails_though_the_start_broke() -> None:
    lost = StartFailure(phase=Phase.DECODE, cause="the device cannot be read: the GPU is lost", kind="gpu-lost")
    verdict = one(watched(1), watched(2, failure=lost))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.STABILITY)
    assert verdict.reason == "start 2: the GPU was lost in decode: the device cannot be read: the GPU is lost"


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
    clock = second(telemetry={"load": phase(), "prefill": phase(sm_clock_mhz=1500.0)})
    assert clock.outcome is Outcome.INCONCLUSIVE
    assert clock.reason == "start 2: SM clock of device 0 in prefill 1500 MHz, median over the starts 1800 MHz"
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
    run = (
        watched(1, kernel=kernel(problem="no permission"), health_before=(silent,)),
        watched(2, kernel=kernel(problem="no permission"), event_reasons={"load": 0, "output": 0, "decode": 0}),
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
    assert verdict.more == {"value": "1 start"}
    assert verdict.findings == ()
    killed = evidence(watched(1, **cpu, kernel=kernel(KILLED), failure=replace(DIED, exit_code=-9)), gpus=gpus)
    assert one(run=killed, kind=DeviceKind.CPU).failed_class is FailedClass.MEMORY
