"""One live server of a scenario: started, proven ready, talked to, ended."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pytest_moegpu.backends.base import Backend, ChatRequest, Health
from pytest_moegpu.core import faults
from pytest_moegpu.core.evidence import LogFacts, Phase, RequestKind, StartFailure
from pytest_moegpu.core.model import LaunchSpec, Limits
from pytest_moegpu.core.runner import runner_fault
from pytest_moegpu.errors import MoegpuError, ProgramError, StartError
from pytest_moegpu.host.boundedlog import read_ends, tail
from pytest_moegpu.host.container import ContainerProcess
from pytest_moegpu.host.control import listener
from pytest_moegpu.host.process import ServerProcess
from pytest_moegpu.host.setup import run_setup
from pytest_moegpu.host.stopreport import StopReport
from pytest_moegpu.session.contained import launch_of
from pytest_moegpu.session.conversation import Conversation, generated

__all__ = ["Server", "new_container_name", "new_key", "unforeseen"]

_POLL_SECONDS = 0.05
_NOTICE_SECONDS = 1.0
# The end of a log, in which a death is explained.
_LAST_LINES = 200
# One token is asked of a server that has just said it is ready; first kernels may still be compiled.
_FIRST_TOKEN_SECONDS = 180.0


def new_key() -> str:
    """Return an API key for one run: nobody else on the machine can use the server, and no other server takes it."""
    return secrets.token_urlsafe(24)


def new_container_name() -> str:
    """Return a name for a container that nobody else on the machine uses."""
    return f"moegpu-{secrets.token_hex(6)}"


def unforeseen(error: Exception) -> str:
    """Name an error that nobody expected: type, words, and where it was raised, for a report to us."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f" (at {Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno})" if place is not None else ""
    return f"unforeseen {type(error).__name__}: {error}{where}"


def _ending(code: int | None) -> str:
    """Say how a process ended, from its exit code."""
    if code is None:
        return "an exit code that is not known"
    if code >= 0:
        return f"exit code {code}"
    names = {number.value: f" ({number.name})" for number in signal.Signals}
    return f"signal {-code}{names.get(-code, '')}"


