"""Which of the devices a driver lists are to be read: by index, by UUID, or by the value of CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_moegpu.errors import DeviceError, ProbeError

__all__ = ["Found", "select"]


@dataclass(frozen=True, kw_only=True)
class Found:
    """A device of the driver's list; `handle` is None where it cannot be opened, and `error` says why.

    `mig` when the GPU is divided: it cannot be used whole, only its `instances`. These have the GPU as `parent`.
    """

    index: int
    handle: Any = None
    uuid: str | None = None
    name: str = "GPU"
    error: ProbeError | None = None
    mig: bool = False
    instances: tuple[Found, ...] = ()
    parent: Found | None = None

    @property
    def title(self) -> str:
        """Index, name and UUID, for a person."""
        return f"{self.index} {self.name} ({self.uuid or self.error or 'no UUID'})"


def select(found: Sequence[Found], wanted: Sequence[int | str], visible: str | None) -> tuple[Found, ...]:
    """Pick the devices asked for, each once, in the order asked for.

    Args:
        found: All GPUs of the driver, in PCI bus order, with their MIG instances.
        wanted: Indexes as `found` has them, or UUIDs or their beginnings; not empty: `visible` does not matter.
        visible: The value of CUDA_VISIBLE_DEVICES, None where it is not set. Its indexes count only the GPUs this
            process may open, and -1 ends it, as in CUDA. Not set: all devices this process may open.

    With nothing in `wanted`, and in sight no whole GPU and one MIG instance, that one is taken, as in CUDA.

    Raises:
        DeviceError: One asked for does not exist, is not one device or is a divided GPU, or `visible` hides all.
        ProbeError: One asked for, or every one, cannot be opened.
    """
    allowed = [device for device in found if device.error is None or device.error.kind != "no-permission"]
    chosen: Sequence[Found]
    if wanted:
        chosen = [_pick(str(word), _all(found), found) for word in wanted]
    elif visible is not None:
        words = itertools.takewhile(lambda word: word != "-1", (word.strip() for word in visible.split(",")))
        chosen = _as_cuda([_pick(word, allowed, found) for word in words if word])
        if not chosen:
            raise DeviceError(f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU; found: {_titles(found)}")
    else:
        chosen = _as_cuda(allowed or found)
    for device in chosen:
        if device.error is not None:
            raise device.error
        if device.mig:
            raise DeviceError(_divided(device))
    return tuple({device.index: device for device in chosen}.values())


def _as_cuda(chosen: Sequence[Found]) -> Sequence[Found]:
    """Take the only instance of divided GPUs; leave out a divided GPU without any, where there are others.

    Drivers before 570 let CUDA see a single instance and then no whole GPU, later ones let it see both (MIG user guide,
    "MIG Device Names"); so where there is more than one thing to choose from, somebody has to choose.
    """
    usable = [device for device in chosen if device.instances or not device.mig]
    if len(usable) == 1 and len(usable[0].instances) == 1:
        return usable[0].instances
    return usable or chosen


def _pick(word: str, numbered: Sequence[Found], found: Sequence[Found]) -> Found:
    """Find one device by its place in `numbered` or by a UUID or its beginning."""
    if word.isdecimal():
        matches = list(numbered[int(word) : int(word) + 1])
    else:
        known = [device for device in _all(found) if word and device.uuid is not None]
        matches = [device for device in known if device.uuid == word]
        matches = matches or [device for device in known if str(device.uuid).startswith(word)]
    if len(matches) != 1:
        raise DeviceError(f"{'more than one' if matches else 'no'} GPU {word!r}; found: {_titles(_all(found))}")
    return matches[0]


def _all(found: Sequence[Found]) -> list[Found]:
    """Return the GPUs, and after them the instances, which are numbered in this order."""
    return [*found, *(instance for device in found for instance in device.instances)]


def _divided(gpu: Found) -> str:
    name = f"GPU {gpu.title} is in MIG mode and cannot be used whole"
    if not gpu.instances:
        return f"{name}; it has no instances: make some with `nvidia-smi mig -cgi PROFILE -C`, or turn MIG mode off"
    return f"{name}; choose an instance by its UUID: {_titles(gpu.instances)}"


def _titles(found: Sequence[Found]) -> str:
    return ", ".join(device.title for device in found)
