"""The sampler: what it keeps, how it stops, and that it never dies silently."""

from __future__ import annotations

import itertools
import sys
import threading

import pytest
from msgspec import structs

from pytest_moegpu.core.evidence import Phase
from pytest_moegpu.core.model import Gpu
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.errors import ProbeError
from pytest_moegpu.host.sampler import Sampler
from pytest_moegpu.host.treemem import TreeMemory
from tests.fakes.probe import FakeProbe, Reading
from tests.fakes.waiting import wait_for

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
        assert (sampler.samples, sampler.rate(), sampler.gap(), sampler.error) == ((), None, None, None)

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


class Timer:
    """Stands in for the module `time`: sleeping takes no time but moves the clock, `late` seconds more than asked."""

    def __init__(self, late: float = 0.0) -> None:
        self.now = 50.0
        self.late = late

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds + self.late


class TestSchedule:
    @staticmethod
    def sampled(monkeypatch: pytest.MonkeyPatch, timer: Timer, *durations: float) -> tuple[list[float], Sampler]:
        """Return when each reading began, in intervals of 10 ms, of a probe whose readings take so long."""
        left = list(durations)

        def read(moment: float, phase: str) -> Reading:
            if not left:
                return ProbeError("the end of the script")
            timer.now += left.pop(0)
            return 1

        monkeypatch.setattr("pytest_moegpu.host.sampler.time", timer)
        sampler = Sampler(FakeProbe(read, interval_seconds=0.01), clock=timer.monotonic)
        sampler.start()
        _join()
        return [round((sample.time - 50.0) / 0.01, 6) for sample in sampler.samples], sampler

    def test_the_time_of_a_reading_does_not_move_the_next(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found, sampler = self.sampled(monkeypatch, Timer(), *[0.004] * 5)
        assert found == [0, 1, 2, 3, 4]
        assert sampler.rate() == pytest.approx(100.0)
        assert sampler.gap() == pytest.approx(0.01)

    def test_waking_late_does_not_move_those_after_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.sampled(monkeypatch, Timer(late=0.002), *[0.001] * 5)[0] == [0, 1.2, 2.2, 3.2, 4.2]

    def test_after_a_slow_reading_one_follows_at_once_and_those_missed_are_not_made_up_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found, sampler = self.sampled(monkeypatch, Timer(), 0.001, 0.035, 0.001, 0.001)
        assert found == [0, 1, 4.5, 5]
        assert sampler.gap() == pytest.approx(0.035)

    def test_a_probe_that_is_always_slow_is_read_less_often_and_not_without_rest(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.sampled(monkeypatch, Timer(), *[0.013] * 5)[0] == [0, 1.3, 3, 4.3, 6]

    def test_it_reads_less_often_once_nothing_has_moved_for_a_second(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found, _ = self.sampled(monkeypatch, Timer(), *[0.001] * 110)
        steps = [round(after - before, 6) for before, after in itertools.pairwise(found)]
        # To the reading: what a second is, is a sum of hundredths.
        assert steps[:99] == [1.0] * 99
        assert steps[-7:] == [1.3] * 7

    def test_a_phase_that_begins_has_it_read_often_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[Sampler] = []
        moments: list[float] = []

        def read(moment: float, phase: str) -> Reading:
            timer.now += 0.001
            moments.append(round((moment - 50.0) / 0.01, 6))
            if len(moments) == 106:
                made[0].enter("decode")
            return ProbeError("the end of the script") if len(moments) == 110 else 1

        timer = Timer()
        monkeypatch.setattr("pytest_moegpu.host.sampler.time", timer)
        made.append(Sampler(FakeProbe(read, interval_seconds=0.01), clock=timer.monotonic))
        made[0].start()
        _join()
        steps = [round(after - before, 6) for before, after in itertools.pairwise(moments)]
        assert steps[-6:] == [1.3, 1.3, 1.0, 1.0, 1.0, 1.0]

    def test_memory_that_moves_is_read_often_without_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        left = list(range(150))

        def read(moment: float, phase: str) -> Reading:
            timer.now += 0.001
            return left.pop() if left else ProbeError("the end of the script")

        timer = Timer()
        monkeypatch.setattr("pytest_moegpu.host.sampler.time", timer)
        sampler = Sampler(FakeProbe(read, interval_seconds=0.01), clock=timer.monotonic)
        sampler.start()
        _join()
        assert [round((s.time - 50.0) / 0.01, 6) for s in sampler.samples] == list(range(150))

    def test_no_gap_without_two_readings_of_the_thread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        _, sampler = self.sampled(monkeypatch, Timer(), 0.001)
        assert (sampler.gap(), sampler.rate()) == (None, None)


class Host(TreeMemory):
    """Host memory that a test tells: 1 MiB more at each reading; `fails` raises instead."""

    def __init__(self, fails: Exception | None = None) -> None:
        super().__init__()
        self.fails = fails
        self.reads = 0

    def read(self) -> int:
        if self.fails is not None:
            raise self.fails
        self.reads += 1
        return self.reads * 2**20

    def free(self) -> int:
        return 7


class TestHostMemory:
    def test_it_is_on_the_first_device_of_the_next_reading_and_on_no_other(self) -> None:
        cards = tuple(Gpu(index=index, name="card", memory_bytes=1) for index in (0, 1))
        signal = Signal(20)
        host = Host()
        sampler = Sampler(FakeProbe(signal, gpus=cards), host=host)
        sampler.start()
        assert signal.enough.wait(PATIENCE)
        wait_for(lambda: any(s.host_bytes is not None for s in sampler.samples), "a reading of host memory")
        sampler.stop()
        known = [s for s in sampler.samples if s.host_bytes is not None or s.host_free_bytes is not None]
        assert 1 <= len(known) <= host.reads < len(sampler.samples) / 2
        assert known[0] == structs.replace(known[0], device=0, host_bytes=2**20, host_free_bytes=7, used_bytes=5)
        assert {s.device for s in known} == {0}
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("moegpu-sampler")]

    def test_read_once_has_it_too(self) -> None:
        (sample,) = Sampler(FakeProbe(), host=Host()).read_once("idle")
        assert (sample.host_bytes, sample.host_free_bytes) == (2**20, 7)

    def test_without_it_nothing_is_known(self) -> None:
        (sample,) = Sampler(FakeProbe()).read_once("idle")
        assert (sample.host_bytes, sample.host_free_bytes) == (None, None)

    def test_an_error_is_kept(self) -> None:
        sampler = Sampler(FakeProbe(), host=Host(ZeroDivisionError("oops")))
        sampler.start()
        wait_for(lambda: sampler.error is not None, "the error")
        sampler.stop()
        assert str(sampler.error) == "host memory failed: ZeroDivisionError: oops"


def test_drained_samples_are_forgotten_and_the_rate_is_not() -> None:
    signal = Signal(5)
    sampler = Sampler(FakeProbe(signal))
    sampler.start()
    assert signal.enough.wait(PATIENCE)
    sampler.stop()
    rate, gap = sampler.rate(), sampler.gap()
    assert len(sampler.drain()) >= 5
    assert (sampler.drain(), sampler.samples) == ((), ())
    assert (sampler.rate(), sampler.gap()) == (rate, gap)
    assert gap is not None
    assert gap > 0


def test_threads_switch_fast_while_any_sampler_runs_and_as_before_afterwards() -> None:
    before = sys.getswitchinterval()
    first, second = Sampler(FakeProbe()), Sampler(FakeProbe())
    first.start()
    second.start()
    first.stop()
    first.stop()
    during = sys.getswitchinterval()
    second.stop()
    assert during == pytest.approx(0.0005)
    assert sys.getswitchinterval() == before


def _join() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("moegpu-sampler"):
            thread.join(PATIENCE)
            assert not thread.is_alive()