class Server(Conversation):
    """A server process with its client. `start` returns only when it has generated a token."""

    def __init__(self, backend: Backend, spec: LaunchSpec, limits: Limits, log_path: Path) -> None:
        super().__init__(backend, spec, limits)
        self.log_path = log_path
        self.load_seconds: float | None = None
        self.stopped = False
        name = new_container_name()
        self._launch = launch_of(backend, spec, name)
        self.argv = self._launch.argv
        self._process: ServerProcess | None = None
        # Where a container's processes are not those of the command that starts it.
        self._container = ContainerProcess(spec.container, name) if spec.container and self._launch.end else None
        self._seen: set[int] = set()

    @property
    def pid(self) -> int | None:
        """Pid of the server's first process; None for a container whose processes are not seen from here."""
        if self._process is None:
            return None
        return self._container.pid if self._container is not None else self._process.pid

    @property
    def tree(self) -> frozenset[int]:
        """Pids of the server and of all it started, as far as they live now or lived at an earlier look."""
        if self._process is not None:
            self._seen |= self._process.tree()
            self._seen |= self._container.pids() if self._container is not None else frozenset()
        return frozenset(self._seen)

    @property
    def alive(self) -> bool:
        """True while the server's first process lives."""
        return self._process is not None and self._process.alive

    def settle(self) -> None:
        """A broken connection is often the death of the server, and the notice of that comes a moment later."""
        if self._process is not None:
            self._process.wait(_NOTICE_SECONDS)

    def start(
        self,
        spawned: Callable[[int], None] = lambda _pid: None,
        waiting: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        """Start the program and wait until it is ready: alive, healthy, the right model, one token generated.

        `spawned` is called with the pid as soon as there is one, `waiting` with the seconds so far while it loads.

        Raises:
            StartError: With phase, cause, exit code and log tail. The caller still calls `stop`.
        """
        began = time.monotonic()
        environment = os.environ | self._launch.environment
        try:
            if self.spec.scratch:
                Path(self.spec.scratch).mkdir(parents=True, exist_ok=True)
            self._process = ServerProcess(self.argv, environment, self.log_path, self.log_path.parent, self._launch.end)
        except ProgramError as error:
            raise self.failure(Phase.LAUNCH, str(error)) from error
        if self._process.scope == "group":
            self.notes.append(
                "this system has no child subreaper: only the server's process group can be ended, "
                "and what bears this run's mark"
            )
        phase = Phase.LOAD
        try:
            self._await_health(began, spawned, waiting)
            phase = Phase.READY
            self._check_listener()
            self._set_up()
            if wrong := self.ask_model():
                raise self.failure(Phase.READY, wrong)
            self._first_token()
        except MoegpuError:
            raise
        except Exception as error:
            # An engine that answers as none did before is a first cause too, to be told once.
            raise self.failure(phase, unforeseen(error)) from error
        self.load_seconds = time.monotonic() - began

    def _await_health(self, began: float, spawned: Callable[[int], None], waiting: Callable[[float], None]) -> None:
        assert self._process is not None
        health = Health(ready=False, detail="no answer on the port")
        answered = told = False
        while not health.ready:
            if not told and (pid := self.pid) is not None:
                spawned(pid)
                told = True
            if not self._process.alive:
                raise self.failure(Phase.LOAD if answered else Phase.LAUNCH, self.death())
            if (answer := self.get(self.backend.health_path)) is not None:
                answered = True
                health = self.backend.read_health(*answer)
            if health.dead:
                raise self._broken(Phase.LOAD, f"it answers, but will never be ready: {health.detail}", health.detail)
            waited = time.monotonic() - began
            waiting(waited)
            if not health.ready and waited >= self.limits.ready_seconds:
                state = "still loading" if health.loading else health.detail
                cause = f"not ready after {self.limits.ready_seconds:g} s; last state: {state}"
                raise self._broken(Phase.LOAD, cause, state)
            if not health.ready:
                self._process.wait(_POLL_SECONDS)
        if told:
            return
        # A container that was ready at once, or one whose processes are elsewhere.
        if self._container is not None and (pid := self._container.wait(_NOTICE_SECONDS)) is not None:
            spawned(pid)
        else:
            self.notes.append("the processes of the container are not seen from here: what they use is not known")

    def death(self) -> str:
        """Say why the process is gone, in the words of its log where these are known."""
        ended = _ending(self._process.exit_code if self._process else None)
        if (fault := self.fault()) is not None:
            return f"{fault.words} ({ended}): {fault.line}"
        if self.spec.container is not None and (said := runner_fault(self.spec.container, tail(self.log_path))):
            return f"{said} ({ended})"
        # The engine's own words for the rest; what it says of memory counts only where `faults` takes it for a fault.
        fatal = self._last_facts().fatal_lines
        return f"fatal error ({ended}): {fatal[0]}" if fatal else f"the server ended with {ended}"

    def fault(self) -> faults.Fault | None:
        """Return the fault that the log names; it means something only when the process died or never got ready."""
        lines = read_ends(self.log_path).splitlines()
        # The end first: what stands further up was survived for a while at least, and for good once it has served.
        found = faults.find(lines[-_LAST_LINES:])
        return faults.find(lines) if found is None and self.load_seconds is None else found

    def _last_facts(self) -> LogFacts:
        """Read the end of the log in the engine's own words; the whole of a long one takes longer than a second."""
        return self._facts("\n".join(tail(self.log_path, _LAST_LINES)))

    def _broken(self, phase: Phase, cause: str, state: str) -> StartError:
        """Build the error of a server that never got ready: a fault that its log names comes first."""
        fault = self.fault()
        if fault is None and (fatal := self.log_facts().fatal_lines):
            cause = f"{cause}: {fatal[0]}"
        return self.failure(
            phase, f"{fault.words} ({cause}): {fault.line}" if fault else cause, state=state, fault=fault
        )

    def _check_listener(self) -> None:
        """Make sure that the answer came from our process and not from a squatter on the port."""
        owner = listener(self.spec.host, self.spec.port)
        if self._container is not None and self._container.publishes(self.spec.host, self.spec.port):
            # The one who listens is then of the runner: docker-proxy, or nobody at all.
            return
        if owner is None:
            self.notes.append("the owner of the port could not be read")
            return
        if owner.pid not in self.tree:
            name = owner.name or "unknown"
            cause = f"port {self.spec.port} is held by pid {owner.pid} ({name}), which this run did not start"
            raise self.failure(Phase.READY, cause)

    def _set_up(self) -> None:
        """Run what makes the model known to the server, in the start's own folder."""
        for command in self.backend.setup(self.spec):
            for name, content in command.files.items():
                (Path(self.spec.scratch) / name).write_text(content, encoding="utf-8")
            said = run_setup(
                command.argv, os.environ | command.environment, self.spec.scratch, self.limits.ready_seconds
            )
            if said:
                raise self.failure(Phase.READY, said)

    def _first_token(self) -> None:
        seconds = min(_FIRST_TOKEN_SECONDS, self.limits.request_seconds)
        answer = self.chat(ChatRequest(prompt="Say hello.", max_tokens=1), RequestKind.READY, "ready", timeout=seconds)
        lives, what = generated(answer)
        if lives and what:
            self.notes.append(what)
        elif not lives:
            health = self.get(self.backend.health_path)
            state = f"health {health[0]}" if health else "health does not answer"
            if not self.alive:
                raise self.failure(Phase.READY, self.death())
            raise self._broken(Phase.READY, f"healthy, but it does not generate: {what} ({state})", state)

    def log_facts(self) -> LogFacts:
        """Read the log as far as it is written: its beginning, where loading is described, and its end."""
        return self._facts(read_ends(self.log_path))

    def _facts(self, text: str) -> LogFacts:
        try:
            return self.backend.read_log(text)
        except Exception as error:  # noqa: BLE001 - a log nobody foresaw must not hide the failure it is read for
            if (note := f"the log could not be read: {unforeseen(error)}") not in self.notes:
                self.notes.append(note)
            return LogFacts()

    def failure(self, phase: Phase, cause: str, *, state: str = "", fault: faults.Fault | None = None) -> StartError:
        """Build the error of this start from what is known now; the log of a dead server names the fault itself."""
        died = self._process is not None and not self.alive
        if died and fault is None:
            fault = self.fault()
        return StartError(
            StartFailure(
                phase=phase,
                cause=cause,
                exit_code=self._process.exit_code if self._process else None,
                state=state,
                log_path=str(self.log_path),
                log_tail=tail(self.log_path),
                out_of_memory=fault is not None and fault.name == faults.OUT_OF_MEMORY,
                kind=fault.name if fault else "",
            )
        )

    def stop(self) -> StopReport:
        """End the server and everything it started. Safe to call more than once, and before `start`."""
        self.stopped = True
        try:
            if self._process is None:
                return StopReport(exit_code=None)
            report = self._process.stop(self.backend.stop_seconds)
            # What is left of a container are processes too, though none of ours.
            alive = self._container.pids() if report.unended and self._container is not None else frozenset()
            return replace(report, left=tuple(sorted({*report.left, *alive}))) if alive else report
        finally:
            if self.spec.scratch:
                # It may hold a copy of the model.
                shutil.rmtree(self.spec.scratch, ignore_errors=True)
