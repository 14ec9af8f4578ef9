"""How a device was while it was used: its own fault counters, what the kernel said of it, its clocks and power."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["DeviceHealth", "KernelLog", "KernelMessage", "PhaseTelemetry"]


@dataclass(frozen=True, kw_only=True)
class DeviceHealth:
    """Counters of one device that should not move while it is used, and its power limit. None: not known, never 0.

    ECC counts are those since the driver was loaded (volatile). Rows are those remapped in the life of the device.
    """

    device: int
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    rows_remapped_corrected: int | None = None
    rows_remapped_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    pcie_replays: int | None = None
    power_limit_watts: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, kw_only=True)
class KernelMessage:
    """One line of the kernel log about a GPU. `seconds` is the kernel's clock, `pci_bus_id` as the line has it.

    `pid` is the process an Xid names, as the kernel counts them: in a container it is another number there.
    `instance` is the part of a divided (MIG) GPU that an Xid names, such as `GPU-I:05 GPU-CI:00`.
    """

    text: str
    xid: int | None = None
    pci_bus_id: str | None = None
    seconds: float | None = None
    pid: int | None = None
    instance: str | None = None


@dataclass(frozen=True, kw_only=True)
class KernelLog:
    """What the kernel said about GPUs between two looks. `problem` says why it could not be read; empty: it was."""

    source: str = ""
    problem: str = ""
    messages: tuple[KernelMessage, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PhaseTelemetry:
    """One device in one phase of a start, over all its readings there. None: never read in this phase.

    Clocks in MHz, `sm_clock_mhz` the median; power the mean in watts, from the energy counter where it was read at both
    ends of a stretch of the phase (`energy_joules` is what was used there), else of the device's own power readings;
    `reasons` maps a word of `core.reasons` to the share of readings that had it; link figures are the best seen.
    `reason_readings` is how many readings said what held the clocks down at all. `host_…` is host memory of the
    server's tree, `host_free_…` what the system had available: the most, the least, and at the phase's last reading.
    `gap_seconds` is the longest time between two readings: what was there for less may have passed unseen.
    """

    device: int
    readings: int
    seconds: float
    gap_seconds: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_min_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    temperature_max_c: float | None = None
    utilisation: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    used_max_bytes: int | None = None
    free_min_bytes: int | None = None
    host_max_bytes: int | None = None
    host_last_bytes: int | None = None
    host_free_min_bytes: int | None = None
    host_free_last_bytes: int | None = None
    reason_readings: int | None = None
    reasons: dict[str, float] = field(default_factory=dict)
