"""pytest's side of a supervised server process."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil

from pytest_moegpu.core.container import End
from pytest_moegpu.errors import ProgramError
from pytest_moegpu.host.ending import end
from pytest_moegpu.host.stopreport import StopReport

__all__ = ["ServerProcess"]

_MARK = "MOEGPU_SERVER_MARK"
_SUPERVISOR = Path(__file__).with_name("supervisor.py")
# The supervisor's own bounds are grace + 10 s; past that it is stuck itself.
_STOP_MARGIN_SECONDS = 20.0
# What the watcher needs to end what a killed supervisor left.
_WATCHER_SECONDS = 12.0
_KERNEL_SECONDS = 2.0
_STATES = {
    psutil.STATUS_DISK_SLEEP: "D: waiting in the kernel",
    psutil.STATUS_ZOMBIE: "Z: dead, but a thread of it lives on",
    psutil.STATUS_STOPPED: "T: stopped",
    psutil.STATUS_TRACING_STOP: "t: stopped by a debugger",
    psutil.STATUS_RUNNING: "R: running",
    psutil.STATUS_SLEEPING: "S: sleeping",
}


class ServerProcess:
    """One server under a supervisor of its own.

    The supervisor watches this process: when pytest goes, in whatever way, the tree is ended. After an exception, also
    an interrupt, while it starts there is nothing to clean up: the tree is gone, or a note on it says what is not.
    `scope` is `tree` on Linux; elsewhere `group`: a process that leaves the server's process group is then only found
    by the mark in its environment, and only by `stop`.

    Raises:
        ProgramError: The program cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        log_path: Path,
        folder: Path,
        outliving: End | None = None,
    ) -> None:
        self.argv = tuple(argv)
        self.log_path = log_path
        self.pid: int | None = None
        self.scope = "group"
        self._root: psutil.Process | None = None
        self._told = threading.Event()
        self._exited = threading.Event()
        self._stopped = threading.Event()
        self._first: dict[str, Any] = {}
        self._code: int | None = None
        self._report: StopReport | None = None
        self._swept = False
        self._mark = secrets.token_hex(16)
        self._reader = threading.Thread(target=self._listen, name="moegpu-supervisor", daemon=True)
        order = {
            "starter": os.getpid(),
            "argv": list(argv),
            "env": {**environment, _MARK: self._mark},
            "cwd": str(folder),
            "log": str(log_path),
            "end": asdict(outliving) if outliving is not None else None,
        }
        self._outliving, self._environment = outliving, dict(environment)
        self._end_seconds = outliving.seconds if outliving is not None else 0.0
        # -I -S: no site packages, no environment: it starts quickly and cannot be hijacked by a user's folder.
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SUPERVISOR)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._begin(order)
        except BaseException as error:
            report = self.stop(grace=0.0)
            if report.describe():
                error.add_note(f"left running by the start of {argv[0]!r}: {report.describe()}")
            raise

    def _begin(self, order: dict[str, Any]) -> None:
        try:
            self._reader.start()
        except RuntimeError:
            # No thread is to be had. Nothing was ordered, so nothing will be told.
            self._stopped.set()
            raise
        # A supervisor that cannot start reads nothing; that it said nothing either is told below.
        with contextlib.suppress(BrokenPipeError):
            self._send(order)
        self._told.wait()
        if self._first.get("event") != "started":
            said = self._first.get("message", "the supervisor said nothing")
            raise ProgramError(f"cannot start {self.argv[0]!r}: {said}")
        self.pid = int(self._first["pid"])
        self.scope = str(self._first["scope"])
        self.supervisor_pid = int(self._first["supervisor"])
        """Every process of the server's tree descends from it."""
        # Held from the start, because psutil then tells a reused pid from this process.
        with contextlib.suppress(psutil.Error):
            self._root = psutil.Process(self.supervisor_pid)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.write(json.dumps(message).encode() + b"\n")
        self._supervisor.stdin.flush()

    def _listen(self) -> None:
        assert self._supervisor.stdout is not None
        for line in self._supervisor.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # broken off, when the supervisor was killed while it spoke
            if not self._told.is_set():
                self._first = event
                self._told.set()
            if event["event"] == "exited":
                self._code = event["code"]
                self._exited.set()
            elif event["event"] == "stopped":
                # A watcher that ended what a killed supervisor left does not know the code.
                self._code = event["code"] if self._code is None else self._code
                self._report = StopReport(
                    exit_code=self._code,
                    killed=tuple(event["killed"]),
                    left=tuple(event["left"]),
                    unended=event["unended"],
                )
        for fact in (self._told, self._exited, self._stopped):
            fact.set()

    def tree(self) -> frozenset[int]:
        """Return the pids of the server and of all it started that live now; empty when the supervisor is gone."""
        if self._root is None:
            return frozenset()
        try:
            return frozenset(child.pid for child in self._root.children(recursive=True))
        except psutil.Error:
            return frozenset()

    @property
    def alive(self) -> bool:
        """True until the server's first process has exited."""
        return not self._exited.is_set()

    @property
    def exit_code(self) -> int | None:
        """Exit code of the server's first process, negative for a signal; None while it lives or when not known."""
        return self._code

    def wait(self, timeout: float) -> bool:
        """Wait for the server's first process to exit; True when it has."""
        return self._exited.wait(timeout)

    def _stuck(self) -> set[int]:
        """Return the pids of a supervisor and a watcher that outlived their killing, and of their descendants.

        Those that are dead and only wait to be reaped are among them.
        """
        found = set(self.tree())
        with contextlib.suppress(psutil.Error):
            if self._root is not None and self._root.is_running():
                found.add(self._root.pid)
        with contextlib.suppress(psutil.Error):
            if self._supervisor.poll() is None:
                watcher = psutil.Process(self._supervisor.pid)
                found |= {watcher.pid, *(child.pid for child in watcher.children(recursive=True))}
        return found

    def _final(self) -> StopReport:
        """Complete what the supervisor reported, or clean up when it and its watcher could not.

        When both were killed the kernel kills the server's first process; others of its tree are found by the mark in
        their environment. One that cleared its environment is not, which only parent links could do.
        """
        report, stuck = self._report, self._stuck()
        if report is None:
            report = StopReport(exit_code=self._code, left=(self.pid,) if self.pid is not None else ())
            if self.pid is not None:
                _ended(self.pid, _KERNEL_SECONDS)
            if self._outliving is not None:
                report = replace(report, unended=end(asdict(self._outliving), self._environment))
        elif not (report.left or stuck or self.scope == "group"):
            return report
        report = self._sweep(replace(report, left=(*report.left, *stuck)))
        return replace(report, states=tuple(_described(pid) for pid in report.left))

    def _sweep(self, report: StopReport) -> StopReport:
        """Kill whoever bears our mark, and complete a report with that; a bare pid may be another's by now."""
        killed = set()
        marked = _marked(self._mark)
        for process in marked:
            with contextlib.suppress(psutil.Error):
                process.kill()
                killed.add(process.pid)
        psutil.wait_procs(list(marked), timeout=_KERNEL_SECONDS)
        left = {pid for pid in report.left if not _ended(pid, 0.0)} | {process.pid for process in _marked(self._mark)}
        return replace(report, killed=tuple(sorted({*report.killed, *killed})), left=tuple(sorted(left)))

    def stop(self, grace: float = 10.0) -> StopReport:
        """End the whole tree: TERM, `grace` seconds, KILL. Safe to call again; returns the first report.

        Ctrl-C ends the grace, not the waiting: it is raised once everything is gone.
        """
        interrupt: KeyboardInterrupt | None = None
        margin = _STOP_MARGIN_SECONDS + self._end_seconds
        until = time.monotonic() + grace + margin
        while True:
            try:
                report = self._stop(grace, until)
                break
            except KeyboardInterrupt as again:
                interrupt, grace = again, 0.0
                until = min(until, time.monotonic() + margin)
        if interrupt is not None:
            raise interrupt
        return report

    def _stop(self, grace: float, until: float) -> StopReport:
        if not self._swept:
            # A supervisor that has stopped by itself reads no order; its report is on the way.
            with contextlib.suppress(OSError, ValueError):
                self._send({"do": "stop", "grace": grace})
            if not self._stopped.wait(max(0.0, until - time.monotonic())):
                self._kill_supervisor()
                if not self._stopped.wait(_WATCHER_SECONDS + self._end_seconds):
                    self._supervisor.kill()
        self._collect()
        if self._report is None or not self._swept:
            self._report = self._final()
        self._swept = True
        return self._report

    def _kill_supervisor(self) -> None:
        """Kill a supervisor that does not answer; the watcher behind it then ends what it leaves."""
        with contextlib.suppress(psutil.Error):
            # One that has not said who it is, is found as the watcher's only child.
            watched = psutil.Process(self._supervisor.pid).children() if self._root is None else [self._root]
            for process in watched:
                process.kill()

    def _collect(self) -> None:
        """Reap the first process of the supervisor and close the pipes; waits a bounded time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(_KERNEL_SECONDS)
        if self._reader.ident is not None:
            self._reader.join(1.0)
        streams = [self._supervisor.stdin]
        if not self._reader.is_alive():
            # Closing a stream that is being read would wait for the end of that reading.
            streams.append(self._supervisor.stdout)
        for stream in streams:
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _marked(mark: str) -> set[psutil.Process]:
    """Find living processes whose environment holds our mark, which only this server's tree inherited."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.add(process)
    return found


def _ended(pid: int, within: float) -> bool:
    """Wait until a process no longer runs; one that is dead and only waits to be reaped does not.

    A process whose first thread is dead looks like that too while another thread hangs in the kernel, memory and all.
    """
    end = time.monotonic() + within
    while True:
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1:
                return True
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            pass
        if time.monotonic() >= end:
            return False
        time.sleep(0.01)


def _described(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"pid {pid} ({process.name()}, {_STATES.get(process.status(), process.status())})"
    except psutil.Error:
        return f"pid {pid}"
