"""One server start from idle to idle, and everything recorded in it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pytest_moegpu.checks.memory import RETURN_SLACK_BYTES
from pytest_moegpu.core import phases
from pytest_moegpu.core.evidence import (
    DeviceProcess,
    Part,
    Phase,
    RequestRecord,
    Sample,
    StartEvidence,
    StartFailure,
)
from pytest_moegpu.core.units import format_bytes
from pytest_moegpu.errors import ProbeError, StartError
from pytest_moegpu.host.probe import Probe
from pytest_moegpu.host.process import StopReport, tail
from pytest_moegpu.host.sampler import Sampler
from pytest_moegpu.host.stack import libraries
from pytest_moegpu.session.progress import Progress
from pytest_moegpu.session.server import Server
from pytest_moegpu.session.workload import Workload

__all__ = ["Recorded", "StartRun", "named", "used"]

_RETURN_POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What one start left: its evidence, its telemetry, and the libraries its process had mapped."""

    start: StartEvidence
    samples: tuple[Sample, ...]
    libraries: dict[str, str]


def used(samples: Sequence[Sample]) -> int | None:
    """Add up one reading of all devices in bytes; None when one of them could not be read."""
    known = [sample.used_bytes for sample in samples if sample.used_bytes is not None]
    return sum(known) if samples and len(known) == len(samples) else None


def named(processes: Sequence[DeviceProcess]) -> str:
    """Name processes for a message: pid, program, memory."""
    return ", ".join(
        f"pid {p.pid} ({p.name or 'unknown'}, "
        f"{'size not known' if p.used_bytes is None else format_bytes(p.used_bytes)})"
        for p in processes
    )


@dataclass
class StartRun:
    """Records one start. A server or device that fails is recorded; Ctrl-C is raised once the server is gone."""

    server: Server
    probe: Probe
    number: int
    workload: Workload
    parts: frozenset[Part]
    progress: Progress
    refuse: str = ""

    def __post_init__(self) -> None:
        self._sampler = Sampler(self.probe)
        self._phase = Phase.PREFLIGHT
        self.workload.enter = self._enter
        self._libraries: dict[str, str] = {}
        self._processes: tuple[DeviceProcess, ...] = ()
        self._foreign: tuple[DeviceProcess, ...] = ()
        self._left: tuple[DeviceProcess, ...] = ()

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._sampler.enter(phase)

    def run(self) -> Recorded:
        """Start, send the workload, stop, and wait for the memory to come back."""
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        failure: StartFailure | None = None
        stop = StopReport(exit_code=None)
        idle: int | None = None
        try:
            self.probe.follow(None)
            idle = used(self._sampler.read_once("idle"))
            self._refuse_busy()
            self._enter(Phase.LOAD)
            self._sampler.start()
            self._serve()
        except StartError as error:
            failure = error.failure
        except ProbeError as error:
            failure = StartFailure(phase=Phase.PREFLIGHT, cause=f"the device cannot be read: {error}")
        finally:
            self.progress.live("stopping")
            self._enter(Phase.STOP)
            stop = self.server.stop()
            self._sampler.stop()
        if failure is None and self._sampler.error is not None:
            failure = StartFailure(phase=Phase.STOP, cause=f"the device could not be read: {self._sampler.error}")
        after, seconds = self._wait_idle(idle)
        return self._recorded(started_at, failure, stop, idle, after, seconds)

    def _refuse_busy(self) -> None:
        """A GPU in use is refused: its numbers would not be ours, and its owner would suffer."""
        if self.refuse:
            raise StartError(StartFailure(phase=Phase.PREFLIGHT, cause=f"no further start: {self.refuse}"))
        busy = self._on_device()
        if busy:
            self._foreign = busy
            raise StartError(
                StartFailure(
                    phase=Phase.PREFLIGHT,
                    cause=f"the device is in use by {named(busy)}; end these first, this run touches nothing it did "
                    "not start",
                )
            )

    def _serve(self) -> None:
        self.progress.live("loading the model")
        self.server.start(self.probe.follow)
        self.progress.line(f"ready after {self.server.load_seconds or 0:.1f} s")
        if self.server.pid is not None:
            self._libraries = libraries(self.server.pid)
        self._look()
        self.workload.run(self.parts)
        self._look()
        if not self.server.alive:
            raise self.server.failure(self._phase, self.server.death())

    def _on_device(self) -> tuple[DeviceProcess, ...]:
        """List the processes on the device; where the driver does not say (MIG, WSL2), note that and accuse nobody."""
        try:
            return self.probe.processes()
        except ProbeError as error:
            if error.kind != "no-permission":
                raise
            note = f"processes on the device are not known: {error}"
            if note not in self.server.notes:
                self.server.notes.append(note)
            return ()

    def _look(self) -> None:
        """Note who is on the device, and who of these is not of the server's tree."""
        seen = self._on_device()
        if seen:
            self._processes = seen
        strangers = tuple(p for p in seen if p.pid not in self.server.tree)
        # When not even the server is on the list, the driver counts pids of another namespace: nobody can be accused.
        if len(strangers) < len(seen):
            self._foreign = strangers

    def _wait_idle(self, idle: int | None) -> tuple[int | None, float | None]:
        """Poll until the device reads as before the start; returns the last reading and the seconds it took."""
        self.probe.follow(None)
        began = time.monotonic()
        while True:
            try:
                now = used(self._sampler.read_once("after"))
            except ProbeError:
                return None, None
            waited = time.monotonic() - began
            if idle is None or now is None or now - idle <= RETURN_SLACK_BYTES:
                return now, waited
            if waited >= self.server.limits.idle_return_seconds:
                self._left = self._on_device()
                return now, waited
            time.sleep(_RETURN_POLL_SECONDS)

    def _recorded(
        self,
        started_at: str,
        failure: StartFailure | None,
        stop: StopReport,
        idle: int | None,
        after: int | None,
        return_seconds: float | None,
    ) -> Recorded:
        records: tuple[RequestRecord, ...] = tuple(self.workload.records)
        samples = phases.label(self._sampler.samples, records)
        during = [sample for sample in samples if sample.phase not in ("idle", "after")]
        start = StartEvidence(
            number=self.number,
            started_at=started_at,
            parts=tuple(sorted(self.parts)),
            argv=self.server.argv,
            pid=self.server.pid,
            load_seconds=self.server.load_seconds,
            idle_bytes=idle,
            after_bytes=after,
            return_seconds=return_seconds,
            peaks=phases.peaks(during),
            samples=len(during),
            sampler_hz=self._sampler.rate(),
            requests=records,
            log=self.server.log_facts(),
            served_model=self.server.served.name,
            served_context=self.server.served.context,
            processes=self._processes,
            foreign=self._foreign,
            event_reasons=phases.event_reasons(during),
            notes=tuple(self.server.notes),
            left_over=(*stop.left, *(process.pid for process in self._left)),
            exit_code=stop.exit_code,
            log_path=str(self.server.log_path),
            log_tail=tail(self.server.log_path) if failure else (),
            failure=failure,
        )
        return Recorded(start=start, samples=samples, libraries=self._libraries)
