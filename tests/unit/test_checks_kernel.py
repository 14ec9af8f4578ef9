"""What a kernel log says of the devices of a run: whose fault it is, and how heavy it weighs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_moegpu.checks.kernel import device_fault, kernel_findings
from pytest_moegpu.checks.stability import judge
from pytest_moegpu.core.evidence import DeviceProcess, Evidence, Phase, StartEvidence, StartFailure
from pytest_moegpu.core.model import Gpu
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from tests.unit.builders import answers, evidence, gpu, kernel, profile, scenario, stream, watched

FALLEN = "NVRM: Xid (PCI:0000:0f:00): 79, pid=4321, name=llama-server, GPU has fallen off the bus."
FAULT_31 = (
    "NVRM: Xid (PCI:0000:0f:00): 31, pid=4321, name=llama-server, Ch 00000010, intr 00000000. MMU Fault: ENGINE CE2 "
    "HUBCLIENT_CE0 faulted @ 0x7f29_5b8c9000. Fault is of type FAULT_PRIV_VIOLATION ACCESS_TYPE_VIRT_READ"
)
CLEANUP = "NVRM: Xid (PCI:0000:0f:00): 45, pid=4321, name=llama-server, Ch 00000008"
UNKNOWN = "NVRM: Xid (PCI:0000:0f:00): 999, pid=4321, something new"
IOMMU = "nvidia 0000:0f:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x001c address=0xd0826240 flags=0x0020]"
KILLED = "Out of memory: Killed process 4321 (llama-server) total-vm:48123456kB, anon-rss:31000000kB, file-rss:0kB"
SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM Fault Up"
DIED = StartFailure(phase=Phase.DECODE, cause="server died", exit_code=-6)
SERVER = DeviceProcess(pid=4321, device=0, name="llama-server")
GAME = DeviceProcess(pid=99, device=0, name="game")


def one(*starts: StartEvidence, run: Evidence | None = None) -> Verdict:
    (verdict,) = judge(run or evidence(*starts), scenario(), profile())
    return verdict


def second(**changes: Any) -> Verdict:
    """Judge a run whose second of three starts has something to tell."""
    return one(watched(1), watched(2, **changes), watched(3))


def weights(*lines: str, gpus: tuple[Gpu, ...] = (gpu(),), seconds: float | None = None, **changes: Any) -> list[str]:
    """The weight of each line, in a start with these changes."""
    start = watched(kernel=kernel(*lines, seconds=seconds), **changes)
    return [finding.weight.value for finding in kernel_findings(start, gpus)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (FALLEN, "Xid 79 (GPU has fallen off the bus) on device 0"),
        (IOMMU, "IOMMU page fault (on AMD hosts try iommu=pt) on device 0"),
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


def test_the_clean_up_after_a_process_is_the_cause_of_nothing() -> None:
    said = "start 2: Xid 45 (preemptive cleanup of an ended application) on device 0"
    assert second(kernel=kernel(CLEANUP)).findings == (said,)
    ended = second(kernel=kernel(CLEANUP), failure=DIED)
    assert (ended.outcome, ended.reason, ended.findings) == (Outcome.ERROR, "server died", (said,))


@pytest.mark.parametrize(
    "cause",
    [
        StartFailure(phase=Phase.LOAD, cause="out of memory (exit code 1)", exit_code=1, out_of_memory=True),
        StartFailure(phase=Phase.LOAD, cause="no kernel image", exit_code=1, kind="no-kernel-image"),
    ],
)
def test_a_cause_that_the_servers_log_names_comes_before_an_application_xid(cause: StartFailure) -> None:
    verdict = second(kernel=kernel(FAULT_31, CLEANUP), failure=cause)
    assert verdict.reason == cause.cause
    assert verdict.failed_class is (FailedClass.MEMORY if cause.out_of_memory else None)
    assert "start 2: Xid 31 (GPU memory page fault) on device 0" in verdict.findings
    # What speaks against the device is no consequence of it.
    assert second(kernel=kernel(FALLEN), failure=cause).failed_class is FailedClass.STABILITY


def test_an_xid_that_nobody_knows_is_a_doubt_even_beside_a_death() -> None:
    verdict = second(kernel=kernel(UNKNOWN, UNKNOWN))
    assert (verdict.outcome, verdict.reason) == (
        Outcome.INCONCLUSIVE,
        "start 2: Xid 999 (not in the table) on device 0, 2 times",
    )
    assert second(kernel=kernel(UNKNOWN), failure=DIED).outcome is Outcome.ERROR
    assert weights(UNKNOWN.replace("4321", "99"), processes=(SERVER, GAME), foreign=(GAME,)) == ["note"]


def test_an_application_xid_of_another_process_is_a_note() -> None:
    stranger = FAULT_31.replace("4321", "99")
    found = second(kernel=kernel(stranger), failure=DIED, processes=(SERVER, GAME), foreign=(GAME,))
    assert (found.outcome, found.reason) == (Outcome.ERROR, "server died")
    assert found.findings == ("start 2: Xid 31 (GPU memory page fault) of pid 99, not ours, on device 0",)
    # The device itself fell off the bus, whoever was using it.
    assert weights(FALLEN.replace("4321", "99"), processes=(SERVER, GAME), foreign=(GAME,)) == ["fault"]


def test_an_application_xid_is_a_doubt_where_pids_cannot_be_told_apart() -> None:
    """In a container the kernel counts other pids than we do, and the driver's list has them too."""
    elsewhere = FAULT_31.replace("4321", "70123")
    unlisted = second(kernel=kernel(elsewhere), failure=DIED)
    assert (unlisted.outcome, unlisted.reason) == (Outcome.ERROR, "server died")
    assert unlisted.findings == (
        "start 2: Xid 31 (GPU memory page fault) of pid 70123, not known to be ours, on device 0",
    )
    assert weights(elsewhere) == ["doubt"]
    assert weights(elsewhere, failure=DIED, processes=(DeviceProcess(pid=70999, device=0),)) == ["doubt"]


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        (FAULT_31, {}),
        (FAULT_31.replace("pid=4321, ", ""), {}),
        (FAULT_31.replace("4321", "4400"), {"pids": (4321, 4400)}),
        (
            FAULT_31.replace("4321", "4400"),
            {"processes": (DeviceProcess(pid=4400, device=0, name="VLLM::EngineCore"),)},
        ),
    ],
    ids=["the server", "no pid named", "started by the server", "on the device and no stranger"],
)
def test_an_application_xid_of_ours_beside_a_death_is_a_fault(line: str, changes: dict[str, Any]) -> None:
    assert weights(line, failure=DIED, **changes) == ["fault"]
    assert weights(line, **changes) == ["doubt"]


