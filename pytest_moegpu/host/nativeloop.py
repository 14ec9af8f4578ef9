"""The loop of `nativeloop.c`, which reads devices without Python and keeps the readings until they are taken."""

from __future__ import annotations

import ctypes
import math
import struct
from typing import Any

from pytest_moegpu.core.sample import Sample
from pytest_moegpu.host.nativeplan import VALUES, Asked, Plan

__all__ = ["NativeLoop"]

_LONGEST_ANSWER = 64
_RECORD = struct.Struct(f"=dIIQ{VALUES}Q")
# 20 s at 100 readings a second: longer than Python was ever seen to keep all its threads from working.
_CAPACITY = 2000


class _Question(ctypes.Structure):
    _fields_ = (
        ("plain", ctypes.c_void_p),
        ("argued", ctypes.c_void_p),
        ("device", ctypes.c_void_p),
        ("argument", ctypes.c_uint32),
        ("group", ctypes.c_uint32),
        ("place", ctypes.c_uint32),
        ("quiet", ctypes.c_int32),
        ("value", ctypes.c_uint32),
        ("skip", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
        ("answer", ctypes.c_ubyte * _LONGEST_ANSWER),
    )


class _Group(ctypes.Structure):
    _fields_ = (
        ("every", ctypes.c_double),
        ("last", ctypes.c_double),
        ("with_phase", ctypes.c_uint32),
        ("due", ctypes.c_uint32),
    )


class _Loop(ctypes.Structure):
    _fields_ = (
        ("questions", ctypes.c_void_p),
        ("groups", ctypes.c_void_p),
        ("records", ctypes.c_void_p),
        ("question_count", ctypes.c_uint32),
        ("group_count", ctypes.c_uint32),
        ("devices", ctypes.c_uint32),
        ("capacity", ctypes.c_uint32),
        ("interval", ctypes.c_int64),
        ("due", ctypes.c_int64),
        ("begun", ctypes.c_uint32),
        ("hurried", ctypes.c_uint32),
        ("phase_before", ctypes.c_uint32),
        ("phase", ctypes.c_uint32),
        ("stop", ctypes.c_uint32),
        ("fault", ctypes.c_uint32),
        ("code", ctypes.c_int32),
        ("unused", ctypes.c_uint32),
        ("written", ctypes.c_uint64),
        ("taken", ctypes.c_uint64),
        ("missed", ctypes.c_uint64),
    )


class NativeLoop:
    """One sampling. `sample` is called in one thread, `take` in one at a time, `enter` and `stop` from anywhere.

    Readings are due at start + n intervals, at the same rate whether anything moves or not. Stamps are those of
    `time.monotonic`.

    Args:
        library: The built `nativeloop.c`.
        plan: What to ask.
        interval: Seconds between two readings.
        capacity: How many readings are kept until they are taken; when there is no room none is made.
    """

    def __init__(self, library: ctypes.CDLL, plan: Plan, interval: float, capacity: int = _CAPACITY) -> None:
        self._plan = plan
        self._phases: dict[str, int] = {}
        self._ways = [0] * len(plan.questions)
        self._questions = (_Question * len(plan.questions))()
        for question, asked in zip(self._questions, plan.questions, strict=True):
            _put(question, asked, 0)
        self._groups = (_Group * len(plan.groups))(
            *(_Group(every=group.every_seconds, last=-math.inf, with_phase=group.with_phase) for group in plan.groups)
        )
        size = capacity * plan.devices * _RECORD.size
        self._records, self._out = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
        self._loop = _Loop(
            questions=ctypes.addressof(self._questions),
            groups=ctypes.addressof(self._groups),
            records=ctypes.addressof(self._records),
            question_count=len(plan.questions),
            group_count=len(plan.groups),
            devices=plan.devices,
            capacity=capacity,
            interval=round(interval * 1e9),
        )
        self._place = ctypes.byref(self._loop)
        self._sample, self._take = library.moegpu_sample, library.moegpu_take
        self._take.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
        self._take.restype = ctypes.c_uint64

    def enter(self, phase: str) -> None:
        """Put `phase` on every reading that begins from now on."""
        self._loop.phase = self._phases.setdefault(phase, len(self._phases))

    def sample(self) -> bool:
        """Read until `stop`, then return True; False when a question was not answered plainly.

        That reading is not kept: who calls makes it another way, and calls again. A question whose answer was that it
        is not to be had here is asked another way from then on, or where there is none is left at that.
        """
        if not self._sample(self._place):
            return True
        self._settle(self._loop.fault, self._loop.code)
        return False

    def take(self) -> list[tuple[Sample, ...]]:
        """Return the readings since the last call, the oldest first, and forget them."""
        devices = self._plan.devices
        count = self._take(self._place, self._out, self._loop.capacity) * devices
        names, make = list(self._phases), self._plan.sample
        records = _RECORD.iter_unpack(memoryview(self._out)[: count * _RECORD.size])
        samples = [make(record, names[record[1]]) for record in records]
        return [tuple(samples[at : at + devices]) for at in range(0, count, devices)]

    def stop(self) -> None:
        """Have `sample` return after the reading it is in, or the one it waits for is due."""
        self._loop.stop = 1

    @property
    def missed(self) -> int:
        """How many readings were not made, because nobody took those before for so long."""
        return int(self._loop.missed)

    def _settle(self, number: int, code: int) -> None:
        asked = self._plan.questions[number]
        if code not in asked.absent:
            return
        if self._ways[number] + 1 < len(asked.ways):
            self._ways[number] += 1
            _put(self._questions[number], asked, self._ways[number])
        else:
            self._questions[number].quiet = code


def _put(question: Any, asked: Asked, number: int) -> None:
    """Write down a question, to be asked in one of its ways."""
    way = asked.ways[number]
    plain = way.argument is None
    question.plain = way.function if plain else None
    question.argued = None if plain else way.function
    question.device, question.argument = asked.device, way.argument or 0
    question.group, question.place = asked.group, asked.place
    question.value, question.skip, question.size = asked.value, way.skip, way.size
    ctypes.memset(question.answer, 0, _LONGEST_ANSWER)
    ctypes.memmove(question.answer, way.preset, len(way.preset))
