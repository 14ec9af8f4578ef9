"""One server start from idle to idle, and everything recorded in it."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pytest_moegpu.core import phases
from pytest_moegpu.core.evidence import DeviceProcess, Part, Phase, RequestRecord, StartEvidence, StartFailure
from pytest_moegpu.core.golden import Golden, TextScore
from pytest_moegpu.core.health import DeviceHealth
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.core.telemetry import summarise
from pytest_moegpu.errors import ProbeError, StartError
from pytest_moegpu.host.boundedlog import tail
from pytest_moegpu.host.kernlog import KernelLogReader
from pytest_moegpu.host.probe import Probe
from pytest_moegpu.host.sampler import Sampler
from pytest_moegpu.host.stack import libraries
from pytest_moegpu.host.stopreport import StopReport
from pytest_moegpu.host.treemem import TreeMemory
from pytest_moegpu.session.attached import AttachedServer
from pytest_moegpu.session.device import held, not_given_back, on_device, refuse_busy, used, wait_idle
from pytest_moegpu.session.progress import Progress
from pytest_moegpu.session.scoring import Scoring
from pytest_moegpu.session.server import unforeseen
from pytest_moegpu.session.serving import AnyServer, ask_again, strangers
from pytest_moegpu.session.workload import Workload

__all__ = ["Recorded", "StartRun"]

# After Ctrl-C somebody waits at the terminal; memory is back within some seconds with every engine measured.
_INTERRUPTED_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What one start left: its evidence, its telemetry, and the libraries its process had mapped."""

    start: StartEvidence
    samples: tuple[Sample, ...]
    libraries: dict[str, str]


