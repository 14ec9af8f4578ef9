"""What a loop outside Python shall ask, and how its answers become samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from pytest_moegpu.core.sample import Sample

__all__ = ["VALUES", "Asked", "Group", "Plan", "Planned", "Way"]

VALUES = 12
"""How many numbers of 64 bits an answered record has room for."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """One function that answers a question: (device, pointer to the answer) → 0 or an error code.

    Args:
        function: Its address.
        argument: An unsigned number of 32 bits between the two; None: there is none.
        skip: Bytes of the answer in front of those that are kept.
        size: Bytes that are kept.
        preset: What the function wants to find at the beginning of the answer, such as the version of a struct.
    """

    function: int
    argument: int | None = None
    skip: int = 0
    size: int = 4
    preset: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One question to one device, and the functions for it, the best first.

    Args:
        ways: The next one is taken when one answers with a code of `absent`.
        device: Handle of the device, as an address.
        place: Which device of a reading it is, from 0.
        group: When it is due, a place in `Plan.groups`.
        value: Where its answer is kept, and the bit in `given`; a longer one takes the values after it too.
        absent: Codes that mean "this is not to be had here".
    """

    ways: tuple[Way, ...]
    device: int
    place: int
    group: int
    value: int
    absent: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Group:
    """When questions are due: after so many seconds, and with `with_phase` when the phase has changed."""

    every_seconds: float
    with_phase: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All questions of a reading, in order, and what makes a sample of a record.

    `sample` takes a record (time, number of the phase, place, given, and the values) and the name of the phase.
    """

    devices: int
    groups: tuple[Group, ...]
    questions: tuple[Asked, ...]
    sample: Callable[[tuple[Any, ...], str], Sample]


@runtime_checkable
class Planned(Protocol):
    """A probe whose questions can be asked without it, by function and handle."""

    def native_plan(self) -> Plan | None:
        """Return what to ask; None where its library's functions cannot be had."""
