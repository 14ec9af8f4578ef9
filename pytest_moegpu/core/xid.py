"""What a line of the kernel log says about a GPU, and whose fault it is: the device's, the application's, or nobody's.

Xid numbers and words: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
"""

from __future__ import annotations

import re
from enum import StrEnum

from pytest_moegpu.core.health import KernelMessage

__all__ = ["XIDS", "Blame", "blame", "describe", "of_switch", "oom_victim", "pci_address", "read_line"]


class Blame(StrEnum):
    """Where NVIDIA's catalogue looks first for the cause of a message. Only DEVICE speaks against the machine.

    DEVICE is the GPU with its driver and firmware, FABRIC a switch between GPUs. UNCLEAR is what the catalogue lays
    at nobody's door, or does not have.
    """

    DEVICE = "device"
    APPLICATION = "application"
    FABRIC = "fabric"
    HOST_MEMORY = "host memory"
    UNCLEAR = "unclear"
    NOTICE = "notice"


_DEVICE, _APPLICATION, _UNCLEAR, _NOTICE = Blame.DEVICE, Blame.APPLICATION, Blame.UNCLEAR, Blame.NOTICE

# Copy engines 3 to 19, and the engines for video and pictures, of which a language model uses none.
_COPY_ENGINES = (*range(70, 73), *range(75, 78), 85, *range(126, 136))
_VIDEO_ENGINES = (47, 60, 65, 68, 73, *range(82, 85), 86, 88, 89, *range(96, 106), 139, 142)
_NVLINK_5 = range(144, 151)

XIDS: dict[int, tuple[str, Blame]] = {
    8: ("GPU stopped processing", _DEVICE),
    11: ("invalid push buffer", _APPLICATION),
    13: ("graphics engine exception", _APPLICATION),
    14: ("injected error", _NOTICE),
    25: ("illegal push buffer", _APPLICATION),
    31: ("GPU memory page fault", _APPLICATION),
    32: ("corrupted push buffer: PCIe", _DEVICE),
    37: ("driver firmware error: application", _APPLICATION),
    38: ("driver firmware watchdog", _DEVICE),
    39: ("copy engine exception", _DEVICE),
    40: ("copy engine exception", _DEVICE),
    41: ("copy engine exception", _DEVICE),
    43: ("GPU stopped processing: software fault", _APPLICATION),
    44: ("fault during context switch", _DEVICE),
    45: ("preemptive cleanup of an ended application", _NOTICE),
    46: ("GPU timeout", _DEVICE),
    48: ("double bit ECC error", _DEVICE),
    54: ("auxiliary power not connected", _DEVICE),
    56: ("display engine error", _UNCLEAR),
    57: ("memory interface could not be trained", _DEVICE),
    58: ("unstable memory interface", _DEVICE),
    61: ("micro-controller breakpoint", _UNCLEAR),
    62: ("micro-controller halt", _DEVICE),
    63: ("memory row remapping or page retirement", _DEVICE),
    64: ("memory row remapping or page retirement failed", _DEVICE),
    66: ("illegal access by the driver", _DEVICE),
    67: ("illegal access by the driver", _DEVICE),
    69: ("graphics engine class error", _APPLICATION),
    74: ("NVLink error", _DEVICE),
    78: ("virtual GPU could not be started", _UNCLEAR),
    79: ("GPU has fallen off the bus", _DEVICE),
    80: ("corrupted data sent to the GPU", _DEVICE),
    92: ("high rate of single bit ECC errors", _DEVICE),
    93: ("InfoROM wear limit", _NOTICE),
    94: ("contained memory error", _DEVICE),
    95: ("uncontained memory error", _DEVICE),
    106: ("SMBPBI test message", _NOTICE),
    107: ("SMBPBI test message", _NOTICE),
    109: ("context switch timeout", _DEVICE),
    110: ("security fault", _DEVICE),
    119: ("GSP RPC timeout", _DEVICE),
    120: ("GSP error", _DEVICE),
    121: ("corrected errors on the link to the CPU", _NOTICE),
    136: ("link training failed", _DEVICE),
    137: ("illegal NVLink peer access", _APPLICATION),
    140: ("unrecovered ECC error", _DEVICE),
    141: ("CUDA fast path error", _UNCLEAR),
    143: ("GPU initialisation error", _DEVICE),
    151: ("key rotation error", _UNCLEAR),
    154: ("GPU recovery action changed", _DEVICE),
    155: ("NVLink taken down, also on purpose", _UNCLEAR),
    156: ("resource retired", _DEVICE),
    157: ("resource retirement failed", _DEVICE),
    158: ("fatal GPU timeout", _DEVICE),
    160: ("memory channel retired", _DEVICE),
    161: ("memory channel retirement failed", _DEVICE),
    162: ("power smoothing re-engaged", _NOTICE),
    163: ("power smoothing disengaged", _NOTICE),
    164: ("power smoothing near its end of life", _NOTICE),
    165: ("power smoothing at its end of life", _NOTICE),
    167: ("fatal PCIe timeout", _DEVICE),
    168: ("errors in protected memory", _DEVICE),
    169: ("micro-controller halt", _DEVICE),
    171: ("uncorrectable DRAM error", _DEVICE),
    172: ("uncorrectable SRAM error", _DEVICE),
    **dict.fromkeys(_COPY_ENGINES, ("copy engine exception", _DEVICE)),
    **dict.fromkeys(_VIDEO_ENGINES, ("video engine exception", _UNCLEAR)),
    **dict.fromkeys(_NVLINK_5, ("NVLink error", _DEVICE)),
}
"""Xid → short words and whom to blame. A number that is not here is held against nobody: it is UNCLEAR.

45 follows the end of a process, whatever ended it, and is the cause of nothing. Lines of 144 to 150 (NVLink of
Blackwell) say themselves whether they are fatal; what is not has mended itself or is told by another Xid.
"""

