"""Records of an older schema → records of this version, by a chain of pure functions, one for each step.

A step takes what `json.loads` gave for schema N and returns that of N + 1. It never looks at the clock or at other
files, so that an old file read today and in a year gives the same record.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_moegpu.core.baseline import BASELINE_SCHEMA
from pytest_moegpu.core.record import RUN_SCHEMA
from pytest_moegpu.errors import RecordError

__all__ = ["BASELINES", "RUNS", "Chain", "Migrated", "Step"]

Step = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Migrated:
    """A record as this version writes it, and the schema that its file has."""

    raw: dict[str, Any]
    schema: int


@dataclass(frozen=True, kw_only=True)
class Chain:
    """The steps of one kind of record. `steps` maps a schema to the function that leads from it to the next."""

    what: str
    current: int
    steps: Mapping[int, Step] = field(default_factory=dict)

    def migrate(self, raw: Any) -> Migrated:
        """Bring a record to the current schema; what was given is not changed.

        Raises:
            RecordError: It has no schema, one that is newer, one from which no steps lead here, or lacks what a step
                needs; says what to do.
        """
        found = raw.get("schema") if isinstance(raw, dict) else None
        head = f"{self.what} of schema {found!r}; this version reads schema {self._readable}"
        # True is an int in Python, and no schema.
        if not isinstance(found, int) or isinstance(found, bool):
            raise RecordError(f"{head}: not a {self.what} that pytest-moegpu wrote, or a damaged one")
        if found > self.current:
            raise RecordError(
                f"{head}{_writer(raw)}: update pytest-moegpu to the version that wrote it, or make the {self.what} "
                "again with this one"
            )
        if found < self.current and not all(schema in self.steps for schema in range(found, self.current)):
            raise RecordError(f"{head}: there is no way from {found}; make the {self.what} again with this version")
        now: dict[str, Any] = raw if found == self.current else copy.deepcopy(raw)
        for schema in range(found, self.current):
            try:
                now = self.steps[schema](now) | {"schema": schema + 1}
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                raise RecordError(
                    f"damaged {self.what} of schema {found}: step {schema} → {schema + 1} failed on "
                    f"{type(error).__name__}: {error}"
                ) from error
        return Migrated(raw=now, schema=found)

    @property
    def _readable(self) -> str:
        oldest = self.current
        while oldest - 1 in self.steps:
            oldest -= 1
        return str(self.current) if oldest == self.current else f"{oldest} to {self.current}"


def _writer(raw: dict[str, Any]) -> str:
    version = raw.get("moegpu_version")
    return f", and version {version} wrote it" if isinstance(version, str) and version else ""


# The first schema of both is still the current one, so there is no step yet.
RUNS = Chain(what="run", current=RUN_SCHEMA)
BASELINES = Chain(what="baseline", current=BASELINE_SCHEMA)
