"""Questions for the loop in C whose answers are functions of the test's own, called as those of a library would be."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from pytest_moegpu.core.evidence import DeviceProcess
from pytest_moegpu.core.health import DeviceHealth
from pytest_moegpu.core.model import Gpu
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.host.nativeplan import Asked, Group, Plan, Way

__all__ = ["ABSENT", "PlannedProbe", "Scripted", "asked", "plan"]

ABSENT = 3
"""The code for which these questions are asked another way."""
_PLAIN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_ARGUED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)


class Scripted:
    """Functions that C can call; they live as long as this does."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def number(self, answer: Callable[[], int | tuple[int, int]]) -> Way:
        """Make a way whose 64 bits are what `answer` returns, or (code, 64 bits)."""

        def call(device: int, place: int) -> int:
            said = answer()
            code, number = said if isinstance(said, tuple) else (0, said)
            ctypes.c_uint64.from_address(place).value = number
            return code

        return Way(function=self._address(_PLAIN(call)), size=8)

    def seen(self, calls: list[tuple[int, int | None, bytes]], **way: Any) -> Way:
        """Make a way that answers with bytes 0, 1, 2 …, and writes down device, argument and what it found there."""

        def call(device: int, argument: int | None, place: int) -> int:
            calls.append((device, argument, ctypes.string_at(place, 64)))
            ctypes.memmove(place, bytes(range(64)), 64)
            return 0

        function = _PLAIN(lambda device, place: call(device, None, place))
        if way.get("argument") is not None:
            return Way(function=self._address(_ARGUED(call)), **way)
        return Way(function=self._address(function), **way)

    def _address(self, function: Any) -> int:
        self._kept.append(function)
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        return address


def asked(*ways: Way, group: int = 0, value: int = 0, place: int = 0, device: int = 1) -> Asked:
    """Return a question, of the first device and always due unless said otherwise."""
    return Asked(ways=ways, device=device, place=place, group=group, value=value, absent=frozenset({ABSENT}))


def plan(*questions: Asked, groups: tuple[Group, ...] = (Group(every_seconds=0.0),), devices: int = 1) -> Plan:
    """Return a plan whose samples have value 0 as memory in use, 1 as free and 2 as reserved; None: not given."""

    def sample(record: tuple[Any, ...], phase: str) -> Sample:
        time, _, place, given, *values = record
        used, free, reserved = (values[n] if given >> n & 1 else None for n in range(3))
        return Sample(time=time, phase=phase, device=place, used_bytes=used, free_bytes=free, reserved_bytes=reserved)

    return Plan(devices=devices, groups=groups, questions=questions, sample=sample)


class PlannedProbe:
    """A probe of one device that can be asked without it. `slow` makes the readings that come through the probe."""

    name = "planned"
    memory_version = "v"
    interval_seconds = 0.01

    def __init__(self, planned: Plan | None, slow: Callable[[], int] = lambda: 7) -> None:
        self._plan = planned
        self._slow = slow

    def native_plan(self) -> Plan | None:
        """Return the test's plan."""
        return self._plan

    def read(self, time: float, phase: str) -> tuple[Sample, ...]:
        """Return what `slow` says as memory in use."""
        return (Sample(time=time, phase=phase, device=0, used_bytes=self._slow()),)

    def devices(self) -> tuple[Gpu, ...]:
        """Return one."""
        return (Gpu(index=0, name="card", memory_bytes=1),)

    def versions(self) -> dict[str, str]:
        """Return none."""
        return {}

    def follow(self, pid: int | None) -> None:
        """Do nothing."""

    def health(self) -> tuple[DeviceHealth, ...]:
        """Return nothing."""
        return ()

    def processes(self) -> tuple[DeviceProcess, ...]:
        """Return nothing."""
        return ()

    def close(self) -> None:
        """Do nothing."""
