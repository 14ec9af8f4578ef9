"""Shows throughput in pytest-benchmark's table and JSON, where OPS then reads as tokens per second.

pytest-benchmark times functions; here the times are already measured. They are replayed through its own `timer` option:
one round per server start, lasting the time of one token. It is a view only, never the gate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest

from pytest_moegpu.core.verdict import Verdict

__all__ = ["ReplayTimer", "replay"]


class ReplayTimer:
    """A clock that passes the given seconds between each odd and the following even call."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self._seconds: Iterator[float] = iter(seconds)
        self._now = 0.0
        self._inside = False

    def __call__(self) -> float:
        """Return the replayed time in seconds."""
        if self._inside:
            self._now += next(self._seconds, 0.0)
        self._inside = not self._inside
        return self._now


def replay(request: pytest.FixtureRequest, verdict: Verdict, facts: Sequence[tuple[str, str]]) -> None:
    """Put a speed's starts into pytest-benchmark, if it is active; `verdict.values` are tokens per second.

    Nothing that pytest-benchmark does reaches the test, and a test that uses it itself keeps it for itself.
    """
    if not request.config.pluginmanager.has_plugin("benchmark") or "benchmark" in request.fixturenames:
        return
    if not verdict.values or min(verdict.values) <= 0:
        return
    timer = ReplayTimer([1 / value for value in verdict.values])
    request.node.add_marker(pytest.mark.benchmark(timer=timer, group=f"moegpu {verdict.subject}, seconds per token"))
    # --benchmark-skip skips from within the fixture, and its options can make it fail; the verdict stands regardless.
    with suppress(Exception, pytest.skip.Exception, pytest.fail.Exception):
        benchmark = request.getfixturevalue("benchmark")
        benchmark.extra_info.update({"tokens_per_second": list(verdict.values), "outcome": str(verdict.outcome)})
        benchmark.extra_info.update(facts)
        benchmark.pedantic(lambda: None, rounds=len(verdict.values), iterations=1, warmup_rounds=0)
