"""A command that a server needs before it is ready."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from pytest_moegpu.host.command import run_command

__all__ = ["run_setup"]

_LAST_LINES = 3


def run_setup(argv: Sequence[str], environment: Mapping[str, str], folder: str, seconds: float) -> str:
    """Run a command to its end, and return what went wrong with it: an empty text when nothing did.

    Args:
        argv: Program and arguments.
        environment: All of its variables.
        folder: Where it runs.
        seconds: How long it may take.
    """
    shown = " ".join(argv)
    try:
        done = run_command(argv, seconds=seconds, environment=environment, folder=folder)
    except subprocess.TimeoutExpired:
        return f"{shown!r} did not end within {seconds:g} s"
    except OSError as error:
        return f"cannot run {shown!r}: {error}"
    if done.returncode == 0:
        return ""
    said = (done.stdout + done.stderr).strip().splitlines()[-_LAST_LINES:]
    return f"{shown!r} ended with exit code {done.returncode}: {' / '.join(said)}"
