"""How a metric moved over sessions: dated change points, and slow drift. For people to look at, never the gate.

Change points: Pelt with a squared-error cost (Killick, Fearnhead & Eckley 2012, JASA 107:1590) of the optional library
ruptures, on logarithms of session medians. Drift: Theil-Sen slope with Sen's interval (Sen 1968, JASA 63:1379).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_moegpu.errors import UserError

__all__ = ["DRIFT_DAYS", "LEAST_DRIFT_DAYS", "LEAST_FOR_DRIFT", "LEAST_FOR_STEPS", "Drift", "Level", "drift", "levels"]

LEAST_FOR_STEPS = 8
"""Fewest sessions in which a change point is looked for."""
LEAST_FOR_DRIFT = 6
"""Fewest sessions whose slope is told."""
LEAST_DRIFT_DAYS = 7.0
"""Shortest time (days) whose slope is told: a day is no measure of a month."""
DRIFT_DAYS = 30.0
"""Days that a drift is told for."""

_CONFIDENCE = 0.95
# Fewer than 3 of 100 histories without a change then show one; bench/trend.py has the table.
_PENALTY = 6.0
_PENALTY_SESSIONS = 4
# A level of one session is an outlier, and no change of anything.
_LEAST_SESSIONS = 2
# A session so many times the noise away from both neighbours is one, and is drawn to them.
_OUTLIER = 5.0
# Below this noise (a share of one) sessions that repeat to the last digit would make any difference a change.
_LEAST_NOISE = 0.001
# Median absolute deviation to standard deviation of normal noise; a difference of two has sqrt(2) times the noise.
_MAD = 0.6745


@dataclass(frozen=True, kw_only=True)
class Level:
    """A stretch of sessions on one level. `first` and `last` count sessions from 0; `value` is their median."""

    first: int
    last: int
    value: float


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Relative change in 30 days (-0.012 for 1.2 % less) with its 95 % interval, over `days` and so many sessions."""

    change: float
    low: float
    high: float
    days: float
    sessions: int

    @property
    def shown(self) -> bool:
        """Whether the interval leaves out no drift at all."""
        return self.low > 0 or self.high < 0


def levels(days: Sequence[float], values: Sequence[float]) -> tuple[Level, ...]:
    """Split sessions into levels; one level when no change point is found, or a straight line fits as well.

    The noise of a session is taken from the differences of neighbours, which a step disturbs only once. A change point
    must be worth 6 ln(n) · n / (n - 4) of squared noise for n sessions.

    Args:
        days: Time of each session in days, growing.
        values: Median of each session, above zero.

    Raises:
        UserError: The library is not installed; says how to install it.
        ValueError: Fewer sessions than `LEAST_FOR_STEPS`.
    """
    count = len(values)
    if count < LEAST_FOR_STEPS:
        raise ValueError(f"{count} sessions: a change point is looked for from {LEAST_FOR_STEPS} on")
    try:
        import ruptures
    except ImportError as error:
        raise UserError(
            f"change points need the library ruptures ({error}): pip install 'pytest-moegpu[history]'"
        ) from error
    import numpy as np

    raw = np.log(np.asarray(values, dtype=float))
    noise = max(float(np.median(np.abs(np.diff(raw)))) / _MAD / math.sqrt(2), _LEAST_NOISE)
    logs = np.asarray(_without_spikes(raw.tolist(), noise))
    scaled = (logs / noise).reshape(-1, 1)
    penalty = _PENALTY * math.log(count) * count / (count - _PENALTY_SESSIONS)
    found = ruptures.Pelt(model="l2", min_size=_LEAST_SESSIONS, jump=1).fit(scaled).predict(pen=penalty)
    ends = [int(end) for end in found]
    begins = [0, *ends[:-1]]
    parts = [logs[first:end] for first, end in zip(begins, ends, strict=True)]
    stepped = sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
    if len(parts) > 1 and _line_fits(days, logs.tolist(), stepped):
        begins, ends = [0], [count]
    return tuple(
        Level(first=first, last=end - 1, value=math.exp(float(np.median(raw[first:end]))))
        for first, end in zip(begins, ends, strict=True)
    )


def drift(days: Sequence[float], values: Sequence[float]) -> Drift | None:
    """Return the slow drift of sessions on one level; None for too few of them, or within too short a time.

    Args:
        days: Time of each session in days, growing.
        values: Median of each session, above zero.
    """
    if len(values) < LEAST_FOR_DRIFT or days[-1] - days[0] < LEAST_DRIFT_DAYS:
        return None
    slope, _, low, high = _theil_sen(days, [math.log(value) for value in values])
    return Drift(
        change=math.expm1(DRIFT_DAYS * slope),
        low=math.expm1(DRIFT_DAYS * low),
        high=math.expm1(DRIFT_DAYS * high),
        days=days[-1] - days[0],
        sessions=len(values),
    )


def _without_spikes(logs: Sequence[float], noise: float) -> list[float]:
    """Replace single sessions far from their neighbours by the middle one of three; a step stays as it is."""
    middle = [sorted(logs[max(0, min(n - 1, len(logs) - 3)) :][:3])[1] for n in range(len(logs))]
    return [near if abs(log - near) > _OUTLIER * noise else log for log, near in zip(logs, middle, strict=True)]


def _theil_sen(days: Sequence[float], logs: Sequence[float]) -> tuple[float, float, float, float]:
    """Return slope and intercept (a day), and the interval of the slope."""
    from scipy.stats import theilslopes

    # Days since 1970 would cost digits.
    found = theilslopes(logs, [day - days[0] for day in days], alpha=_CONFIDENCE)
    return float(found[0]), float(found[1]), float(found[2]), float(found[3])


def _line_fits(days: Sequence[float], logs: Sequence[float], stepped: float) -> bool:
    """Tell whether a straight line leaves no more of the squares than the steps do: that is drift, cut into steps."""
    if days[-1] == days[0]:
        return False
    slope, intercept, _, _ = _theil_sen(days, logs)
    return sum((y - intercept - slope * (x - days[0])) ** 2 for x, y in zip(days, logs, strict=True)) <= stepped
