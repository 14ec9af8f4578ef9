"""Lines of the kernel log as drivers and kernels print them, and whom they speak against."""

from __future__ import annotations

import pytest

from pytest_moegpu.core.health import KernelMessage
from pytest_moegpu.core.xid import XIDS, Blame, blame, describe, oom_victim, pci_address, read_line

FALLEN = "NVRM: Xid (PCI:0000:0f:00): 79, pid=1234, name=llama-server, GPU has fallen off the bus."


def read(text: str) -> KernelMessage:
    message = read_line(text)
    assert message is not None, text
    return message


@pytest.mark.parametrize(
    ("text", "number", "bus_id", "whose"),
    [
        (FALLEN, 79, "0000:0f:00", Blame.DEVICE),
        ("NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus", 79, "0000:44:00", Blame.DEVICE),
        (
            "NVRM: Xid (PCI:0000:0a:00): 31, pid=13332, name=cuda_plot_k32_v, Ch 00000010, intr 00000000. MMU Fault: "
            "ENGINE CE2 HUBCLIENT_CE0 faulted @ 0x7f29_5b8c9000. Fault is of type FAULT_PRIV_VIOLATION",
            31,
            "0000:0a:00",
            Blame.APPLICATION,
        ),
        (
            "NVRM: Xid (PCI:0000:0a:00): 62, pid='<unknown>', name=<unknown>, 2023b230 20238a3a 2023e8b6 2023eac4",
            62,
            "0000:0a:00",
            Blame.DEVICE,
        ),
        (
            "NVRM: Xid (PCI:0000:0a:00): 45, pid='<unknown>', name=<unknown>, Ch 00000008",
            45,
            "0000:0a:00",
            Blame.APPLICATION,
        ),
        (
            "NVRM: Xid (PCI:0000:0b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            154,
            "0000:0b:00",
            Blame.DEVICE,
        ),
        (
            "NVRM: Xid (PCI:0000:0b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
            154,
            "0000:0b:00",
            Blame.NOTICE,
        ),
        ("NVRM: Xid (PCI:0001:C1:00): 13, pid=7, Graphics SM Warp Exception", 13, "0001:c1:00", Blame.APPLICATION),
        ("NVRM: Xid (0000:03:00): 8, Channel 00000001", 8, "0000:03:00", Blame.DEVICE),
        ("NVRM: Xid (PCI:0000:0f:00): 4711, never heard of", 4711, "0000:0f:00", Blame.DEVICE),
    ],
)
def test_an_xid_is_read_with_its_device_and_blame(text: str, number: int, bus_id: str, whose: Blame) -> None:
    message = read(text)
    assert (message.xid, message.pci_bus_id, blame(message), message.text) == (number, bus_id, whose, text)


@pytest.mark.parametrize(
    ("text", "bus_id", "whose", "words"),
    [
        (
            "NVRM: The NVIDIA GPU 0000:b3:00.0\n               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
            "               NVRM: fallen off the bus and is not responding to commands.",
            "0000:b3:00.0",
            Blame.DEVICE,
            "GPU has fallen off the bus",
        ),
        (
            "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0xf:2142)",
            "0000:01:00.0",
            Blame.DEVICE,
            "the driver could not initialise the GPU",
        ),
        (
            "NVRM: _issueRpcAndWait: rpcRecvPoll timedout for fn 76 sequence 4129!",
            None,
            Blame.NOTICE,
            "GSP firmware trouble without an Xid",
        ),
        (
            "NVRM: nvAssertFailedNoLog: Assertion failed: Back to back GSP RPC timeout detected! GPU marked for reset",
            None,
            Blame.NOTICE,
            "GSP firmware trouble without an Xid",
        ),
        (
            "nvidia 0000:81:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x001c address=0xd0826240 flags=0x0020]",
            "0000:81:00.0",
            Blame.DEVICE,
            "IOMMU page fault (on AMD hosts try iommu=pt)",
        ),
        (
            "AMD-Vi: Event logged [IO_PAGE_FAULT device=0a:00.0 domain=0x000c address=0xfeb00000 flags=0x0000]",
            "0a:00.0",
            Blame.DEVICE,
            "IOMMU page fault (on AMD hosts try iommu=pt)",
        ),
        (
            "DMAR: [DMA Read NO_PASID] Request device [01:00.0] fault addr 0xffe00000 [fault reason 0x06] PTE Read",
            "01:00.0",
            Blame.DEVICE,
            "IOMMU fault",
        ),
        (
            "nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer",
            "0000:01:00.0",
            Blame.DEVICE,
            "uncorrected PCIe error",
        ),
        (
            "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
            "0000:01:00.0",
            Blame.NOTICE,
            "corrected PCIe error",
        ),
    ],
)
def test_faults_without_an_xid_are_read(text: str, bus_id: str | None, whose: Blame, words: str) -> None:
    message = read(text)
    assert (message.xid, message.pci_bus_id, blame(message), describe(message)) == (None, bus_id, whose, words)


