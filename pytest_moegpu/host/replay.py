"""The `replay` probe: gives again what another probe recorded."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from msgspec import structs

from pytest_moegpu.core.evidence import DeviceProcess
from pytest_moegpu.core.health import DeviceHealth
from pytest_moegpu.core.model import Gpu
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.errors import ProbeError, RecordError, UserError
from pytest_moegpu.host.recording import read_recording

__all__ = ["ReplayProbe"]

_DEFAULT_INTERVAL_SECONDS = 0.02
_LEAST_INTERVAL_SECONDS = 0.001


class ReplayProbe:
    """Gives, at the time since it was opened, the reading of that moment in the recording; at its end the last one.

    A reading is all samples with one time; the caller's time and phase are put on them. The first reading is the start
    of the recording's time. Whoever reads no faster than was recorded may miss a single reading; stepping misses none.
    Processes and fault counters are not recorded, so none are listed.

    Args:
        path: A telemetry file, see `host.recording`.
        speed: How many recorded seconds pass in one second.
        step: Give one reading after the other, one for each `read`, whatever the time is.
        clock: Seconds on a monotonic clock.

    Raises:
        RecordError: Missing, damaged, or without a single reading.
        UserError: The speed is not above zero.
    """

    name = "replay"

    def __init__(
        self, path: Path, *, speed: float = 1.0, step: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not speed > 0:
            raise UserError(f"a recording is replayed at a speed above 0, not {speed:g}")
        recording = read_recording(path)
        self._path = path
        self._origin = recording.origin
        self._readings = [tuple(group) for _, group in groupby(recording.samples, key=lambda s: s.time)]
        if not self._readings:
            raise RecordError(f"{path}: the recording holds no reading")
        self._times = [reading[0].time for reading in self._readings]
        self._speed = speed
        self._step = step
        self._clock = clock
        self._opened = clock()
        self._reads = 0

    @property
    def memory_version(self) -> str:
        """How the recorded probe counted memory; `unknown` for an old file, which does not say."""
        return self._origin.memory_version or "unknown"

    @property
    def interval_seconds(self) -> float:
        """The interval of the recorded probe at the speed of this replay; 20 ms for an old file. Stepping: 1 ms."""
        if self._step:
            return _LEAST_INTERVAL_SECONDS
        return max((self._origin.interval_seconds or _DEFAULT_INTERVAL_SECONDS) / self._speed, _LEAST_INTERVAL_SECONDS)

    @property
    def finished(self) -> bool:
        """Whether the last reading has come; stepping, whether it has been given."""
        return self._reads >= len(self._readings) if self._step else self._place() == len(self._readings) - 1

    def devices(self) -> tuple[Gpu, ...]:
        """Return the devices that were recorded.

        Raises:
            ProbeError: An old file, which does not say.
        """
        if not self._origin.gpus:
            raise ProbeError(f"{self._path} does not say which devices it is of; files of schema 1 do not")
        return self._origin.gpus

    def versions(self) -> dict[str, str]:
        """Return the versions that were recorded."""
        return dict(self._origin.versions)

    def follow(self, pid: int | None) -> None:
        """Do nothing: whatever was followed is in the recording."""

    def read(self, time: float, phase: str) -> tuple[Sample, ...]:
        """Return the reading of this moment with the caller's time and phase."""
        place = self._place()
        self._reads += 1
        return tuple(structs.replace(sample, time=time, phase=phase) for sample in self._readings[place])

    def health(self) -> tuple[DeviceHealth, ...]:
        """Return nothing: counters are not in a recording."""
        return ()

    def processes(self) -> tuple[DeviceProcess, ...]:
        """Return nothing: processes are not in a recording."""
        return ()

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def _place(self) -> int:
        if self._step:
            return min(self._reads, len(self._readings) - 1)
        moment = self._times[0] + (self._clock() - self._opened) * self._speed
        return max(bisect_right(self._times, moment) - 1, 0)
