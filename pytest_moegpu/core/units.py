"""Quantities as text: parsed and printed in one place. Bytes inside, GiB outside."""

from __future__ import annotations

import re
from fractions import Fraction

from pytest_moegpu.errors import UserError

__all__ = [
    "GIB",
    "MIB",
    "format_bytes",
    "format_percent",
    "format_seconds",
    "format_value",
    "parse_bytes",
    "parse_share",
]

MIB = 2**20
GIB = 2**30

# GB and GiB differ by 7 %: both are understood, neither is guessed.
_BYTE_UNITS = {
    "B": 1,
    "KiB": 2**10,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": 2**40,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z%]*)\s*")


def parse_bytes(text: str) -> int:
    """Read a size such as `23.5 GiB` or `22 GB`.

    Raises:
        UserError: Not a number, or no unit, or an unknown one.
    """
    match = _QUANTITY.fullmatch(text)
    if not match or match[2] not in _BYTE_UNITS:
        raise UserError(f"{text!r} is not a size: write a number and a unit, one of {', '.join(_BYTE_UNITS)}")
    return round(Fraction(match[1]) * _BYTE_UNITS[match[2]])


def parse_share(text: str) -> float:
    """Read a share such as `5 %` or `0.05`.

    Raises:
        UserError: Not a number, another unit than %, or outside 0 … 100 %.
    """
    match = _QUANTITY.fullmatch(text)
    if not match or match[2] not in ("", "%"):
        raise UserError(f"{text!r} is not a share: write it as '5 %' or '0.05'")
    value = float(match[1]) / (100 if match[2] else 1)
    if value > 1:
        raise UserError(f"{text!r} is more than 100 %: write a share between 0 and 1, or with a % sign")
    return value


def format_bytes(count: float) -> str:
    """Print bytes as GiB from 1 GiB on, else as MiB."""
    return f"{count / GIB:.2f} GiB" if abs(count) >= GIB else f"{count / MIB:.0f} MiB"


def format_percent(share: float, signed: bool = True) -> str:
    """Print a share as a percentage with one decimal, with its sign by default."""
    return f"{share * 100:{'+' if signed else ''}z.1f} %"


def format_seconds(seconds: float) -> str:
    """Print a time in ms below one second, else in s."""
    return f"{seconds * 1000:.1f} ms" if abs(seconds) < 1 else f"{seconds:.2f} s"


def format_value(value: float, unit: str) -> str:
    """Print a metric's value in its unit."""
    if unit == "B":
        return format_bytes(value)
    if unit == "s":
        return format_seconds(value)
    return f"{value:.1f} {unit}" if abs(value) < 1000 else f"{value:.0f} {unit}"
