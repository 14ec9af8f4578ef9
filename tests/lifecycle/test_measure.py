"""One measured start: whatever breaks, the server is ended, and the first cause is in the evidence."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_moegpu.backends.llamacpp import LlamaCpp
from pytest_moegpu.core.evidence import DeviceProcess, Part, Phase, StartEvidence
from pytest_moegpu.core.health import DeviceHealth
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, Limits, Settings
from pytest_moegpu.errors import ProbeError
from pytest_moegpu.host.control import free_port
from pytest_moegpu.host.process import ServerProcess
from pytest_moegpu.host.stopreport import StopReport
from pytest_moegpu.session.measure import StartRun
from pytest_moegpu.session.progress import Progress, Silent
from pytest_moegpu.session.server import Server
from pytest_moegpu.session.workload import Workload
from pytest_moegpu.terminal import TerminalProgress
from tests.fakes.llama_server import environment, install
from tests.fakes.probe import GIB, FakeProbe
from tests.fakes.waiting import gone, pids_in, wait_for
from tests.unit.builders import scenario

Measure = Callable[..., StartEvidence]


class Dead(Silent):
    """A terminal that is gone."""

    def live(self, text: str) -> None:
        raise OSError(5, "Input/output error")


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Measure]:
    """Measure one start of the fake with one known answer; afterwards none of its processes may be left."""

    def run(probe: FakeProbe | None = None, progress: Progress | None = None, **behaviour: object) -> StartEvidence:
        for name, value in environment(pids=str(tmp_path / "pids"), setsid_worker=True, **behaviour).items():
            monkeypatch.setenv(name, value)
        spec = LaunchSpec(
            program=(str(install(tmp_path / "bin")),),
            model_path=str(tmp_path / "tiny.gguf"),
            model_name="tiny",
            settings=Settings(context=1024),
            host="127.0.0.1",
            port=free_port(),
            api_key="secret",
            device_kind=DeviceKind.CPU,
        )
        limits = Limits(ready_seconds=20, request_seconds=10, idle_return_seconds=1)
        server = Server(LlamaCpp(), spec, limits, tmp_path / "server.log")
        shown = progress or Silent()
        workload = Workload(
            server=server,
            scenario=scenario(),
            answers=(),
            context_tokens=(),
            recall_reach=None,
            enter=lambda _phase: None,
            progress=shown,
        )
        return (
            StartRun(
                server=server,
                probe=probe or FakeProbe(),
                number=1,
                workload=workload,
                parts=frozenset({Part.OUTPUT}),
                progress=shown,
            )
            .run()
            .start
        )

    yield run
    pids = pids_in(tmp_path / "pids")
    assert gone(pids), f"left behind: {pids}"


def cause(start: StartEvidence) -> tuple[Phase, str]:
    assert start.failure is not None
    return start.failure.phase, start.failure.cause


def test_a_good_start(measure: Measure) -> None:
    start = measure()
    assert (start.failure, start.served_model, start.left_over, start.exit_code) == (None, "tiny", (), 0)


def test_a_terminal_that_is_gone_leaves_no_server(measure: Measure) -> None:
    phase, text = cause(measure(progress=Dead()))
    assert phase is Phase.LOAD
    assert text.startswith("unforeseen OSError: [Errno 5] Input/output error (at test_measure.py:")


def test_a_terminal_that_goes_in_the_middle_of_it_leaves_no_server(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = Silent()

    def line(text: str) -> None:
        monkeypatch.setattr(progress, "live", Dead().live)

    monkeypatch.setattr(progress, "line", line)
    phase, text = cause(measure(progress=progress))
    assert phase is Phase.STOP
    assert "OSError" in text


def test_our_own_terminal_does_not_even_notice(measure: Measure, tmp_path: Path) -> None:
    stream = (tmp_path / "terminal").open("w")
    progress = TerminalProgress(stream)
    progress._watched = True
    stream.close()
    assert measure(progress=progress).failure is None


def test_an_answer_nobody_foresaw(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: Workload, _parts: frozenset[Part]) -> None:
        _self.enter(Phase.OUTPUT)
        raise KeyError("choices")

    monkeypatch.setattr(Workload, "run", broken)
    phase, text = cause(measure())
    assert phase is Phase.OUTPUT
    assert text.startswith("unforeseen KeyError: 'choices' (at test_measure.py:")


def test_props_that_are_a_list(measure: Measure) -> None:
    start = measure(props=[1, 2])
    assert (start.failure, start.served_model) == (None, None)


def test_a_device_that_cannot_be_read_before_the_start(measure: Measure) -> None:
    assert cause(measure(FakeProbe(ProbeError("the GPU is lost")))) == (
        Phase.PREFLIGHT,
        "the device cannot be read: the GPU is lost",
    )


def test_a_device_whose_processes_are_not_told_while_it_loads(measure: Measure) -> None:
    probe = FakeProbe(processes=lambda: () if not probe.followed[-1] else _lost())
    assert cause(measure(probe)) == (Phase.LOAD, "the device cannot be read: the GPU is lost")


def _lost() -> tuple[()]:
    raise ProbeError("the GPU is lost")


def test_a_device_that_cannot_be_looked_at_afterwards(measure: Measure) -> None:
    def used(_time: float, phase: str) -> int:
        return 2**40 if phase == "after" else 0

    listed: list[int] = []

    def processes() -> tuple[()]:
        listed.append(1)
        return () if len(listed) <= 3 else _lost()

    start = measure(FakeProbe(used, processes=processes))
    assert cause(start) == (Phase.STOP, "the device cannot be read: the GPU is lost")


def test_a_stop_that_breaks_names_what_it_leaves(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ServerProcess.stop

    def broken(self: ServerProcess, grace: float = 10.0) -> None:
        real(self)
        raise RuntimeError("no more threads")

    monkeypatch.setattr(ServerProcess, "stop", broken)
    start = measure()
    phase, text = cause(start)
    assert phase is Phase.STOP
    assert "unforeseen RuntimeError: no more threads" in text
    assert start.pid in start.left_over, "fail closed: nothing more is started on this device"


def on_the_device(probe: FakeProbe, *others: DeviceProcess) -> Callable[[], tuple[DeviceProcess, ...]]:
    """List the server, while it is followed and after it, and strangers."""

    def processes() -> tuple[DeviceProcess, ...]:
        server = [pid for pid in probe.followed if pid is not None]
        ours = [DeviceProcess(pid=pid, device=0, name="llama-server", used_bytes=2 * GIB) for pid in server]
        return (*ours, *(others if server else ()))

    return processes


def after(used: int) -> Callable[[float, str], int]:
    return lambda _time, phase: used if phase == "after" else 0


def test_memory_that_does_not_come_back_names_who_of_the_server_holds_it(measure: Measure) -> None:
    probe = FakeProbe(after(2 * GIB))
    probe._processes = on_the_device(probe)
    start = measure(probe)
    phase, text = cause(start)
    assert phase is Phase.STOP
    assert text == (
        f"memory did not come back: 2.00 GiB above idle after 1 s; "
        f"held by pid {start.pid} (llama-server, 2.00 GiB) of the server"
    )
    assert start.left_over == (start.pid,)


def test_memory_that_somebody_else_took_is_not_blamed_on_the_server(measure: Measure) -> None:
    stranger = DeviceProcess(pid=4_000_000, device=0, name="trainer", used_bytes=GIB)
    probe = FakeProbe(after(GIB))
    listed: list[int] = []

    def processes() -> tuple[DeviceProcess, ...]:
        listed.append(1)
        return (stranger,) if len(listed) > 3 else ()

    probe._processes = processes
    start = measure(probe)
    assert cause(start)[1].endswith("; in use by pid 4000000 (trainer, 1.00 GiB)")
    assert (start.left_over, start.foreign) == ((), (stranger,))


def test_memory_that_nobody_is_listed_for(measure: Measure) -> None:
    assert cause(measure(FakeProbe(after(GIB))))[1].endswith("above idle after 1 s; no process is listed that holds it")


def test_memory_that_a_driver_does_not_attribute(measure: Measure) -> None:
    def processes() -> tuple[()]:
        raise ProbeError("GPU 0 does not list its processes", kind="no-permission")

    text = cause(measure(FakeProbe(after(GIB), processes=processes)))[1]
    assert text.endswith("; processes on the device are not known: GPU 0 does not list its processes")


def test_a_gpu_that_is_lost_in_the_middle_ends_the_workload_and_is_the_first_cause(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = ProbeError("GPU 0: the GPU is lost", kind="lost")
    reached: list[str] = []

    def used(_time: float, phase: str) -> int | Exception:
        return lost if phase == Phase.OUTPUT else 0

    def run(workload: Workload, _parts: frozenset[Part]) -> None:
        workload.enter(Phase.OUTPUT)
        wait_for(workload.halted, "the notice of it")
        reached.append("halted")
        assert isinstance(workload.server, Server)
        assert workload.server.pid is not None
        os.kill(workload.server.pid, signal.SIGKILL)
        wait_for(lambda: not workload.server.alive, "the death of the server")

    monkeypatch.setattr(Workload, "run", run)
    start = measure(FakeProbe(used))
    assert reached == ["halted"]
    assert cause(start) == (Phase.OUTPUT, "the device cannot be read: GPU 0: the GPU is lost")
    assert start.failure is not None
    assert start.failure.kind == "gpu-lost"


def test_a_lost_gpu_under_a_server_that_dies_while_it_loads(measure: Measure) -> None:
    lost = ProbeError("GPU 0: the GPU is lost", kind="lost")
    start = measure(FakeProbe(lambda _time, phase: lost if phase == Phase.LOAD else 0), never_bind=True, exit_after=0.5)
    assert start.failure is not None
    assert (start.failure.kind, start.exit_code) == ("gpu-lost", 7)


def test_faults_and_power_limit_are_read_before_and_after(measure: Measure) -> None:
    before = DeviceHealth(device=0, ecc_uncorrected=0, power_limit_watts=350.0)
    later = DeviceHealth(device=0, ecc_uncorrected=2, power_limit_watts=250.0)
    start = measure(FakeProbe(health=((before,), (later,))))
    assert (start.health_before, start.health_after) == ((before,), (later,))


def test_telemetry_of_every_phase_is_summed_up_and_the_longest_gap_kept(measure: Measure) -> None:
    start = measure(FakeProbe(3 * GIB, interval_seconds=0.005))
    assert "load" in start.telemetry
    (load,) = start.telemetry["load"]
    assert load.used_max_bytes == 3 * GIB
    assert load.readings > 10
    assert start.sampler_gap is not None
    assert start.sampler_gap >= 0.005


def test_what_the_kernel_said_meanwhile_is_kept(measure: Measure) -> None:
    start = measure()
    assert start.kernel is not None
    assert start.kernel.source or start.kernel.problem


def test_a_server_that_cannot_be_ended_is_an_error_that_names_it(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ServerProcess.stop

    def refused(self: ServerProcess, grace: float = 10.0) -> StopReport:
        return replace(real(self), left=(os.getpid(),))

    monkeypatch.setattr(ServerProcess, "stop", refused)
    start = measure()
    phase, text = cause(start)
    assert phase is Phase.STOP
    assert text.startswith("the server could not be ended: ")
    assert str(os.getpid()) in text
    assert start.left_over == (os.getpid(),)


def test_the_pids_of_the_tree_and_the_moment_of_the_stop_are_kept(measure: Measure, tmp_path: Path) -> None:
    before = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    start = measure()
    assert set(start.pids) == set(pids_in(tmp_path / "pids"))
    assert start.stopped_at is not None
    assert before < start.stopped_at < time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


def test_an_interrupt_says_what_it_leaves(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    progress = Silent()
    monkeypatch.setattr(progress, "line", said.append)
    real = ServerProcess.stop

    def refused(self: ServerProcess, grace: float = 10.0) -> StopReport:
        return replace(real(self), left=(4711,))

    def interrupted(_workload: Workload, _parts: frozenset[Part]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ServerProcess, "stop", refused)
    monkeypatch.setattr(Workload, "run", interrupted)
    monkeypatch.setattr("pytest_moegpu.session.measure._INTERRUPTED_SECONDS", 0.05)
    with pytest.raises(KeyboardInterrupt):
        measure(FakeProbe(after(GIB)), progress)
    left = [line for line in said if line.startswith("LEFT BEHIND: ")]
    assert "4711" in left[0]
    assert left[1].startswith("LEFT BEHIND: memory did not come back: 1.00 GiB above idle")
