"""The `host` probe: memory of a process tree, for profiles without a GPU."""

from __future__ import annotations

import platform
import threading
from pathlib import Path

import psutil

from pytest_moegpu.core.evidence import DeviceProcess
from pytest_moegpu.core.health import DeviceHealth
from pytest_moegpu.core.model import DeviceKind, Gpu
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.host.treemem import ProcessTree, resident

__all__ = ["HostProbe"]

_TREE_EVERY = 5


class HostProbe:
    """Counts the resident memory (bytes) of the followed process and all its descendants.

    Finding descendants walks the whole process table, so `read` does it every 5th time: a new child is counted at most
    five intervals late. A descendant once seen is counted until it ends, even when its parent is gone.
    Pages shared between processes are counted once for each.

    Args:
        cpuinfo: Where the processor's name is read.
    """

    name = "host"
    memory_version = "process-tree-rss"
    interval_seconds = 0.05

    def __init__(self, cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
        self._cpuinfo = cpuinfo
        self._lock = threading.Lock()
        self._tree = ProcessTree()
        self._readings = 0

    def devices(self) -> tuple[Gpu, ...]:
        """Return the processor and the machine's memory (bytes) as one device of kind CPU."""
        total = psutil.virtual_memory().total
        return (Gpu(index=0, kind=DeviceKind.CPU, name=self._processor(), memory_bytes=total),)

    def versions(self) -> dict[str, str]:
        """Return nothing: there is no driver."""
        return {}

    def follow(self, pid: int | None) -> None:
        """Count this process's tree from now on; None, or a process that is already gone, counts nothing."""
        with self._lock:
            self._readings = 0
            self._tree.follow(pid)

    def read(self, time: float, phase: str) -> tuple[Sample, ...]:
        """Read the tree once, in bytes.

        `used_bytes` is 0 when nothing is followed or all of it has ended: nothing is running. It is None when a living
        member may not be read. `free_bytes` is the memory the system has available.
        """
        with self._lock:
            if self._readings % _TREE_EVERY == 0:
                self._tree.grow()
            self._readings += 1
            sizes = [resident(process) for process in self._tree.living()]
        used = None if None in sizes else sum(size for size in sizes if size is not None)
        free = psutil.virtual_memory().available
        return (Sample(time=time, phase=phase, device=0, used_bytes=used, free_bytes=free),)

    def health(self) -> tuple[DeviceHealth, ...]:
        """Return nothing: a processor has no such counters here."""
        return ()

    def processes(self) -> tuple[DeviceProcess, ...]:
        """List the followed tree as it is now; `used_bytes` is resident memory, None where it may not be read.

        A process that has ended and only waits to be reaped holds nothing and is not listed.
        """
        with self._lock:
            self._tree.grow()
            sizes = [(process, resident(process)) for process in self._tree.living()]
        return tuple(
            DeviceProcess(pid=process.pid, device=0, name=_name(process), used_bytes=size)
            for process, size in sizes
            if size != 0
        )

    def close(self) -> None:
        """Stop following."""
        self.follow(None)

    def _processor(self) -> str:
        try:
            lines = self._cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        return next((name for name in named if name), "") or platform.processor() or platform.machine() or "processor"


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""
