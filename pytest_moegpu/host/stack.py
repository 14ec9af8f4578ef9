"""Versions of everything an upgrade may change, read from what is really running."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_moegpu.core.faults import find
from pytest_moegpu.errors import ProgramError
from pytest_moegpu.host.command import run_command

__all__ = ["find_program", "host_facts", "libraries", "os_class", "program_output"]

# With the full version behind the name, as CUDA's packages install them. libcuda belongs to the driver, not here.
_LIBRARY = re.compile(r"/(lib(?:cudart|cublas|cublasLt|cudnn|nccl|cufft|curand|nvrtc)\b[^/]*?)\.so\.([\d.]+)$")
_VERSION_SECONDS = 180.0


def os_class() -> str:
    """Return Linux, Windows, WSL2, container or Darwin; results of two classes are not comparable."""
    if sys.platform != "linux":
        return platform.system()
    if "microsoft" in platform.release().lower():
        return "WSL2"
    marks = ("/.dockerenv", "/run/.containerenv")
    if os.environ.get("container") or any(Path(mark).exists() for mark in marks):  # noqa: SIM112 - systemd's own name
        return "container"
    return "Linux"


def host_facts() -> dict[str, str]:
    """Return what is noted about a machine and never compared."""
    return {
        "host": socket.gethostname(),
        "kernel": platform.release(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
    }


def libraries(pid: int) -> dict[str, str]:
    """Return the CUDA libraries a live process has mapped, with their full versions; empty where /proc is not there."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    paths = {line.split(None, 5)[5] for line in maps.splitlines() if "/lib" in line and line.count("/") > 1}
    return dict(sorted((match[1], match[2]) for path in paths if (match := _LIBRARY.search(path))))


def find_program(name: str, ways: Sequence[tuple[str, str | None]], search: str | None) -> tuple[str, ...]:
    """Find a server program: the first way that names one, else on PATH. A way may give arguments behind the program.

    Args:
        name: Name of the program on PATH.
        ways: (where it was given, program) in order of precedence; None where nothing was given.
        search: The value of PATH.

    Raises:
        ProgramError: It is not there or cannot be executed; the message names all the ways to give it.
    """
    for source, value in ways:
        if not value:
            continue
        # A path with spaces is one program as long as it is there.
        program, *arguments = [value] if shutil.which(value, path=search) else _words(source, value)
        found = shutil.which(program, path=search)
        if found:
            return (str(Path(found).absolute()), *arguments)
        path = Path(program)
        state = "is a folder" if path.is_dir() else "is not executable" if path.exists() else "does not exist"
        raise ProgramError(f"server program {program!r} (from {source}) {state}")
    found = shutil.which(name, path=search)
    if not found:
        raise ProgramError(
            f"server program {name!r} is not on PATH: give it by {' or '.join(source for source, _ in ways)}"
        )
    return (str(Path(found).absolute()),)


def _words(source: str, value: str) -> list[str]:
    try:
        return shlex.split(value) or [value]
    except ValueError as error:
        raise ProgramError(f"server program {value!r} (from {source}) cannot be read: {error}") from error


def program_output(argv: Sequence[str]) -> str:
    """Run a command that prints its version and return all it printed.

    Raises:
        ProgramError: It cannot be run here, or fails; with what it printed.
    """
    try:
        done = run_command(argv, seconds=_VERSION_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProgramError(f"cannot run {' '.join(argv)!r}: {error}") from error
    output = done.stdout + done.stderr
    if done.returncode != 0:
        lines = output.strip().splitlines()
        # A missing library shows up here first.
        fault = find(lines)
        told = f" ({fault.words}; {fault.advice})" if fault is not None else ""
        raise ProgramError(
            f"{' '.join(argv)!r} ended with exit code {done.returncode}{told}: " + " / ".join(lines[-3:])
        )
    return output
