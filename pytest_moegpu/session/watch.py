"""`moegpu watch`: what the sampler sees, as a table for people. Reads only; touches no process."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from pytest_moegpu.core.evidence import DeviceProcess
from pytest_moegpu.core.model import Gpu
from pytest_moegpu.errors import ProbeError, UserError
from pytest_moegpu.host.hostmem import HostProbe
from pytest_moegpu.host.nvmlprobe import NvmlProbe
from pytest_moegpu.host.probe import Probe
from pytest_moegpu.host.replay import ReplayProbe
from pytest_moegpu.host.sampler import Sampler
from pytest_moegpu.host.treemem import TreeMemory
from pytest_moegpu.report.watch import TreeView, View, summary, table
from pytest_moegpu.session.device import on_device
from pytest_moegpu.session.tally import Tally

__all__ = ["Order", "watch"]

_LOOK_SECONDS = 0.1
# Power is shown over the last second, which takes two readings of the counter.
_ENERGY_SECONDS = 0.5
_HOME = "\x1b[H"
_TO_END_OF_LINE = "\x1b[K"
_BELOW = "\x1b[J"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is asked for: a process tree or none, seconds between two tables, devices, a recording instead of them."""

    pid: int | None = None
    interval: float = 1.0
    once: bool = False
    devices: tuple[str, ...] = ()
    replay: Path | None = None


def watch(order: Order, out: TextIO) -> int:
    """Show tables until the process ends, the recording is over, or Ctrl-C; then the highest values. Returns 0.

    Raises:
        UserError: No such process, device or recording, or nothing to watch here; tells what to do.
        ProbeError: The device is gone or cannot be read; the summary has been printed.
    """
    host = _tree(order.pid)
    probe, notes = _open(order)
    try:
        watching = _Watching(order, probe, probe.devices(), host, notes, out)
        return watching.run()
    finally:
        probe.close()


def _tree(pid: int | None) -> TreeMemory | None:
    if pid is None:
        return None
    host = TreeMemory()
    host.follow(pid)
    if not host.alive:
        raise UserError(f"there is no process {pid}")
    return host


def _open(order: Order) -> tuple[Probe, list[str]]:
    """Open the recording, the GPUs, or the host probe where there is no GPU; with notes for the reader."""
    if order.replay is not None:
        if order.pid is not None or order.devices:
            raise UserError("--replay shows a recording: it goes with neither a PID nor --device")
        return ReplayProbe(order.replay), []
    try:
        probe: Probe = NvmlProbe(order.devices, os.environ.get("CUDA_VISIBLE_DEVICES"), _ENERGY_SECONDS)
    except ProbeError as error:
        if order.devices:
            raise
        if order.pid is None:
            raise UserError(
                f"no GPU can be read: {error}. Give the PID of a server to watch its host memory, "
                "or --replay FILE to watch a recording"
            ) from error
        probe = HostProbe()
        probe.follow(order.pid)
        return probe, [f"no GPU can be read, so this is host memory: {error}"]
    return probe, []


class _Watching:
    """One watch, from the first reading to the summary."""

    def __init__(
        self,
        order: Order,
        probe: Probe,
        gpus: tuple[Gpu, ...],
        host: TreeMemory | None,
        notes: list[str],
        out: TextIO,
    ) -> None:
        self._order = order
        self._probe = probe
        self._gpus = gpus
        self._host = host
        self._notes = notes
        self._out = out
        self._terminal = out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._sampler = Sampler(probe, host=host)
        self._tally = Tally()
        self._name = host.name if host is not None else ""
        self._device_peak: int | None = None
        self._source = _source(probe)
        self._began = time.monotonic()

    def run(self) -> int:
        self._sampler.enter("watch")
        self._sampler.start()
        error: ProbeError | None = None
        try:
            self._tables()
        except KeyboardInterrupt:
            self._out.write("\n" if self._terminal else "")
        except ProbeError as problem:
            error = problem
        finally:
            self._sampler.stop()
        self._tally.add(self._sampler.drain())
        if not self._order.once:
            self._out.write(summary(self._view(())) + "\n")
            self._out.flush()
        if (error := error or self._sampler.error) is not None:
            raise error
        return 0

    def _tables(self) -> None:
        if self._terminal and not self._order.once:
            self._out.write(_HOME + _BELOW)
        due = self._began
        while True:
            due = max(due + self._order.interval, time.monotonic())
            over = self._rest(due)
            self._tally.add(self._sampler.drain())
            if self._sampler.error is not None:
                return
            self._show(table(self._view(on_device(self._probe, self._notes))))
            if over or self._order.once:
                return

    def _rest(self, due: float) -> bool:
        """Wait for the next table; True when there is nothing left to watch, which ends the wait."""
        while True:
            if self._sampler.error is not None or (self._host is not None and not self._host.alive):
                return True
            if isinstance(self._probe, ReplayProbe) and self._probe.finished:
                return True
            left = due - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, _LOOK_SECONDS))

    def _show(self, text: str) -> None:
        if self._terminal and not self._order.once:
            size = shutil.get_terminal_size()
            # One line less than the screen has: a full screen would scroll and leave its first line behind.
            lines = [line[: size.columns] for line in text.splitlines()[: size.lines - 1]]
            text = _HOME + (_TO_END_OF_LINE + "\n").join(lines) + _TO_END_OF_LINE + "\n" + _BELOW
        else:
            text += "\n" if self._order.once else "\n\n"
        self._out.write(text)
        self._out.flush()

    def _view(self, processes: tuple[DeviceProcess, ...]) -> View:
        return View(
            source=self._source,
            seconds=time.monotonic() - self._began,
            readings=self._tally.readings,
            devices=tuple(self._tally.view(gpu) for gpu in self._gpus),
            processes=processes,
            tree=self._tree_view(processes),
            hz=self._sampler.rate(),
            gap=self._sampler.gap(),
            notes=(*self._notes, *self._sampler.notes),
        )

    def _tree_view(self, processes: tuple[DeviceProcess, ...]) -> TreeView | None:
        if self._host is None or self._order.pid is None:
            return None
        pids = self._host.pids
        ours = [p.used_bytes for p in processes if p.pid in pids]
        known = [size for size in ours if size is not None]
        # On the host probe the device is host memory: it is on the line already.
        held = sum(known) if ours and len(known) == len(ours) and self._probe.name != "host" else None
        if held is not None:
            self._device_peak = max(held, self._device_peak or 0)
        return TreeView(
            pid=self._order.pid,
            name=self._name,
            processes=len(pids),
            host_bytes=self._tally.host_bytes,
            host_peak_bytes=self._tally.host_peak_bytes,
            device_bytes=held,
            device_peak_bytes=self._device_peak,
        )


def _source(probe: Probe) -> str:
    versions = probe.versions()
    labels = {"driver": "driver", "cuda_driver": "CUDA"}
    named = [f"{label} {versions[key]}" for key, label in labels.items() if key in versions]
    return ", ".join((f"{probe.name} ({probe.memory_version})", *named))