@dataclass
class StartRun:
    """Records one start. A server or device that fails is recorded; Ctrl-C is raised once the server is gone.

    Of an attached server nothing was started: what the device held without it is not known, and nothing is given
    back.
    """

    server: AnyServer
    probe: Probe
    number: int
    workload: Workload
    parts: frozenset[Part]
    progress: Progress
    refuse: str = ""
    golden: Golden | None = None
    kernel: KernelLogReader = field(default_factory=KernelLogReader)

    def __post_init__(self) -> None:
        self._memory = TreeMemory()
        self._sampler = Sampler(self.probe, host=self._memory)
        self._phase = Phase.PREFLIGHT
        self.workload.enter = self._enter
        self.workload.halted = lambda: self._sampler.error is not None
        self._libraries: dict[str, str] = {}
        self._scores: tuple[TextScore, ...] = ()
        self._counters: dict[str, float] = {}
        self._processes: tuple[DeviceProcess, ...] = ()
        self._foreign: tuple[DeviceProcess, ...] = ()
        self._left: tuple[DeviceProcess, ...] = ()
        self._health: tuple[DeviceHealth, ...] = ()
        self._health_at_end = ""
        self._idle: int | None = None
        self._stopped_at: float | None = None

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._sampler.enter(phase)

    def run(self) -> Recorded:
        """Start, send the workload, stop, and wait for the memory to come back.

        Raises:
            KeyboardInterrupt: After the server has been ended; what could not be ended, or is still held, was said.
        """
        try:
            return self._run()
        except KeyboardInterrupt:
            self._say_what_is_left()
            raise
        finally:
            self.kernel.close()

    def _say_what_is_left(self) -> None:
        """Look once more at what an interrupted start leaves, because nobody will judge it."""
        with contextlib.suppress(Exception):
            report = self.server.stop()
            if report.describe():
                self.progress.line(f"LEFT BEHIND: {report.describe()} could not be ended")
            after, seconds = wait_idle(self.probe, self._idle, _INTERRUPTED_SECONDS)
            if rest := held(after, self._idle):
                still = on_device(self.probe, self.server.notes)
                self.progress.line(f"LEFT BEHIND: {not_given_back(rest, seconds, still, self.server.tree)}")

    def _run(self) -> Recorded:
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        failure: StartFailure | None = None
        stop = StopReport(exit_code=None)
        try:
            self.kernel.mark()
            self.probe.follow(None)
            self._health = self.probe.health()
            reading = used(self._sampler.read_once("idle"))
            self._idle = None if isinstance(self.server, AttachedServer) else reading
            seen = on_device(self.probe, self.server.notes)
            self._foreign = strangers(seen, self.server)
            refuse_busy(self._foreign, self.refuse)
            self._enter(Phase.LOAD)
            self._sampler.start()
            self._serve()
        except StartError as error:
            lost = self._sampler.error
            # A server dies of a lost device, and not the other way round.
            failure = self._failed(lost) if lost is not None and lost.kind == "lost" else error.failure
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the first cause, and told once
            failure = self._failed(error)
        finally:
            # Nothing here may keep the server from being ended, or the sampler after it.
            self._enter(Phase.STOP)
            self._stopped_at = _kernel_seconds()
            try:
                stop = self.server.stop()
                if stop.describe():
                    failure = failure or self._stuck(stop)
            except Exception as error:  # noqa: BLE001 - as above
                failure = failure or self._failed(error)
                stop = StopReport(exit_code=None, left=tuple(sorted(self.server.tree)))
            finally:
                self._sampler.stop()
        if self._sampler.error is not None:
            failure = failure or self._failed(self._sampler.error)
        after, seconds = None, None
        health: tuple[DeviceHealth, ...] = ()
        try:
            if not isinstance(self.server, AttachedServer):
                self.progress.live("stopped, waiting for the memory to come back")
                after, seconds = wait_idle(self.probe, self._idle, self.server.limits.idle_return_seconds)
            health = self.probe.health()
            if after is None and self._idle is not None:
                failure = failure or self._stopped("the memory of the device could not be read after the stop")
            if rest := held(after, self._idle):
                still = on_device(self.probe, self.server.notes)
                self._left = tuple(p for p in still if p.pid in self.server.tree)
                self._note_foreign(tuple(p for p in still if p.pid not in self.server.tree))
                cause = not_given_back(rest, seconds, still, self.server.tree, self.server.notes)
                failure = failure or self._stopped(cause)
        except Exception as error:  # noqa: BLE001 - as above
            failure = failure or self._failed(error)
        return self._recorded(started_at, failure, stop, after, seconds, health)

    def _failed(self, error: Exception) -> StartFailure:
        """Name the phase an error happened in, and what it was."""
        device = isinstance(error, ProbeError)
        return StartFailure(
            phase=self._phase,
            cause=f"the device cannot be read: {error}" if device else unforeseen(error),
            log_path=str(self.server.log_path),
            kind="gpu-lost" if isinstance(error, ProbeError) and error.kind == "lost" else "",
        )

    def _stuck(self, stop: StopReport) -> StartFailure:
        return self._stopped(f"the server could not be ended: {stop.describe()}")

    def _stopped(self, cause: str) -> StartFailure:
        return StartFailure(phase=Phase.STOP, cause=cause, log_path=str(self.server.log_path))

    def _serve(self) -> None:
        self.progress.live("loading the model")
        self.server.start(self._follow, lambda seconds: self.progress.live(f"loading the model, {seconds:.0f} s"))
        loaded = self.server.load_seconds
        self.progress.line("attached" if loaded is None else f"ready after {loaded:.1f} s")
        ask_again(self.server)
        if self.server.pid is not None:
            self._libraries = libraries(self.server.pid)
        self._look()
        self.workload.run(self.parts)
        if Part.SCORES in self.parts:
            self._score()
        if self._sampler.error is not None:
            raise StartError(self._failed(self._sampler.error))
        self._look()
        self._counters = self.server.metrics()
        if not self.server.alive:
            raise self.server.failure(self._phase, self.server.death())
        self._health_at_end = self.server.health_at_end()

    def _score(self) -> None:
        """Score the fixed texts, last of all: no speed is then measured on a server that they have warmed."""
        self._enter(Phase.OUTPUT)
        began = time.monotonic()
        scoring = Scoring(
            server=self.server,
            golden=self.golden,
            say=self.progress.live,
            going=lambda: self._sampler.error is None,
        )
        self._scores = scoring.run()
        tokens = sum(len(score.rows) for score in self._scores)
        self.progress.line(f"{Part.SCORES}: {tokens} tokens in {time.monotonic() - began:.1f} s")

    def _follow(self, pid: int) -> None:
        self.probe.follow(pid)
        self._memory.follow(pid)

    def _look(self) -> None:
        """Note who is on the device, and who of these is not of the server's tree."""
        seen = on_device(self.probe, self.server.notes)
        if seen:
            self._processes = seen
        strangers = tuple(p for p in seen if p.pid not in self.server.tree)
        # When not even the server is on the list, the driver counts pids of another namespace: nobody can be accused.
        if len(strangers) < len(seen):
            self._note_foreign(strangers)

    def _note_foreign(self, strangers: tuple[DeviceProcess, ...]) -> None:
        """Keep whoever was ever seen: one who left again has still used the device while we measured."""
        known = {(p.pid, p.device) for p in self._foreign}
        self._foreign += tuple(p for p in strangers if (p.pid, p.device) not in known)

    def _recorded(
        self,
        started_at: str,
        failure: StartFailure | None,
        stop: StopReport,
        after: int | None,
        return_seconds: float | None,
        health: tuple[DeviceHealth, ...],
    ) -> Recorded:
        records: tuple[RequestRecord, ...] = tuple(self.workload.records)
        samples = phases.label(self._sampler.samples, records)
        log, load = self.server.log_facts(), self.server.backend.read_load(self._counters)
        during = [sample for sample in samples if sample.phase not in ("idle", "after")]
        start = StartEvidence(
            number=self.number,
            started_at=started_at,
            parts=tuple(sorted(self.parts)),
            argv=self.server.argv,
            pid=self.server.pid,
            load_seconds=self.server.load_seconds,
            idle_bytes=self._idle,
            after_bytes=after,
            return_seconds=return_seconds,
            peaks=phases.peaks(during),
            samples=sum(sample.used_bytes is not None for sample in during),
            sampler_hz=self._sampler.rate(),
            sampler_gap=self._sampler.gap(),
            telemetry=summarise(during),
            health_before=self._health,
            health_after=health,
            kernel=self.kernel.since_mark(),
            pids=tuple(sorted(self.server.tree)),
            stopped_at=self._stopped_at,
            requests=records,
            scores=self._scores,
            log=log,
            served_model=self.server.served.name,
            served_context=self.server.served.context,
            kv_tokens=log.kv_tokens if self.server.served.kv_tokens is None else self.server.served.kv_tokens,
            kv_use=load.kv_use,
            gpu_share=self.server.served.gpu_share,
            preemptions=load.preemptions,
            health_at_end=self._health_at_end,
            processes=self._processes,
            foreign=self._foreign,
            event_reasons=phases.event_reasons(during),
            counters=self._counters,
            notes=(*self.server.notes, *self._sampler.notes),
            left_over=(*stop.left, *(process.pid for process in self._left)),
            exit_code=stop.exit_code,
            log_path=str(self.server.log_path),
            log_tail=tail(self.server.log_path) if failure else (),
            failure=failure,
        )
        return Recorded(start=start, samples=samples, libraries=self._libraries)


def _kernel_seconds() -> float | None:
    """Return the time on the clock of the kernel log, which nobody slews; None where there is no such clock."""
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW) if sys.platform == "linux" else None
