"""The arguments of a command line against the flags of the program: what is each, and which does the program refuse?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_moegpu.core.flags import Flag
from pytest_moegpu.core.launchforms import Form

__all__ = ["Argument", "Fault", "alike", "read_arguments"]

_FLAG = re.compile(r"-{1,2}[A-Za-z]")
_LEVEL = re.compile(r"-O[=.\w]")
# Letters left out, doubled or swapped, but not another word.
_TYPING_ERROR = 0.85
# Signs that are taken for each other when a word is copied by eye.
_LOOK_ALIKE = str.maketrans("olI-", "011_")


class Fault(StrEnum):
    """What a program refuses."""

    UNKNOWN = "unknown flag"
    CHOICE = "value not among the choices"
    MISSING = "missing value"
    NEEDLESS = "takes no value"
    AMBIGUOUS = "beginning of several flags"
    MEANING = "value that cannot be"
    PROGRAM = "no such program"


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One flag with its values, or a word that belongs to none.

    Args:
        name: The flag as it was written; empty for a word that belongs to none.
        values: The values behind it.
        first: Index of its first word among the arguments.
        count: How many words it takes.
        flag: The program's flag that it is, None where it is none.
        full: The whole spelling where only the beginning was written, or another one that the parser takes.
        fault: Why the program refuses it, None where it does not.
    """

    name: str
    values: tuple[str, ...] = ()
    first: int = 0
    count: int = 1
    flag: Flag | None = None
    full: str = ""
    fault: Fault | None = None

    @property
    def value(self) -> str:
        """The first value, empty where there is none."""
        return self.values[0] if self.values else ""


def read_arguments(
    words: Sequence[str], flags: Sequence[Flag], form: Form, others: Mapping[str, Flag] | None = None
) -> tuple[Argument, ...]:
    """Read arguments as the program's own parser would, and note what it refuses.

    Args:
        words: What stands behind the program.
        flags: The program's flags.
        form: What its parser lets pass.
        others: Flags of other programs by spelling, which say whether an unknown flag takes a value.
    """
    table = {name: flag for flag in flags for name in flag.names}
    found: list[Argument] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            found += (Argument(name="", values=(rest,), first=at + i) for i, rest in enumerate(words[at:]))
            break
        if not _FLAG.match(word):
            found.append(Argument(name="", values=(word,), first=at))
            at += 1
            continue
        written, joined, value = word.partition("=")
        fits = _fitting(written, table, form)
        flag = table[fits[0]] if len(fits) == 1 else None
        known = flag or (others or {}).get(written) or table.get(alike(written, table))
        if form.dotted and _LEVEL.match(word):
            # The value is in the word: `-O3`.
            joined, value = "=", word[2:].lstrip("=")
        values = (value,) if joined else _values(words[at + 1 :], known)
        argument = Argument(
            name=written,
            values=values,
            first=at,
            count=1 if joined else 1 + len(values),
            flag=flag,
            full=fits[0] if len(fits) == 1 and fits[0] != written else "",
            fault=_fault(fits, flag, values, bool(joined)),
        )
        found.append(argument)
        at += argument.count
    return tuple(found)


def alike(word: str, allowed: Iterable[str]) -> str:
    """Return the one allowed word that differs by a typing error only; empty where there is none."""
    import difflib  # here, because an idle plugin should not pay for it

    words = list(allowed)
    same = [each for each in words if _look(each) == _look(word)]
    match = same or difflib.get_close_matches(word, words, n=1, cutoff=_TYPING_ERROR)
    return match[0] if match and (not same or len(same) == 1) else ""


def _look(word: str) -> str:
    return word.translate(_LOOK_ALIKE).lower().translate(_LOOK_ALIKE)


def _fitting(written: str, table: Mapping[str, Flag], form: Form) -> list[str]:
    """Return the spellings that a flag can stand for: one if the parser takes it, none if it does not."""
    name = written
    if form.dotted:
        if written.startswith("-O"):
            name = "--optimization-level"
        name = name.partition(".")[0] if name.startswith("--") else name
    if name in table:
        return [name]
    if form.underscores and name.startswith("--"):
        name = name.replace("_", "-")
        if name in table:
            return [name]
    if not form.abbreviates or not name.startswith("--"):
        return []
    longer = [other for other in table if other.startswith(name)]
    # Spellings of one flag are no choice between flags.
    return longer[:1] if len({table[other].names for other in longer}) == 1 else longer


def _values(words: Sequence[str], flag: Flag | None) -> tuple[str, ...]:
    """Take the words that are values of a flag; of an unknown one, a word that is no flag itself."""
    if flag is not None and flag.takes_value is False:
        return ()
    most = len(words) if flag is not None and flag.many else 1
    values: list[str] = []
    for word in words[:most]:
        if _FLAG.match(word):
            break
        values.append(word)
    return tuple(values)


def _fault(fits: list[str], flag: Flag | None, values: tuple[str, ...], joined: bool) -> Fault | None:
    if not fits:
        return Fault.UNKNOWN
    if flag is None:
        return Fault.AMBIGUOUS
    if flag.takes_value is True and not values:
        return Fault.MISSING
    if flag.takes_value is False and joined:
        return Fault.NEEDLESS
    if flag.choices and any(value not in flag.choices for value in values):
        return Fault.CHOICE
    return None
