"""Sessions of one metric in the order they were made: what changed between them, on which level they were, and drift.

Only like with like: sessions whose must-match fields are those of the newest one. All others stand apart, with what
differs. A history is to be looked at; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from pytest_moegpu.core.age import DAY_SECONDS, moment
from pytest_moegpu.core.attribution import cause
from pytest_moegpu.core.identity import NOT_KNOWN, Difference, differences, stack_changes
from pytest_moegpu.core.model import Stack
from pytest_moegpu.core.trend import LEAST_DRIFT_DAYS, LEAST_FOR_DRIFT, LEAST_FOR_STEPS, Drift, drift, levels
from pytest_moegpu.core.verdict import METRICS, Metric, MetricKind
from pytest_moegpu.errors import UserError

__all__ = ["Apart", "History", "Key", "Mark", "Session", "Shift", "history"]

_MACHINE = ("gpu.uuid", "host")


@dataclass(frozen=True, order=True, kw_only=True)
class Key:
    """What a history is of."""

    profile: str
    scenario: str
    backend: str
    metric: str

    @property
    def kind(self) -> MetricKind:
        """Unit and direction."""
        return METRICS[self.metric]


@dataclass(frozen=True, kw_only=True)
class Session:
    """One run of one scenario with the values of one metric, one a start. `source` is where it is kept."""

    run: str
    recorded_at: str
    values: tuple[float, ...]
    identity: dict[str, str]
    stack: Stack
    noted: dict[str, str] = field(default_factory=dict)
    source: str = ""

    @property
    def when(self) -> datetime | None:
        """When it was recorded; None when that cannot be read."""
        return moment(self.recorded_at)

    @property
    def date(self) -> str:
        """Day of recording, ISO 8601."""
        return self.recorded_at[:10]


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What moved between session `index - 1` and session `index`: the stack, and the machine."""

    index: int
    date: str
    changes: tuple[Difference, ...]


@dataclass(frozen=True, kw_only=True)
class Shift:
    """A change point: from session `index` on the level is another. `cause` says what moved right there."""

    index: int
    date: str
    after: str
    before_value: float
    after_value: float
    cause: str

    @property
    def change(self) -> float:
        """Relative change of the level."""
        return self.after_value / self.before_value - 1


@dataclass(frozen=True, kw_only=True)
class Apart:
    """Sessions of another identity, which are not drawn into the trend, and what differs from the newest session."""

    sessions: tuple[Session, ...]
    differing: tuple[Difference, ...]


@dataclass(frozen=True, kw_only=True)
class History:
    """The trend of one metric. `notes` say what was not looked for, and why."""

    key: Key
    sessions: tuple[Session, ...]
    medians: tuple[float, ...]
    marks: tuple[Mark, ...] = ()
    shifts: tuple[Shift, ...] = ()
    drift: Drift | None = None
    apart: tuple[Apart, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def level_from(self) -> int:
        """The first session on the level of now."""
        return self.shifts[-1].index if self.shifts else 0


def history(key: Key, sessions: Sequence[Session]) -> History:
    """Put the sessions of one metric in order and describe them.

    Args:
        key: What they are of.
        sessions: In any order; a run that is given twice counts once, the first time. All values above zero.

    Raises:
        ValueError: There is no session with a time that can be read.
    """
    once = {session.run: session for session in reversed(sessions)}
    timed = [(session.when, session) for session in once.values()]
    ordered = [
        s for _, s in sorted(((w, s) for w, s in timed if w is not None), key=lambda pair: (pair[0], pair[1].run))
    ]
    if not ordered:
        raise ValueError(f"no session of {key.metric} has a time that can be read")
    notes = [f"{s.run}: left out, its time {s.recorded_at!r} cannot be read" for w, s in timed if w is None]
    newest = ordered[-1].identity
    alike = tuple(s for s in ordered if s.identity == newest)
    days = [s.when.timestamp() / DAY_SECONDS for s in alike if s.when is not None]
    medians = tuple(Metric(name=key.metric, values=s.values).median for s in alike)
    marks = tuple(mark for number in range(1, len(alike)) if (mark := _mark(alike, number)) is not None)
    shifts, told = _shifts(alike, days, medians)
    first = shifts[-1].index if shifts else 0
    slope = drift(days[first:], medians[first:])
    if slope is None:
        notes.append(_no_drift(days[first:], since=alike[first].date if shifts else ""))
    return History(
        key=key,
        sessions=alike,
        medians=medians,
        marks=marks,
        shifts=shifts,
        drift=slope,
        apart=_apart(ordered, newest),
        notes=(*notes, *told),
    )


def _shifts(
    sessions: Sequence[Session], days: Sequence[float], medians: Sequence[float]
) -> tuple[tuple[Shift, ...], tuple[str, ...]]:
    if len(sessions) < LEAST_FOR_STEPS:
        return (), (f"change points: too few sessions: {len(sessions)} of {LEAST_FOR_STEPS}",)
    try:
        found = levels(days, medians)
    except UserError as error:
        return (), (f"change points: not looked for: {error}",)
    shifts = tuple(
        Shift(
            index=now.first,
            date=sessions[now.first].date,
            after=sessions[before.last].date,
            before_value=before.value,
            after_value=now.value,
            cause=_cause(sessions[before.last], sessions[now.first]),
        )
        for before, now in pairwise(found)
    )
    return shifts, ()


def _cause(before: Session, now: Session) -> str:
    moved = cause(stack_changes(before.stack, now.stack))
    machine = _machine(before, now)
    return f"{moved}; another machine as well: {', '.join(map(str, machine))}" if machine else moved


def _mark(sessions: Sequence[Session], index: int) -> Mark | None:
    before, now = sessions[index - 1], sessions[index]
    changes = (*stack_changes(before.stack, now.stack), *_machine(before, now))
    return Mark(index=index, date=now.date, changes=changes) if changes else None


def _machine(before: Session, now: Session) -> tuple[Difference, ...]:
    """Return in what the machine differs, where both sides know it."""
    sides = [{key: session.noted.get(key, NOT_KNOWN) for key in _MACHINE} for session in (before, now)]
    return tuple(d for d in differences(*sides) if NOT_KNOWN not in (d.base, d.now))


def _apart(ordered: Sequence[Session], newest: dict[str, str]) -> tuple[Apart, ...]:
    groups: dict[tuple[Difference, ...], list[Session]] = {}
    for session in ordered:
        if differing := differences(session.identity, newest):
            groups.setdefault(differing, []).append(session)
    return tuple(Apart(sessions=tuple(found), differing=differing) for differing, found in groups.items())


def _no_drift(days: Sequence[float], since: str) -> str:
    level = f" on the level since {since}" if since else ""
    if len(days) < LEAST_FOR_DRIFT:
        return f"drift: too few sessions{level}: {len(days)} of {LEAST_FOR_DRIFT}"
    return f"drift: too short a time{level}: {days[-1] - days[0]:.1f} of {LEAST_DRIFT_DAYS:g} days"
