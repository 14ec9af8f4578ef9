"""What the readings of a start say about each phase: clocks, power, temperature, link and memory of each device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from statistics import fmean, median

from pytest_moegpu.core.health import PhaseTelemetry
from pytest_moegpu.core.reasons import reason_names
from pytest_moegpu.core.sample import Sample

__all__ = ["energy_used", "summarise"]

_LEAST_ENERGY_SECONDS = 0.2
"""A device's energy counter moves in steps: over less time a difference may be one step, or none."""


def summarise(samples: Iterable[Sample]) -> dict[str, tuple[PhaseTelemetry, ...]]:
    """Summarise every phase in the samples, `idle` and `after` too when they are given, by device.

    `seconds` is the time from the first to the last reading of each stretch of the phase, added up: phases of requests
    alternate. Host memory is on the first device of each reading, so only that one has `host_max_bytes`.
    """
    devices: dict[int, list[Sample]] = {}
    for sample in sorted(samples, key=lambda s: s.time):
        devices.setdefault(sample.device, []).append(sample)
    found: dict[str, list[PhaseTelemetry]] = {}
    for device in sorted(devices):
        runs = [(phase, list(run)) for phase, run in groupby(devices[device], key=lambda s: s.phase)]
        # The counter is read as a phase begins: what the next one finds there was used in this one.
        ends = [run[:1] for _, run in runs[1:]] + [[]]
        stretches: dict[str, list[list[Sample]]] = {}
        counted: dict[str, list[list[Sample]]] = {}
        for (phase, run), end in zip(runs, ends, strict=True):
            stretches.setdefault(phase, []).append(run)
            counted.setdefault(phase, []).append(run + end)
        for phase in stretches:
            row = _summary(device, stretches[phase], energy_used(counted[phase]), _gap(counted[phase]))
            found.setdefault(phase, []).append(row)
    return {phase: tuple(rows) for phase, rows in found.items()}


def energy_used(stretches: Iterable[Sequence[Sample]]) -> tuple[float, float] | None:
    """Return joules and the seconds they were used in, by the device's counter over stretches of its samples.

    None where the counter is not known, did not move, was set back, or the stretches hold less than 0.2 s of it.
    """
    joules = seconds = 0.0
    for stretch in stretches:
        read = [(s.time, s.energy_joules) for s in stretch if s.energy_joules is not None]
        if any(after[1] < before[1] for before, after in pairwise(read)):
            return None
        if read:
            joules += read[-1][1] - read[0][1]
            seconds += read[-1][0] - read[0][0]
    return (joules, seconds) if joules > 0 and seconds >= _LEAST_ENERGY_SECONDS else None


def _gap(stretches: Iterable[Sequence[Sample]]) -> float | None:
    return max((after.time - before.time for stretch in stretches for before, after in pairwise(stretch)), default=None)


def _summary(
    device: int, stretches: Sequence[Sequence[Sample]], energy: tuple[float, float] | None, gap: float | None
) -> PhaseTelemetry:
    samples = [sample for stretch in stretches for sample in stretch]
    sm_clocks = [s.sm_clock_mhz for s in samples if s.sm_clock_mhz is not None]
    memory_clocks = [s.memory_clock_mhz for s in samples if s.memory_clock_mhz is not None]
    watts = [s.power_watts for s in samples if s.power_watts is not None]
    host = [s.host_bytes for s in samples if s.host_bytes is not None]
    host_free = [s.host_free_bytes for s in samples if s.host_free_bytes is not None]
    loads = [s.utilisation for s in samples if s.utilisation is not None]
    power = energy[0] / energy[1] if energy else fmean(watts) if watts else None
    return PhaseTelemetry(
        device=device,
        readings=len(samples),
        seconds=sum(stretch[-1].time - stretch[0].time for stretch in stretches),
        gap_seconds=gap,
        sm_clock_mhz=median(sm_clocks) if sm_clocks else None,
        sm_clock_min_mhz=min(sm_clocks, default=None),
        sm_clock_max_mhz=max(sm_clocks, default=None),
        memory_clock_mhz=median(memory_clocks) if memory_clocks else None,
        power_watts=power,
        energy_joules=energy[0] if energy else None,
        temperature_max_c=max((s.temperature_c for s in samples if s.temperature_c is not None), default=None),
        utilisation=fmean(loads) if loads else None,
        pcie_generation=max((s.pcie_generation for s in samples if s.pcie_generation is not None), default=None),
        pcie_width=max((s.pcie_width for s in samples if s.pcie_width is not None), default=None),
        used_max_bytes=max((s.used_bytes for s in samples if s.used_bytes is not None), default=None),
        free_min_bytes=min((s.free_bytes for s in samples if s.free_bytes is not None), default=None),
        host_max_bytes=max(host, default=None),
        host_last_bytes=host[-1] if host else None,
        host_free_min_bytes=min(host_free, default=None),
        host_free_last_bytes=host_free[-1] if host_free else None,
        reason_readings=sum(s.event_reasons is not None for s in samples) or None,
        reasons=_reasons(samples),
    )


def _reasons(samples: Iterable[Sample]) -> dict[str, float]:
    """Return, for each word, the share of those readings that gave a mask at all."""
    masks = [s.event_reasons for s in samples if s.event_reasons is not None]
    counts = Counter(name for mask in masks for name in reason_names(mask))
    return {name: count / len(masks) for name, count in sorted(counts.items())}