def test_what_an_application_left_behind_when_it_was_stopped_is_a_note() -> None:
    failed: dict[str, Any] = {"requests": (*answers(), stream(error="HTTP 500"))}
    assert weights(FAULT_31, seconds=99.9, stopped_at=100.0, **failed) == ["fault"]
    assert weights(FAULT_31, seconds=100.0, stopped_at=100.0, **failed) == ["note"]
    assert weights(FAULT_31, seconds=100.0, **failed) == ["fault"]
    assert weights(FAULT_31, stopped_at=100.0, **failed) == ["fault"]
    assert weights(FALLEN, UNKNOWN, seconds=100.0, stopped_at=100.0) == ["fault", "doubt"]


def test_messages_before_and_after_the_stop_are_told_apart() -> None:
    early, late = kernel(FAULT_31, seconds=50.0).messages, kernel(FAULT_31, FAULT_31, seconds=150.0).messages
    start = watched(kernel=replace(kernel(), messages=(*early, *late)), stopped_at=100.0)
    said = [(f.weight.value, f.text) for f in kernel_findings(start, (gpu(),))]
    words = "Xid 31 (GPU memory page fault) on device 0"
    assert said == [("doubt", words), ("note", f"{words}, 2 times")]


def test_an_xid_of_an_instance_of_a_divided_gpu_is_ours_only_when_its_process_is() -> None:
    contained = "NVRM: Xid (PCI:0000:0f:00 GPU-I:05): 94, pid=4321, Contained: CE User Channel (0x9). RST: No"
    part = gpu(mig=True, uuid="MIG-11111111-2222-3333-4444-555555555555")
    assert weights(contained, gpus=(part,)) == ["fault"]
    assert weights(contained.replace("4321", "99"), gpus=(part,)) == ["doubt"]
    assert weights(contained.replace("pid=4321, ", ""), gpus=(part,)) == ["doubt"]
    # Without an instance it is of the whole GPU, and with one a GPU that is not divided still has the fault.
    assert weights(FALLEN.replace("4321", "99"), gpus=(part,)) == ["fault"]
    assert weights(contained.replace("4321", "99"), gpus=(gpu(mig=False),)) == ["fault"]
    foreign = watched(1, kernel=kernel(contained.replace("4321", "99")))
    verdict = one(run=evidence(foreign, gpus=(part, replace(part, index=1))))
    assert verdict.reason == "start 1: Xid 94 (contained memory error) in GPU-I:05 of the GPU of devices 0, 1"


def test_a_fatal_error_of_a_switch_is_a_doubt_where_gpus_work_together() -> None:
    two = (gpu(), gpu(index=1, pci_bus_id="00000000:10:00.0"))
    assert weights(SWITCH, gpus=two) == ["doubt"]
    assert weights(SWITCH) == ["note"]
    assert weights(SWITCH.replace("Fatal", "Non-fatal"), gpus=two) == ["note"]
    (said,) = kernel_findings(watched(kernel=kernel(SWITCH)), two)
    assert said.text == "SXid 20034 (fatal error of an NVSwitch)"


def test_a_fault_of_the_device_is_told_from_one_of_the_application() -> None:
    def faulty(line: str, **changes: Any) -> bool:
        return device_fault(watched(kernel=kernel(line), **changes), (gpu(),))

    assert faulty(FALLEN)
    assert faulty(IOMMU)
    assert not faulty(FAULT_31, failure=DIED)
    assert not faulty(FALLEN.replace("0f", "10"))
    assert not faulty(KILLED)
    assert not device_fault(watched(kernel=None), (gpu(),))


def test_a_server_killed_by_the_kernel_fails_for_memory() -> None:
    verdict = second(kernel=kernel(KILLED), failure=replace(DIED, exit_code=-9))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.MEMORY)
    assert verdict.reason == "start 2: the kernel killed llama-server (pid 4321) for want of host memory"
    worker = DeviceProcess(pid=4400, device=0, name="VLLM::EngineCore")
    own = second(kernel=kernel(KILLED.replace("4321", "4400")), processes=(worker,))
    assert own.outcome is Outcome.FAILED
    child = second(kernel=kernel(KILLED.replace("4321", "4401")), pids=(4321, 4401))
    assert child.failed_class is FailedClass.MEMORY
    stranger = second(kernel=kernel(KILLED.replace("4321", "99")), processes=(SERVER, GAME), foreign=(GAME,))
    assert stranger.outcome is Outcome.PASS
    other = second(kernel=kernel(KILLED.replace("4321", "99")))
    assert other.outcome is Outcome.PASS
    assert other.findings[0].endswith("for want of host memory, which is not known to be ours")
    both = second(kernel=kernel(KILLED, FALLEN))
    assert both.failed_class is FailedClass.STABILITY
