"""The file of expected failures: strict, so that a slip of the pen never lets one through."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path

from pytest_moegpu.catalog import values as v
from pytest_moegpu.catalog.tables import Key, Rows, Table, first_missing, read_table
from pytest_moegpu.checks import CHECKS
from pytest_moegpu.core.gatepage import Expected
from pytest_moegpu.core.verdict import METRICS
from pytest_moegpu.errors import CatalogError, UserError

__all__ = ["EXPECTED_FILE", "read_expected"]

EXPECTED_FILE = Path(".moegpu/expected.toml")
"""Where the file lies, from the current folder."""


def _day(value: object) -> date:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise UserError(f"{value!r} is not a day: write it without quotes, as 2027-01-31")
    return value


_TABLE: Table = {
    "schema": Key(v.version(1), required=True),
    "expected": Rows(
        {
            "scenario": Key(v.name, required=True),
            "check": Key(v.choice(*CHECKS, "baseline"), required=True),
            "metric": Key(v.choice(*METRICS)),
            "reason": Key(v.text, required=True),
            "link": Key(v.text, required=True),
            "expires": Key(_day, required=True),
        }
    ),
}


def read_expected(file: Path | None) -> tuple[Expected, ...]:
    """Read expected failures; without a file given, of `EXPECTED_FILE`, which need not be there.

    Raises:
        CatalogError: It is not there, not TOML, has an unknown key or value, or lacks one; or an entry stands twice.
    """
    if file is None and not EXPECTED_FILE.exists():
        return ()
    file = file or EXPECTED_FILE
    try:
        raw = tomllib.loads(file.read_bytes().decode())
    except (OSError, ValueError) as error:
        raise CatalogError(f"{file}: cannot be read as TOML: {error}") from error
    read = read_table(raw, _TABLE, file)
    if missing := first_missing(read, _TABLE):
        raise CatalogError(f"{file}: {missing}: this key is required")
    found = tuple(Expected(**row) for row in read.get("expected", ()))
    if twice := _twice([entry.what for entry in found]):
        raise CatalogError(f"{file}: expected: stands twice: {', '.join(twice)}")
    return found


def _twice(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})
