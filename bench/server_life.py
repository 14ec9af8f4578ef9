"""Is anything left of a server, however it behaves and whoever is killed? And how soon is its death told?

    PYTHONPATH=. python bench/server_life.py [--rounds 50] [--kinds plain,setsid] [--flood 1e9] [--json FILE]

Each round starts the fake llama-server under the real supervisor, ends it in one way, and looks for what is left: every
process that was written down by its pid, and every process whose arguments or environment hold a secret of the round.
Prints tables and writes JSON; exit code 1 when a single process was left or a death was told later than after 1 s.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, cast

import psutil
import pytest
from tabulate import tabulate

from pytest_moegpu.backends import get_backend
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, Limits, Settings
from pytest_moegpu.errors import StartError
from pytest_moegpu.host.boundedlog import HEAD_BYTES, TAIL_BYTES
from pytest_moegpu.host.control import free_port
from pytest_moegpu.host.process import ServerProcess
from pytest_moegpu.session.server import Server
from tests.fakes.llama_server import VARIABLE, install
from tests.fakes.project import Project

GRACE_SECONDS = 0.3
GONE_SECONDS = 20.0
NOTICE_SECONDS = 1.0

PARENT = """
import os, sys, threading
from pathlib import Path
from pytest_moegpu.host.process import ServerProcess

process = ServerProcess([sys.argv[1], "--port", sys.argv[2]], os.environ, Path(sys.argv[3]), Path.cwd())
print(process.supervisor_pid, flush=True)
threading.Event().wait()
"""


@dataclass
class Round:
    """One server from start to end; `seconds` from the moment it was to end until nobody was there."""

    folder: Path
    mark: str
    behaviour: dict[str, Any]
    expected: int
    extra: list[int] = field(default_factory=list)
    seconds: float = 0.0
    left: list[str] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        told = {"pids": str(self.folder / "pids"), **self.behaviour}
        return {**os.environ, VARIABLE: json.dumps(told), "BENCH_MARK": self.mark}

    @property
    def pids(self) -> list[int]:
        path = self.folder / "pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    @property
    def log(self) -> str:
        return "".join(p.read_text("utf-8", "replace") for p in self.folder.rglob("server*.log"))

    def wait(self) -> None:
        """Wait until every process of this round is up, and the server has begun to listen where it ever does."""
        end = time.monotonic() + 60
        names = self.behaviour.get("workers", []).count("renamed")
        # In a flood the line may be among what the bounded log leaves out.
        flood = bool(self.behaviour.get("flood_for_ever"))
        while (
            len(self.pids) < self.expected
            or not (flood or "listening" in self.log)
            or self.log.count("renamed") < names
        ):
            if time.monotonic() > end:
                raise SystemExit(f"{self.folder}: only {len(self.pids)} of {self.expected} processes came up")
            time.sleep(0.005)

    def finish(self, began: float) -> None:
        """Wait until everybody is gone; whoever is left after the time is noted, and ended."""
        pids = [*self.pids, *self.extra]
        while running(pids) and time.monotonic() - began < GONE_SECONDS:
            time.sleep(0.002)
        self.seconds = time.monotonic() - began
        for process in {*running(pids), *marked(self.mark)}:
            with contextlib.suppress(psutil.Error):
                self.left.append(f"pid {process.pid} {process.name()} {process.status()}")
                process.kill()


def running(pids: list[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and (
                mark in " ".join(process.cmdline()) or process.environ().get("BENCH_MARK") == mark
            ):
                found.append(process)
    return found


def argv(at: Round) -> list[str]:
    return [str(install(at.folder)), "--port", str(free_port()), "--mark", at.mark]


def start(at: Round) -> ServerProcess:
    process = ServerProcess(argv(at), at.environment, at.folder / "server.log", at.folder)
    at.wait()
    at.extra += [process.supervisor_pid, psutil.Process(process.supervisor_pid).ppid()]
    return process


def ordered(at: Round) -> None:
    """The server is told to stop."""
    process = start(at)
    began = time.monotonic()
    process.stop(grace=GRACE_SECONDS)
    at.finish(began)


def first_killed(at: Round) -> None:
    """The server's first process is SIGKILLed; its workers must go without an order."""
    process = start(at)
    assert process.pid is not None
    began = time.monotonic()
    os.kill(process.pid, signal.SIGKILL)
    at.finish(began)
    process.stop()


def supervisor_killed(at: Round) -> None:
    process = start(at)
    began = time.monotonic()
    os.kill(process.supervisor_pid, signal.SIGKILL)
    at.finish(began)
    process.stop()


