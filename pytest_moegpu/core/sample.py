"""One reading of one device."""

from __future__ import annotations

import msgspec

__all__ = ["Sample"]


class Sample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One reading of one device. `used_bytes` is NVML v2 `used`, without `reserved_bytes`, or the process tree's.

    `energy_joules` is the device's own counter, of which only differences mean something. `host_bytes` is host memory
    of the server's tree that is not a mapped file, and `host_free_bytes` what the system has available.
    A struct, because it is made 100 times a second beside the load: a frozen dataclass takes three times as long.
    It holds no containers, so the garbage collector need not look at it.
    """

    time: float
    phase: str
    device: int
    used_bytes: int | None = None
    reserved_bytes: int | None = None
    free_bytes: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    event_reasons: int | None = None
    utilisation: float | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    temperature_c: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    host_bytes: int | None = None
    host_free_bytes: int | None = None
