"""How a table of a TOML file is described and read: which keys it has, and how each value is read."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_moegpu.catalog import values as v
from pytest_moegpu.errors import CatalogError, UserError, nearest

__all__ = ["HEAD", "Key", "Rows", "Sub", "Table", "first_missing", "parse_file", "read_table"]


@dataclass(frozen=True)
class Key:
    """One value. `to` is the field of the record where it has another name."""

    read: v.Reader
    required: bool = False
    to: str = ""


@dataclass(frozen=True)
class Sub:
    """A table. An optional one that is not there at all need not have its required keys."""

    table: Table
    optional: bool = True


@dataclass(frozen=True)
class Rows:
    """A list of tables, each complete in itself."""

    table: Table


Table = Mapping[str, Key | Sub | Rows]

HEAD: Table = {
    "schema": Key(v.version(1), required=True),
    "name": Key(v.name, required=True),
    "title": Key(v.text, required=True),
    "extends": Key(v.name),
}


def read_table(raw: Mapping[str, object], table: Table, file: Path, prefix: str = "") -> dict[str, Any]:
    """Read the keys that are there; which are missing is asked once a file is merged with what it extends.

    Raises:
        CatalogError: Unknown key, or a value that its key does not take.
    """
    read: dict[str, Any] = {}
    for word, value in raw.items():
        where = f"{file}: {prefix}{word}"
        match table.get(word):
            case Key() as key:
                try:
                    read[key.to or word] = key.read(value)
                except UserError as error:
                    raise CatalogError(f"{where}: {error}") from None
            case Sub(table=inner):
                if not isinstance(value, dict):
                    raise CatalogError(f"{where}: {value!r} is not a table: write [{prefix}{word}] and its keys below")
                read[word] = read_table(value, inner, file, f"{prefix}{word}.")
            case Rows(table=inner):
                read[word] = _read_rows(value, inner, file, prefix + word)
            case None:
                raise CatalogError(f"{where}: unknown key{nearest(word, table)}; allowed: {', '.join(table)}")
    return read


def _read_rows(value: object, table: Table, file: Path, where: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise CatalogError(f"{file}: {where}: {value!r} is not a list of tables: write [[{where}]] for each")
    rows = []
    for number, row in enumerate(value, 1):
        place = f"{where}[{number}]."
        rows.append(read_table(row, table, file, place))
        if missing := first_missing(rows[-1], table, place):
            raise CatalogError(f"{file}: {missing}: this key is required")
    return tuple(rows)


def first_missing(read: Mapping[str, Any], table: Table, prefix: str = "") -> str:
    """Return the path of the first required key that is not there, or an empty text."""
    for word, form in table.items():
        if isinstance(form, Key):
            if form.required and (form.to or word) not in read:
                return prefix + word
        elif (isinstance(form, Sub) and (not form.optional or word in read)) and (
            missing := first_missing(read.get(word, {}), form.table, f"{prefix}{word}.")
        ):
            return missing
    return ""


def parse_file(file: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        CatalogError: It cannot be read, or is not TOML; names the line.
    """
    try:
        written = file.read_bytes().decode()
        return tomllib.loads(written)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"at line (\d+)", str(error))
        line = place[1] if place else written.count("\n") + 1
        raise CatalogError(f"{file}: line {line}: not valid TOML: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogError(f"{file}: cannot be read as UTF-8 text: {error}") from None