def parent_killed(at: Round) -> None:
    """A stand-in for pytest is SIGKILLed."""
    program, _, port, *_ = argv(at)
    command = [sys.executable, "-c", PARENT, program, port, str(at.folder / "server.log"), at.mark]
    with subprocess.Popen(command, env=at.environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        supervisor = int(parent.stdout.readline())
        at.wait()
        at.extra += [parent.pid, supervisor, psutil.Process(supervisor).ppid()]
        began = time.monotonic()
        parent.kill()
        parent.wait()
        at.finish(began)


class Folder:
    """The two things that a project needs of pytester."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def makeini(self, text: str) -> None:
        (self.path / "pytest.ini").write_text(text)


def interrupted(at: Round) -> None:
    """Ctrl-C, to the whole group as from a terminal, while a real pytest run waits for its server to load."""
    with pytest.MonkeyPatch.context() as patch:
        project = Project.create(cast("pytest.Pytester", Folder(at.folder)), patch)
        scenario = project.catalog / "scenarios/fake-1k.toml"
        scenario.write_text(scenario.read_text() + 'ready = "300 s"\nrequest = "300 s"\n')
        command = [sys.executable, "-m", "pytest", "--moegpu=fake"]
        with (
            (at.folder / "output").open("wb") as output,
            subprocess.Popen(
                command, cwd=at.folder, env=at.environment, stdout=output, stderr=output, start_new_session=True
            ) as run,
        ):
            try:
                at.wait()
                at.extra += [run.pid, *(child.pid for child in psutil.Process(run.pid).children(recursive=True))]
                began = time.monotonic()
                os.killpg(run.pid, signal.SIGINT)
                code = run.wait(60)
            finally:
                run.kill()
        at.finish(began)
        if code != pytest.ExitCode.INTERRUPTED:
            at.left.append(f"pytest ended with {code} instead of {int(pytest.ExitCode.INTERRUPTED)}")


Way = Callable[[Round], None]
KINDS: dict[str, tuple[Way, dict[str, Any], int]] = {
    "plain": (ordered, {}, 1),
    "ignores TERM": (ordered, {"ignore_term": True, "workers": ["setsid"]}, 2),
    "setsid": (ordered, {"workers": ["setsid", "double-fork"]}, 3),
    "renamed by setproctitle": (ordered, {"workers": ["renamed", "renamed"]}, 3),
    "environment cleared": (ordered, {"workers": ["cleared"]}, 2),
    "fork bomb of 20": (ordered, {"fork_bomb": 20, "ignore_term": True}, 21),
    "floods its log": (ordered, {"flood_for_ever": True, "workers": ["setsid"]}, 2),
    "first process SIGKILLed": (first_killed, {"workers": ["setsid", "renamed"], "ignore_term": True}, 3),
    "pytest SIGKILLed": (parent_killed, {"workers": ["setsid", "cleared"]}, 3),
    "supervisor SIGKILLed": (supervisor_killed, {"workers": ["setsid", "cleared", "renamed"]}, 4),
    "Ctrl-C during load": (interrupted, {"never_ready": True, "workers": ["setsid"]}, 2),
}
"""Name → way to end it, behaviour of the server, processes it consists of."""


def life(kind: str, rounds: int, root: Path) -> dict[str, Any]:
    way, behaviour, expected = KINDS[kind]
    done = []
    for number in range(rounds):
        folder = root / kind.replace(" ", "-") / str(number)
        folder.mkdir(parents=True)
        at = Round(folder, os.urandom(12).hex(), behaviour, expected)
        way(at)
        done.append(at)
    seconds = [at.seconds for at in done]
    return {
        "kind": kind,
        "rounds": rounds,
        "processes": sum(len(at.pids) for at in done),
        "left": sum(len(at.left) for at in done),
        "who": [who for at in done for who in at.left],
        "median_seconds": round(median(seconds), 3),
        "max_seconds": round(max(seconds), 3),
    }


def server(folder: Path, behaviour: dict[str, Any]) -> Server:
    os.environ[VARIABLE] = json.dumps(behaviour)
    spec = LaunchSpec(
        program=(str(install(folder)),),
        model_path=str(folder / "tiny.gguf"),
        model_name="tiny",
        settings=Settings(context=1024),
        host="127.0.0.1",
        port=free_port(),
        api_key="secret",
        device_kind=DeviceKind.CPU,
    )
    return Server(get_backend("llamacpp"), spec, Limits(ready_seconds=120.0), folder / "server.log")


class Death:
    """Notes the moment at which a process ends."""

    def __init__(self) -> None:
        self.at: float | None = None
        self._thread: threading.Thread | None = None

    def watch(self, pid: int) -> None:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            self.at = time.monotonic()
            return

        def wait() -> None:
            select.select([handle], [], [])
            self.at = time.monotonic()
            os.close(handle)

        self._thread = threading.Thread(target=wait)
        self._thread.start()

    def time(self) -> float:
        if self._thread is not None:
            self._thread.join()
        assert self.at is not None
        return self.at


WORDS = ["CUDA error: no kernel image is available for execution on the device"]
DEATHS: dict[str, dict[str, Any]] = {
    "exits at once": {"exit_at_once": {"code": 1, "lines": WORDS}},
    "exits while loading": {"never_ready": True, "exit_after": 0.5, "last_words": WORDS},
    "health hangs, a worker holds it": {
        "hang_health": True,
        "ignore_term": True,
        "exit_after": 0.5,
        "last_words": WORDS,
    },
    "chat hangs": {"hang_generation": True, "exit_after": 0.7, "last_words": WORDS},
    "20 MB of log, then exits": {"flood": 20_000_000, "never_ready": True, "exit_after": 0.2, "last_words": WORDS},
}


def notice(kind: str, behaviour: dict[str, Any], rounds: int, root: Path) -> dict[str, Any]:
    """How long after the death of the first process does `start` raise, and with the right fault?"""
    late, wrong = [], 0
    for number in range(rounds):
        folder = root / kind.replace(" ", "-") / str(number)
        folder.mkdir(parents=True)
        made, death = server(folder, behaviour), Death()
        try:
            made.start(death.watch)
        except StartError as error:
            late.append(time.monotonic() - death.time())
            wrong += error.failure.kind != "no-kernel-image" or error.failure.log_tail[-1:] != tuple(WORDS)
        else:
            wrong += 1
        finally:
            made.stop()
    return {
        "kind": kind,
        "rounds": rounds,
        "wrong": wrong,
        "median_seconds": round(median(late), 3),
        "max_seconds": round(max(late), 3),
    }


def flood(size: int, root: Path) -> dict[str, Any]:
    """Let a server print so many bytes and die: the log stays bounded, the cause is there, the notice is not late."""
    folder = root / "flood"
    folder.mkdir()
    made, death, sizes = server(folder, {"flood": size, "exit_after": 0.0, "last_words": WORDS}), Death(), [0]
    over = threading.Event()

    def sample() -> None:
        while not over.wait(0.01):
            with contextlib.suppress(OSError):
                sizes.append(made.log_path.stat().st_size)

    thread = threading.Thread(target=sample)
    thread.start()
    began = time.monotonic()
    kind = "not told"
    try:
        made.start(death.watch)
    except StartError as error:
        kind = error.failure.kind
        late = time.monotonic() - death.time()
    finally:
        made.stop()
        over.set()
        thread.join()
    return {
        "bytes": size,
        "seconds": round(death.time() - began, 2),
        "notice_seconds": round(late, 3),
        "named": kind,
        "largest_log_bytes": max(sizes),
        "bound_bytes": HEAD_BYTES + 2 * TAIL_BYTES,
        "log_bytes": made.log_path.stat().st_size,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma separated, of: " + ", ".join(KINDS))
    parser.add_argument("--flood", type=float, default=1e9, help="bytes; 0: none")
    parser.add_argument("--json", type=Path, default=Path("server_life.json"))
    args = parser.parse_args()
    result: dict[str, Any] = {"life": [], "notice": [], "flood": None}
    with tempfile.TemporaryDirectory(prefix="server-life-") as name:
        root = Path(name)
        for kind in args.kinds.split(","):
            result["life"].append(life(kind, args.rounds, root))
        print(table(result["life"], ("kind", "rounds", "processes", "left", "median_seconds", "max_seconds")))
        for kind, behaviour in DEATHS.items():
            result["notice"].append(notice(kind, behaviour, args.rounds, root))
        print("\nSeconds from a death to its notice, with the fault named\n")
        print(table(result["notice"], ("kind", "rounds", "wrong", "median_seconds", "max_seconds")))
        if args.flood:
            result["flood"] = flood(int(args.flood), root)
            print(f"\nA flood\n\n{table([result['flood']], tuple(result['flood']))}")
    args.json.write_text(json.dumps(result, indent=1))
    for row in result["life"]:
        for who in row["who"]:
            print(f"LEFT {row['kind']}: {who}")
    good = all(row["left"] == 0 for row in result["life"]) and all(
        row["wrong"] == 0 and row["max_seconds"] <= NOTICE_SECONDS for row in result["notice"]
    )
    if (told := result["flood"]) is not None:
        good = good and told["largest_log_bytes"] <= told["bound_bytes"] and told["named"] == "no-kernel-image"
    return 0 if good else 1


def table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> str:
    return tabulate(
        [[row[column] for column in columns] for row in rows], headers=[c.replace("_", " ") for c in columns]
    )


if __name__ == "__main__":
    sys.exit(main())
