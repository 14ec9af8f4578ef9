"""Lines of the kernel log as drivers and kernels print them, and whom they speak against."""

from __future__ import annotations

import pytest

from pytest_moegpu.core.health import KernelMessage
from pytest_moegpu.core.xid import XIDS, Blame, blame, describe, of_switch, oom_victim, pci_address, read_line

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
            Blame.NOTICE,
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
        ("NVRM: Xid (PCI:0000:0f:00): 4711, never heard of", 4711, "0000:0f:00", Blame.UNCLEAR),
        (
            "NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)",
            149,
            "0009:01:00",
            Blame.DEVICE,
        ),
        (
            "NVRM: Xid (PCI:0000:5f:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 02 (0x00000004 0x80000000)",
            145,
            "0000:5f:00",
            Blame.UNCLEAR,
        ),
    ],
)
def test_an_xid_is_read_with_its_device_and_blame(text: str, number: int, bus_id: str, whose: Blame) -> None:
    message = read(text)
    assert (message.xid, message.pci_bus_id, blame(message), message.text) == (number, bus_id, whose, text)


@pytest.mark.parametrize(
    ("text", "number", "instance", "pid"),
    [
        (
            "NVRM: Xid (PCI:0000:0f:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
            94,
            "GPU-I:05",
            7194,
        ),
        (
            "NVRM: Xid (PCI:0000:0f:00 GPU-I:05 GPU-CI:00): 31, pid=88, name=python, Ch 00000010",
            31,
            "GPU-I:05 GPU-CI:00",
            88,
        ),
        (FALLEN, 79, None, 1234),
        ("NVRM: Xid (PCI:0000:0f:00): 13, pid='4321', name=python, Graphics SM Warp Exception", 13, None, 4321),
        ("NVRM: Xid (PCI:0000:0f:00): 45, pid='<unknown>', name=<unknown>, Ch 00000008", 45, None, None),
        ("NVRM: Xid (PCI:0000:0f:00): 79, pid=0, name=swapper/0, GPU has fallen off the bus.", 79, None, None),
        ("NVRM: Xid (0000:0f:00): 8, Channel 00000001", 8, None, None),
    ],
)
def test_an_xid_names_its_process_and_the_instance_of_a_divided_gpu(
    text: str, number: int, instance: str | None, pid: int | None
) -> None:
    message = read_line(text, 7.5)
    assert message == KernelMessage(
        text=text, xid=number, pci_bus_id="0000:0f:00", seconds=7.5, pid=pid, instance=instance
    )


@pytest.mark.parametrize(
    ("text", "whose", "words"),
    [
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM Fault Up",
            Blame.FABRIC,
            "SXid 20034 (fatal error of an NVSwitch)",
        ),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
            Blame.NOTICE,
            "SXid 12028 (non-fatal error of an NVSwitch)",
        ),
    ],
)
def test_errors_of_a_switch_are_read(text: str, whose: Blame, words: str) -> None:
    message = read(text)
    assert (message.xid, message.pid, blame(message), describe(message)) == (None, None, whose, words)
    assert of_switch(message)
    assert not of_switch(read(FALLEN))


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
        "nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 10002, Severity 5 Engine instance 00 Sub-engine instance 00",
        "nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 10002, Data {0x00140004, 0x00100000, 0x00000000}",
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
    assert by_blame[Blame.DEVICE] >= {48, 57, 58, 62, 63, 64, 67, 74, 79, 85, 92, 94, 95, 109, 119, 120, 135, 140, 154}
    assert by_blame[Blame.APPLICATION] == {11, 13, 25, 31, 37, 43, 69, 137}
    assert by_blame[Blame.NOTICE] == {14, 45, 93, 106, 107, 121, 162, 163, 164, 165}
    video = {47, 60, 65, 68, 73, 82, 83, 84, 86, 88, 89, *range(96, 106), 139, 142}
    assert by_blame[Blame.UNCLEAR] == {56, 61, 78, 141, 151, 155} | video
    assert by_blame[Blame.FABRIC] == by_blame[Blame.HOST_MEMORY] == set()
    # Of one kind each, so that no range runs into another number.
    assert {XIDS[n][0] for n in (39, 70, 72, 75, 77, 85, 126, 135)} == {"copy engine exception"}
    assert {XIDS[n][0] for n in video} == {"video engine exception"}
    assert {XIDS[n][0] for n in (74, *range(144, 151))} == {"NVLink error"}


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
