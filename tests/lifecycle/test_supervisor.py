"""The process between pytest and a server: whatever happens, the server's tree is gone, and nobody else."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pytest_moegpu.errors import ProgramError
from pytest_moegpu.host import process as process_module
from pytest_moegpu.host import proctree
from pytest_moegpu.host.boundedlog import tail
from pytest_moegpu.host.control import free_port
from pytest_moegpu.host.process import ServerProcess
from pytest_moegpu.host.stopreport import StopReport
from tests.fakes.llama_server import environment, install
from tests.fakes.waiting import gone, pids_in, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the whole tree is only known on Linux")

# A stand-in for pytest: starts a server, says so, and waits to be killed.
PARENT = """
import os, sys, threading
from pathlib import Path
from pytest_moegpu.host.process import ServerProcess

process = ServerProcess([sys.argv[1], "--port", sys.argv[2]], os.environ, Path(sys.argv[3]), Path.cwd())
print(process.pid, process.supervisor_pid, flush=True)
threading.Event().wait()
"""


# The same, but with a child that was forked after the supervisor was started and so has its pipes open.
FORKED = """
import os, sys, time
from pathlib import Path
from pytest_moegpu.host import process as process_module
from pytest_moegpu.host.process import ServerProcess

process_module._SUPERVISOR = Path(sys.argv[4])
process = ServerProcess([sys.argv[1], "--port", sys.argv[2]], os.environ, Path(sys.argv[3]), Path.cwd())
if (child := os.fork()) == 0:
    time.sleep(120)
    os._exit(0)
print(process.pid, process.supervisor_pid, child, flush=True)
time.sleep(120)
"""

# The supervisor as it is, in a Python, kernel or sandbox that differs by the lines put in.
CHANGED = """
import importlib.util, os, signal, sys

def refused(*_):
    raise OSError({number}, "refused")

