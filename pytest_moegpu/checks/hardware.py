"""What the devices went through: fault counters, power limits, links. Pure; each as a `Finding`."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_moegpu.checks.findings import SPEEDS, Finding, Weight
from pytest_moegpu.core.evidence import Phase, StartEvidence
from pytest_moegpu.core.health import DeviceHealth
from pytest_moegpu.core.model import DeviceKind, Gpu

__all__ = [
    "LOADED_PHASES",
    "MEASURED_PHASES",
    "counter_findings",
    "link_findings",
    "power_limit_changes",
]

MEASURED_PHASES = (Phase.PREFILL, Phase.DECODE)
"""The phases whose speed is measured."""

LOADED_PHASES = (Phase.LOAD, Phase.OUTPUT, Phase.WARMUP, *MEASURED_PHASES, Phase.CONTEXT)
"""The phases in which the server works the device."""

# NVML gives the limit in milliwatts; a rounding by the driver is no change.
_LIMIT_WATTS = 1.0


def power_limit_changes(starts: tuple[StartEvidence, ...]) -> Iterator[Finding]:
    """Find a power limit that was another one before a start, after it, or at the next."""
    for device, looks in _looks(starts).items():
        for number, place, old, new in _moves(looks, "power_limit_watts"):
            if abs(new - old) >= _LIMIT_WATTS:
                text = f"{place}power limit of device {device} changed from {old:.0f} W to {new:.0f} W"
                yield Finding(weight=Weight.DOUBT, start=number, text=text, concerns=SPEEDS)


def counter_findings(starts: tuple[StartEvidence, ...]) -> Iterator[Finding]:
    """Weigh every fault counter that moved during the starts or between them, and the state of row remapping."""
    counters = (
        ("ecc_uncorrected", Weight.FAULT, "uncorrectable ECC errors"),
        ("rows_remapped_uncorrected", Weight.FAULT, "memory rows remapped after uncorrectable errors"),
        ("ecc_corrected", Weight.NOTE, "corrected ECC errors"),
        ("rows_remapped_corrected", Weight.NOTE, "memory rows remapped after corrected errors"),
        ("pcie_replays", Weight.NOTE, "PCIe packets sent again"),
    )
    for device, looks in _looks(starts).items():
        for field, weight, words in counters:
            for number, place, old, new in _moves(looks, field):
                if new > old:
                    yield Finding(weight=weight, start=number, text=f"{place}device {device}: {new - old:.0f} {words}")
                elif field == "ecc_uncorrected":
                    text = f"{place}device {device}: ECC counters began anew, as after a reset of the device"
                    yield Finding(weight=Weight.DOUBT, start=number, text=text)
        yield from _remapping(device, looks)


_Looks = list[tuple[StartEvidence, DeviceHealth]]


def _looks(starts: tuple[StartEvidence, ...]) -> dict[int, _Looks]:
    """Return every look at a device in order: before and after each start."""
    found: dict[int, _Looks] = {}
    for start in starts:
        for health in (*start.health_before, *start.health_after):
            found.setdefault(health.device, []).append((start, health))
    return found


def _moves(looks: _Looks, field: str) -> Iterator[tuple[int | None, str, float, float]]:
    """Yield (start, place, old, new) for each change of a field; start is None and place says so for one in between."""
    last: tuple[StartEvidence, float] | None = None
    for start, health in looks:
        value: float | None = getattr(health, field)
        if value is None:
            continue
        if last is not None and value != last[1]:
            within = last[0] is start
            place = "" if within else f"between starts {last[0].number} and {start.number}: "
            yield start.number if within else None, place, last[1], value
        last = (start, value)


def _remapping(device: int, looks: _Looks) -> Iterator[Finding]:
    failed = next((start for start, health in looks if health.remap_failed), None)
    if failed is not None:
        text = f"device {device}: remapping a memory row failed, the device needs service"
        yield Finding(weight=Weight.FAULT, start=failed.number, text=text)
    known = [(start, health.remap_pending) for start, health in looks if health.remap_pending is not None]
    pending = next((start for start, waits in known if waits), None)
    if pending is not None and known[0][1]:
        text = f"device {device}: a memory row waits to be remapped since before the run: reset the device"
        yield Finding(weight=Weight.NOTE, text=text)
    elif pending is not None:
        text = f"device {device}: a memory row now waits to be remapped: reset the device"
        yield Finding(weight=Weight.FAULT, start=pending.number, text=text)


def link_findings(starts: tuple[StartEvidence, ...], gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Note a PCIe link that under load never was as fast or as wide as the device can do; idle it may be slower."""
    for gpu in gpus:
        if gpu.kind is not DeviceKind.GPU:
            continue
        told = [
            t for s in starts for phase in LOADED_PHASES for t in s.telemetry.get(phase, ()) if t.device == gpu.index
        ]
        generation = max((t.pcie_generation for t in told if t.pcie_generation is not None), default=None)
        width = max((t.pcie_width for t in told if t.pcie_width is not None), default=None)
        if _less(generation, gpu.pcie_generation_max) or _less(width, gpu.pcie_width_max):
            text = (
                f"device {gpu.index}: PCIe link at best generation {_text(generation)} x{_text(width)} under load, "
                f"the device can do generation {_text(gpu.pcie_generation_max)} x{_text(gpu.pcie_width_max)}"
            )
            yield Finding(weight=Weight.NOTE, text=text)


def _less(seen: int | None, most: int | None) -> bool:
    return seen is not None and most is not None and seen < most


def _text(value: int | None) -> str:
    return "?" if value is None else str(value)
