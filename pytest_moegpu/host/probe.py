"""What a device probe must offer. `nvml` reads NVIDIA devices, `host` the memory of a process tree."""

from __future__ import annotations

from typing import Protocol

from pytest_moegpu.core.evidence import DeviceProcess
from pytest_moegpu.core.health import DeviceHealth
from pytest_moegpu.core.model import Gpu
from pytest_moegpu.core.sample import Sample

__all__ = ["Probe"]


class Probe(Protocol):
    """Reads the devices of one run. Whatever cannot be read is None, never zero.

    All methods but `close` raise `errors.ProbeError` when the device is gone or the library fails as a whole.
    """

    @property
    def name(self) -> str:
        """`nvml`, `host` or `replay`."""

    @property
    def memory_version(self) -> str:
        """How memory is counted, e.g. `nvml-v2` or `process-tree-rss`; readings of two versions are never compared."""

    @property
    def interval_seconds(self) -> float:
        """How far apart readings should be: what this probe can be read at without disturbing the server."""

    def devices(self) -> tuple[Gpu, ...]:
        """Identify the devices of this run."""

    def versions(self) -> dict[str, str]:
        """Return `driver` and `cuda_driver` where there are such things."""

    def follow(self, pid: int | None) -> None:
        """Name the root process of the server (None: no server); the host probe counts this process's tree."""

    def read(self, time: float, phase: str) -> tuple[Sample, ...]:
        """Read every device once; `time` and `phase` are put on the samples as they are."""

    def health(self) -> tuple[DeviceHealth, ...]:
        """Read the fault counters and the power limit of every device; empty where there are none."""

    def processes(self) -> tuple[DeviceProcess, ...]:
        """List the processes that hold memory on the devices of this run."""

    def close(self) -> None:
        """Let go of the library. Safe to call twice."""
