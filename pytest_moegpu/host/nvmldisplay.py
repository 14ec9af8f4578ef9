"""Which GPUs drive a display, which takes memory of theirs that comes and goes with the windows on it."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_moegpu.errors import MoegpuError
from pytest_moegpu.host.nvml import Nvml

__all__ = ["displays"]


def displays(indexes: Sequence[int]) -> tuple[int, ...] | None:
    """Return those of the GPUs, by index in PCI bus order, with an active display; None: not known of one.

    A MIG instance drives none. NVML's display mode is not asked: an H200, which has no connector, says that it is on.
    """
    try:
        nvml = Nvml()
    except MoegpuError:
        return None
    try:
        found = {device.index: device for device in nvml.devices() if device.error is None and not device.mig}
        told: dict[int, bool | None] = {}
        for index in indexes:
            if index in found:
                told[index] = nvml.flag(found[index], "nvmlDeviceGetDisplayActive")
    except MoegpuError:
        return None
    finally:
        nvml.close()
    return None if None in told.values() else tuple(index for index, shown in told.items() if shown)
