"""What `moegpu watch` keeps of the samples it has seen: the latest value of every field, and the highest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from pytest_moegpu.core.model import Gpu
from pytest_moegpu.core.reasons import reason_names
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.core.telemetry import energy_used
from pytest_moegpu.report.watch import DeviceView

__all__ = ["Tally"]

_N = TypeVar("_N", int, float)

_POWER_SECONDS = 1.0
_LATEST = (
    "used_bytes",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "utilisation",
    "power_watts",
    "temperature_c",
    "pcie_generation",
    "pcie_width",
)


@dataclass
class _Device:
    latest: dict[str, float] = field(default_factory=dict)
    peak: int | None = None
    hottest: float | None = None
    mask: int | None = None
    mask_ever: int | None = None
    counter: list[Sample] = field(default_factory=list)
    joules: float | None = None


class Tally:
    """Adds up samples of all devices; keeps no sample longer than about a second."""

    def __init__(self) -> None:
        self._devices: dict[int, _Device] = {}
        self.readings = 0
        self.host_bytes: int | None = None
        self.host_peak_bytes: int | None = None

    def add(self, samples: Iterable[Sample]) -> None:
        """Take in samples in the order they were read."""
        times = set()
        for sample in samples:
            times.add(sample.time)
            device = self._devices.setdefault(sample.device, _Device())
            # A field not read this time keeps its last value: some are read seldom.
            device.latest |= {name: value for name in _LATEST if (value := getattr(sample, name)) is not None}
            device.peak = _most(device.peak, sample.used_bytes)
            device.hottest = _most(device.hottest, sample.temperature_c)
            if sample.event_reasons is not None:
                device.mask = (device.mask or 0) | sample.event_reasons
                device.mask_ever = (device.mask_ever or 0) | sample.event_reasons
            if sample.energy_joules is not None:
                _count(device, sample)
            if sample.host_bytes is not None:
                self.host_bytes = sample.host_bytes
                self.host_peak_bytes = _most(self.host_peak_bytes, sample.host_bytes)
        self.readings += len(times)

    def view(self, gpu: Gpu) -> DeviceView:
        """Return one device as it is now; the clock event reasons begin anew."""
        device = self._devices.setdefault(gpu.index, _Device())
        mask, device.mask = device.mask, None
        energy = energy_used([device.counter])
        latest = dict(device.latest)
        if energy is not None:
            latest["power_watts"] = energy[0] / energy[1]
        return DeviceView(
            gpu=gpu,
            peak_bytes=device.peak,
            temperature_max_c=device.hottest,
            energy_joules=device.joules,
            reasons=None if mask is None else reason_names(mask),
            reasons_ever=None if device.mask_ever is None else reason_names(device.mask_ever),
            **latest,  # type: ignore[arg-type]
        )


def _count(device: _Device, sample: Sample) -> None:
    """Keep the energy counter over the last second, and what was used since the start."""
    if device.counter and sample.energy_joules is not None and device.counter[-1].energy_joules is not None:
        used = sample.energy_joules - device.counter[-1].energy_joules
        # A counter that was set back says nothing of what was used meanwhile.
        device.joules = (device.joules or 0.0) + max(used, 0.0)
    device.counter.append(sample)
    while sample.time - device.counter[0].time > _POWER_SECONDS:
        device.counter.pop(0)


def _most(before: _N | None, now: _N | None) -> _N | None:
    return now if before is None else before if now is None else max(before, now)