_BUS_ID = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?"
_XID = re.compile(rf"NVRM: Xid \(PCI:({_BUS_ID})\s*([^)]*)\): (\d+)\b", re.IGNORECASE)
_XID_OLD = re.compile(r"NVRM: Xid \(([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})()\): (\d+)\b", re.IGNORECASE)
# Pid 0 is the kernel's own: whatever ran when the interrupt came.
_PID = re.compile(r"\bpid='?([1-9]\d*)\b")
_NON_FATAL = re.compile(r"\bnon-?fatal\b", re.IGNORECASE)
_ANY_BUS_ID = re.compile(rf"\b({_BUS_ID})(?![0-9a-f])", re.IGNORECASE)
_PARTS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?", re.IGNORECASE)

# In the order tried. The driver prints a dozen lines for one GSP timeout, of which the Xid is the one that counts.
_LINES: tuple[tuple[re.Pattern[str], Blame, str], ...] = (
    (re.compile(r"NVRM: .*fallen off the bus", re.IGNORECASE), _DEVICE, "GPU has fallen off the bus"),
    (re.compile(r"NVRM: .*RmInitAdapter failed"), _DEVICE, "the driver could not initialise the GPU"),
    (
        re.compile(r"NVRM: .*(?:\bGSP\b|rpcRecvPoll).*(?:time-?d? ?out|error|failed|reset)", re.IGNORECASE),
        _NOTICE,
        "GSP firmware trouble without an Xid",
    ),
    (re.compile(r"AMD-Vi: Event logged \[IO_PAGE_FAULT"), _DEVICE, "IOMMU page fault (on AMD hosts try iommu=pt)"),
    (re.compile(r"DMAR: \[DMA \w+.*fault (?:addr|reason)"), _DEVICE, "IOMMU fault"),
    (re.compile(r"PCIe Bus Error: severity=Uncorrect"), _DEVICE, "uncorrected PCIe error"),
    (re.compile(r"PCIe Bus Error: severity=Correct"), _NOTICE, "corrected PCIe error"),
    # Lines of the same number without a severity are details. What a switch's fault does to a GPU comes as its Xid 74.
    (re.compile(r"nvidia-nvswitch\d*: SXid \([^)]*\): \d+, Fatal\b", re.IGNORECASE), Blame.FABRIC, "NVSwitch error"),
    (re.compile(r"nvidia-nvswitch\d*: SXid \([^)]*\): \d+, Non-fatal\b", re.IGNORECASE), _NOTICE, "NVSwitch error"),
    (re.compile(r"Killed process \d+ \("), Blame.HOST_MEMORY, "process killed for want of host memory"),
)

