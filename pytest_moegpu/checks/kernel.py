"""What the kernel log of a start says of our devices, and how heavy it weighs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from pytest_moegpu.checks.findings import Finding, Weight
from pytest_moegpu.core.evidence import Phase, StartEvidence
from pytest_moegpu.core.health import KernelMessage
from pytest_moegpu.core.model import DeviceKind, Gpu
from pytest_moegpu.core.xid import Blame, blame, describe, of_switch, oom_victim, pci_address

__all__ = ["device_fault", "kernel_findings"]


def kernel_findings(start: StartEvidence, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Weigh every message once, with how often it came.

    A fault of one of our devices is a FAULT; of a device not named, or of an instance of a divided GPU that is not
    known to be ours, a DOUBT; of another device a note. What is held against nobody is a DOUBT, and so is a fatal error
    of an NVSwitch when the run has several GPUs: what it does to one of them comes as an Xid of that GPU.

    What NVIDIA's catalogue holds against the application is a FAULT when the server died or a request failed in this
    start, else a DOUBT. It is a note when it came after the order to stop, names a process that is not ours (a DOUBT
    when pids cannot be told apart), or when the server's own log names the cause: that is told by itself.
    """
    if start.kernel is None:
        return
    found: dict[tuple[str, Weight], list[KernelMessage]] = {}
    for message in start.kernel.messages:
        place = _place(message, gpus)
        if place.ours is False and message.xid is None:
            # An error of a disk or a network card, or of a GPU that is not in this run.
            continue
        key = (f"{_said(message, start)}{place.text}", _weight(message, place, start, several=len(gpus) > 1))
        found.setdefault(key, []).append(message)
    for (text, weight), messages in found.items():
        yield Finding(
            weight=weight,
            start=start.number,
            text=f"{text}, {len(messages)} times" if len(messages) > 1 else text,
            line=messages[0].text,
            memory=blame(messages[0]) is Blame.HOST_MEMORY,
        )


def device_fault(start: StartEvidence, gpus: tuple[Gpu, ...]) -> bool:
    """Tell whether the kernel log of a start holds a fault of one of our devices against the device itself."""
    messages = start.kernel.messages if start.kernel is not None else ()
    return any(
        blame(m) is Blame.DEVICE and _weight(m, _place(m, gpus), start, several=False) is Weight.FAULT for m in messages
    )


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a message says it happened. `ours` is None when it is not known; `shared`: ours is a part of that GPU."""

    text: str
    ours: bool | None
    shared: bool = False


def _place(message: KernelMessage, gpus: tuple[Gpu, ...]) -> _Place:
    if blame(message) is Blame.HOST_MEMORY or of_switch(message):
        return _Place(text="", ours=None)
    devices = [gpu for gpu in gpus if gpu.kind is DeviceKind.GPU]
    address = pci_address(message.pci_bus_id)
    here = [gpu for gpu in devices if pci_address(gpu.pci_bus_id) == address]
    if address is None or (not here and any(pci_address(gpu.pci_bus_id) is None for gpu in devices)):
        return _Place(text=", not known on which device", ours=None)
    if not here:
        return _Place(text=" on a device that is not of this run", ours=False)
    numbers = ", ".join(str(gpu.index) for gpu in here)
    text = f"device{'s' if len(here) > 1 else ''} {numbers}"
    if message.instance is not None and all(_is_instance(gpu) for gpu in here):
        return _Place(text=f" in {message.instance} of the GPU of {text}", ours=True, shared=True)
    return _Place(text=f" on {text}", ours=True)


def _is_instance(gpu: Gpu) -> bool:
    return bool(gpu.mig) and gpu.uuid is not None and gpu.uuid.startswith("MIG-")


class _Owner(StrEnum):
    """Whose process a pid of the kernel is. UNSURE: ours may have other numbers there, as in a container."""

    OURS = "ours"
    OTHER = "not ours"
    UNSURE = "not known to be ours"
    UNNAMED = ""


def _owner(pid: int | None, start: StartEvidence) -> _Owner:
    if pid is None:
        return _Owner.UNNAMED
    own = {start.pid, *start.pids}
    listed = {process.pid for process in start.processes}
    if pid in own | (listed - {process.pid for process in start.foreign}):
        return _Owner.OURS
    # The driver counts pids as the kernel does. Where it has one of ours under our number, the others can be told.
    return _Owner.OTHER if own & listed else _Owner.UNSURE


def _said(message: KernelMessage, start: StartEvidence) -> str:
    if victim := oom_victim(message):
        pid, name = victim
        whose = "" if _owner(pid, start) is _Owner.OURS else ", which is not known to be ours"
        return f"the kernel killed {name} (pid {pid}) for want of host memory{whose}"
    owner = _owner(message.pid, start)
    if blame(message) not in (Blame.APPLICATION, Blame.UNCLEAR) or owner not in (_Owner.OTHER, _Owner.UNSURE):
        return describe(message)
    return f"{describe(message)} of pid {message.pid}, {owner},"


def _weight(message: KernelMessage, place: _Place, start: StartEvidence, *, several: bool) -> Weight:
    whose = blame(message)
    if victim := oom_victim(message):
        return Weight.FAULT if _owner(victim[0], start) is _Owner.OURS else Weight.NOTE
    if whose is Blame.NOTICE or place.ours is False:
        return Weight.NOTE
    if whose is Blame.FABRIC:
        return Weight.DOUBT if several else Weight.NOTE
    owner = _owner(message.pid, start)
    weight = Weight.FAULT
    if whose is Blame.UNCLEAR:
        weight = Weight.NOTE if owner is _Owner.OTHER else Weight.DOUBT
    elif whose is Blame.APPLICATION:
        weight = _of_application(message, owner, start)
    unsure = place.ours is None or (place.shared and owner is not _Owner.OURS)
    return Weight.DOUBT if weight is Weight.FAULT and unsure else weight


def _of_application(message: KernelMessage, owner: _Owner, start: StartEvidence) -> Weight:
    stopping = start.stopped_at is not None and message.seconds is not None and message.seconds >= start.stopped_at
    named = start.failure is not None and (start.failure.out_of_memory or start.failure.kind != "")
    if stopping or named or owner is _Owner.OTHER:
        return Weight.NOTE
    harmed = _ended_by_itself(start) or any(r.error is not None and not r.too_long for r in start.requests)
    return Weight.FAULT if harmed and owner is not _Owner.UNSURE else Weight.DOUBT


def _ended_by_itself(start: StartEvidence) -> bool:
    """Tell whether the server was gone before anybody stopped it: a failure then has its exit code."""
    return start.failure is not None and start.failure.phase is not Phase.STOP and start.failure.exit_code is not None
