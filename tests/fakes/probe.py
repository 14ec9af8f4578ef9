"""A probe that says what a test tells it to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import structs

from pytest_moegpu.core.evidence import DeviceProcess
from pytest_moegpu.core.health import DeviceHealth
from pytest_moegpu.core.model import Gpu
from pytest_moegpu.core.sample import Sample

__all__ = ["GIB", "FakeProbe", "Reading"]

GIB = 1024**3

Reading = int | None | Exception | Sample | tuple[int | Sample | None, ...]
"""What one call of `read` gives: used bytes of every device, an error to raise, a sample (its time, phase and device
are replaced), or a tuple with one value for each device."""


class FakeProbe:
    """Implements `host.probe.Probe` from data.

    `used` is one reading for every call, a list of readings (the last one repeats), or a function of time and phase.
    `health` is what each call of `health` gives, the last one repeats.
    `processes` is a list, or a function for lists that change. `reads`, `listings` and `closes` count the calls,
    `followed` keeps the arguments of `follow`.
    """

    def __init__(
        self,
        used: Reading | list[Any] | Callable[[float, str], Reading] = 0,
        *,
        gpus: Sequence[Gpu] = (Gpu(index=0, name="NVIDIA GeForce RTX 3090", memory_bytes=24 * GIB, uuid="GPU-fake"),),
        processes: Sequence[DeviceProcess] | Callable[[], Sequence[DeviceProcess]] = (),
        versions: dict[str, str] | None = None,
        name: str = "nvml",
        memory_version: str = "nvml-v2",
        interval_seconds: float = 0.001,
        health: Sequence[tuple[DeviceHealth, ...]] = ((),),
    ) -> None:
        self._used = used
        self._gpus = tuple(gpus)
        self._processes = processes
        self._versions = {"driver": "580.159.04", "cuda_driver": "13.0"} if versions is None else versions
        self._name = name
        self._memory_version = memory_version
        self._interval_seconds = interval_seconds
        self._health = list(health)
        self.reads = 0
        self.listings = 0
        self.closes = 0
        self.followed: list[int | None] = []

    @property
    def name(self) -> str:
        return self._name

    @property
    def memory_version(self) -> str:
        return self._memory_version

    @property
    def interval_seconds(self) -> float:
        return self._interval_seconds

    def devices(self) -> tuple[Gpu, ...]:
        return self._gpus

    def versions(self) -> dict[str, str]:
        return dict(self._versions)

    def follow(self, pid: int | None) -> None:
        self.followed.append(pid)

    def read(self, time: float, phase: str) -> tuple[Sample, ...]:
        reading = self._next(time, phase)
        self.reads += 1
        if isinstance(reading, Exception):
            raise reading
        values = [reading] * len(self._gpus) if isinstance(reading, int | Sample | None) else reading
        return tuple(
            structs.replace(value, time=time, phase=phase, device=gpu.index)
            if isinstance(value, Sample)
            else Sample(time=time, phase=phase, device=gpu.index, used_bytes=value)
            for gpu, value in zip(self._gpus, values, strict=True)
        )

    def health(self) -> tuple[DeviceHealth, ...]:
        return self._health.pop(0) if len(self._health) > 1 else self._health[0]

    def processes(self) -> tuple[DeviceProcess, ...]:
        self.listings += 1
        return tuple(self._processes() if callable(self._processes) else self._processes)

    def close(self) -> None:
        self.closes += 1

    def _next(self, time: float, phase: str) -> Reading:
        if callable(self._used):
            return self._used(time, phase)
        if isinstance(self._used, list):
            scripted: Reading = self._used[min(self.reads, len(self._used) - 1)]
            return scripted
        return self._used
