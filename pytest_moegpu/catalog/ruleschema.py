"""Which keys a file of rules has, and how the values become rules and silences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pytest_moegpu.catalog import values as v
from pytest_moegpu.catalog.tables import Key, Rows, Table, first_missing, read_table
from pytest_moegpu.core.rules import FACTS, Condition, Confidence, Fact, Operator, Rule, Severity, is_fact
from pytest_moegpu.core.ruleversions import is_range
from pytest_moegpu.core.verdict import FailedClass
from pytest_moegpu.errors import CatalogError, UserError, nearest

__all__ = ["RULES", "Silence", "rules_of"]

_ADDRESS = re.compile(r"https://\S+")


@dataclass(frozen=True, kw_only=True)
class Silence:
    """A rule that a person does not want to hear of, why, and until when."""

    id: str
    reason: str
    until: date


def _raw(value: object) -> object:
    """Keep a value as it is: conditions are read once their fact is known."""
    return value


def _day(value: object) -> date:
    if isinstance(value, date):
        return value
    try:
        return date.fromisoformat(v.text(value))
    except ValueError:
        raise UserError(f"{value!r} is not a day: write it as 2026-11-30") from None


RULES: Table = {
    "schema": Key(v.version(1), required=True),
    "name": Key(v.name, required=True),
    "title": Key(v.text, required=True),
    "rule": Rows(
        {
            "id": Key(v.name, required=True),
            "title": Key(v.text, required=True),
            "when": Key(_raw, required=True),
            "what": Key(v.text, required=True),
            "do": Key(v.text, required=True),
            "severity": Key(v.choice(*(each.value for each in Severity)), required=True),
            "confidence": Key(v.choice(*(each.value for each in Confidence)), required=True),
            "affects": Key(v.choice(*(each.value for each in FailedClass)), required=True),
            "sources": Key(v.listed(v.text, least=1), required=True),
            "date": Key(_day, required=True),
        }
    ),
    "silence": Rows(
        {
            "id": Key(v.name, required=True),
            "reason": Key(v.text, required=True),
            "until": Key(_day, required=True),
        }
    ),
}


def rules_of(raw: Mapping[str, object], file: Path) -> tuple[tuple[Rule, ...], tuple[Silence, ...]]:
    """Read the rules and silences of a file.

    Raises:
        CatalogError: Unknown key or fact, a condition of a wrong form, or an id that stands twice.
    """
    read = read_table(raw, RULES, file)
    if missing := first_missing(read, RULES):
        raise CatalogError(f"{file}: {missing}: this key is required")
    if read["name"] != file.stem:
        raise CatalogError(f"{file}: name: {read['name']!r} is not the file's name {file.stem!r}")
    rules = tuple(_rule(row, file) for row in read.get("rule", ()))
    ids = [rule.id for rule in rules]
    if twice := next((each for each in ids if ids.count(each) > 1), None):
        raise CatalogError(f"{file}: rule {twice}: this id stands twice")
    return rules, tuple(Silence(**row) for row in read.get("silence", ()))


def _rule(row: Mapping[str, Any], file: Path) -> Rule:
    where = f"{file}: rule {row['id']}"
    if bad := next((each for each in row["sources"] if not _ADDRESS.fullmatch(each)), None):
        raise CatalogError(f"{where}: sources: {bad!r} is not an address: write it as https://…")
    conditions = row["when"]
    if not isinstance(conditions, Sequence) or isinstance(conditions, str) or not conditions:
        raise CatalogError(f'{where}: when: write a list of conditions, such as [{{ fact = "os.class", is = "WSL2" }}]')
    return Rule(
        id=row["id"],
        title=row["title"],
        when=tuple(_condition(each, where) for each in conditions),
        what=row["what"],
        do=row["do"],
        severity=Severity(row["severity"]),
        confidence=Confidence(row["confidence"]),
        affects=row["affects"],
        sources=tuple(row["sources"]),
        date=row["date"].isoformat(),
    )


def _condition(raw: object, where: str) -> Condition:
    operators = [each.value for each in Operator]
    words = [word for word in raw if word != "fact"] if isinstance(raw, dict) else []
    if not isinstance(raw, dict) or "fact" not in raw or len(words) != 1:
        raise CatalogError(f"{where}: when: {raw!r} is not a condition: write a fact and one of {', '.join(operators)}")
    (word,), fact, value = words, raw["fact"], raw[words[0]]
    if word not in operators:
        raise CatalogError(f"{where}: when: {word!r}{nearest(word, operators)}: one of {', '.join(operators)}")
    _must_be_fact(fact, where)
    return Condition(fact=fact, operator=Operator(word), value=_value(Operator(word), value, where))


def _must_be_fact(name: object, where: str) -> None:
    if not isinstance(name, str) or not is_fact(name):
        families = "env.NAME, library.NAME, settings.NAME"
        raise CatalogError(
            f"{where}: when: unknown fact {name!r}{nearest(str(name), FACTS)}; known: {', '.join(FACTS)}, {families}"
        )


def _value(operator: Operator, value: object, where: str) -> Fact:
    """Read the value that an operator takes."""
    match operator:
        case Operator.IN | Operator.ANY_OF:
            if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
                return tuple(value)
            wanted = "a list of texts"
        case Operator.PRESENT:
            if isinstance(value, bool):
                return value
            wanted = "true or false"
        case Operator.VERSION:
            if isinstance(value, str) and is_range(value):
                return value
            wanted = "a range such as '>=13.2.0, <13.2.2'"
        case Operator.NEWER_THAN | Operator.NEWER_MAJOR_THAN | Operator.NONE_RUNS_ON:
            _must_be_fact(value, where)
            return str(value)
        case Operator.MATCHES:
            if isinstance(value, str) and _compiles(value):
                return value
            wanted = "a regular expression"
        case Operator.ABOVE | Operator.BELOW:
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return value
            wanted = "a number"
        case Operator.IS:
            if isinstance(value, (str, bool, int, float)):
                return value
            wanted = "a text, a number, true or false"
    raise CatalogError(f"{where}: when: {operator}: {value!r} is not {wanted}")


def _compiles(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True
