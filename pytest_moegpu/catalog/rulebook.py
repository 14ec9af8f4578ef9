"""All rules: the shipped ones and those of a user's own folders, which may replace or silence them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pytest_moegpu.catalog.ruleschema import Silence, rules_of
from pytest_moegpu.catalog.tables import parse_file
from pytest_moegpu.core.rules import Rule
from pytest_moegpu.errors import CatalogError, nearest

__all__ = ["Rulebook", "rule_files"]

_SHIPPED = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Rulebook:
    """Rules by id, silences, and what should be said about these."""

    rules: tuple[Rule, ...]
    silences: tuple[Silence, ...] = ()

    @classmethod
    def load(cls, extra: Sequence[Path] = ()) -> Rulebook:
        """Read the shipped folder, then the user's; a later rule takes the place of an earlier one of the same id.

        Raises:
            CatalogError: A damaged file, or a silence of a rule that is not there.
        """
        rules: dict[str, Rule] = {}
        silences: dict[str, Silence] = {}
        for file in rule_files(extra):
            found, quiet = rules_of(parse_file(file), file)
            rules.update({rule.id: rule for rule in found})
            for silence in quiet:
                if silence.id not in rules:
                    known = ", ".join(sorted(rules))
                    raise CatalogError(
                        f"{file}: silence: unknown rule {silence.id!r}{nearest(silence.id, rules)}; known: {known}"
                    )
                silences[silence.id] = silence
        return cls(rules=tuple(rules.values()), silences=tuple(silences.values()))

    def heard(self, today: date) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
        """Return the rules that are not silenced on a day, and what is to be said of the silences."""
        quiet = {silence.id for silence in self.silences if silence.until >= today}
        said = tuple(
            f"{silence.id} is silenced until {silence.until}: {silence.reason}"
            if silence.id in quiet
            else f"the silence of {silence.id} ended on {silence.until}: {silence.reason}"
            for silence in self.silences
        )
        return tuple(rule for rule in self.rules if rule.id not in quiet), said


def rule_files(extra: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield the files of rules, shipped ones first."""
    for folder in (_SHIPPED, *extra):
        yield from sorted((folder / "rules").glob("*.toml"))
