"""Histories of metrics as plain text with a chart, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_moegpu.core.history import Apart, History, Mark
from pytest_moegpu.core.identity import in_words
from pytest_moegpu.core.trend import DRIFT_DAYS, Drift
from pytest_moegpu.core.units import format_percent, format_value
from pytest_moegpu.core.verdict import Better

__all__ = ["as_json", "as_text", "chart"]

_ROWS = 8
_LEAST_COLUMNS = 20
_POINT, _AXIS, _MOVED, _SHIFT = "*", "-", "|", "^"


def as_text(history: History, width: int) -> str:
    """Print one history: head, chart, then a line for each thing that happened.

    Args:
        history: What to print.
        width: Columns of the terminal; the chart keeps to it, sentences may be longer.
    """
    key, sessions = history.key, history.sessions
    count = f"{len(sessions)} session{'' if len(sessions) == 1 else 's'}"
    span = sessions[0].date if len(sessions) == 1 else f"{sessions[0].date} … {sessions[-1].date}"
    lines = [
        f"{key.kind.title} ({key.kind.better} is better)  {key.profile}/{key.scenario}/{key.backend}  {count}, {span}"
    ]
    if len(sessions) > 1:
        lines += ["", *chart(history, width), ""]
    lines += [f"  {label:<8}  {text}" for label, text in _events(history)]
    return "\n".join(lines)


def chart(history: History, width: int) -> list[str]:
    """Draw the medians over time: `*` a session, a column of `|` where the stack moved, `^` a change point."""
    values, unit = history.medians, history.key.kind.unit
    low, high = min(values), max(values)
    labels = [format_value(high - (high - low) * row / (_ROWS - 1), unit) for row in range(_ROWS)]
    margin = max(map(len, labels)) + 3
    columns = max(width - margin - 1, _LEAST_COLUMNS)
    places = _places(history, columns)
    grid = [[" "] * columns for _ in range(_ROWS)]
    for mark in history.marks:
        for row in grid:
            row[places[mark.index]] = _MOVED
    for value, place in zip(values, places, strict=True):
        row_of = 0 if high == low else round((high - value) / (high - low) * (_ROWS - 1))
        grid[row_of][place] = _POINT
    told = labels if high > low else [labels[0], *[""] * (_ROWS - 1)]
    drawn = [f"{label:>{margin - 2}} {_MOVED}{''.join(row)}".rstrip() for label, row in zip(told, grid, strict=True)]
    foot = [_AXIS] * columns
    for shift in history.shifts:
        foot[places[shift.index]] = _SHIFT
    first, last = history.sessions[0].date, history.sessions[-1].date
    dates = first if first == last else f"{first}{last:>{max(columns - len(first), len(last) + 1)}}"
    return [*drawn, " " * (margin - 1) + "+" + "".join(foot), " " * margin + dates]


def as_json(histories: Sequence[History], left_out: Sequence[str]) -> dict[str, Any]:
    """Return everything that `as_text` prints, and every value of every start, for other programs.

    Values are in the unit that stands beside them, changes are shares of one.
    """
    return {"schema": 1, "histories": [_history(each) for each in histories], "left_out": list(left_out)}


def _places(history: History, columns: int) -> list[int]:
    """Return the column of each session: by time, or by order where there was no time between them."""
    times = [session.when.timestamp() for session in history.sessions if session.when is not None]
    span = times[-1] - times[0]
    steps = (
        [(time - times[0]) / span for time in times]
        if span > 0
        else [n / max(len(times) - 1, 1) for n, _ in enumerate(times)]
    )
    return [round(step * (columns - 1)) for step in steps]


def _events(history: History) -> list[tuple[str, str]]:
    unit = history.key.kind.unit
    found = [("changed", f"{mark.date}  {_moved(mark)}") for mark in history.marks]
    found += [
        (
            "step",
            f"{shift.date}  {format_value(shift.before_value, unit)} → {format_value(shift.after_value, unit)} "
            f"({format_percent(shift.change)}{_word(history, shift.change)}) after {shift.after}: {shift.cause}",
        )
        for shift in history.shifts
    ]
    if history.drift is not None:
        found.append(("drift", _drift(history, history.drift)))
    found.append(("latest", f"{format_value(history.medians[-1], unit)} of run {history.sessions[-1].run}"))
    found += [("apart", _apart(each)) for each in history.apart]
    found += [("note", note) for note in history.notes]
    return found


def _moved(mark: Mark) -> str:
    return in_words(mark.changes)


def _word(history: History, change: float) -> str:
    """Return `, worse` or `, better`, by the direction of the metric."""
    worse = (change < 0) == (history.key.kind.better is Better.HIGHER)
    return ", worse" if worse else ", better"


def _drift(history: History, drift: Drift) -> str:
    since = f" since {history.sessions[history.level_from].date}"
    shown = _word(history, drift.change).removeprefix(", ") if drift.shown else "none shown"
    low, high = (f"{bound * 100:+.1f}" for bound in (drift.low, drift.high))
    return (
        f"{format_percent(drift.change)} in {DRIFT_DAYS:g} days (95 % interval {low} … {high}): {shown}; "
        f"{drift.sessions} sessions in {drift.days:.0f} days{since}"
    )


def _apart(apart: Apart) -> str:
    count = f"{len(apart.sessions)} session{'' if len(apart.sessions) == 1 else 's'}"
    runs = ", ".join(session.run for session in apart.sessions[:3]) + (", …" if len(apart.sessions) > 3 else "")
    return f"{count} ({runs}) not of the same identity: {in_words(apart.differing)}"


def _history(history: History) -> dict[str, Any]:
    key = history.key
    return {
        "profile": key.profile,
        "scenario": key.scenario,
        "backend": key.backend,
        "metric": key.metric,
        "unit": key.kind.unit,
        "better": key.kind.better.value,
        "sessions": [
            {
                "run": session.run,
                "recorded_at": session.recorded_at,
                "median": median,
                "values": list(session.values),
                "source": session.source,
            }
            for session, median in zip(history.sessions, history.medians, strict=True)
        ],
        "changes": [
            {
                "session": mark.index,
                "date": mark.date,
                "fields": [{"field": c.field, "from": c.base, "to": c.now} for c in mark.changes],
            }
            for mark in history.marks
        ],
        "change_points": [
            {
                "session": shift.index,
                "date": shift.date,
                "after": shift.after,
                "from": shift.before_value,
                "to": shift.after_value,
                "change": shift.change,
                "cause": shift.cause,
            }
            for shift in history.shifts
        ],
        "drift": None
        if history.drift is None
        else {
            "days": DRIFT_DAYS,
            "change": history.drift.change,
            "interval": [history.drift.low, history.drift.high],
            "shown": history.drift.shown,
            "sessions": history.drift.sessions,
            "since": history.sessions[history.level_from].recorded_at,
        },
        "apart": [
            {
                "runs": [session.run for session in each.sessions],
                "fields": [{"field": d.field, "from": d.base, "to": d.now} for d in each.differing],
            }
            for each in history.apart
        ],
        "notes": list(history.notes),
    }
