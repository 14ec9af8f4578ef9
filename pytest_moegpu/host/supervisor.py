"""A small process between pytest and a server, so that nothing is left behind whatever happens to pytest.

Run as a script, with the standard library only. It reads one JSON line (starter, argv, env, cwd, log, end) from stdin,
starts the server, and ends the whole tree when asked (`{"do": "stop", "grace": s}`), when the server's first process
dies, when its starter, which is pytest, dies in whatever way, or on SIGTERM. The end of stdin tells of the starter's
death, and so does the end of its process, because a child that it forked keeps stdin open. A second order to stop
shortens the grace of the first; one that cannot be read is an order to stop. What the server prints goes through a pipe
into a bounded log. Events go out on stdout as JSON lines:

    {"event": "started", "pid": 1, "supervisor": 2, "scope": "tree"}      {"event": "failed", "message": "…"}
    {"event": "exited", "code": 1}       {"event": "stopped", "code": 0, "killed": [], "left": [], "unended": ""}

On Linux it is a child subreaper: a worker that calls setsid, renames itself, clears its environment or outlives its
parent stays a descendant and is found by parent links, never by name. It signals only its own descendants, through pid
file descriptors, so a reused pid is not hit; where a kernel, a sandbox or a Python has none of these, by pid right
after a look at its descent. A watcher stands behind it: a second subreaper, to which everything falls when the
supervisor itself is killed, and which then ends it. Elsewhere, and where a sandbox knows no subreaper, it can only
signal the server's process group, and says so (`"scope": "group"`).

A container is no descendant of the command that starts it. `end` in the order says how it is ended (see `ending.py`);
that is done once the tree is gone, by whichever of supervisor and watcher lives. `unended` says what is left of it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

DEFAULT_GRACE_SECONDS = 10.0
# What a dead server leaves behind may still hold a client's connection, and so the notice of the death.
ORPHAN_GRACE_SECONDS = 0.5
LOG_SECONDS = 2.0
# How often to look for the starter: a kernel may give no descriptor for it, and a sandbox one that never tells.
STARTER_SECONDS = 1.0
EXIT_LEFT = 3


def beside(name: str) -> ModuleType:
    """Load a module that lies beside this file: without site packages there is no package to import it from."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


boundedlog = beside("boundedlog")
ending = beside("ending")
proctree = beside("proctree")


def say(**event: Any) -> None:
    """Send one event; a reader that is gone is not an error, because then everything is being ended anyway."""
    rest = (json.dumps(event) + "\n").encode()
    with contextlib.suppress(OSError):
        while rest:
            rest = rest[os.write(1, rest) :]


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

    def grace(self) -> float | None:
        """Return the shortest grace of the orders read so far, in seconds; None when there was no order."""
        shortest = None
        while (line := self.take()) is not None:
            grace = DEFAULT_GRACE_SECONDS
            with contextlib.suppress(ValueError, TypeError, AttributeError):
                grace = float(json.loads(line).get("grace", grace))
            shortest = grace if shortest is None else min(shortest, grace)
        return shortest

    def hurry(self) -> float | None:
        """Read without waiting; returns the grace of a new order, None when there is none."""
        if not self.closed and select.select([0], [], [], 0)[0]:
            self.read()
        return self.grace()


class Signals:
    """Wakes a waiting process on a dead child, and notes a signal that asks it to end."""

    def __init__(self) -> None:
        self.asked = False
        self.wake, write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True

    def wait(self, *others: int, seconds: float) -> list[int]:
        """Wait for a signal, for something to read on one of `others`, or so long; returns those of them that have."""
        readable = select.select([self.wake, *others], [], [], seconds)[0]
        if self.wake in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 65536)
        return [other for other in others if other in readable]


class Starter:
    """The process that started this script; to be made in the script's first process, also for its children.

    The kernel gives the script's first process to another parent when it ends. A pid file descriptor, where there is
    one to be had, wakes a waiting process at that moment.
    """

    def __init__(self) -> None:
        self.pid, self._first = os.getppid(), os.getpid()
        self.handles: tuple[int, ...] = ()
        with contextlib.suppress(AttributeError, OSError):
            # Should the pid be another's by now, the starter is dead, and this process has another parent.
            self.handles = (os.pidfd_open(self.pid),)
        if self.handles and not self.gone() and self._told():
            # It would wake for nothing, again and again.
            self.handles = ()

    def gone(self) -> bool:
        """Tell whether it has ended, without waiting."""
        parent = os.getppid() if os.getpid() == self._first else proctree.parent_of(self._first)
        return self._told() if parent is None else parent != self.pid

    def _told(self) -> bool:
        return bool(select.select(self.handles, [], [], 0)[0])