_VICTIM = re.compile(r"Killed process (\d+) \(([^)]*)\)")
_SXID = re.compile(r"\bSXid \([^)]*\): (\d+), (\S+)\b", re.IGNORECASE)
_RECOVERED = re.compile(r"\bto 0x0 \(None\)")


def read_line(text: str, seconds: float | None = None) -> KernelMessage | None:
    """Read one message of the kernel log; None when it is not one that a GPU run need know.

    Kept are Xids and other faults that the NVIDIA driver reports, errors of NVSwitches (SXid), IOMMU faults and PCIe
    errors of any device (whether it is one of ours is for the reader to tell), and processes that the kernel killed for
    want of memory. An Xid of a MIG instance has the address of the GPU and names the instance behind it.
    A message of several lines, each with the driver's name before it, becomes one line.
    """
    # The driver breaks long messages and repeats its name on each line.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    flat = " ".join([*lines[:1], *(line.removeprefix("NVRM:").strip() for line in lines[1:])])
    if match := _XID.search(flat) or _XID_OLD.search(flat):
        pid = _PID.search(flat)
        return KernelMessage(
            text=flat,
            xid=int(match[3]),
            pci_bus_id=match[1].lower(),
            seconds=seconds,
            pid=int(pid[1]) if pid else None,
            instance=match[2].strip() or None,
        )
    if not any(pattern.search(flat) for pattern, _, _ in _LINES):
        return None
    found = None if _VICTIM.search(flat) else _ANY_BUS_ID.search(flat)
    return KernelMessage(text=flat, pci_bus_id=found[1].lower() if found else None, seconds=seconds)


def blame(message: KernelMessage) -> Blame:
    """Tell whose fault a message speaks of.

    Xid 154 sums up what another one means for the device; when it says that nothing need be done any more, it is a
    notice.
    """
    if message.xid is not None:
        if message.xid == 154 and _RECOVERED.search(message.text):
            return Blame.NOTICE
        if message.xid in _NVLINK_5 and _NON_FATAL.search(message.text):
            return Blame.UNCLEAR
        return XIDS.get(message.xid, ("", Blame.UNCLEAR))[1]
    return next((found for pattern, found, _ in _LINES if pattern.search(message.text)), Blame.NOTICE)


def describe(message: KernelMessage) -> str:
    """Print what a message means, such as `Xid 79 (GPU has fallen off the bus)`; one of no known kind as it stands."""
    if message.xid is not None:
        words = XIDS.get(message.xid, ("not in the table", Blame.UNCLEAR))[0]
        return f"Xid {message.xid} ({words})"
    if match := _SXID.search(message.text):
        return f"SXid {match[1]} ({match[2].lower()} error of an NVSwitch)"
    return next((words for pattern, _, words in _LINES if pattern.search(message.text)), message.text)


def of_switch(message: KernelMessage) -> bool:
    """Tell whether a message is of an NVSwitch, whose address is none of a GPU."""
    return _SXID.search(message.text) is not None


def oom_victim(message: KernelMessage) -> tuple[int, str] | None:
    """Return pid and name of the process that the kernel killed for want of memory; None for another message."""
    match = _VICTIM.search(message.text)
    return (int(match[1]), match[2]) if match else None


def pci_address(bus_id: str | None) -> tuple[int, int, int] | None:
    """Return (domain, bus, device) of a PCI bus id, so that `00000000:0F:00.0` is `0000:0f:00`; None when it is none.

    The function is left out: a GPU is function 0, and its audio device shares its fate.
    """
    match = _PARTS.fullmatch(bus_id or "")
    return (int(match[1] or "0", 16), int(match[2], 16), int(match[3], 16)) if match else None
