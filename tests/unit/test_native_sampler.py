"""The sampler with its loop in C: what it takes from it, and when it does without."""

from __future__ import annotations

import itertools
import re
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from pytest_moegpu.errors import ProbeError
from pytest_moegpu.host import native
from pytest_moegpu.host.nativebuild import NativeError, native_library
from pytest_moegpu.host.nativeloop import NativeLoop
from pytest_moegpu.host.nativeplan import Planned
from pytest_moegpu.host.sampler import Sampler
from pytest_moegpu.host.treemem import TreeMemory
from tests.fakes.native_plan import PlannedProbe, Scripted, asked, plan
from tests.fakes.waiting import wait_for

COST = "it takes about 1.3 % of a core"
linux = pytest.mark.skipif(sys.platform != "linux", reason="the loop in C is for Linux")


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("moegpu-sampler")]


def some(sampler: Sampler, count: int) -> None:
    wait_for(lambda: len(sampler.samples) >= count, f"{count} samples")


@linux
class TestInC:
    def test_readings_are_there_at_any_time_in_order_and_counted(self, scripted: Scripted) -> None:
        number = itertools.count()
        sampler = Sampler(PlannedProbe(plan(asked(scripted.number(lambda: next(number))))))
        sampler.start()
        some(sampler, 5)
        drained = sampler.drain()
        assert [sample.used_bytes for sample in drained] == list(range(len(drained)))
        some(sampler, 1)
        sampler.stop()
        left = sampler.samples
        assert [sample.used_bytes for sample in drained + left] == list(range(len(drained + left)))
        assert next(number) == len(drained + left)
        times = [sample.time for sample in drained + left]
        assert sampler.rate() == pytest.approx((len(times) - 1) / (times[-1] - times[0]))
        gap = sampler.gap()
        assert gap is not None
        assert gap >= max(after - before for before, after in itertools.pairwise(times))
        assert (sampler.error, sampler.notes) == (None, ())

    def test_phases(self, scripted: Scripted) -> None:
        sampler = Sampler(PlannedProbe(plan(asked(scripted.number(lambda: 1)))))
        sampler.enter("load")
        sampler.start()
        some(sampler, 2)
        with sampler.phase("decode"):
            wait_for(lambda: sampler.samples[-1].phase == "decode", "a reading of decode")
        wait_for(lambda: sampler.samples[-1].phase == "load", "a reading of load")
        sampler.stop()
        assert [phase for phase, _ in itertools.groupby(sampler.samples, lambda s: s.phase)] == [
            "load",
            "decode",
            "load",
        ]

    def test_what_is_not_answered_plainly_is_asked_through_the_probe_in_its_place(self, scripted: Scripted) -> None:
        number = itertools.count()

        def answer() -> tuple[int, int]:
            found = next(number)
            return (999 if found == 3 else 0), found

        sampler = Sampler(PlannedProbe(plan(asked(scripted.number(answer))), slow=lambda: 333))
        sampler.start()
        some(sampler, 6)
        sampler.stop()
        assert [sample.used_bytes for sample in sampler.samples[:6]] == [0, 1, 2, 333, 4, 5]
        times = [sample.time for sample in sampler.samples]
        assert times == sorted(times)
        assert sampler.error is None

    def test_an_error_of_the_probe_ends_it_and_is_kept(self, scripted: Scripted) -> None:
        lost = ProbeError("the GPU is lost", kind="lost")
        codes = itertools.chain([0, 0], itertools.repeat(15))

        def slow() -> int:
            raise lost

        sampler = Sampler(PlannedProbe(plan(asked(scripted.number(lambda: (next(codes), 4)))), slow=slow))
        sampler.start()
        wait_for(lambda: sampler.error is not None, "the error")
        assert sampler.error is lost
        sampler.stop()
        assert [sample.used_bytes for sample in sampler.samples] == [4, 4]

    def test_an_unforeseen_error_is_kept_too(self, scripted: Scripted) -> None:
        sampler = Sampler(PlannedProbe(plan(asked(scripted.number(lambda: (15, 0)))), slow=lambda: 1 // 0))
        sampler.start()
        wait_for(lambda: sampler.error is not None, "the error")
        sampler.stop()
        assert str(sampler.error).startswith("the planned probe failed: ZeroDivisionError: ")

    def test_host_memory_is_on_the_latest_reading(self, scripted: Scripted) -> None:
        class Host(TreeMemory):
            def read(self) -> int:
                moments.append(time.monotonic())
                return len(moments)

            def free(self) -> int:
                return 7

        moments: list[float] = []
        sampler = Sampler(PlannedProbe(plan(asked(scripted.number(lambda: 1)))), host=Host())
        sampler.start()
        wait_for(lambda: len(moments) >= 3, "host memory")
        some(sampler, len(sampler.samples) + 2)
        sampler.stop()
        samples = sampler.samples
        found = [(s, after) for s, after in itertools.pairwise(samples) if s.host_bytes is not None]
        assert 2 <= len(found) <= 4
        assert {(sample.host_free_bytes, sample.used_bytes) for sample, _ in found} == {(7, 1)}
        for sample, after in found:
            assert sample.host_bytes is not None
            assert after.time > moments[sample.host_bytes - 1]

    def test_an_error_of_host_memory_does_not_end_the_device_readings(self, scripted: Scripted) -> None:
        class Host(TreeMemory):
            def read(self) -> int:
                raise ZeroDivisionError("oops")

        sampler = Sampler(PlannedProbe(plan(asked(scripted.number(lambda: 1)))), host=Host())
        sampler.start()
        wait_for(lambda: sampler.error is not None, "the error")
        count = len(sampler.samples)
        some(sampler, count + 30)
        sampler.stop()
        assert str(sampler.error) == "host memory failed: ZeroDivisionError: oops"

    def test_readings_that_found_no_room_are_told_of(self, scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
        def small(probe: Planned, interval: float) -> NativeLoop:
            planned = probe.native_plan()
            assert planned is not None
            return NativeLoop(native_library(), planned, interval, capacity=1)

        monkeypatch.setattr("pytest_moegpu.host.sampler.native_loop", small)
        sampler = Sampler(PlannedProbe(plan(asked(scripted.number(lambda: 1)))))
        sampler.start()
        said = re.compile(r"readings not made, because Python did not take those before: (\d+); see the longest gap")
        wait_for(lambda: any(int(said.sub(r"\1", note)) >= 3 for note in sampler.notes), "the note")
        some(sampler, 2)
        sampler.stop()
        assert [bool(said.fullmatch(note)) for note in sampler.notes] == [True]
        gap = sampler.gap()
        assert gap is not None
        assert gap >= 0.03


class TestInPython:
    def sampled(self, probe: PlannedProbe) -> Sampler:
        sampler = Sampler(probe)
        sampler.start()
        some(sampler, 2)
        sampler.stop()
        assert {sample.used_bytes for sample in sampler.samples} == {7}
        return sampler

    def test_asked_for(self, scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MOEGPU_NATIVE", "0")
        sampler = self.sampled(PlannedProbe(plan(asked(scripted.number(lambda: 1)))))
        assert sampler.notes == (f"the sampler runs in Python: MOEGPU_NATIVE=0; {COST}",)

    def test_without_a_compiler(self, scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
        def none() -> None:
            raise NativeError("no C compiler (cc, gcc or clang) here")

        monkeypatch.setattr(native, "native_library", none)
        sampler = self.sampled(PlannedProbe(plan(asked(scripted.number(lambda: 1)))))
        assert sampler.notes == (f"the sampler runs in Python: no C compiler (cc, gcc or clang) here; {COST}",)

    @linux
    def test_of_a_probe_whose_library_cannot_be_found(self) -> None:
        sampler = self.sampled(PlannedProbe(None))
        assert sampler.notes == (f"the sampler runs in Python: nvidia-ml-py does not show its library; {COST}",)

    def test_with_another_clock_than_that_of_the_loop(self, scripted: Scripted) -> None:
        sampler = Sampler(PlannedProbe(plan(asked(scripted.number(lambda: 1)))), clock=itertools.count(0.0).__next__)
        sampler.start()
        some(sampler, 2)
        sampler.stop()
        assert [sample.time for sample in sampler.samples[:2]] == [0.0, 1.0]
        assert sampler.notes == ()


@linux
def test_one_probe_can_be_sampled_again(scripted: Scripted) -> None:
    number = itertools.count()
    probe = PlannedProbe(plan(asked(scripted.number(lambda: next(number)))))
    seen: list[int | None] = []
    for _ in range(3):
        sampler = Sampler(probe)
        sampler.start()
        some(sampler, 3)
        sampler.stop()
        seen += [sample.used_bytes for sample in sampler.samples]
    assert seen == list(range(len(seen)))
