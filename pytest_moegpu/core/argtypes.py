"""Readers of values on the command line: each returns the value, or says what is allowed instead."""

from __future__ import annotations

import argparse
import math

__all__ = ["capability", "pid", "port", "seconds", "seconds_or_none"]

_LAST_PORT = 65_535


def capability(text: str) -> str:
    """Read a compute capability such as 8.6.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    major, _, minor = text.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a compute capability: write it as 8.6")
    return text


def pid(text: str) -> int:
    """Read the number of a process.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a pid: write a whole number above 0")
    return int(text)


def seconds(text: str) -> float:
    """Read a time above 0, in seconds.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    number = _number(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write a number of seconds above 0")
    return number


def seconds_or_none(text: str) -> float:
    """Read a time of 0 or more, in seconds.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    number = _number(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write a number of seconds, or 0")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def port(text: str) -> int:
    """Read the number of a TCP port.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if not text.isdecimal() or not 1 <= int(text) <= _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: write a whole number from 1 to {_LAST_PORT}")
    return int(text)
