"""One measured start: whatever breaks, the server is ended, and the first cause is in the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_moegpu.backends.llamacpp import LlamaCpp
from pytest_moegpu.core.evidence import Part, Phase, StartEvidence
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, Limits, Settings
from pytest_moegpu.errors import ProbeError
from pytest_moegpu.host.control import free_port
from pytest_moegpu.host.process import ServerProcess
from pytest_moegpu.session.measure import StartRun
from pytest_moegpu.session.progress import Progress, Silent
from pytest_moegpu.session.server import Server
from pytest_moegpu.session.workload import Workload
from pytest_moegpu.terminal import TerminalProgress
from tests.fakes.llama_server import environment, install
from tests.fakes.probe import FakeProbe
from tests.fakes.waiting import gone, pids_in
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
