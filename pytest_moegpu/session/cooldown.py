"""Before each start of an interleaved comparison: wait until the device is as cool as before the first one."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from pytest_moegpu.core.evidence import Phase
from pytest_moegpu.errors import ProbeError
from pytest_moegpu.host.probe import Probe
from pytest_moegpu.session.progress import Progress

__all__ = ["SLACK_C", "CoolDown"]

SLACK_C = 2.0
"""Degrees above the temperature before the first start that count as cooled down: a reading has whole degrees."""
_POLL_SECONDS = 0.5


@dataclass
class CoolDown:
    """Remembers the temperature before the first start, in °C, and waits for it before each later one.

    `seconds` is the longest wait. `missed` holds the temperatures at which a start was made all the same.
    """

    seconds: float
    progress: Progress
    first: float | None = None
    missed: list[float] = field(default_factory=list)
    _asked: int = 0

    def wait(self, probe: Probe) -> None:
        """Wait; where the temperature is not known, go on at once."""
        self._asked += 1
        if self._asked == 1:
            self.first = _temperature(probe)
            return
        began = time.monotonic()
        while self.first is not None:
            now = _temperature(probe)
            if now is None or now <= self.first + SLACK_C:
                return
            if time.monotonic() - began >= self.seconds:
                self.missed.append(now)
                self.progress.line(f"not cooled down after {self.seconds:g} s: {now:g} °C, {self.first:g} at first")
                return
            self.progress.live(f"cooling down: {now:g} °C, {self.first:g} at first")
            time.sleep(_POLL_SECONDS)

    def describe(self) -> str:
        """Say in a line whether all starts began as cool as the first."""
        if self.first is None:
            return "the temperature of the device is not known"
        if not self.missed:
            return f"every start began within {SLACK_C:g} °C of the first, at {self.first:g} °C"
        return (
            f"{len(self.missed)} of {self._asked} starts began warmer than the first ({self.first:g} °C), "
            f"up to {max(self.missed):g} °C: not cooled down within {self.seconds:g} s"
        )


def _temperature(probe: Probe) -> float | None:
    """Return the temperature of the warmest device in °C; None when one of them is not known."""
    try:
        samples = probe.read(time.monotonic(), Phase.PREFLIGHT)
    except ProbeError:
        return None
    known = [sample.temperature_c for sample in samples if sample.temperature_c is not None]
    return max(known) if samples and len(known) == len(samples) else None
