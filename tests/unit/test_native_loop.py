"""The loop in C on its own: what it asks and when, and that it keeps every reading until it is taken."""

from __future__ import annotations

import itertools
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_moegpu.core.sample import Sample
from pytest_moegpu.host.nativebuild import native_library
from pytest_moegpu.host.nativeloop import NativeLoop
from pytest_moegpu.host.nativeplan import Group, Plan
from tests.fakes.native_plan import ABSENT, Scripted, asked, plan
from tests.fakes.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the loop in C is for Linux")

INTERVAL = 0.002


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@contextmanager
def running(loop: NativeLoop) -> Iterator[list[bool]]:
    """Sample in a thread until the end of the block; what `sample` returned is in the list."""
    returned: list[bool] = []

    def run() -> None:
        returned.append(loop.sample())
        while not returned[-1]:
            returned.append(loop.sample())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield returned
    finally:
        loop.stop()
        thread.join(10)
        assert not thread.is_alive()


def made(planned: Plan, interval: float = INTERVAL, capacity: int = 2000) -> NativeLoop:
    loop = NativeLoop(native_library(), planned, interval, capacity)
    loop.enter("load")
    return loop


def taken(loop: NativeLoop, count: int) -> list[tuple[Sample, ...]]:
    """Take readings until there are so many."""
    readings: list[tuple[Sample, ...]] = []

    def enough() -> bool:
        readings.extend(loop.take())
        return len(readings) >= count

    wait_for(enough, f"{count} readings")
    return readings


def bits(of: bytes) -> int:
    return int.from_bytes(of, "little")


def test_an_answer_is_kept_from_where_it_begins_and_as_long_as_it_is(scripted: Scripted) -> None:
    calls: list[tuple[int, int | None, bytes]] = []
    preset = b"\x28\x00\x00\x02"
    loop = made(
        plan(
            asked(scripted.seen(calls, skip=16, size=24, preset=preset), device=4096),
            asked(scripted.seen(calls, argument=5, size=4), place=1, device=2**40),
            devices=2,
        )
    )
    with running(loop):
        first, second = taken(loop, 1)[0]
    answer = bytes(range(64))
    assert (first.device, second.device) == (0, 1)
    assert first.used_bytes == bits(answer[16:24])
    assert second.used_bytes == bits(answer[:4])
    assert calls[0] == (4096, None, preset + bytes(60))
    assert calls[1] == (2**40, 5, bytes(64))


def test_stamps_are_those_of_the_clock_of_requests(scripted: Scripted) -> None:
    asked_at: list[float] = []

    def answer() -> int:
        asked_at.append(time.monotonic())
        return 1

    before = time.monotonic()
    loop = made(plan(asked(scripted.number(answer))))
    with running(loop):
        readings = taken(loop, 20)
    assert before <= readings[0][0].time
    assert all(sample.time <= moment for (sample,), moment in zip(readings, asked_at, strict=False))
    assert all(moment < sample.time for (sample,), moment in zip(readings[1:], asked_at, strict=False))


def test_questions_are_asked_when_their_group_is_due_and_are_not_known_in_between(scripted: Scripted) -> None:
    often, slow = itertools.count(), itertools.count()
    groups = (Group(every_seconds=0.0), Group(every_seconds=0.02), Group(every_seconds=60.0, with_phase=True))
    loop = made(
        plan(
            asked(scripted.number(lambda: 5)),
            asked(scripted.number(lambda: next(often)), group=1, value=1),
            asked(scripted.number(lambda: next(slow)), group=2, value=2),
            groups=groups,
        )
    )
    with running(loop):
        readings = taken(loop, 30)
        loop.enter("decode")
        readings += taken(loop, 30)
        loop.enter("decode")
        readings += taken(loop, 30)
    samples = [sample for (sample,) in readings]
    assert {sample.used_bytes for sample in samples} == {5}
    known = [sample.time for sample in samples if sample.free_bytes is not None]
    assert 3 <= len(known) < len(samples) / 2
    assert min(after - before for before, after in itertools.pairwise(known)) >= 0.02
    assert [(s.phase, s.reserved_bytes) for s in samples if s.reserved_bytes is not None] == [
        ("load", 0),
        ("decode", 1),
    ]


