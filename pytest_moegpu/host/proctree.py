"""A server's process tree, as its supervisor sees it: started, counted, signalled, ended. Standard library only.

On Linux the tree is whatever descends from this process, which becomes a child subreaper for that; elsewhere, or in a
sandbox that refuses it, the tree is the process group of the server's first process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = [
    "KILL_WAIT_SECONDS",
    "LINUX",
    "PR_SET_CHILD_SUBREAPER",
    "PR_SET_PDEATHSIG",
    "Tree",
    "descendants",
    "handle_of",
    "parent_of",
    "set_attribute",
]

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_WAIT_SECONDS = 10.0
_POLL_SECONDS = 0.01
_LIBC = ctypes.CDLL(None, use_errno=True) if LINUX else None


def set_attribute(option: int, value: int) -> bool:
    """Set an attribute of this process with prctl; False when that is refused, or elsewhere than on Linux."""
    return _LIBC is not None and bool(_LIBC.prctl(option, value, 0, 0, 0) == 0)


def parent_of(pid: int) -> int | None:
    """Return the parent of a process, from /proc; None when there is no such process or it cannot be read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        # The command stands in parentheses and may hold any character, so read behind the last one.
        return int(stat[stat.rindex(b")") + 2 :].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _parents() -> dict[int, int]:
    """Map every visible pid to its parent."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208 - often run; names suffice
    return {pid: parent for pid in pids if (parent := parent_of(pid)) is not None}


def descendants(of: int) -> set[int]:
    """Return all descendants of a process, zombies included."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    todo = [of]
    while todo:
        for child in children.get(todo.pop(), []):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def handle_of(pid: int) -> int | None:
    """Return a descriptor that pins a process; None where there is none to be had."""
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
    try:
        signal.pidfd_send_signal(handle, 0)
    except (AttributeError, PermissionError):
        # A Python or a sandbox that opens descriptors and sends nothing through them.
        os.close(handle)
        return None
    except OSError:
        pass
    return handle


class Tree:
    """The server's process and everything it started. `whole`: known by descent, not only as a process group."""

    def __init__(self) -> None:
        self.whole = LINUX and set_attribute(PR_SET_CHILD_SUBREAPER, 1)
        self.pid: int | None = None
        self.code: int | None = None
        self._first: subprocess.Popen[bytes] | None = None

    def launch(self, argv: Sequence[str], environment: Mapping[str, str], folder: str, output: int) -> int:
        """Start the server in a session of its own, with `output` as stdout and stderr; returns its pid.

        Raises:
            OSError, SubprocessError: It cannot be started.
        """
        supervisor = os.getpid()

        def before_exec() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            if LINUX:
                # If the supervisor is killed, the kernel kills the server's first process.
                set_attribute(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != supervisor:
                    os._exit(1)

        # Kept, for a Popen that is let go collects its process, and with it the exit code of one that died at once.
        self._first = subprocess.Popen(
            argv,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=before_exec,
        )
        self.pid = self._first.pid
        return self.pid

    def reap(self) -> bool:
        """Collect the dead, keep the exit code of the server's first process; False when there is no child left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid:
                self.code = os.waitstatus_to_exitcode(status)

    def empty(self) -> bool:
        """Tell whether nobody is left. A subreaper without children has no descendants, which no look can miss."""
        children = self.reap()
        if self.whole:
            return not children
        return not self.members()

    def members(self) -> set[int]:
        """Return the pids seen alive; by descent, one that is born during the look may be missing."""
        if self.whole:
            return descendants(os.getpid())
        if self.pid is None:
            return set()
        try:
            os.killpg(self.pid, 0)
        except OSError:
            return set()
        return {self.pid}

    def signal(self, number: int) -> set[int]:
        """Send a signal to every member, and to nobody else; returns who got it."""
        if self.whole:
            return self._signal(self.members(), number)
        if self.pid is None:
            return set()
        try:
            os.killpg(self.pid, number)
        except OSError:
            return set()
        return {self.pid}

    def _signal(self, pids: set[int], number: int) -> set[int]:
        handles = {pid: handle_of(pid) for pid in pids}
        reached = set()
        try:
            # Holding the descriptors pins the processes; only now is their descent certain.
            for pid in pids & descendants(os.getpid()):
                with contextlib.suppress(OSError):
                    if (handle := handles[pid]) is not None:
                        signal.pidfd_send_signal(handle, number)
                    else:
                        os.kill(pid, number)
                    reached.add(pid)
        finally:
            for handle in handles.values():
                if handle is not None:
                    os.close(handle)
        return reached

    def gone(self, within: float, hurry: Callable[[], float | None] = lambda: None) -> bool:
        """Wait until nobody is left; False when the time is over, which `hurry` may shorten to seconds from now."""
        end = time.monotonic() + within
        while not self.empty():
            now = time.monotonic()
            if (sooner := hurry()) is not None:
                end = min(end, now + sooner)
            if now >= end:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def stop(self, grace: float, hurry: Callable[[], float | None] = lambda: None) -> dict[str, object]:
        """TERM, grace, KILL until nobody is left; returns what had to be killed and what could not be."""
        killed: set[int] = set()
        if not self.empty():
            self.signal(signal.SIGTERM)
            if not self.gone(grace, hurry):
                end = time.monotonic() + KILL_WAIT_SECONDS
                # A tree may fork while it is being killed, so repeat until it is empty.
                while not self.empty() and time.monotonic() < end:
                    killed |= self.signal(signal.SIGKILL)
                    self.gone(0.2)
        return {"code": self.code, "killed": sorted(killed), "left": [] if self.empty() else sorted(self.members())}
