"""What a loop outside Python asks of libnvidia-ml: the functions and structs behind `NvmlProbe.read`.

Signatures and structs are those of nvml.h as nvidia-ml-py 12.575 and later have them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple

from pytest_moegpu.core.sample import Sample
from pytest_moegpu.host.nativeplan import Asked, Group, Plan, Way
from pytest_moegpu.host.selection import Found

__all__ = ["EverySeconds", "plan"]

_ONES_32 = 0xFFFF_FFFF
_ONES_64 = 0xFFFF_FFFF_FFFF_FFFF
_NUMBER = Struct("=I")

# What a record has in front of its values.
_BEFORE = 4
# Where values are kept. Memory takes three: reserved (v2; total in v1), free, used.
_MEMORY, _SM_CLOCK, _MEMORY_CLOCK, _REASONS, _LOAD, _POWER, _ENERGY, _TEMPERATURE, _GENERATION, _WIDTH = (
    0,
    *range(3, 12),
)
_ALWAYS, _OFTEN, _CLOCK, _SELDOM, _SLOW = range(5)


class EverySeconds(NamedTuple):
    """How long to do without event reasons, the SM clock, slow values, and the energy counter with the link's width."""

    often: float
    clock: float
    seldom: float
    energy: float


@dataclass(frozen=True, kw_only=True)
class _Function:
    """A function by its name; the rest is as in `Way`."""

    name: str
    argument: int | None = None
    skip: int = 0
    size: int = 4
    preset: bytes = b""


_Field = tuple[int, int, tuple[_Function, ...]]
"""Group, place of the value, functions."""


def plan(
    binding: Any,
    devices: Sequence[Found],
    every_seconds: EverySeconds,
    not_given: AbstractSet[int],
    *,
    v2: bool,
) -> Plan | None:
    """Return the questions of a reading; None: the binding does not keep its library where it can be found.

    Args:
        binding: The module `pynvml`, started.
        devices: The devices to ask, in the order of a reading.
        every_seconds: When to ask for what; the energy counter and the link's width when the phase changes too.
        not_given: Codes that mean "this field is not to be had here".
        v2: Which version of the memory struct.
    """
    library = getattr(binding, "nvmlLib", None)
    memory = (
        _Function(name="nvmlDeviceGetMemoryInfo_v2", skip=16, size=24, preset=_NUMBER.pack(int(binding.nvmlMemory_v2)))
        if v2
        else _Function(name="nvmlDeviceGetMemoryInfo", size=24)
    )
    fields: list[_Field] = [
        (_SELDOM, _LOAD, (_Function(name="nvmlDeviceGetUtilizationRates"),)),
        (_CLOCK, _SM_CLOCK, (_Function(name="nvmlDeviceGetClockInfo", argument=binding.NVML_CLOCK_SM),)),
        (_SELDOM, _MEMORY_CLOCK, (_Function(name="nvmlDeviceGetClockInfo", argument=binding.NVML_CLOCK_MEM),)),
        (
            _OFTEN,
            _REASONS,
            tuple(_Function(name=f"nvmlDeviceGetCurrentClocks{word}Reasons", size=8) for word in ("Event", "Throttle")),
        ),
        (_SELDOM, _POWER, (_Function(name="nvmlDeviceGetPowerUsage"),)),
        (_SLOW, _ENERGY, (_Function(name="nvmlDeviceGetTotalEnergyConsumption", size=8),)),
        (_SELDOM, _TEMPERATURE, _temperature(binding)),
        (_SELDOM, _GENERATION, (_Function(name="nvmlDeviceGetCurrPcieLinkGeneration"),)),
        (_SLOW, _WIDTH, (_Function(name="nvmlDeviceGetCurrPcieLinkWidth"),)),
    ]
    # Memory of all first: the others take milliseconds now and then, and one stamp stands for all devices.
    first: _Field = (_ALWAYS, _MEMORY, (memory,))
    order = [(place, device, first) for place, device in enumerate(devices)]
    order += [(place, device, field) for place, device in enumerate(devices) for field in fields]
    questions = []
    for place, device, (group, value, functions) in order:
        ways = tuple(way for function in functions if (way := _way(library, function)) is not None)
        # Functions for whole GPUs refuse an instance's handle; the memory's does when the instance is gone.
        refused = {binding.NVML_ERROR_INVALID_ARGUMENT} if device.parent is not None and value != _MEMORY else set()
        if ways:
            handle = ctypes.cast(device.handle, ctypes.c_void_p).value or 0
            absent = frozenset(not_given | refused)
            questions.append(Asked(ways=ways, device=handle, place=place, group=group, value=value, absent=absent))
        elif value == _MEMORY:
            return None
    return Plan(
        devices=len(devices),
        groups=(
            Group(every_seconds=0.0),
            Group(every_seconds=every_seconds.often),
            Group(every_seconds=every_seconds.clock),
            Group(every_seconds=every_seconds.seldom),
            Group(every_seconds=every_seconds.energy, with_phase=True),
        ),
        questions=tuple(questions),
        sample=_Samples(tuple(device.index for device in devices), v2=v2),
    )


