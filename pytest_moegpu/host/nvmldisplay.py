"""Which GPUs drive a display, which takes memory of theirs that comes and goes with the windows on it."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_moegpu.errors import MoegpuError
from pytest_moegpu.host.nvml import Nvml

__all__ = ["displays"]


def displays(indexes: Sequence[int]) -> tuple[int, ...] | None:
    """Return those of the GPUs, by index in PCI bus order, with a display attached or active; None: not known of one.

    A MIG instance drives none.
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
                asked = ("nvmlDeviceGetDisplayActive", "nvmlDeviceGetDisplayMode")
                flags = [nvml.flag(found[index], function) for function in asked]
                told[index] = True if True in flags else None if None in flags else False
    except MoegpuError:
        return None
    finally:
        nvml.close()
    return None if None in told.values() else tuple(index for index, shown in told.items() if shown)
