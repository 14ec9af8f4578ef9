"""How far two sessions of one machine differ though nothing changed: a prediction interval for a run that comes later.

Model, in logs: start = level + session + start noise. A run that is compared with stored sessions differs from them by
its own session's share as well, and no number of starts inside it makes that smaller.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_moegpu.core.stats import center, checked

__all__ = ["PRIOR_FREEDOM", "SessionDifference", "SessionSpread", "session_difference", "session_spread"]

PRIOR_FREEDOM = 8
"""How many differences between sessions the assumed spread is worth; see docs/reference/judging.md for what it does."""

# Variance of the Hodges-Lehmann location against that of the mean, for normal noise.
_LOCATION = math.pi / 3
_LEAST_LEVEL = 1e-12


@dataclass(frozen=True, kw_only=True)
class SessionSpread:
    """Standard deviation of sessions in logs (a share of one, in effect the CV), with its degrees of freedom.

    `measured` is the plain estimate of the stored sessions alone, None where there are not two.
    """

    cv: float
    freedom: int
    measured: float | None


@dataclass(frozen=True, kw_only=True)
class SessionDifference:
    """Log of the ratio new session / stored sessions, with the two parts of its standard error.

    `own` is the part of `within` that more starts of the new session can take away.
    """

    log_ratio: float
    between: float
    within: float
    own: float
    between_freedom: int
    within_freedom: int

    def half_width(self, level: float, share: float = 1.0) -> float:
        """Return half of the interval that leaves `level` outside at each end, in log units.

        Each part has its Student quantile, and the two are added in quadrature (Zou and Donner 2008, MOVER).
        Looks pay with `share` for the start noise only: what the session adds is drawn once, however often one looks.
        """
        between, within = _student(level, self.between_freedom), _student(level * share, self.within_freedom)
        return math.hypot(between * self.between, within * self.within)

    def tail(self, share: float = 1.0) -> float:
        """Return the one-sided p-value of a difference in the direction seen: the level whose interval ends at 0."""
        if self.half_width(0.5, share) >= abs(self.log_ratio):
            return 0.5
        low, high = math.log(_LEAST_LEVEL), math.log(0.5)
        for _ in range(40):
            middle = (low + high) / 2
            if self.half_width(math.exp(middle), share) > abs(self.log_ratio):
                low = middle
            else:
                high = middle
        return math.exp(high)

    def smallest(self, level: float, power: float, share: float = 1.0) -> float:
        """Return the smallest difference in log units that is found at `level` with this power."""
        miss = 1 - power
        between = (_student(level, self.between_freedom) + _student(miss, self.between_freedom)) * self.between
        within = (_student(level * share, self.within_freedom) + _student(miss, self.within_freedom)) * self.within
        return math.hypot(between, within)

    def out_of_reach(self, level: float) -> float:
        """Return half of the interval that would be left if the new session had any number of starts."""
        stored = math.sqrt(max(self.within**2 - self.own**2, 0.0))
        between, within = _student(level, self.between_freedom), _student(level, self.within_freedom)
        return math.hypot(between * self.between, within * stored)


def session_spread(
    groups: Sequence[Sequence[Sequence[float]]], prior_cv: float, distinct: int | None = None
) -> SessionSpread:
    """Estimate the spread between sessions: what the stored ones show, drawn towards `prior_cv`.

    variance = (PRIOR_FREEDOM * prior² + sum of squares of session centers - what start noise adds) /
    (PRIOR_FREEDOM + differences): the scaled inverse chi-square prior (Gelman et al., Bayesian Data Analysis, section
    2.6). Start noise is taken from the starts within sessions; a negative remainder counts as 0.

    Args:
        groups: For each scenario its sessions, for each session one value a start.
        prior_cv: Spread to assume where nothing is known, a share of one, above 0.
        distinct: Number of different sessions in all groups. Scenarios measured in one session share what it adds, so
            they sharpen the estimate and add no degrees of freedom. None: the groups have no session in common.

    Raises:
        ValueError: Values are bad, or `prior_cv` is not above 0.
    """
    if not (math.isfinite(prior_cv) and prior_cv > 0):
        raise ValueError(f"prior_cv must be above 0, not {prior_cv:g}")
    differences = sum(max(len(sessions) - 1, 0) for sessions in groups)
    freedom = differences if distinct is None else min(differences, max(distinct - 1, 0))
    squares = 0.0
    for sessions in groups:
        if len(sessions) > 1:
            centers = [center(starts) for starts in sessions]
            noise, _ = _start_variance(sessions)
            added = statistics.fmean(_LOCATION * noise / len(starts) for starts in sessions)
            squares += (len(sessions) - 1) * (statistics.variance(centers) - added)
    variance = max(squares, 0.0) / differences if differences else None
    pooled = PRIOR_FREEDOM * prior_cv**2 + freedom * (variance or 0.0)
    return SessionSpread(
        cv=math.sqrt(pooled / (PRIOR_FREEDOM + freedom)),
        freedom=PRIOR_FREEDOM + freedom,
        measured=None if variance is None else math.sqrt(variance),
    )


def session_difference(
    now: Sequence[float], sessions: Sequence[Sequence[float]], spread: SessionSpread, planned: int | None = None
) -> SessionDifference:
    """Compare the starts of one new session with stored sessions.

    Standard error: spread² (1 + 1/H) + start noise pi/3 (1/n + mean of 1/n_j over sessions / H).

    Args:
        now: One value a start. With `planned` only a stand-in: the stored values.
        sessions: For each of the H stored sessions one value a start.
        spread: Between sessions.
        planned: Number of starts of a run that was not made yet; the noise is then that of the stored sessions.

    Raises:
        ValueError: Values are bad, or no side has two starts in a session: the start noise is not known.
    """
    checked(now, "values now")
    held = len(sessions)
    noise, freedom = _start_variance(sessions if planned is not None else (now, *sessions))
    if freedom == 0:
        raise ValueError("no session holds two starts: the spread between starts is not known")
    own = _LOCATION * noise / (planned or len(now))
    stored = _LOCATION * noise * statistics.fmean(1 / len(starts) for starts in sessions) / held
    return SessionDifference(
        log_ratio=center(now) - statistics.fmean(map(center, sessions)),
        between=spread.cv * math.sqrt(1 + 1 / held),
        within=math.sqrt(own + stored),
        own=math.sqrt(own),
        between_freedom=spread.freedom,
        within_freedom=freedom,
    )


def _student(tail: float, freedom: int) -> float:
    """Return the Student quantile that leaves `tail` above it."""
    from scipy.special import stdtrit

    return -float(stdtrit(freedom, tail))


def _start_variance(sessions: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the variance of log values within sessions, pooled, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for starts in sessions:
        if len(starts) > 1:
            squares += (len(starts) - 1) * statistics.variance(map(math.log, checked(starts)))
            freedom += len(starts) - 1
    return (squares / freedom if freedom else 0.0), freedom