def test_a_message_of_several_lines_becomes_one() -> None:
    text = "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed\nNVRM: fallen off the bus"
    assert read(text).text == "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:26b5) installed fallen off the bus"


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: GPU at PCI:0000:0a:00: GPU-760d0170-b7c5-6817-9414-6cc7112645de",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build",
        "NVRM: GPU6 RPC event history (CPU <- GSP):",
        "NVRM:     -1    4124 GSP_LOCKDOWN_NOTICE            0 0x0000000000000001 0x0000000000000000",
        "EXT4-fs (md127p3): re-mounted 0f3cd65a-338b-4574-bba3-ecef214e1917 r/w. Quota mode: none.",
        "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link INIT",
        "",
    ],
)
def test_lines_that_say_nothing_of_a_fault_are_left_out(text: str) -> None:
    assert read_line(text) is None


def test_the_kernels_victims_are_named() -> None:
    host = read("Out of memory: Killed process 4321 (llama-server) total-vm:48123456kB, anon-rss:31000000kB")
    assert (blame(host), oom_victim(host), host.pci_bus_id) == (Blame.HOST_MEMORY, (4321, "llama-server"), None)
    group = read("Memory cgroup out of memory: Killed process 77 (VLLM::EngineCor) total-vm:48123456kB")
    assert oom_victim(group) == (77, "VLLM::EngineCor")
    assert oom_victim(read(FALLEN)) is None


def test_an_xid_is_printed_with_its_words() -> None:
    assert describe(read(FALLEN)) == "Xid 79 (GPU has fallen off the bus)"
    assert describe(KernelMessage(text="", xid=4711)) == "Xid 4711 (not in the table)"


def test_the_table_blames_as_the_catalogue_does() -> None:
    by_blame = {whose: {n for n, (_, found) in XIDS.items() if found is whose} for whose in Blame}
    assert by_blame[Blame.DEVICE] >= {48, 62, 63, 64, 74, 79, 92, 94, 95, 109, 119, 120, 140, 154}
    assert by_blame[Blame.APPLICATION] == {11, 13, 25, 31, 37, 43, 45, 69, 137}
    assert by_blame[Blame.NOTICE] == {14, 93, 106, 107, 121, 162}


@pytest.mark.parametrize(
    ("nvml", "line"),
    [("00000000:0F:00.0", "0000:0f:00"), ("00000000:01:00.0", "01:00.0"), ("0001:C1:00.0", "0001:c1:00")],
)
def test_bus_ids_of_nvml_and_kernel_meet(nvml: str, line: str) -> None:
    assert pci_address(nvml) == pci_address(line)
    assert pci_address(nvml) is not None


def test_what_is_no_bus_id_has_no_address() -> None:
    assert [pci_address(text) for text in (None, "", "GPU-760d0170", "0f", "0000:0f:00:00")] == [None] * 5
    assert pci_address("0000:0f:00") != pci_address("0001:0f:00")
