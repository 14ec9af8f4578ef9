"""The catalog: shipped and user's profiles, models and scenarios as records.

A damaged file is an error when it is asked for, itself or through a profile; text that is not TOML is one at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pytest_moegpu.catalog import modelschema, schema
from pytest_moegpu.catalog.rulebook import rule_files
from pytest_moegpu.catalog.ruleschema import rules_of
from pytest_moegpu.catalog.tables import first_missing, parse_file, read_table
from pytest_moegpu.core.model import Profile, Scenario
from pytest_moegpu.core.modelfacts import ModelFacts
from pytest_moegpu.errors import CatalogError, UserError, nearest

__all__ = ["Catalog", "check_files"]

_SHIPPED = Path(__file__).parent
_TABLES = {"profiles": schema.PROFILES, "models": modelschema.MODELS, "scenarios": schema.SCENARIOS}
_FOLDERS = ", ".join(f"{kind}/" for kind in (*_TABLES, "rules"))
_Record = TypeVar("_Record")


@dataclass(frozen=True)
class _Entry:
    """One file. `below` is the file of the same name in an earlier folder."""

    kind: str
    name: str
    file: Path
    layer: int
    below: _Entry | None


class Catalog:
    """Everything there is to choose from."""

    def __init__(self, entries: Sequence[_Entry]) -> None:
        self._entries = entries
        self._documents: dict[_Entry, dict[str, Any]] = {}

    @classmethod
    def load(cls, extra: Sequence[Path] = ()) -> Catalog:
        """Read the shipped folder, then the user's; each may hold profiles/, models/ and scenarios/.

        Raises:
            CatalogError: No such folder, a file that is not TOML, or a name taken twice.
        """
        entries = _scan(extra)
        catalog = cls(entries)
        for entry in entries:
            catalog._document(entry)
        return catalog

    def profile(self, name: str) -> Profile:
        """Return a profile whose model and scenarios exist and are sound.

        Raises:
            CatalogError: Unknown name, or a damaged file.
        """
        return self._profile(self._find("profiles", name))

    def scenario(self, name: str, profile: Profile | None = None) -> Scenario:
        """Return a scenario; a limit it does not set itself is the profile's.

        Raises:
            CatalogError: Unknown name, or a damaged file.
        """
        return self._scenario(self._find("scenarios", name), profile)

    def model(self, name: str) -> ModelFacts:
        """Return the facts of a model.

        Raises:
            CatalogError: Unknown name, or a damaged file.
        """
        return self._model(self._find("models", name))

    def profiles(self) -> tuple[Profile, ...]:
        """Return all profiles by name."""
        return tuple(self.profile(name) for name in self._names("profiles"))

    def scenarios(self) -> tuple[Scenario, ...]:
        """Return all scenarios by name, with their own limits only."""
        return tuple(self.scenario(name) for name in self._names("scenarios"))

    def models(self) -> tuple[ModelFacts, ...]:
        """Return all models by name."""
        return tuple(self.model(name) for name in self._names("models"))

    def match_model(self, architecture: str, layers: int, embedding: int, vocabulary: int) -> ModelFacts | None:
        """Return the model of a file by its numbers; a user's own goes before a shipped one."""
        names = sorted(self._names("models"), key=lambda name: -self._find("models", name).layer)
        wanted = (architecture, layers, embedding, vocabulary)
        for model in map(self.model, names):
            if (model.architecture, model.layers, model.embedding, model.vocabulary) == wanted:
                return model
        return None

    def _names(self, kind: str) -> list[str]:
        return sorted({entry.name for entry in self._entries if entry.kind == kind})

    def _find(self, kind: str, name: str) -> _Entry:
        found = [entry for entry in self._entries if (entry.kind, entry.name) == (kind, name)]
        if not found:
            raise CatalogError(self._unknown(kind, name))
        return found[-1]

    def _unknown(self, kind: str, name: str) -> str:
        known = self._names(kind)
        return f"unknown {kind[:-1]} {name!r}{nearest(name, known)}; known: {', '.join(known)}"

    def _refer(self, entry: _Entry, key: str, kind: str, name: str) -> None:
        if name not in self._names(kind):
            raise CatalogError(f"{entry.file}: {key}: {self._unknown(kind, name)}")

    def _profile(self, entry: _Entry) -> Profile:
        profile = self._record(entry, schema.profile_of)
        self._refer(entry, "model", "models", profile.model)
        self.model(profile.model)
        for number, scenario in enumerate(profile.scenarios, 1):
            self._refer(entry, f"scenarios[{number}]", "scenarios", scenario)
            self.scenario(scenario, profile)
        return profile

    def _scenario(self, entry: _Entry, profile: Profile | None = None) -> Scenario:
        scenario = self._record(entry, schema.scenario_of, {"limits": profile.limits} if profile else {})
        if scenario.model is not None:
            self._refer(entry, "model", "models", scenario.model)
            self.model(scenario.model)
        return scenario

    def _model(self, entry: _Entry) -> ModelFacts:
        return self._record(entry, modelschema.model_of)

    def _document(self, entry: _Entry) -> dict[str, Any]:
        if entry not in self._documents:
            document = parse_file(entry.file)
            if entry.below and "extends" not in document:
                raise CatalogError(
                    f"{entry.file}: {entry.name!r} is already the name of {entry.below.file}: take another name, "
                    f'or write extends = "{entry.name}" to change that one'
                )
            self._documents[entry] = document
        return self._documents[entry]

    def _record(
        self, entry: _Entry, make: Callable[[Mapping[str, Any]], _Record], under: Mapping[str, Any] | None = None
    ) -> _Record:
        read = _merged(under or {}, self._values(entry, ()))
        if missing := first_missing(read, _TABLES[entry.kind]):
            raise CatalogError(f"{entry.file}: {missing}: this key is required")
        try:
            return make(read)
        except UserError as error:
            raise CatalogError(f"{entry.file}: {error}") from None

    def _values(self, entry: _Entry, extending: tuple[_Entry, ...]) -> dict[str, Any]:
        """Return a file's values over those of the file that it extends."""
        if entry in extending:
            circle = " → ".join(one.name for one in (*extending, entry))
            raise CatalogError(f"{entry.file}: extends: goes round in a circle: {circle}")
        own = read_table(self._document(entry), _TABLES[entry.kind], entry.file)
        for key in ("schema", "name"):
            if key not in own:
                raise CatalogError(f"{entry.file}: {key}: this key is required")
        if own["name"] != entry.name:
            raise CatalogError(f"{entry.file}: name: {own['name']!r} is not the file's name {entry.name!r}")
        base = own.get("extends")
        if base is None:
            return own
        self._refer(entry, "extends", entry.kind, base)
        upper = entry.below if base == entry.name else self._find(entry.kind, base)
        if upper is None:
            raise CatalogError(f"{entry.file}: extends: {base!r} is this file itself")
        return _merged(self._values(upper, (*extending, entry)), own)


