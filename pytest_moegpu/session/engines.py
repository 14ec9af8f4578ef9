"""Finds the server programs of a machine, and asks or reads what they are; each within a few seconds."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_moegpu.backends import BACKENDS, get_backend
from pytest_moegpu.backends.base import Backend
from pytest_moegpu.core import faults
from pytest_moegpu.core.machine import FoundEngine
from pytest_moegpu.core.model import Profile
from pytest_moegpu.errors import MoegpuError, ProgramError
from pytest_moegpu.host.command import run_command
from pytest_moegpu.host.enginefacts import read_built
from pytest_moegpu.host.stack import find_program
from pytest_moegpu.options import Options
from pytest_moegpu.session.chosen import EMBEDDED, choose_program

__all__ = ["find_engines", "look_at", "profile_engine"]

_SECONDS = 8.0
"""How long a program may take to say its version."""
_OWN_SECONDS = 30.0
"""The same for the one that a profile will start: a Python engine imports its libraries to say it."""
_LAST_LINES = 3
_EMBEDDED_PACKAGE = "xllamacpp"


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A program to look at, and who named it; `problem` when it is not there."""

    backend: Backend
    source: str
    program: tuple[str, ...] = ()
    problem: str = ""


def find_engines(
    profiles: Sequence[Profile], environment: Mapping[str, str] | None = None, seconds: float = _SECONDS
) -> tuple[tuple[FoundEngine, ...], tuple[tuple[str, str], ...]]:
    """Find programs by the MOEGPU_ variables, on PATH, and where profiles say; look at all of them at once.

    Returns:
        What was found, and backend with installation hint of each of which nothing was.
    """
    environment = os.environ if environment is None else environment
    candidates = _once(candidate for name in BACKENDS for candidate in _candidates(name, profiles, environment))
    with ThreadPoolExecutor(max_workers=max(1, len(candidates))) as pool:
        found = tuple(pool.map(lambda each: _looked(each, environment, seconds), candidates))
    there = {engine.backend for engine in found}
    backends = [get_backend(name) for name in BACKENDS]
    missing = tuple((b.name, b.install_hint) for b in backends if b.program and b.name not in there)
    return found, missing


def profile_engine(
    profile: Profile, environment: Mapping[str, str] | None = None, seconds: float = _OWN_SECONDS
) -> FoundEngine:
    """Look at the program that a run of a profile would start; where there is none, the engine has only a problem."""
    environment = os.environ if environment is None else environment
    backend = get_backend(profile.backend)
    try:
        program = choose_program(Options(profile=profile.name), profile, backend)
    except ProgramError as error:
        hint = f"Install it, or name it in {backend.program_variable}."
        return FoundEngine(backend=backend.name, problem=str(error), hint=hint)
    return look_at(backend, program, f"profile {profile.name}", environment, seconds)


def _candidates(name: str, profiles: Sequence[Profile], environment: Mapping[str, str]) -> Iterator[_Candidate]:
    backend = get_backend(name)
    if not backend.program:
        # One that is only attached to has nothing to be found.
        return
    if given := environment.get(backend.program_variable):
        yield _given(backend, given, environment)
    if found := shutil.which(backend.program, path=environment.get("PATH", "")):
        yield _Candidate(backend=backend, source="PATH", program=(str(Path(found).absolute()),))
    for profile in profiles:
        if profile.backend == name and profile.program is not None:
            if profile.program == EMBEDDED and importlib.util.find_spec(_EMBEDDED_PACKAGE) is None:
                # An extra that was not asked for is no fault.
                continue
            try:
                program = choose_program(Options(profile=profile.name), profile, backend)
            except ProgramError:
                continue
            # The variable comes before the profile's own, and has been looked at.
            yield _Candidate(backend=backend, source=f"profile {profile.name}", program=program)


def _given(backend: Backend, given: str, environment: Mapping[str, str]) -> _Candidate:
    source = backend.program_variable
    try:
        program = find_program(backend.program, ((source, given),), environment.get("PATH", ""))
    except ProgramError as error:
        return _Candidate(backend=backend, source=source, problem=str(error))
    return _Candidate(backend=backend, source=source, program=program)


def _once(candidates: Iterable[_Candidate]) -> list[_Candidate]:
    """Keep the first of those that start the same program."""
    found: dict[tuple[str, ...], _Candidate] = {}
    for each in candidates:
        found.setdefault((each.backend.name, *(each.program or (each.source,))), each)
    return list(found.values())


def _looked(candidate: _Candidate, environment: Mapping[str, str], seconds: float) -> FoundEngine:
    if candidate.problem:
        return FoundEngine(backend=candidate.backend.name, source=candidate.source, problem=candidate.problem)
    engine = FoundEngine(backend=candidate.backend.name, program=candidate.program, source=candidate.source)
    engine = replace(engine, built=read_built(engine.backend, engine.program, environment))
    if engine.built.package is not None:
        # What the package says is what the program would, which takes seconds of importing to say it.
        return replace(engine, version=engine.built.package)
    return _asked(candidate.backend, engine, environment, seconds)


def look_at(
    backend: Backend, program: tuple[str, ...], source: str, environment: Mapping[str, str], seconds: float
) -> FoundEngine:
    """Read how a program was built, and ask it for its version; it is ended when it takes longer than `seconds`."""
    built = read_built(backend.name, program, environment)
    engine = FoundEngine(backend=backend.name, program=program, source=source, built=built)
    return _asked(backend, engine, environment, seconds)


def _asked(backend: Backend, engine: FoundEngine, environment: Mapping[str, str], seconds: float) -> FoundEngine:
    argv = backend.version_argv(engine.program)
    words = " ".join(argv)
    try:
        done = run_command(argv, seconds=seconds, environment=environment)
    except subprocess.TimeoutExpired:
        return replace(engine, problem=f"`{words}` did not answer within {seconds:g} s and was ended")
    except (OSError, MoegpuError) as error:
        return replace(engine, problem=f"`{words}` cannot be run: {error}")
    output = done.stdout + done.stderr
    if done.returncode != 0:
        lines = output.strip().splitlines()
        fault = faults.find(lines)
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        said = " / ".join(lines[-_LAST_LINES:])
        return replace(
            engine,
            problem=f"`{words}` ended with {ended}" + (f": {said}" if said else ", and said nothing"),
            hint=f"{fault.words}: {fault.advice}" if fault is not None else "",
        )
    told = backend.read_version(output)
    return replace(engine, version=told.version or engine.built.package, build=told.build, toolkit=told.toolkit)
