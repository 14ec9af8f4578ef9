"""The sampler: what it keeps, how it stops, and that it never dies silently."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from pytest_moegpu.core.evidence import Phase, Sample
from pytest_moegpu.errors import ProbeError
from pytest_moegpu.host.sampler import Sampler
from tests.fakes.probe import FakeProbe, Reading

PATIENCE = 10.0


class Signal:
    """Readings that tell the test when so many of them were taken."""

    def __init__(self, count: int, value: Reading = 5) -> None:
        self.enough = threading.Event()
        self._left = count
        self._value = value

    def __call__(self, moment: float, phase: str) -> Reading:
        self._left -= 1
        if self._left <= 0:
            self.enough.set()
        return self._value


class TestWithoutThread:
    def test_read_once_keeps_and_returns_the_reading(self) -> None:
        sampler = Sampler(FakeProbe([3, 4]), clock=itertools.count(10.0).__next__)
        first = sampler.read_once("preflight")
        assert first == (Sample(time=10.0, phase="preflight", device=0, used_bytes=3),)
        sampler.read_once("load")
        assert [(s.time, s.phase, s.used_bytes) for s in sampler.samples] == [(10, "preflight", 3), (11, "load", 4)]

    def test_error_is_raised_and_the_first_one_kept(self) -> None:
        first, second = ProbeError("first", kind="lost"), ProbeError("second")
        sampler = Sampler(FakeProbe([first, second]))
        for _ in range(2):
            with pytest.raises(ProbeError):
                sampler.read_once("preflight")
        assert sampler.error is first

    def test_nothing_read(self) -> None:
        sampler = Sampler(FakeProbe())
        assert (sampler.samples, sampler.rate(), sampler.error) == ((), None, None)

    def test_idle_readings_do_not_count_as_rate(self) -> None:
        sampler = Sampler(FakeProbe())
        sampler.read_once("preflight")
        sampler.read_once("preflight")
        assert sampler.rate() is None


class TestThread:
    def test_reads_until_stopped(self) -> None:
        signal = Signal(3)
        probe = FakeProbe(signal)
        sampler = Sampler(probe)
        sampler.start()
        assert signal.enough.wait(PATIENCE)
        sampler.stop()
        count = probe.reads
        sampler.stop()
        assert len(sampler.samples) == count >= 3
        assert probe.reads == count
        assert sampler.error is None
        assert not [thread for thread in threading.enumerate() if thread.name == "moegpu-sampler"]

    def test_rate_is_the_one_achieved(self) -> None:
        signal = Signal(5)
        sampler = Sampler(FakeProbe(signal), clock=itertools.count(0.0, 0.04).__next__)
        sampler.start()
        assert signal.enough.wait(PATIENCE)
        sampler.stop()
        assert sampler.rate() == pytest.approx(25.0)

    def test_phases_are_put_on_readings(self) -> None:
        taken = {phase: threading.Event() for phase in ("preflight", "load", "decode")}

        def read(moment: float, phase: str) -> Reading:
            taken[phase].set()
            return len(phase)

        sampler = Sampler(FakeProbe(read))
        sampler.start()
        assert taken[Phase.PREFLIGHT].wait(PATIENCE)
        sampler.enter("load")
        assert taken["load"].wait(PATIENCE)
        with sampler.phase(Phase.DECODE):
            assert taken["decode"].wait(PATIENCE)
        taken["load"].clear()
        assert taken["load"].wait(PATIENCE)
        sampler.stop()
        assert {s.phase: s.used_bytes for s in sampler.samples} == {"preflight": 9, "load": 4, "decode": 6}

    def test_phase_is_left_when_the_block_fails(self) -> None:
        sampler = Sampler(FakeProbe())
        with pytest.raises(ValueError, match="inside"), sampler.phase("decode"):
            raise ValueError("inside")
        signal = Signal(1)
        probe = FakeProbe(signal)
        again = Sampler(probe)
        with again.phase("decode"):
            pass
        again.start()
        assert signal.enough.wait(PATIENCE)
        again.stop()
        assert {sample.phase for sample in again.samples} == {"preflight"}

    def test_thread_keeps_its_error_and_stops(self) -> None:
        lost = ProbeError("the GPU is lost", kind="lost")
        probe = FakeProbe([1, 2, lost])
        sampler = Sampler(probe)
        sampler.start()
        _join()
        assert sampler.error is lost
        assert [s.used_bytes for s in sampler.samples] == [1, 2]
        assert probe.reads == 3
        with pytest.raises(ProbeError):
            sampler.read_once("stop")
        sampler.stop()
        assert sampler.error is lost

    def test_an_unforeseen_error_is_kept_too(self) -> None:
        cause = ZeroDivisionError("oops")
        sampler = Sampler(FakeProbe(cause))
        sampler.start()
        _join()
        assert sampler.error is not None
        assert str(sampler.error) == "the nvml probe failed: ZeroDivisionError: oops"
        assert sampler.error.__cause__ is cause
        sampler.stop()

    def test_a_slow_probe_gets_its_rest_after_every_reading(self) -> None:
        spans: list[tuple[float, float]] = []
        signal = Signal(5)

        def read(moment: float, phase: str) -> Reading:
            began = time.monotonic()
            if not spans:
                time.sleep(0.1)
            value = signal(moment, phase)
            spans.append((began, time.monotonic()))
            return value

        sampler = Sampler(FakeProbe(read, interval_seconds=0.01))
        sampler.start()
        assert signal.enough.wait(PATIENCE)
        sampler.stop()
        rests = [after[0] - before[1] for before, after in itertools.pairwise(spans)]
        assert min(rests) >= 0.009

    def test_a_probe_that_hangs_is_reported(self) -> None:
        entered, release = threading.Event(), threading.Event()

        def read(moment: float, phase: str) -> Reading:
            entered.set()
            release.wait(PATIENCE)
            return 1

        sampler = Sampler(FakeProbe(read))
        sampler.start()
        assert entered.wait(PATIENCE)
        sampler.stop(timeout=0.01)
        assert sampler.error is not None
        assert str(sampler.error) == "the nvml probe has not answered for 0.01 s"
        release.set()
        _join()

    def test_started_once_and_stopped_before_start(self) -> None:
        sampler = Sampler(FakeProbe())
        sampler.stop()
        sampler.start()
        with pytest.raises(RuntimeError, match="once"):
            sampler.start()
        sampler.stop()


def _join() -> None:
    for thread in threading.enumerate():
        if thread.name == "moegpu-sampler":
            thread.join(PATIENCE)
            assert not thread.is_alive()