def await_order(orders: Orders, signals: Signals, starter: Starter) -> bool:
    """Wait until something happens, and read what was ordered; False when there is nobody to wait for any more."""
    if signals.asked or orders.closed or starter.gone():
        return False
    if 0 in signals.wait(0, *starter.handles, seconds=STARTER_SECONDS):
        orders.read()
    return True


def attend(tree: Any, orders: Orders, signals: Signals, starter: Starter, log: Any) -> float:
    """Wait until the tree is to be ended, for whatever reason; returns the grace it gets, in seconds."""
    while True:
        # Without any child the server is dead as well, whoever collected it.
        if not tree.reap() or tree.code is not None:
            # Before the death is told, its cause must be in the log.
            log.settle()
            say(event="exited", code=tree.code)
            return ORPHAN_GRACE_SECONDS
        if (grace := orders.grace()) is not None:
            return grace
        if not await_order(orders, signals, starter):
            return DEFAULT_GRACE_SECONDS


class Testament:
    """What is to be ended once the tree is gone; the watcher can read it when the supervisor was killed."""

    def __init__(self) -> None:
        self._file: int | None = None
        # Made before the fork. Where there is no such file, the watcher ends the tree and no more.
        with contextlib.suppress(AttributeError, OSError):
            self._file = os.memfd_create("moegpu-end")

    def write(self, order: dict[str, Any]) -> None:
        """Keep the part of an order that says what is to be ended; nothing where there is none."""
        if self._file is not None and order.get("end"):
            rest = json.dumps({"end": order["end"], "env": order["env"]}).encode()
            while rest:
                rest = rest[os.write(self._file, rest) :]

    def read(self) -> dict[str, Any]:
        """Return what was written, which is nothing when the supervisor was killed before."""
        kept = b"" if self._file is None else os.pread(self._file, os.fstat(self._file).st_size, 0)
        with contextlib.suppress(ValueError):
            return dict(json.loads(kept))
        return {}


def end_all(tree: Any, order: dict[str, Any], grace: float, hurry: Any = lambda: None) -> dict[str, Any]:
    """End the tree, then what outlives it; returns both reports as one."""
    report = tree.stop(grace, hurry)
    if not order.get("end"):
        return dict(report, unended="")
    unended = ending.end(order["end"], order["env"])
    # A command that hung is of the tree as well, and one that waited for a container may have ended by itself.
    again = tree.stop(0.0)
    return dict(again, killed=sorted({*report["killed"], *again["killed"]}), unended=unended)


def supervise(starter: Starter, testament: Testament) -> int:
    """Serve one order from stdin until the tree is gone."""
    signals, orders, tree = Signals(), Orders(), proctree.Tree()
    while (line := orders.take()) is None:
        if not await_order(orders, signals, starter):
            return 0
    try:
        order = json.loads(line)
        if order["starter"] != starter.pid or starter.gone():
            raise ProcessLookupError("who gave the order is gone, or did not start this supervisor")
        testament.write(order)
        log = boundedlog.BoundedLog(Path(order["log"]))
        pid = tree.launch(order["argv"], order["env"], order["cwd"], log.sink)
    except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError) as error:
        say(event="failed", message=f"{type(error).__name__}: {error}")
        return 0
    grace = 0.0
    try:
        log.start()
        say(event="started", pid=pid, supervisor=os.getpid(), scope="tree" if tree.whole else "group")
        grace = attend(tree, orders, signals, starter, log)
    finally:
        report = end_all(tree, order, grace, orders.hurry)
        log.finish(0.0 if report["left"] else LOG_SECONDS)
        say(event="stopped", **report)
    return EXIT_LEFT if report["left"] or report["unended"] else 0


def main() -> int:
    """Supervise; on Linux in a child, with this process as the watcher that ends what a killed supervisor leaves."""
    starter, testament = Starter(), Testament()
    if not proctree.LINUX:
        return supervise(starter, testament)
    tree = proctree.Tree()
    watcher = os.getpid()
    if (child := os.fork()) == 0:
        proctree.set_attribute(proctree.PR_SET_PDEATHSIG, signal.SIGTERM)
        return supervise(starter, testament) if os.getppid() == watcher else 0

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(OSError):
            os.kill(child, number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    ended = -1
    while ended != child:
        ended, status = os.waitpid(-1, 0)
    if (code := os.waitstatus_to_exitcode(status)) not in (0, EXIT_LEFT):
        say(event="stopped", **end_all(tree, testament.read(), 0.0))
    return code


if __name__ == "__main__":
    sys.exit(main())
