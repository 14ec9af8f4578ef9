"""Ends what outlives the process that started it, such as a container, by commands. Standard library only.

Each command is bounded in time, because the program that starts containers may hang.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["LISTING_SECONDS", "REMOVAL_SECONDS", "end", "run"]

LISTING_SECONDS = 15.0
# A container that is being removed is listed until it is gone.
REMOVAL_SECONDS = 10.0
_POLL_SECONDS = 0.2
_KILLED_SECONDS = 2.0


def run(argv: Sequence[str], environment: Mapping[str, str], seconds: float) -> tuple[int | None, str, str]:
    """Run a command; returns exit code, stdout, and the last line it said. Without a code it did not end, or start."""
    try:
        process = subprocess.Popen(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return None, "", str(error)
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_KILLED_SECONDS)
        return None, "", f"no answer within {seconds:g} s"
    said = (errors or out).decode("utf-8", "replace").strip().splitlines()
    return process.returncode, out.decode("utf-8", "replace"), said[-1] if said else ""


def end(order: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """List what is there, run the commands on it, and look again; returns what is left in words, or an empty text.

    Args:
        order: `listing`, a command that prints the id of each that still exists, one a line; `commands`, pairs of a
            command, behind which the ids are put, and the seconds it may take.
        environment: All variables of the commands.
    """
    listing: list[str] = list(order["listing"])
    ids, problem = _listed(listing, environment)
    if ids is None:
        # A program that was busy for a moment is asked once more: without an answer nothing can be ended.
        ids, problem = _listed(listing, environment)
    until = time.monotonic()
    for argv, seconds in order["commands"] if ids else ():
        code, _, said = run([*argv, *(ids or ())], environment, seconds)
        problem = "" if code == 0 else f"{' '.join(argv)!r}: {said}"
        # One that gave no answer removes nothing any more.
        until = time.monotonic() + (REMOVAL_SECONDS if code is not None else 0.0)
    while ids:
        ids, unknown = _listed(listing, environment)
        problem = unknown or problem
        if not ids or time.monotonic() >= until:
            break
        time.sleep(_POLL_SECONDS)
    if ids is None:
        return f"whether a container is left is not known: {problem}"
    return (
        f"container {', '.join(each[:12] for each in ids)} still exists: {problem or 'no reason given'}" if ids else ""
    )


def _listed(listing: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str] | None, str]:
    """Return the ids that a listing prints; None with the reason when it prints none because it failed."""
    code, out, said = run(listing, environment, LISTING_SECONDS)
    return (out.split(), "") if code == 0 else (None, f"{' '.join(listing[:3])!r}: {said}")
