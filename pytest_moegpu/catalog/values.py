"""Readers of single TOML values: each returns the value in its stored form or says what is allowed instead."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable

from pytest_moegpu.core.kvcache import KV_WORDS
from pytest_moegpu.core.model import ALL_LAYERS
from pytest_moegpu.core.units import parse_bytes, parse_share
from pytest_moegpu.errors import UserError, nearest

__all__ = [
    "Reader",
    "boolean",
    "capability",
    "choice",
    "choice_of_numbers",
    "expert_layers",
    "gpu_layers",
    "kv_cache",
    "listed",
    "name",
    "parse_duration",
    "positive",
    "positive_share",
    "rate",
    "sha256",
    "share",
    "size",
    "text",
    "version",
    "whole",
    "words",
]

Reader = Callable[[object], object]

_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z/]+)\s*")
_TIME_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "days": 86_400.0}
_KV_MEANINGS = {"16-bit": "f16", "8-bit": "q8_0", "4-bit": "q4_0"}


def parse_duration(value: object) -> float:
    """Read a time such as `600 s` or `10 min`, or a number of seconds.

    Raises:
        UserError: Not a time, an unknown unit, or not above zero.
    """
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        seconds = float(match[1]) * _TIME_UNITS[match[2]] if match and match[2] in _TIME_UNITS else None
    else:
        seconds = _number(value)
    if seconds is None or seconds <= 0:
        units = ", ".join(_TIME_UNITS)
        raise UserError(f"{value!r} is not a time: write a number above zero and a unit, one of {units}, or seconds")
    return seconds


def text(value: object) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{value!r} is not a text: write some words in quotes")
    return value


def words(value: object) -> tuple[str, ...]:
    """Read a command: words as a shell would split them, stored as a tuple."""
    try:
        return tuple(shlex.split(text(value)))
    except ValueError as error:
        raise UserError(f"{value!r} is not a command: {error}") from error


def boolean(value: object) -> bool:
    """Read `true` or `false`."""
    if not isinstance(value, bool):
        raise UserError(f"{value!r} is not allowed: write true or false, without quotes")
    return value


def version(known: int) -> Reader:
    """Return a reader of a schema number of which only one is known."""

    def read(value: object) -> int:
        if value is True or value != known:
            raise UserError(f"{value!r} is not a known version of the format: write {known}")
        return known

    return read


def whole(least: int) -> Reader:
    """Return a reader of whole numbers from `least` on."""

    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UserError(f"{value!r} is not allowed: write a whole number of at least {least}, without quotes")
        return value

    return read


def choice(*allowed: str) -> Reader:
    """Return a reader of one of some words."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            hint = nearest(value, allowed) if isinstance(value, str) else ""
            raise UserError(f"{value!r} is not allowed{hint}; one of {', '.join(allowed)}")
        return value

    return read


def choice_of_numbers(*allowed: int) -> Reader:
    """Return a reader of one of some whole numbers."""

    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
            raise UserError(f"{value!r} is not allowed: one of {', '.join(map(str, allowed))}, without quotes")
        return value

    return read


def listed(item: Reader, least: int = 0) -> Reader:
    """Return a reader of a list of at least `least` items, stored as a tuple."""

    def read(value: object) -> tuple[object, ...]:
        if not isinstance(value, list) or len(value) < least:
            raise UserError(f"{value!r} is not allowed: write a list in [ ] of at least {least} items")
        return tuple(item(one) for one in value)

    return read


def share(value: object) -> float:
    """Read a share: `5 %`, or a number from 0 to 1."""
    if isinstance(value, str):
        return parse_share(value)
    number = _number(value)
    if number is None or not 0 <= number <= 1:
        raise UserError(f"{value!r} is not a share: write '5 %' or a number from 0 to 1")
    return number


def positive_share(value: object) -> float:
    """Read a share above zero: `3 %`, or a number up to 1."""
    read = share(value)
    if read == 0:
        raise UserError(f"{value!r} is not allowed: write a share above zero")
    return read


def positive(value: object) -> float:
    """Read a number above zero."""
    number = _number(value)
    if number is None or number <= 0:
        raise UserError(f"{value!r} is not allowed: write a number above zero, without quotes")
    return number


def size(least: int) -> Reader:
    """Return a reader of sizes with their unit, `23.5 GiB`, of at least some bytes."""

    def read(value: object) -> int:
        if not isinstance(value, str):
            raise UserError(f"{value!r} is not a size: write it in quotes with its unit, such as '23.5 GiB'")
        count = parse_bytes(value)
        if count < least:
            raise UserError(f"{value!r} is not allowed: write a size of at least {least} B")
        return count

    return read


def rate(value: object) -> float:
    """Read a speed: `90 tok/s`, or a number of tokens a second."""
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        number = float(match[1]) if match and match[2] == "tok/s" else None
    else:
        number = _number(value)
    if number is None or number <= 0:
        raise UserError(f"{value!r} is not a speed: write '90 tok/s' or a number above zero")
    return number


def kv_cache(value: object) -> object:
    """Read a word for a KV cache type, or how many bits it has: `8-bit`."""
    if isinstance(value, str) and value in _KV_MEANINGS:
        return _KV_MEANINGS[value]
    return choice(*KV_WORDS, *_KV_MEANINGS)(value)


def expert_layers(value: object) -> int:
    """Read how many layers have their experts in host memory: a number, or `all`."""
    return ALL_LAYERS if value == "all" else _number_beside_all(value)


def gpu_layers(value: object) -> int | None:
    """Read how many layers go on the GPU: `all`, stored as None, or a number."""
    return None if value == "all" else _number_beside_all(value)


def _number_beside_all(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UserError(f'{value!r} is not allowed: write "all" or a whole number of at least 0')
    return value


def name(value: object) -> str:
    """Read a name that can stand in a path."""
    return _formed(value, r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name: use letters, digits, '.', '_' and '-'")


def sha256(value: object) -> str:
    """Read a SHA-256 in hexadecimal digits."""
    return _formed(value, r"[0-9a-f]{64}", "a SHA-256: write 64 lower-case hexadecimal digits")


def capability(value: object) -> str:
    """Read a compute capability: `8.6`."""
    return _formed(value, r"[0-9]{1,2}\.[0-9]", "a compute capability: write it in quotes, such as '8.6'")


def _formed(value: object, pattern: str, meaning: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise UserError(f"{value!r} is not {meaning}")
    return value


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