def check_files(extra: Sequence[Path] = ()) -> Iterator[tuple[Path, CatalogError | None]]:
    """Check every file of the shipped and the user's folders, going on after a damaged one.

    Raises:
        CatalogError: No such folder.
    """
    entries = _scan(extra)
    catalog = Catalog(entries)
    for file in rule_files(extra):
        try:
            rules_of(parse_file(file), file)
        except CatalogError as error:
            yield file, error
        else:
            yield file, None
    check = {"profiles": catalog._profile, "models": catalog._model, "scenarios": catalog._scenario}
    for entry in entries:
        try:
            check[entry.kind](entry)
        except CatalogError as error:
            yield entry.file, error
        else:
            yield entry.file, None


def _scan(extra: Sequence[Path]) -> tuple[_Entry, ...]:
    entries: dict[tuple[str, str], _Entry] = {}
    found = []
    for layer, folder in enumerate((_SHIPPED, *extra)):
        if not folder.is_dir():
            raise CatalogError(f"{folder}: no such folder; it may hold {_FOLDERS}")
        for file in sorted(folder.glob("*.toml")):
            raise CatalogError(f"{file}: put it in one of the folders {_FOLDERS} here")
        for kind in _TABLES:
            for file in sorted((folder / kind).glob("*.toml")):
                entry = _Entry(kind, file.stem, file, layer, entries.get((kind, file.stem)))
                entries[kind, file.stem] = entry
                found.append(entry)
    return tuple(found)


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return both tables in one; `over` wins, tables inside are merged likewise, lists are replaced."""
    both = {**under, **over}
    for key in under.keys() & over.keys():
        if isinstance(under[key], Mapping) and isinstance(over[key], Mapping):
            both[key] = _merged(under[key], over[key])
    return both
