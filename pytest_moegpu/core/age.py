"""How old a baseline is: drivers, clocks, fans and dust change a machine while nobody measures it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

__all__ = ["AGE", "DAY_SECONDS", "moment", "too_old"]

AGE = "age"
"""Label of the line of a verdict that says so."""
DAY_SECONDS = 86_400.0


def moment(text: str) -> datetime | None:
    """Read a time as records hold it (ISO 8601; without a zone it is UTC); None when it is none."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def too_old(recorded: Iterable[str], now: Iterable[str], limit_seconds: float) -> str:
    """Say so when the newest session of a baseline is older than the limit; empty when not.

    Args:
        recorded: When each session of the baseline was recorded, ISO 8601.
        now: When each start of the run that is judged began, ISO 8601.
        limit_seconds: The age up to which nothing is said.

    Returns:
        One sentence with both figures in days. One without the figures where no time can be read: an age that is not
        known is not taken for a small one.
    """
    sessions = [when for text in recorded if (when := moment(text)) is not None]
    starts = [when for text in now if (when := moment(text)) is not None]
    if not sessions or not starts:
        return "how old the baseline is, is not known: a time in it or in this run cannot be read"
    age = (max(starts) - max(sessions)).total_seconds()
    if age <= limit_seconds:
        return ""
    days, limit = age / DAY_SECONDS, limit_seconds / DAY_SECONDS
    return f"the baseline is {days:.0f} days old, more than {limit:g}: record it again on the stack it stands for"