def test_readings_are_due_at_fixed_times_and_a_long_one_costs_only_those_it_covered(scripted: Scripted) -> None:
    number = itertools.count()

    def answer() -> int:
        found = next(number)
        # Every tenth takes as long as three and a half intervals.
        time.sleep(0.035 if found % 10 == 9 else 0.0)
        return found

    loop = made(plan(asked(scripted.number(answer))), interval=0.01)
    with running(loop):
        times = [sample.time for (sample,) in taken(loop, 60)]
    phases = [(moment - times[0]) / 0.01 % 1 for moment in times]
    # Late wake-ups of this machine are in some; those that follow a long one at once are off by half an interval.
    assert statistics.median(phases) < 0.3
    follows = [times[n + 1] - times[n] for n in range(9, len(times) - 1, 10)]
    assert min(follows) >= 0.035
    assert statistics.median(follows) < 0.04
    # Never a burst that makes up for what was missed.
    assert len(times) <= (times[-1] - times[0]) / 0.01 + 1


def test_no_reading_is_lost_or_out_of_order_however_often_the_circle_turns(scripted: Scripted) -> None:
    number, readings = itertools.count(), []

    def answer() -> int:
        found = next(number)
        if found % 3 == 2:
            readings.extend(loop.take())
        return found

    loop = made(plan(asked(scripted.number(answer))), capacity=4)
    with running(loop):
        wait_for(lambda: len(readings) >= 100, "100 readings")
    readings.extend(loop.take())
    assert [sample.used_bytes for (sample,) in readings] == list(range(len(readings)))
    assert loop.missed == 0


def test_when_nobody_takes_them_no_reading_is_made_and_that_is_counted(scripted: Scripted) -> None:
    number = itertools.count()
    loop = made(plan(asked(scripted.number(lambda: next(number)))), capacity=4)
    with running(loop):
        wait_for(lambda: loop.missed >= 3, "readings that found no room")
        first = loop.take()
        more = taken(loop, 4)
    assert [sample.used_bytes for (sample,) in first + more[:4]] == list(range(8))
    assert more[0][0].time - first[-1][0].time >= 3 * INTERVAL


class TestAnswersThatAreNotPlain:
    def test_the_reading_is_left_to_the_caller_and_the_next_one_is_made(self, scripted: Scripted) -> None:
        number = itertools.count()

        def answer() -> tuple[int, int]:
            found = next(number)
            return (999 if found == 2 else 0), found

        loop = made(plan(asked(scripted.number(lambda: 8)), asked(scripted.number(answer), value=1)))
        with running(loop) as returned:
            readings = taken(loop, 4)
        assert [sample.free_bytes for (sample,) in readings[:4]] == [0, 1, 3, 4]
        assert returned == [False, True]

    def test_what_is_not_to_be_had_is_asked_another_way_and_then_no_more(self, scripted: Scripted) -> None:
        calls: list[str] = []

        def no(name: str) -> tuple[int, int]:
            calls.append(name)
            return ABSENT, 0

        first, second = scripted.number(lambda: no("first")), scripted.number(lambda: no("second"))
        loop = made(plan(asked(scripted.number(lambda: 8)), asked(first, second, value=1)))
        with running(loop) as returned:
            readings = taken(loop, 10)
        assert calls[:2] == ["first", "second"]
        assert set(calls[1:]) == {"second"}
        assert {(sample.used_bytes, sample.free_bytes) for (sample,) in readings} == {(8, None)}
        assert returned == [False, False, True]

    def test_the_other_way_is_kept(self, scripted: Scripted) -> None:
        first, second = scripted.number(lambda: (ABSENT, 0)), scripted.number(lambda: 6)
        loop = made(plan(asked(first, second)))
        with running(loop) as returned:
            readings = taken(loop, 10)
        assert {sample.used_bytes for (sample,) in readings} == {6}
        assert returned == [False, True]

    def test_another_error_afterwards_is_not_taken_for_what_is_not_to_be_had(self, scripted: Scripted) -> None:
        codes = iter([ABSENT, ABSENT, 15])
        loop = made(plan(asked(scripted.number(lambda: (next(codes, 15), 0)))))
        assert [loop.sample(), loop.sample()] == [False, False]
        assert [(sample.used_bytes) for (sample,) in loop.take()] == [None]


def test_it_stops_within_two_intervals(scripted: Scripted) -> None:
    took = []
    for _ in range(5):
        loop = made(plan(asked(scripted.number(lambda: 1))), interval=0.01)
        with running(loop):
            taken(loop, 2)
            began = time.monotonic()
        took.append(time.monotonic() - began)
    # The best of five: this machine may have other things to do.
    assert min(took) < 0.02


def test_stopped_before_it_began_it_reads_nothing(scripted: Scripted) -> None:
    loop = made(plan(asked(scripted.number(lambda: 1))))
    loop.stop()
    assert loop.sample()
    assert loop.take() == []
