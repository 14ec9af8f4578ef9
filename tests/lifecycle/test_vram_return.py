"""The bench that asks whether memory comes back, against servers and a device that only pretend."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.vram_return import Batch, Job, run, summary
from pytest_moegpu.core.evidence import DeviceProcess
from pytest_moegpu.host.process import ServerProcess
from pytest_moegpu.host.stopreport import StopReport
from tests.fakes.llama_server import environment, install
from tests.fakes.probe import FakeProbe
from tests.fakes.waiting import gone, pids_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the whole tree is only known on Linux")

MIB = 2**20
GIB = 2**30


@pytest.fixture
def device(tmp_path: Path) -> FakeProbe:
    """A device on which every living process of the fakes holds 2 GiB, beside a stranger with 1 GiB."""

    def living() -> list[int]:
        return [pid for pid in pids_in(tmp_path / "pids") if not gone([pid])]

    def processes() -> list[DeviceProcess]:
        held = [DeviceProcess(pid=pid, device=0, name="fake", used_bytes=2 * GIB) for pid in living()]
        return [*held, DeviceProcess(pid=1, device=0, name="stranger", used_bytes=GIB)]

    return FakeProbe(lambda _time, _phase: GIB + 2 * GIB * len(living()), processes=processes)


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    def build(how: str, *, steady: bool = False, ready: float = 30.0, **behaviour: object) -> Job:
        program = str(install(tmp_path / "bin"))
        return Job(
            name="fake",
            command=lambda port: [program, "--port", str(port)],
            environment=environment(pids=str(tmp_path / "pids"), **behaviour),
            how=how,
            steady=steady,
            ready_seconds=ready,
        )

    return build


def test_ordered_to_stop(device: FakeProbe, job: Callable[..., Job], tmp_path: Path) -> None:
    made = job("term", workers=["setsid"])
    batch = run(made, device, 3, tmp_path / "batch")
    assert batch.good
    assert (batch.rounds, batch.idle_bytes, batch.up_bytes) == (3, GIB, 13 * GIB)
    assert len(batch.holders) == 6
    assert (batch.outlived, batch.outlived_seconds, batch.left, batch.above_idle_bytes) == ([], None, [], 0)
    assert gone(pids_in(tmp_path / "pids"))
    row = summary(made, [batch, batch])
    assert (row["engine"], row["how"], row["rounds"], row["failed"], row["left"]) == ("fake", "term", 6, 0, 0)
    assert (row["held_bytes"], row["above_idle_max_bytes"]) == (12 * GIB, 0)
    assert row["back_max_seconds"] == batch.return_seconds is not None


def test_killed_first_processes_leave_workers_with_memory_to_the_supervisor(
    device: FakeProbe, job: Callable[..., Job], tmp_path: Path
) -> None:
    batch = run(job("kill", workers=["setsid"], ignore_term=True), device, 2, tmp_path / "batch")
    assert batch.good
    first = {batch.holders[0].pid}
    assert len(batch.outlived) == 2
    assert not first & {process.pid for process in batch.outlived}
    # The worker ignores TERM, so it lives until the supervisor kills it.
    assert batch.outlived_seconds is not None
    assert batch.outlived_seconds > 0.3
    assert gone(pids_in(tmp_path / "pids"))


def test_memory_that_no_longer_grows_counts_as_up_for_an_engine_whose_health_comes_late(
    device: FakeProbe, job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.vram_return.STEADY_SECONDS", 0.3)
    batch = run(job("term", steady=True, never_ready=True), device, 1, tmp_path / "batch")
    assert batch.good
    assert batch.up_bytes == 3 * GIB


def test_a_server_that_does_not_come_up_is_no_good_round(
    device: FakeProbe, job: Callable[..., Job], tmp_path: Path
) -> None:
    died = run(job("term", exit_at_once={"code": 3, "lines": ["no model"]}), device, 1, tmp_path / "died")
    assert (died.good, died.failed) == (False, ["exit code 3: no model"])
    late = run(job("term", never_ready=True, ready=0.5), device, 1, tmp_path / "late")
    assert not late.good
    assert late.failed[0].startswith("not up: ")


def test_memory_and_processes_that_stay_are_counted(
    job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.vram_return.RETURN_SECONDS", 0.3)
    stays = [(), *[(DeviceProcess(pid=os.getpid(), device=0, name="VLLM::EngineCore", used_bytes=GIB),)] * 99]
    device = FakeProbe([0, *[GIB] * 9999], processes=lambda: stays.pop(0))
    batch = run(job("term"), device, 1, tmp_path / "batch")
    assert not batch.good
    assert batch.above_idle_bytes == GIB
    assert batch.left == [f"pid {os.getpid()} (VLLM::EngineCore) is still on the device"]


HOLDER = DeviceProcess(pid=7, device=0, name="llama-server", used_bytes=GIB)


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"above_idle_bytes": 65 * MIB}, False),
        ({"above_idle_bytes": None}, False),
        ({"idle_bytes": None}, False),
        ({"up_bytes": None}, False),
        ({"rounds": 3, "up_bytes": GIB + 192 * MIB}, False),
        ({"rounds": 3, "up_bytes": GIB + 193 * MIB}, True),
        ({"holders": []}, False),
        ({"holders": [], "listed": 0}, True),
        ({"left": ["pid 7"]}, False),
        ({"failed": ["not up"]}, False),
    ],
)
def test_a_batch_is_good_when_memory_was_held_by_somebody_and_came_back(changes: dict[str, Any], good: bool) -> None:
    known: dict[str, Any] = {"rounds": 1, "idle_bytes": GIB, "up_bytes": 2 * GIB, "holders": [HOLDER], "listed": 1}
    assert Batch(**(known | {"above_idle_bytes": MIB} | changes)).good is good


def test_a_device_that_holds_nothing_is_no_good_round(job: Callable[..., Job], tmp_path: Path) -> None:
    batch = run(job("term"), FakeProbe(GIB), 1, tmp_path / "batch")
    assert (batch.failed, batch.left, batch.above_idle_bytes, batch.held_bytes) == ([], [], 0, 0)
    assert not batch.good


def test_a_server_that_could_not_be_stopped_is_raised_after_the_others_were(
    job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[StopReport] = []

    def stop(self: ServerProcess, grace: float = 10.0, real: Callable[..., StopReport] = ServerProcess.stop) -> object:
        stopped.append(real(self, grace))
        if len(stopped) == 1:
            raise OSError("as a test wants it")
        return stopped[-1]

    monkeypatch.setattr(ServerProcess, "stop", stop)
    with pytest.raises(OSError, match="as a test wants it"):
        run(job("term"), FakeProbe(GIB), 2, tmp_path / "batch")
    assert [report.left for report in stopped] == [(), ()]
    assert gone(pids_in(tmp_path / "pids"))
