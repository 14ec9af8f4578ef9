"""What is wrong with a command line, and the line that does what was meant. Pure text from frozen records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pytest_moegpu.core.launchflags import Fault

__all__ = ["LaunchReport", "Problem", "as_json", "as_text"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong with a command line.

    Args:
        fault: What kind of thing.
        word: Which word of the command it is, from 1.
        at: Which character of the whole text it begins at, from 0.
        written: The flag with its value as written.
        reason: Why that is wrong, and what does the same.
        instead: Words that do what was meant; empty where there are none.
        left_out: Why nothing stands in its place; empty where something does.
    """

    fault: Fault
    word: int
    at: int
    written: str
    reason: str
    instead: tuple[str, ...] = ()
    left_out: str = ""


@dataclass(frozen=True, kw_only=True)
class LaunchReport:
    """The result of looking at one command line.

    Args:
        backend: Name of the backend.
        against: The program and the version whose flags it was held against.
        flags: How many flags that program has.
        problems: What is wrong, in the order of the line.
        notes: What to know besides.
        line: The line that does what was meant, ready to paste; the given one where nothing is wrong.
        comments: What could not be carried over or was replaced by something else, and why.
    """

    backend: str
    against: str
    flags: int
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    line: str
    comments: tuple[str, ...]


def as_text(report: LaunchReport) -> str:
    """Write a report for a person: what is wrong, then the line to paste."""
    lines = [f"backend  {report.backend}", f"checked  against {report.against}, {report.flags} flags"]
    lines += [f"note     {note}" for note in report.notes]
    if not report.problems:
        return "\n".join([*lines, "result   nothing wrong"])
    many = len(report.problems)
    lines += [f"result   {many} thing{'s' if many > 1 else ''} wrong", ""]
    lines += _aligned([(f"word {each.word}", each.written, each.reason) for each in report.problems])
    lines += ["", "what was meant, ready to paste:", ""]
    return "\n".join([*lines, *(f"# {comment}" for comment in report.comments), report.line])


def as_json(report: LaunchReport) -> dict[str, Any]:
    """Return a report as plain objects for a JSON writer, with `ok` in front."""
    return {"ok": not report.problems, **asdict(report)}


_MOST_WIDE = 34


def _aligned(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    """Set rows in columns; what is too wide for its column has a line of its own."""
    first = max(len(row[0]) for row in rows)
    second = max((len(row[1]) for row in rows if len(row[1]) <= _MOST_WIDE), default=0)
    lines: list[str] = []
    for word, written, reason in rows:
        if len(written) <= second:
            lines.append(f"{word:<{first}}  {written:<{second}}  {reason}")
        else:
            lines += [f"{word:<{first}}  {written}", f"{'':<{first}}  {'':<{second}}  {reason}"]
    return lines
