"""A live server that leaves something behind closes the device for the rest of the run."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_moegpu.core.evidence import DeviceProcess, Phase, StartFailure
from pytest_moegpu.core.model import Limits
from pytest_moegpu.errors import ProbeError, StartError
from pytest_moegpu.host.stopreport import StopReport
from pytest_moegpu.session.live import Live
from tests.fakes.probe import GIB, FakeProbe


class Stub:
    """A server that is told how to start and how to stop."""

    def __init__(self, *, fails: bool = False, left: tuple[int, ...] = (), tree: tuple[int, ...] = ()) -> None:
        self.fails, self.left, self.tree = fails, left, frozenset(tree)
        self.limits = Limits(idle_return_seconds=0.05)
        self.notes: list[str] = []
        self.alive = True

    def start(self, follow: Any) -> None:
        follow(4711)
        if self.fails:
            raise StartError(StartFailure(phase=Phase.LOAD, cause="the server ended with exit code 1"))

    def stop(self) -> StopReport:
        self.alive = False
        return StopReport(exit_code=0, left=self.left)


def live(probe: FakeProbe, server: Stub) -> Live:
    kept = Live(probe)
    kept.start(server, "s", "")  # type: ignore[arg-type]
    return kept


def test_a_clean_end_leaves_the_device_usable() -> None:
    kept = live(FakeProbe(), Stub())
    kept.stop()
    assert kept.unusable == ""


def test_a_server_that_did_not_come_up_and_could_not_be_ended() -> None:
    kept = Live(FakeProbe())
    with pytest.raises(StartError):
        kept.start(Stub(fails=True, left=(4711,)), "s", "")  # type: ignore[arg-type]
    assert "4711" in kept.unusable
    kept.stop()
    assert "4711" in kept.unusable, "what was found first stays"


def test_memory_that_it_still_holds() -> None:
    holder = DeviceProcess(pid=4711, device=0, name="llama-server", used_bytes=2 * GIB)
    probe = FakeProbe([0, 2 * GIB], processes=lambda: (holder,) if probe.followed[-1] else ())
    kept = live(probe, Stub(tree=(4711,)))
    kept.stop()
    assert kept.unusable.startswith("a live server: memory did not come back: 2.00 GiB above idle")
    assert "held by pid 4711 (llama-server, 2.00 GiB) of the server" in kept.unusable


def test_a_device_that_cannot_be_read_afterwards_is_not_a_clean_one() -> None:
    kept = live(FakeProbe([0, ProbeError("the GPU is lost", kind="lost")]), Stub())
    kept.stop()
    assert kept.unusable == "the memory of the device could not be read after a live server was stopped"
