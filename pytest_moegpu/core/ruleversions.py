"""Versions as people write them, ranges of these, and which build of a kernel runs on which GPU."""

from __future__ import annotations

import re
from itertools import zip_longest

__all__ = ["in_range", "is_range", "newer", "newer_major", "runs_on"]

_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
_BOUND = re.compile(r"(>=|<=|==|>|<)\s*(\d+(?:\.\d+)*)")
_RANGE = re.compile(r"\s*(?:>=|<=|==|>|<)\s*\d+(?:\.\d+)*(?:\s*,\s*(?:>=|<=|==|>|<)\s*\d+(?:\.\d+)*)*\s*")


def _numbers(text: str) -> tuple[int, ...] | None:
    """Return the first numbers with dots of a text: `V13.2.51 (build …)` is 13, 2, 51."""
    found = _NUMBERS.search(text)
    return tuple(int(part) for part in found[0].split(".")) if found else None


def _order(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Compare as versions: 13.2 is 13.2.0."""
    pairs = list(zip_longest(a, b, fillvalue=0))
    return next(((x > y) - (x < y) for x, y in pairs if x != y), 0)


def is_range(text: str) -> bool:
    """Tell whether a text is a range such as `>=13.2.0, <13.2.2`."""
    return _RANGE.fullmatch(text) is not None


def in_range(version: str, bounds: str) -> bool | None:
    """Tell whether a version is in a range; None where it holds no number."""
    numbers = _numbers(version)
    if numbers is None:
        return None
    tests = {
        ">=": lambda order: order >= 0,
        "<=": lambda order: order <= 0,
        "==": lambda order: order == 0,
        ">": lambda order: order > 0,
        "<": lambda order: order < 0,
    }
    return all(
        tests[sign](_order(numbers, tuple(map(int, bound.split("."))))) for sign, bound in _BOUND.findall(bounds)
    )


def newer(version: str, other: str) -> bool | None:
    """Tell whether one CUDA version is newer than another, by major and minor: a driver offers these."""
    a, b = _numbers(version), _numbers(other)
    return None if a is None or b is None else _order(a[:2], b[:2]) > 0


def newer_major(version: str, other: str) -> bool | None:
    """Tell whether one CUDA version is of a newer major than another: within one, a build runs on an older driver."""
    a, b = _numbers(version), _numbers(other)
    return None if a is None or b is None else a[0] > b[0]


def runs_on(built: str, capability: str) -> bool:
    """Tell whether kernels of an architecture run on a compute capability.

    `9.0` is machine code: of the same major, and not newer. `9.0+ptx` is compiled by the driver for any newer one.
    CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".
    """
    a, b = _numbers(built), _numbers(capability)
    if a is None or b is None:
        return False
    if built.endswith("+ptx"):
        return _order(b, a) >= 0
    return a[0] == b[0] and _order(b, a) >= 0