{change}
spec = importlib.util.spec_from_file_location("supervisor", {path!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
{patch}
sys.exit(module.main())
"""


def changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, change: str = "", patch: str = "", number: int = 0
) -> None:
    path = folder / "changed_supervisor.py"
    path.write_text(CHANGED.format(path=str(process_module._SUPERVISOR), change=change, patch=patch, number=number))
    monkeypatch.setattr(process_module, "_SUPERVISOR", path)


def stubborn(folder: Path) -> ServerProcess:
    """Start a server that ignores TERM, with a worker that has left its session."""
    process = started(folder, ignore_term=True, setsid_worker=True)
    wait_for(lambda: "listening" in (folder / "server.log").read_text(), "the server")
    wait_for(lambda: len(pids_in(folder / "pids")) == 2, "the worker")
    return process


def started(folder: Path, **behaviour: object) -> ServerProcess:
    argv = (str(install(folder)), "--port", str(free_port()))
    variables = os.environ | environment(pids=str(folder / "pids"), **behaviour)
    return ServerProcess(argv, variables, folder / "server.log", folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_pytest_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    pids = tmp_path / "pids"
    argv = [sys.executable, "-c", PARENT, str(install(tmp_path)), str(free_port()), str(tmp_path / "server.log")]
    variables = os.environ | environment(pids=str(pids), setsid_worker=True)
    with subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        server, supervisor = map(int, parent.stdout.readline().split())
        wait_for(lambda: len(pids_in(pids)) == 2, "the worker")
        assert server in pids_in(pids)
        assert not gone([server, supervisor])
        parent.send_signal(number)
        parent.wait()
    wait_for(lambda: gone([*pids_in(pids), server, supervisor]), "the end of the tree")


# A descriptor of the starter that is none.
ODD = "os.pidfd_open = lambda pid, real=os.pidfd_open: {handle} if pid == os.getppid() else real(pid)"
# The process in between cannot be looked at.
HIDDEN = """
real = module.proctree.parent_of
module.proctree.parent_of = lambda pid: None if pid == os.getppid() else real(pid)
"""


@pytest.mark.parametrize(
    ("change", "patch"),
    [
        ("", "module.STARTER_SECONDS = 60.0"),
        ("del os.pidfd_open", ""),
        ("os.pidfd_open = refused", ""),
        (ODD.format(handle="os.pipe()[0]"), ""),
        (ODD.format(handle="os.open('/dev/null', os.O_RDONLY)"), ""),
        ("", HIDDEN),
        ("", "module.proctree.LINUX = False"),
    ],
    ids=["as-it-is", "python-without", "forbidden", "never-tells", "tells-at-once", "hidden", "elsewhere"],
)
def test_pytest_is_killed_while_a_child_that_it_forked_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, patch: str
) -> None:
    changed(tmp_path, monkeypatch, change=change, patch=patch, number=errno.EPERM)
    pids = tmp_path / "pids"
    argv = [sys.executable, "-W", "ignore", "-c", FORKED, str(install(tmp_path)), str(free_port())]
    argv += [str(tmp_path / "server.log"), str(process_module._SUPERVISOR)]
    # Elsewhere than on Linux only the group of the server is ended, when pytest is not there to look for the rest.
    workers = [] if "LINUX" in patch else ["setsid"]
    variables = os.environ | environment(pids=str(pids), workers=workers)
    child = None
    with subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            server, supervisor, child = map(int, parent.stdout.readline().split())
            wait_for(lambda: len(pids_in(pids)) == 1 + len(workers), "the server and its worker")
            assert not gone([*pids_in(pids), supervisor])
            parent.kill()
            wait_for(lambda: gone([*pids_in(pids), server, supervisor]), "the end of the tree", 8.0)
            assert not gone([child])
        finally:
            parent.kill()
            if child is not None:
                os.kill(child, signal.SIGKILL)


def test_an_order_of_somebody_who_is_not_the_supervisors_parent_starts_nothing(tmp_path: Path) -> None:
    order = {"starter": os.getppid(), "argv": ["touch", "made"], "env": {}, "cwd": str(tmp_path), "log": "log"}
    argv = [sys.executable, "-I", "-S", str(process_module._SUPERVISOR)]
    line = json.dumps(order).encode() + b"\n"
    done = subprocess.run(argv, input=line, cwd=tmp_path, stdout=subprocess.PIPE, timeout=20, check=False)
    said = json.loads(done.stdout)
    assert said["event"] == "failed"
    assert "who gave the order is gone, or did not start this supervisor" in said["message"]
    assert (done.returncode, list(tmp_path.iterdir())) == (0, [])


@pytest.mark.parametrize("worker", ["setsid", "double-fork", "cleared", "renamed"])
@pytest.mark.parametrize("who", ["supervisor", "watcher"])
def test_one_of_supervisor_and_watcher_is_killed(tmp_path: Path, who: str, worker: str) -> None:
    process = started(tmp_path, workers=[worker])
    wait_for(lambda: len(pids_in(tmp_path / "pids")) == 2, "the server and its worker")
    pids = pids_in(tmp_path / "pids")
    watcher = psutil.Process(process.supervisor_pid).ppid()
    assert watcher not in (os.getpid(), process.supervisor_pid)
    os.kill(process.supervisor_pid if who == "supervisor" else watcher, signal.SIGKILL)
    wait_for(lambda: gone(pids), "the end of the tree, which nobody asked for")
    wait_for(lambda: not process.alive, "the notice of it")
    report = process.stop()
    assert (report.left, report.describe()) == ((), "")
    assert gone([process.supervisor_pid, watcher])


def test_supervisor_and_watcher_are_killed(tmp_path: Path) -> None:
    process = started(tmp_path, setsid_worker=True, ignore_term=True)
    wait_for(lambda: len(pids_in(tmp_path / "pids")) > 1, "the server and its worker")
    watcher = psutil.Process(psutil.Process(process.supervisor_pid).ppid())
    # Stopped, so that it cannot act before it is killed too.
    watcher.suspend()
    os.kill(process.supervisor_pid, signal.SIGKILL)
    watcher.kill()
    assert process.pid is not None
    server = process.pid
    wait_for(lambda: gone([server]), "the end of the server")
    wait_for(lambda: not process.alive, "the notice of it")
    workers = [pid for pid in pids_in(tmp_path / "pids") if pid != server]
    assert not gone(workers), "the worker left the session, so the kernel does not end it with the server"
    report = process.stop()
    assert report.left == ()
    assert set(workers) <= set(report.killed)
    wait_for(lambda: gone(workers), "the end of the worker")


@pytest.mark.parametrize("worker", ["setsid", "double-fork", "cleared", "renamed"])
@pytest.mark.parametrize("ignore_term", [False, True], ids=["polite", "ignores-term"])
def test_workers_that_hide(tmp_path: Path, worker: str, ignore_term: bool) -> None:
    process = started(tmp_path, workers=[worker, worker], ignore_term=ignore_term)
    log = tmp_path / "server.log"
    wait_for(lambda: "listening" in log.read_text() and len(pids_in(tmp_path / "pids")) == 3, "the workers")
    if worker == "renamed":
        wait_for(lambda: log.read_text().count("renamed") == 2, "the new names")
        hidden = [psutil.Process(pid) for pid in pids_in(tmp_path / "pids") if pid != process.pid]
        assert {p.cmdline()[0] for p in hidden} == {"VLLM::EngineCore"}
    pids = pids_in(tmp_path / "pids")
    assert set(pids) <= process.tree()
    report = process.stop(grace=0.3 if ignore_term else 10.0)
    assert report.left == ()
    assert gone(pids)
    assert (process.pid in report.killed) == ignore_term


@pytest.mark.parametrize("ignore_term", [False, True], ids=["polite", "ignores-term"])
def test_twenty_processes_each_from_the_one_before(tmp_path: Path, ignore_term: bool) -> None:
    process = started(tmp_path, fork_bomb=20, ignore_term=ignore_term)
    wait_for(lambda: len(pids_in(tmp_path / "pids")) == 21, "the processes")
    pids = pids_in(tmp_path / "pids")
    report = process.stop(grace=0.3)
    assert report.left == ()
    assert gone(pids)
    assert (set(report.killed) == set(pids)) == ignore_term


def test_the_terminal_is_closed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    # The first terminal that a leader of a session opens becomes its controlling one.
    argv = [sys.executable, "-c", "import os; os.open(os.ttyname(0), os.O_RDWR)\n" + PARENT]
    argv += [str(install(tmp_path)), str(free_port()), str(tmp_path / "server.log")]
    variables = os.environ | environment(pids=str(pids), setsid_worker=True)
    terminal, end = os.openpty()
    with subprocess.Popen(argv, env=variables, stdin=end, stdout=subprocess.PIPE, start_new_session=True) as parent:
        os.close(end)
        assert parent.stdout is not None
        server, supervisor = map(int, parent.stdout.readline().split())
        wait_for(lambda: len(pids_in(pids)) == 2, "the worker")
        os.close(terminal)
        assert parent.wait(20) == -signal.SIGHUP
    wait_for(lambda: gone([*pids_in(pids), server, supervisor]), "the end of the tree")


def test_exit_code_of_a_server_that_ends_by_itself(tmp_path: Path) -> None:
    process = started(tmp_path, exit_at_once={"code": 42, "lines": ["one", "two"]})
    assert process.wait(20)
    assert (process.alive, process.exit_code) == (False, 42)
    report = process.stop()
    assert (report.exit_code, report.killed, report.left) == (42, (), ())
    assert process.stop() is report
    assert tail(tmp_path / "server.log") == ("one", "two")


def test_a_server_that_dies_takes_its_worker_with_it(tmp_path: Path) -> None:
    process = started(tmp_path, setsid_worker=True, exit_after=0.3)
    assert process.wait(20)
    assert process.exit_code == 7
    report = process.stop()
    assert report.left == ()
    pids = pids_in(tmp_path / "pids")
    assert len(pids) == 2
    assert gone(pids)


def test_a_server_that_dies_of_a_signal(tmp_path: Path) -> None:
    process = started(tmp_path, never_bind=True)
    wait_for(lambda: bool(pids_in(tmp_path / "pids")), "the server")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSEGV)
    assert process.wait(20)
    assert process.exit_code == -signal.SIGSEGV
    process.stop()


def test_asked_to_stop_it_ends_with_its_own_code(tmp_path: Path) -> None:
    process = started(tmp_path)
    log = tmp_path / "server.log"
    wait_for(lambda: "listening" in log.read_text(), "the server")
    report = process.stop()
    assert (report.exit_code, report.killed, report.left) == (0, (), ())
    assert process.pid is not None
    assert gone([process.pid, process.supervisor_pid])


def test_ignoring_term_is_killed(tmp_path: Path) -> None:
    process = started(tmp_path, ignore_term=True, setsid_worker=True)
    log = tmp_path / "server.log"
    wait_for(lambda: "listening" in log.read_text(), "the server")
    report = process.stop(grace=0.2)
    pids = pids_in(tmp_path / "pids")
    assert len(pids) == 2
    assert set(report.killed) == set(pids)
    assert (report.exit_code, report.left) == (-signal.SIGKILL, ())
    assert gone(pids)


def test_a_process_it_did_not_start_is_untouched(tmp_path: Path) -> None:
    # The same program name in the same folder: a clean-up by name would end it too.
    program = shutil.copy(shutil.which("sleep") or "/bin/sleep", tmp_path / "llama-server-stranger")
    with subprocess.Popen([program, "60"]) as stranger:
        try:
            process = started(tmp_path, setsid_worker=True)
            wait_for(lambda: len(pids_in(tmp_path / "pids")) == 2, "the worker")
            report = process.stop()
            assert gone(pids_in(tmp_path / "pids"))
            assert stranger.pid not in report.killed
            assert stranger.poll() is None
            assert psutil.Process(stranger.pid).status() != psutil.STATUS_ZOMBIE
        finally:
            stranger.kill()


@pytest.mark.parametrize("kind", ["missing", "folder", "text"])
def test_a_program_that_cannot_be_started(tmp_path: Path, kind: str) -> None:
    program = tmp_path / "program"
    if kind == "folder":
        program.mkdir()
    elif kind == "text":
        program.write_text("no program")
        program.chmod(0o755)
    with pytest.raises(ProgramError, match="cannot start") as caught:
        ServerProcess([str(program)], os.environ, tmp_path / "server.log", tmp_path)
    assert str(program) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "number"),
    [
        ("del os.pidfd_open, signal.pidfd_send_signal", 0),
        ("os.pidfd_open = refused", errno.ENOSYS),
        ("os.pidfd_open = refused", errno.EPERM),
        ("signal.pidfd_send_signal = refused", errno.EPERM),
    ],
    ids=["python-without", "kernel-without", "forbidden", "sending-forbidden"],
)
def test_without_pid_file_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, number: int
) -> None:
    changed(tmp_path, monkeypatch, change=change, number=number)
    process = stubborn(tmp_path)
    report = process.stop(grace=0.2)
    pids = pids_in(tmp_path / "pids")
    assert set(report.killed) == set(pids)
    assert (report.exit_code, report.left) == (-signal.SIGKILL, ())
    assert gone(pids)


def test_no_descriptor_left_is_no_reason_to_send_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first one, with which it is tried whether they work, is still to be had.
    fail = "class Once:\n    left = 1\n" + (
        "real = os.pidfd_open\n"
        "def once(pid):\n"
        "    Once.left -= 1\n"
        "    return real(pid) if Once.left == 0 else refused()\n"
        "os.pidfd_open = once"
    )
    changed(tmp_path, monkeypatch, change=fail, number=errno.EMFILE)
    report = stubborn(tmp_path).stop(grace=0.2)
    assert (set(report.killed), report.left) == (set(pids_in(tmp_path / "pids")), ())


@pytest.mark.parametrize("handle", [proctree.handle_of, lambda _pid: None], ids=["by-descriptor", "by-pid"])
def test_who_is_no_descendant_gets_no_signal_and_is_not_called_killed(
    monkeypatch: pytest.MonkeyPatch, handle: Callable[[int], int | None]
) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            # A subreaper would keep what other tests orphan.
            monkeypatch.setattr(proctree, "set_attribute", lambda *_: True)
            tree = proctree.Tree()
            monkeypatch.setattr(tree, "reap", lambda: True)
            monkeypatch.setattr(tree, "members", lambda: {stranger.pid})
            monkeypatch.setattr(proctree, "handle_of", handle)
            monkeypatch.setattr(proctree, "descendants", lambda of: set())
            monkeypatch.setattr(proctree, "KILL_WAIT_SECONDS", 0.3)
            assert tree.stop(0.0) == {"code": None, "killed": [], "left": [stranger.pid]}
            assert stranger.poll() is None
        finally:
            stranger.kill()


# The server is dead before the supervisor has done anything with it.
LATE = """
import time
class Late(module.subprocess.Popen):
    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        time.sleep(0.3)
        {then}
module.subprocess.Popen = Late
"""


@pytest.mark.parametrize(("then", "code"), [("", 9), ("os.waitpid(self.pid, 0)", None)], ids=["at-once", "collected"])
def test_the_death_of_a_server_that_dies_before_it_is_looked_at_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, code: int | None
) -> None:
    changed(tmp_path, monkeypatch, patch=LATE.format(then=then))
    process = ServerProcess(["sh", "-c", "echo last words; exit 9"], os.environ, tmp_path / "server.log", tmp_path)
    assert process.wait(10.0)
    assert process.exit_code == code
    assert tail(tmp_path / "server.log") == ("last words",)
    assert process.stop() == StopReport(exit_code=code)


REFUSED = "module.proctree.Tree._signal = lambda *_: set()\nmodule.proctree.KILL_WAIT_SECONDS = 0.3"


def test_what_the_supervisor_could_not_end_is_found_by_its_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(tmp_path, monkeypatch, patch=REFUSED)
    process = stubborn(tmp_path)
    pids = pids_in(tmp_path / "pids")
    report = process.stop(grace=0.1)
    # The kernel ends the server with its supervisor; the worker is in another session.
    assert {pid for pid in pids if pid != process.pid} <= set(report.killed) <= set(pids)
    assert report.left == ()
    assert gone(pids)
    assert process.stop() is report


def test_who_cannot_be_killed_is_named_with_program_and_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed(tmp_path, monkeypatch, patch=REFUSED)
    process = started(tmp_path, workers=["cleared"])
    wait_for(lambda: len(pids_in(tmp_path / "pids")) == 2, "the server and its worker")
    worker = next(pid for pid in pids_in(tmp_path / "pids") if pid != process.pid)
    wait_for(lambda: psutil.Process(worker).name() == "sleep", "the new program of the worker")
    try:
        report = process.stop(grace=0.1)
        assert report.left == (worker,)
        assert report.describe() == f"pid {worker} (sleep, S: sleeping)"
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_state_of_the_kernel_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil.Process, "status", lambda _self: psutil.STATUS_DISK_SLEEP)
    monkeypatch.setattr(psutil.Process, "name", lambda _self: "VLLM::EngineCore")
    assert process_module._described(os.getpid()) == f"pid {os.getpid()} (VLLM::EngineCore, D: waiting in the kernel)"
    assert StopReport(exit_code=None, left=(7, 9)).describe() == "pid 7, pid 9"


def test_a_dead_first_thread_does_not_mean_that_the_process_has_ended() -> None:
    # Only the first thread leaves, as when another one hangs in the driver.
    code = "import ctypes, threading\nthreading.Thread(target=threading.Event().wait).start()\n"
    code += "ctypes.CDLL(None).pthread_exit(None)"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", code]) as half:
        try:
            wait_for(lambda: psutil.Process(half.pid).status() == psutil.STATUS_ZOMBIE, "the end of its first thread")
            assert not process_module._ended(half.pid, 0.0)
        finally:
            half.kill()
    assert process_module._ended(half.pid, 0.0)


@pytest.mark.parametrize(
    "patch",
    ["module.proctree.LINUX = False", "module.proctree.set_attribute = lambda *_: False"],
    ids=["elsewhere-than-on-linux", "in-a-sandbox-without-subreaper"],
)
def test_where_descent_is_not_known_the_group_is_ended_and_the_rest_found_by_its_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patch: str
) -> None:
    changed(tmp_path, monkeypatch, patch=patch)
    process = stubborn(tmp_path)
    pids = pids_in(tmp_path / "pids")
    report = process.stop(grace=0.2)
    assert process.scope == "group"
    assert set(report.killed) == set(pids)
    assert (report.exit_code, report.left) == (-signal.SIGKILL, ())
    assert gone(pids)


def test_the_supervisor_breaks_down_and_its_watcher_ends_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = """
def broken(*_):
    raise RuntimeError("as a test wants it")

def supervise(*given, real=module.supervise):
    module.proctree.Tree.stop = broken
    return real(*given)

module.supervise = supervise
"""
    changed(tmp_path, monkeypatch, patch=patch)
    process = stubborn(tmp_path)
    pids = pids_in(tmp_path / "pids")
    report = process.stop(grace=0.1)
    # The kernel ends the server with its supervisor; the worker is in another session.
    assert {pid for pid in pids if pid != process.pid} <= set(report.killed) <= set(pids)
    assert report.left == ()
    assert gone(pids)


@pytest.mark.parametrize("order", [b"not JSON\n", b'"stop"\n', b'{"grace": "soon"}\n', b'{"do": "st'])
def test_an_order_that_cannot_be_read_or_breaks_off_ends_the_tree(tmp_path: Path, order: bytes) -> None:
    process = started(tmp_path, setsid_worker=True)
    wait_for(lambda: len(pids_in(tmp_path / "pids")) == 2, "the worker")
    pids = pids_in(tmp_path / "pids")
    assert process._supervisor.stdin is not None
    process._supervisor.stdin.write(order)
    process._supervisor.stdin.close()
    wait_for(lambda: gone([*pids, process.supervisor_pid]), "the end of the tree")
    assert process.stop().left == ()


def _two_in(pids: Path) -> Callable[[], bool]:
    return lambda: len(pids_in(pids)) == 2


def test_an_order_to_stop_meets_a_death(tmp_path: Path) -> None:
    for number in range(5):
        folder = tmp_path / str(number)
        process = started(folder, setsid_worker=True, ignore_term=True)
        wait_for(_two_in(folder / "pids"), "the worker")
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        report = process.stop(grace=0.5)
        assert (report.exit_code, report.left) == (-signal.SIGKILL, ())
        assert gone(pids_in(folder / "pids"))


def test_two_threads_stop_at_once(tmp_path: Path) -> None:
    process = stubborn(tmp_path)
    reports: list[StopReport] = []
    threads = [threading.Thread(target=lambda: reports.append(process.stop(grace=0.2))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.left for report in reports] == [(), ()]
    assert {report.killed for report in reports} == {tuple(sorted(pids_in(tmp_path / "pids")))}


def test_an_interrupt_ends_the_grace_and_not_the_waiting(tmp_path: Path) -> None:
    process = stubborn(tmp_path)
    pids = pids_in(tmp_path / "pids")
    timer = threading.Timer(0.5, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    began = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        process.stop(grace=60.0)
    took = time.monotonic() - began
    timer.join()
    assert gone([*pids, process.supervisor_pid])
    assert took < 15
    report = process.stop()
    assert (set(report.killed), report.left) == (set(pids), ())


# The server runs and nobody is told.
MUTE = 'module.say = lambda real=module.say, **event: None if event["event"] == "started" else real(**event)'


def _up(folder: Path) -> bool:
    log = folder / "server.log"
    return log.exists() and "listening" in log.read_text() and len(pids_in(folder / "pids")) == 2


def test_an_interrupt_before_the_start_was_told_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed(tmp_path, monkeypatch, patch=MUTE)
    main = threading.get_ident()

    def interrupt() -> None:
        wait_for(lambda: _up(tmp_path), "the server and its worker")
        signal.pthread_kill(main, signal.SIGINT)

    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        started(tmp_path, ignore_term=True, setsid_worker=True)
    other.join()
    pids = pids_in(tmp_path / "pids")
    assert len(pids) == 2
    assert gone(pids)
    assert not hasattr(caught.value, "__notes__")


def test_an_exception_after_the_start_was_told_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [MemoryError("as a test wants it")]

    def look(pid: int | None = None, real: type[psutil.Process] = psutil.Process) -> psutil.Process:
        if failures:
            # Only now is it sure that the server ignores TERM.
            wait_for(lambda: _up(tmp_path), "the server and its worker")
            raise failures.pop()
        return real(pid)

    monkeypatch.setattr(psutil, "Process", look)
    with pytest.raises(MemoryError, match="as a test wants it"):
        started(tmp_path, ignore_term=True, setsid_worker=True)
    monkeypatch.undo()
    pids = pids_in(tmp_path / "pids")
    assert len(pids) == 2
    assert gone(pids)


def test_no_thread_to_listen_with_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(RuntimeError, match="can't start new thread"):
        started(tmp_path)
    assert {child.pid for child in psutil.Process().children()} == before
    assert pids_in(tmp_path / "pids") == []


def test_what_an_exception_at_the_start_could_not_end_is_noted_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_self: ServerProcess, _order: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ServerProcess, "_begin", interrupted)
    left = StopReport(exit_code=None, left=(7,), states=("pid 7 (python, D: waiting in the kernel)",))
    ended: list[ServerProcess] = []

    def stop(self: ServerProcess, grace: float = 10.0) -> StopReport:
        assert grace == 0.0
        ended.append(self)
        return left

    monkeypatch.setattr(ServerProcess, "stop", stop)
    with pytest.raises(KeyboardInterrupt) as caught:
        started(tmp_path)
    note = f"left running by the start of {str(tmp_path / 'llama-server')!r}: pid 7 (python, D: waiting in the kernel)"
    assert caught.value.__notes__ == [note]
    supervisor = ended[0]._supervisor
    supervisor.communicate(timeout=20)


def test_a_supervisor_that_cannot_be_killed_is_left_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_STOP_MARGIN_SECONDS", "_WATCHER_SECONDS", "_KERNEL_SECONDS"):
        monkeypatch.setattr(process_module, name, 0.3)
    process = stubborn(tmp_path)
    pids = pids_in(tmp_path / "pids")
    supervisor = psutil.Process(process.supervisor_pid)
    watcher = supervisor.parent()
    assert watcher is not None
    stuck = {supervisor.pid, watcher.pid}
    real = psutil.Process.kill
    monkeypatch.setattr(psutil.Process, "kill", lambda self: None if self.pid in stuck else real(self))
    monkeypatch.setattr(subprocess.Popen, "kill", lambda _self: None)
    # The watcher first: a supervisor that stops is no news to it, a watcher that is gone ends the supervisor.
    for one in (watcher, supervisor):
        one.suspend()
    reports: list[StopReport] = []
    stopping = threading.Thread(target=lambda: reports.append(process.stop(grace=0.0)), daemon=True)
    try:
        stopping.start()
        stopping.join(20)
        assert not stopping.is_alive()
        report = reports[0]
        assert set(report.left) == stuck
        assert set(report.killed) == set(pids)
        assert report.states == tuple(f"pid {pid} ({supervisor.name()}, T: stopped)" for pid in sorted(stuck))
        assert gone(pids)
        assert process.stop() is report
    finally:
        for pid in stuck:
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: gone(stuck), "the end of supervisor and watcher")
    # Once more, to close what could not be closed before.
    assert process.stop() is report
    assert process._supervisor.stdout is not None
    assert process._supervisor.stdout.closed
