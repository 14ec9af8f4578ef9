"""A smaller card rehearsed on a larger one: the rest of its memory is held by a process of ours."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from pytest_moegpu.core.evidence import DeviceProcess
from pytest_moegpu.core.health import DeviceHealth
from pytest_moegpu.core.model import Gpu
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.core.units import MIB, format_bytes
from pytest_moegpu.errors import DeviceError, ProbeError, ProgramError
from pytest_moegpu.host.boundedlog import tail
from pytest_moegpu.host.probe import Probe
from pytest_moegpu.host.process import ServerProcess

__all__ = ["EmulatedProbe"]

_BALLAST = Path(__file__).with_name("ballast.py")
_HOLD_SECONDS = 60.0
_POLL_SECONDS = 0.05
# What is free afterwards may differ by this much from what was asked: a page, and the driver's own bookkeeping.
_SLACK_BYTES = 64 * MIB


class EmulatedProbe:
    """Reads a device as if it had only `size` bytes; the others are held by a real allocation.

    The memory is taken at the first reading and given back by `close`, or by the supervisor of the holding process when
    this one dies. A card of `size` bytes is left with what its driver would leave: the reserve of the real one is taken
    off. Memory figures are without the holder's; clocks, power and faults are those of the real device.

    Args:
        probe: Probe of the real devices, which this one closes.
        size: Memory of the card to rehearse, in bytes.
        environment: What the holding processes inherit.

    Raises:
        DeviceError: A device is not larger than that.
    """

    def __init__(self, probe: Probe, size: int, environment: Mapping[str, str] | None = None) -> None:
        self._probe = probe
        self._size = size
        self._environment = dict(os.environ if environment is None else environment)
        self._real = probe.devices()
        self._holders: dict[int, ServerProcess] = {}
        self._held: dict[int, int] = {}
        self._listed: frozenset[tuple[int, int]] = frozenset()
        self._ready = False
        for gpu in self._real:
            if gpu.memory_bytes <= size:
                raise DeviceError(
                    f"--moegpu-emulate-vram={format_bytes(size)}: GPU {gpu.index} {gpu.name} has "
                    f"{format_bytes(gpu.memory_bytes)}; a smaller card can only be rehearsed on a larger one, which "
                    "--moegpu-device chooses"
                )

    @property
    def name(self) -> str:
        """Name of the probe that reads."""
        return self._probe.name

    @property
    def memory_version(self) -> str:
        """As the real probe."""
        return self._probe.memory_version

    @property
    def interval_seconds(self) -> float:
        """As the real probe."""
        return self._probe.interval_seconds

    def devices(self) -> tuple[Gpu, ...]:
        """Return the real devices with the memory of the smaller card, marked with what they really are."""
        return tuple(
            replace(gpu, memory_bytes=self._size, emulated_on=f"{gpu.name}, {format_bytes(gpu.memory_bytes)}")
            for gpu in self._real
        )

    def versions(self) -> dict[str, str]:
        """As the real probe."""
        return self._probe.versions()

    def follow(self, pid: int | None) -> None:
        """As the real probe."""
        self._probe.follow(pid)

    def read(self, time: float, phase: str) -> tuple[Sample, ...]:
        """Read every device; memory in use is without what is held.

        Raises:
            ProbeError: The memory could not be held, or the holder is gone; otherwise as the real probe.
        """
        self._hold()
        return tuple(self._without(sample) for sample in self._probe.read(time, phase))

    def health(self) -> tuple[DeviceHealth, ...]:
        """As the real probe."""
        return self._probe.health()

    def processes(self) -> tuple[DeviceProcess, ...]:
        """List the processes on the devices but for those that hold memory for us.

        Raises:
            ProbeError: As `read`.
        """
        self._hold()
        return tuple(p for p in self._probe.processes() if (p.pid, p.device) not in self._listed)

    def close(self) -> None:
        """Give the memory back and let go of the real probe. Safe to call twice."""
        try:
            self._release()
        finally:
            self._probe.close()

    def _without(self, sample: Sample) -> Sample:
        if sample.used_bytes is None:
            return sample
        return structs.replace(sample, used_bytes=max(0, sample.used_bytes - self._held[sample.device]))

    def _hold(self) -> None:
        """Take the memory, once; make sure afterwards that it is still held."""
        if self._ready:
            for index, holder in self._holders.items():
                if not holder.alive:
                    raise ProbeError(f"the process that held memory of GPU {index} is gone: nothing is emulated now")
            return
        if busy := self._probe.processes():
            named = ", ".join(f"pid {p.pid} ({p.name or 'unknown'})" for p in busy)
            raise ProbeError(f"a smaller card cannot be rehearsed while the device is in use by {named}")
        try:
            for gpu, before in zip(self._real, self._probe.read(time.monotonic(), "idle"), strict=True):
                self._hold_one(gpu, before)
            # Nobody was there before, so these are ours, also where the driver counts pids of another namespace.
            self._listed = frozenset((p.pid, p.device) for p in self._probe.processes())
        except BaseException:
            self._release()
            raise
        self._ready = True

    def _hold_one(self, gpu: Gpu, before: Sample) -> None:
        leave = self._size - (before.reserved_bytes or 0)
        visible = gpu.cuda_name or gpu.uuid or str(gpu.index)
        variables = self._environment | {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        argv = (sys.executable, "-I", "-S", str(_BALLAST), str(leave))
        with tempfile.TemporaryDirectory(prefix="moegpu-") as folder:
            log = Path(folder) / "ballast.log"
            try:
                holder = ServerProcess(argv, variables, log, Path(tempfile.gettempdir()))
            except ProgramError as error:
                raise ProbeError(f"memory of GPU {gpu.index} could not be held: {error}") from error
            self._holders[gpu.index] = holder
            said = self._answer(holder, log)
        if "error" in said:
            raise ProbeError(f"memory of GPU {gpu.index} could not be held: {said['error']}")
        now = next(s for s in self._probe.read(time.monotonic(), "idle") if s.device == before.device)
        if now.used_bytes is None or before.used_bytes is None or now.free_bytes is None:
            raise ProbeError(f"GPU {gpu.index} does not say how much memory is in use, so nothing can be emulated")
        if abs(now.free_bytes - leave) > _SLACK_BYTES:
            raise ProbeError(
                f"GPU {gpu.index}: {format_bytes(now.free_bytes)} free instead of {format_bytes(leave)} after the rest "
                "was held: something else takes or frees memory there, or the rest is less than a CUDA context takes"
            )
        self._held[gpu.index] = now.used_bytes - before.used_bytes

    def _answer(self, holder: ServerProcess, log: Path) -> dict[str, object]:
        """Wait for the one line of a holder; an `error` of our own when it says nothing."""
        end = time.monotonic() + _HOLD_SECONDS
        while time.monotonic() < end:
            over = holder.wait(_POLL_SECONDS)
            if lines := tail(log):
                try:
                    said: dict[str, object] = json.loads(lines[-1])
                except ValueError:
                    said = {"error": " / ".join(lines)} if over else {}
                if said:
                    return said
            if over:
                return {"error": f"the holding process ended with exit code {holder.exit_code}"}
        return {"error": f"no answer for {_HOLD_SECONDS:g} s"}

    def _release(self) -> None:
        """End every holder, also when Ctrl-C or an error comes in between; raises the first such at the end."""
        self._ready = False
        first: BaseException | None = None
        while self._holders:
            index, holder = self._holders.popitem()
            try:
                report = holder.stop(grace=2.0)
                if report.left:
                    raise ProbeError(f"memory of GPU {index} is still held: {report.describe()} could not be ended")
            except BaseException as error:  # noqa: BLE001 - whatever it is, the others must be ended too
                first = first or error
        if first is not None:
            raise first