def _temperature(binding: Any) -> tuple[_Function, ...]:
    sensor = int(binding.NVML_TEMPERATURE_GPU)
    version = getattr(binding, "nvmlTemperature_v1", None)
    old = _Function(name="nvmlDeviceGetTemperature", argument=sensor)
    if version is None:
        return (old,)
    preset = _NUMBER.pack(int(version)) + _NUMBER.pack(sensor)
    return _Function(name="nvmlDeviceGetTemperatureV", skip=8, preset=preset), old


def _way(library: Any, function: _Function) -> Way | None:
    found = getattr(library, function.name, None)
    if found is None:
        return None
    address = ctypes.cast(found, ctypes.c_void_p).value
    assert address is not None
    return Way(
        function=address,
        argument=function.argument,
        skip=function.skip,
        size=function.size,
        preset=function.preset,
    )


def _load(percent: int) -> float | None:
    return None if percent > 100 else percent / 100


def _thousandths(value: int) -> float:
    return value / 1000


def _same(value: int) -> int:
    return value


def _link(value: int) -> int | None:
    """Leave out 0: no link has that generation or width, so where a virtual machine shows it, it is not known."""
    return value or None


_FIELDS: tuple[tuple[int, str, int, Callable[[int], float | None]], ...] = (
    (_SM_CLOCK, "sm_clock_mhz", _ONES_32, _same),
    (_MEMORY_CLOCK, "memory_clock_mhz", _ONES_32, _same),
    (_REASONS, "event_reasons", _ONES_64, _same),
    (_LOAD, "utilisation", _ONES_32, _load),
    (_POWER, "power_watts", _ONES_32, _thousandths),
    (_ENERGY, "energy_joules", _ONES_64, _thousandths),
    (_TEMPERATURE, "temperature_c", _ONES_32, _same),
    (_GENERATION, "pcie_generation", _ONES_32, _link),
    (_WIDTH, "pcie_width", _ONES_32, _link),
)
"""Of the values behind memory: where, field of a sample, what stands for "not known", and how it is written there."""


class _Samples:
    """Makes samples of records, for devices with these indexes."""

    def __init__(self, indexes: tuple[int, ...], *, v2: bool) -> None:
        self._indexes = indexes
        self._v2 = v2

    def __call__(self, record: tuple[Any, ...], phase: str) -> Sample:
        time, _, place, given, reserved, free, used = record[:7]
        if not given & 1:
            reserved = free = used = _ONES_64
        fields: dict[str, Any] = {}
        if given > 1:
            for value, name, ones, written in _FIELDS:
                if given >> value & 1 and (number := record[_BEFORE + value]) != ones:
                    fields[name] = written(number)
        return Sample(
            time=time,
            phase=phase,
            device=self._indexes[place],
            used_bytes=None if used == _ONES_64 else used,
            reserved_bytes=None if reserved == _ONES_64 or not self._v2 else reserved,
            free_bytes=None if free == _ONES_64 else free,
            **fields,
        )
