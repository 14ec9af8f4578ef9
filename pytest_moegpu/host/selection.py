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
    """A device of the driver's list; `handle` is None where it cannot be opened, and `error` says why."""

    index: int
    handle: Any = None
    uuid: str | None = None
    name: str = "GPU"
    error: ProbeError | None = None

    @property
    def title(self) -> str:
        """Index, name and UUID, for a person."""
        return f"{self.index} {self.name} ({self.uuid or self.error or 'no UUID'})"


def select(found: Sequence[Found], wanted: Sequence[int | str], visible: str | None) -> tuple[Found, ...]:
    """Pick the devices asked for, each once, in the order asked for.

    Args:
        found: All devices of the driver, in PCI bus order.
        wanted: Indexes into `found`, or UUIDs or their beginnings; not empty: `visible` does not matter.
        visible: The value of CUDA_VISIBLE_DEVICES, None where it is not set. Its indexes count only the devices this
            process may open, and -1 ends it, as in CUDA. Not set: all devices this process may open.

    Raises:
        DeviceError: One asked for does not exist or is not one device, or `visible` hides all.
        ProbeError: One asked for, or every one, cannot be opened.
    """
    allowed = [device for device in found if device.error is None or device.error.kind != "no-permission"]
    chosen: Sequence[Found]
    if wanted:
        chosen = [_pick(str(word), found, found) for word in wanted]
    elif visible is not None:
        words = itertools.takewhile(lambda word: word != "-1", (word.strip() for word in visible.split(",")))
        chosen = [_pick(word, allowed, found) for word in words if word]
        if not chosen:
            raise DeviceError(f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU; found: {_titles(found)}")
    else:
        chosen = allowed or found
    for device in chosen:
        if device.error is not None:
            raise device.error
    return tuple({device.index: device for device in chosen}.values())


def _pick(word: str, numbered: Sequence[Found], found: Sequence[Found]) -> Found:
    """Find one device by its place in `numbered` or by a UUID's beginning."""
    if word.isdecimal():
        matches = numbered[int(word) : int(word) + 1]
    else:
        matches = [device for device in found if word and device.uuid is not None and device.uuid.startswith(word)]
    if len(matches) != 1:
        raise DeviceError(f"{'more than one' if matches else 'no'} GPU {word!r}; found: {_titles(found)}")
    return matches[0]


def _titles(found: Sequence[Found]) -> str:
    return ", ".join(device.title for device in found)
