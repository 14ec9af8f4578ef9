"""A small process between pytest and a server, so that nothing is left behind whatever happens to pytest.

Run as a script, with the standard library only. It reads one JSON line (argv, env, cwd, log) from stdin, starts the
server, and ends the whole tree when asked (`{"do": "stop", "grace": s}`), when the server's first process dies, when
its stdin closes because pytest died in whatever way, or on SIGTERM. A second order to stop shortens the grace of the
first. Events go out on stdout as JSON lines:

    {"event": "started", "pid": 1, "scope": "tree"}      {"event": "failed", "message": "…"}
    {"event": "exited", "code": 1}                        {"event": "stopped", "code": 0, "killed": [], "left": []}

On Linux it is a child subreaper: a worker that calls setsid, renames itself or outlives its parent stays a descendant
and is found by parent links, never by name. It signals only its own descendants, through pid file descriptors, so a
reused pid is not hit; where a kernel, a sandbox or a Python has none of these, by pid right after a look at its
descent. Elsewhere it can only signal the server's process group, and says so (`"scope": "group"`).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_WAIT_SECONDS = 10.0
DEFAULT_GRACE_SECONDS = 10.0
POLL_SECONDS = 0.05


def say(**event: Any) -> None:
    """Send one event; a reader that is gone is not an error, because then everything is being ended anyway."""
    with contextlib.suppress(OSError):
        os.write(1, (json.dumps(event) + "\n").encode())


def set_attribute(option: int, value: int) -> None:
    """Set an attribute of this process with prctl; a refusal is ignored, cleaning up by group still works."""
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """Between fork and exec: if the supervisor itself is killed, the kernel kills the server's first process."""
    set_attribute(PR_SET_PDEATHSIG, signal.SIGKILL)


def parents() -> dict[int, int]:
    """Map every visible pid to its parent, from /proc."""
    found: dict[int, int] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - this runs often; names are enough
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                stat = Path(f"/proc/{entry}/stat").read_bytes()
                # The command stands in parentheses and may hold any character, so read behind the last one.
                found[int(entry)] = int(stat[stat.rindex(b")") + 2 :].split()[1])
    return found


def descendants(of: int) -> set[int]:
    """Return all descendants of a process, zombies included."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    todo = [of]
    while todo:
        for child in children.get(todo.pop(), []):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def pidfd_works() -> bool:
    """Tell whether a process can be signalled through a descriptor: not with every kernel, sandbox or Python."""
    try:
        handle = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(handle, 0)
        finally:
            os.close(handle)
    except (AttributeError, OSError):
        return False
    return True


class Orders:
    """JSON lines on stdin."""

    def __init__(self) -> None:
        self._buffer = b""
        self.closed = False

    def read(self) -> None:
        """Read what is there, or wait for it; notes the end of stdin."""
        chunk = os.read(0, 65536)
        self._buffer += chunk
        self.closed = not chunk

    def take(self) -> bytes | None:
        """Return the next whole line read so far, None when there is none."""
        if b"\n" not in self._buffer:
            return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def grace(self, otherwise: float) -> float:
        """Return the shortest grace of the orders read so far, or `otherwise`."""
        while (line := self.take()) is not None:
            otherwise = min(otherwise, float(json.loads(line).get("grace", otherwise)))
        return otherwise

    def news(self) -> bool:
        """Read without waiting; True when there was something."""
        if self.closed or not select.select([0], [], [], 0)[0]:
            return False
        self.read()
        return not self.closed


class Tree:
    """The server's process and everything it started."""

    def __init__(self, order: dict[str, Any]) -> None:
        log: IO[bytes]
        with Path(order["log"]).open("ab", buffering=0) as log:
            self.process = subprocess.Popen(
                order["argv"],
                env=order["env"],
                cwd=order["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent if LINUX else None,
            )
        self.code: int | None = None
        self.pidfd = LINUX and pidfd_works()

    def reap(self) -> None:
        """Collect the dead, keep the exit code of the server's first process."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.process.pid:
                self.code = os.waitstatus_to_exitcode(status)

    def members(self) -> set[int]:
        """Return the pids still alive."""
        self.reap()
        if LINUX:
            return descendants(os.getpid())
        try:
            os.killpg(self.process.pid, 0)
        except OSError:
            return set()
        return {self.process.pid}

    def signal(self, number: int) -> set[int]:
        """Send a signal to every member, and to nobody else; returns who got it."""
        if LINUX:
            return {pid for pid in self.members() if self._signal(pid, number)}
        try:
            os.killpg(self.process.pid, number)
        except OSError:
            return set()
        return {self.process.pid}

    def _signal(self, pid: int, number: int) -> bool:
        handle: int | None = None
        try:
            if self.pidfd:
                try:
                    handle = os.pidfd_open(pid)
                except ProcessLookupError:
                    return False
                except OSError:
                    handle = None  # no descriptor to be had now; the signal must go out all the same
            # Holding the descriptor pins the process; only now is its descent certain.
            if pid not in descendants(os.getpid()):
                return False
            if handle is not None:
                signal.pidfd_send_signal(handle, number)
            else:
                os.kill(pid, number)
        except OSError:
            return False
        finally:
            if handle is not None:
                os.close(handle)
        return True

    def gone(self, within: float, orders: Orders | None = None) -> bool:
        """Wait until no member is left; False when the time is over, which a new order may shorten."""
        end = time.monotonic() + within
        while self.members():
            now = time.monotonic()
            if orders is not None and orders.news():
                end = min(end, now + orders.grace(within))
            if now >= end:
                return False
            time.sleep(POLL_SECONDS / 5)
        return True

    def stop(self, grace: float, orders: Orders | None = None) -> dict[str, Any]:
        """TERM, grace, KILL until nobody is left; returns what had to be killed and what could not be."""
        killed: set[int] = set()
        if self.members():
            self.signal(signal.SIGTERM)
            if not self.gone(grace, orders):
                end = time.monotonic() + KILL_WAIT_SECONDS
                # A tree may fork while it is being killed, so repeat until it is empty.
                while self.members() and time.monotonic() < end:
                    killed |= self.signal(signal.SIGKILL)
                    self.gone(0.2)
        return {"code": self.code, "killed": sorted(killed), "left": sorted(self.members())}


def main() -> int:
    """Serve one order from stdin until the tree is gone; exit code 1 when something could not be ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    if LINUX:
        set_attribute(PR_SET_CHILD_SUBREAPER, 1)

    orders = Orders()
    while (line := orders.take()) is None:
        orders.read()
        if orders.closed:
            return 0
    try:
        tree = Tree(json.loads(line))
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        say(event="failed", message=f"{type(error).__name__}: {error}")
        return 0
    say(event="started", pid=tree.process.pid, scope="tree" if LINUX else "group")

    grace = DEFAULT_GRACE_SECONDS
    while True:
        readable, _, _ = select.select([0, wake_read], [], [])
        if wake_read in readable and {signal.SIGTERM, signal.SIGHUP} & set(os.read(wake_read, 4096)):
            break
        tree.reap()
        if tree.code is not None:
            say(event="exited", code=tree.code)
            break
        if 0 in readable:
            orders.read()
            if orders.closed:
                break
            if (order := orders.take()) is not None:
                grace = orders.grace(float(json.loads(order).get("grace", grace)))
                break
    report = tree.stop(grace, orders)
    say(event="stopped", **report)
    return 1 if report["left"] else 0


if __name__ == "__main__":
    sys.exit(main())
