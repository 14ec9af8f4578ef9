"""Waiting for what other processes do: polling with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Poll until a condition holds; fails the test when it never does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.01)


def gone(pids: Iterable[int]) -> bool:
    """Tell whether none of these processes runs; one that is dead and only waits to be reaped does not."""
    return not any(_runs(pid) for pid in pids)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pids_in(path: Path) -> list[int]:
    """Return the pids a fake has written down so far."""
    return [int(line) for line in path.read_text().split()] if path.exists() else []
