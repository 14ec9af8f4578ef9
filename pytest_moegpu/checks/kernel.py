"""What the kernel log of a start says of our devices, and how heavy it weighs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pytest_moegpu.checks.findings import Finding, Weight
from pytest_moegpu.core.evidence import Phase, StartEvidence
from pytest_moegpu.core.health import KernelMessage
from pytest_moegpu.core.model import DeviceKind, Gpu
from pytest_moegpu.core.xid import Blame, blame, describe, oom_victim, pci_address

__all__ = ["kernel_findings"]

_CLEANUP = 45


def kernel_findings(start: StartEvidence, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Weigh every message once, with how often it came.

    A fault of one of our devices is a FAULT, of a device not named a DOUBT, of another one a note. What NVIDIA's
    catalogue holds against the application is a FAULT when the server died or a request failed in this start, else a
    DOUBT; Xid 45, which follows the end of a process, is a FAULT only when the server ended by itself.
    """
    if start.kernel is None:
        return
    counts: Counter[tuple[str, str, Blame]] = Counter()
    first: dict[tuple[str, str, Blame], KernelMessage] = {}
    for message in start.kernel.messages:
        key = (_said(message, start), _where(message, gpus), blame(message))
        counts[key] += 1
        first.setdefault(key, message)
    for (said, where, whose), count in counts.items():
        message = first[said, where, whose]
        if where == _OTHER and message.xid is None:
            # An error of a disk or a network card, or of a GPU that is not in this run.
            continue
        yield Finding(
            weight=_weight(message, whose, where, start),
            start=start.number,
            text=f"{said}{where}{f', {count} times' if count > 1 else ''}",
            line=message.text,
            memory=whose is Blame.HOST_MEMORY,
        )


_OTHER = " on a device that is not of this run"
_UNKNOWN = ", not known on which device"


def _where(message: KernelMessage, gpus: tuple[Gpu, ...]) -> str:
    if blame(message) is Blame.HOST_MEMORY:
        return ""
    ours = {pci_address(g.pci_bus_id): g.index for g in gpus if g.kind is DeviceKind.GPU}
    address = pci_address(message.pci_bus_id)
    if address is None or (address not in ours and None in ours):
        return _UNKNOWN
    return f" on device {ours[address]}" if address in ours else _OTHER


def _said(message: KernelMessage, start: StartEvidence) -> str:
    victim = oom_victim(message)
    if victim is None:
        return describe(message)
    pid, name = victim
    whose = "" if _is_ours(pid, start) else ", which is not known to be ours"
    return f"the kernel killed {name} (pid {pid}) for want of host memory{whose}"


def _is_ours(pid: int, start: StartEvidence) -> bool:
    return pid == start.pid or pid in {process.pid for process in start.processes}


def _weight(message: KernelMessage, whose: Blame, where: str, start: StartEvidence) -> Weight:
    if whose is Blame.NOTICE or where == _OTHER:
        return Weight.NOTE
    if victim := oom_victim(message):
        return Weight.FAULT if _is_ours(victim[0], start) else Weight.NOTE
    if whose is Blame.APPLICATION:
        if message.xid == _CLEANUP:
            return Weight.FAULT if _ended_by_itself(start) else Weight.NOTE
        if not (_ended_by_itself(start) or any(r.error is not None for r in start.requests)):
            return Weight.DOUBT
    return Weight.FAULT if where != _UNKNOWN else Weight.DOUBT


def _ended_by_itself(start: StartEvidence) -> bool:
    """Tell whether the server was gone before anybody stopped it: a failure then has its exit code."""
    return start.failure is not None and start.failure.phase is not Phase.STOP and start.failure.exit_code is not None
