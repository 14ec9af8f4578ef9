"""How old a baseline is, and that an age that is not known is said."""

from __future__ import annotations

import pytest

from pytest_moegpu.core.age import DAY_SECONDS, moment, too_old

NOW = ("2026-11-30T10:00:00Z", "2026-11-30T11:00:00Z")
LIMIT = 180 * DAY_SECONDS


@pytest.mark.parametrize(
    ("recorded", "says"),
    [
        (("2026-11-29T10:00:00+00:00",), ""),
        (("2026-06-03T11:00:00+00:00",), ""),
        (("2026-06-03T10:59:59+00:00",), "the baseline is 180 days old, more than 180"),
        (("2026-01-01T11:00:00+02:00",), "the baseline is 333 days old, more than 180"),
        # The newest session counts, wherever it stands.
        (("2026-11-01T00:00:00", "2020-01-01T00:00:00"), ""),
        (("yesterday",), "how old the baseline is, is not known"),
        ((), "how old the baseline is, is not known"),
    ],
)
def test_the_newest_session_counts(recorded: tuple[str, ...], says: str) -> None:
    said = too_old(recorded, NOW, LIMIT)
    assert said.startswith(says) if says else said == ""


def test_a_run_without_a_time_has_no_age() -> None:
    assert too_old(("2026-11-29T10:00:00Z",), ("?",), LIMIT).startswith("how old the baseline is, is not known")


def test_a_time_without_a_zone_is_utc() -> None:
    assert moment("2026-11-30T10:00:00") == moment("2026-11-30T10:00:00Z") == moment("2026-11-30T12:00:00+02:00")
    assert moment("soon") is None
