"""The flags a server program has: out of its own help text, or as they were recorded for one version of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from pytest_moegpu.backends import BACKENDS
from pytest_moegpu.backends.base import Backend
from pytest_moegpu.core.flags import Flag
from pytest_moegpu.core.launchforms import FORMS, Form
from pytest_moegpu.errors import ProgramError
from pytest_moegpu.host.embedded_server import parser
from pytest_moegpu.host.helpcache import program_texts
from pytest_moegpu.host.stack import find_program

__all__ = [
    "ForeignFlag",
    "InstalledFlags",
    "KnownFlags",
    "foreign_flags",
    "form_of",
    "installed_flags",
    "installed_program",
    "recorded_flags",
]

# A parser that takes every flag as it is spelled, and in no other way.
_AS_SPELLED = Form(programs=())
_EMBEDDED = "pytest_moegpu.host.embedded_server"
# A help text of fewer flags is one that was not understood, or an overview.
_FEWEST = 5


@dataclass(frozen=True, kw_only=True)
class KnownFlags:
    """The flags of one program, and where they are known from.

    `against` says both for a person; `label` names the program with its version in a message.
    """

    flags: tuple[Flag, ...]
    label: str
    against: str


@dataclass(frozen=True, kw_only=True)
class ForeignFlag:
    """A flag of other programs: the backends that have it, and what the last of them says about it."""

    owners: tuple[str, ...]
    flag: Flag


def form_of(backend: str, program: Sequence[str]) -> Form:
    """Return what the program's parser lets pass; the embedded server takes each flag as it is spelled."""
    return _AS_SPELLED if _EMBEDDED in program else FORMS.get(backend, _AS_SPELLED)


def installed_flags(backend: Backend, program: Sequence[str], verb: str = "") -> KnownFlags:
    """Return the flags of a program that is installed here; with a verb, of that verb in place of the server.

    Raises:
        ProgramError: It cannot be run, or no flags can be read out of what it prints.
    """
    if _EMBEDDED in program:
        flags = backend.read_help(parser().format_help())
        return KnownFlags(flags=flags, label="the embedded server", against="the help of the embedded server")
    help_argv = (*program, verb, "--help") if verb else backend.help_argv(program)
    texts = program_texts(backend.version_argv(program), help_argv)
    flags = backend.read_help(texts.help)
    known = recorded_flags(backend.name, verb)
    # A program that is set up by its environment has hardly any.
    if not flags or (len(flags) < _FEWEST and known is not None and len(known.flags) >= _FEWEST):
        raise ProgramError(f"no flags can be read in what {' '.join(help_argv)!r} prints")
    version = backend.read_version(texts.version).version
    label = f"{backend.name} {version or 'of unknown version'}"
    return KnownFlags(flags=flags, label=label, against=f"the help of the installed {label} ({program[0]})")


class InstalledFlags:
    """The flags of the programs of one run, each asked once, also where it does not tell.

    Args:
        say: Told when the flags of a program cannot be read.
    """

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self._say = say
        self._known: dict[tuple[str, ...], KnownFlags | None] = {}

    def of(self, backend: Backend, program: tuple[str, ...]) -> KnownFlags | None:
        """Return the flags of a program, None where they cannot be read."""
        if program not in self._known:
            try:
                self._known[program] = installed_flags(backend, program)
            except ProgramError as error:
                self._known[program] = None
                self._say(f"the flags of {backend.name} are not known, extra_flags are not checked: {error}")
        return self._known[program]


def recorded_flags(backend: str, verb: str = "") -> KnownFlags | None:
    """Return the flags recorded for one version of a backend, None where there are none."""
    name = f"{backend}-{verb}" if verb else backend
    file = resources.files("pytest_moegpu.backends") / "flagdata" / f"{name}.json"
    if not file.is_file():
        return None
    data = json.loads(file.read_text(encoding="utf-8"))
    flags = tuple(
        Flag(
            names=tuple(each["names"]),
            takes_value=each.get("takes_value"),
            choices=tuple(each.get("choices", ())),
            many=each.get("many", False),
        )
        for each in data["flags"]
    )
    label = f"{backend} {data['version']}"
    return KnownFlags(flags=flags, label=label, against=f"the flags of {label}, {data['origin']}")


def foreign_flags(backend: str) -> Mapping[str, ForeignFlag]:
    """Return the flags recorded for all other backends by their spellings."""
    found: dict[str, ForeignFlag] = {}
    for other in (name for name in BACKENDS if name != backend):
        known = recorded_flags(other)
        for flag in known.flags if known is not None else ():
            for name in flag.names:
                owners = (*found[name].owners, other) if name in found else (other,)
                found[name] = ForeignFlag(owners=owners, flag=flag)
    return found


def installed_program(backend: Backend, program: Sequence[str]) -> tuple[str, ...] | None:
    """Return the words of a program as it is found on this machine, None where it is not.

    A variable of the backend that names the program, with arguments of its own, stands in for one that is not on PATH.
    """
    if program:
        found = shutil.which(program[0])
        if found is not None:
            return (found, *program[1:])
    way = (backend.program_variable, os.environ.get(backend.program_variable))
    with contextlib.suppress(ProgramError):
        return find_program(backend.program, (way,), os.environ.get("PATH"))
    return None
