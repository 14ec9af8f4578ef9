"""A program that is run to its end once: supervised as a server is, its output bounded, its whole tree ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_moegpu.errors import ProgramError
from pytest_moegpu.host.boundedlog import read_ends
from pytest_moegpu.host.process import ServerProcess

__all__ = ["Ended", "run_once"]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What it printed and how it ended. `problem` is empty when it ended by itself with exit code 0.

    `seconds` are from its start to its end; `left` are pids of its tree that could not be ended.
    """

    output: str
    problem: str
    seconds: float
    exit_code: int | None = None
    left: tuple[int, ...] = ()


def run_once(argv: Sequence[str], environment: Mapping[str, str], log_path: Path, seconds: float) -> Ended:
    """Run a program until it ends, or for that many seconds; its tree is ended then, also when we are killed.

    Args:
        argv: Program and arguments.
        environment: All of its variables.
        log_path: Where its output is kept, bounded as a server's log; its folder is the one it runs in.
        seconds: How long it may take.
    """
    began = time.monotonic()
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log_path.unlink(missing_ok=True)
    try:
        process = ServerProcess(argv, environment, log_path, log_path.parent)
    except ProgramError as error:
        return Ended(output="", problem=str(error), seconds=time.monotonic() - began)
    try:
        ended = process.wait(seconds)
        took = time.monotonic() - began
    finally:
        report = process.stop(grace=0.0)
    problem = ""
    if not ended:
        problem = f"did not end within {seconds:g} s"
    elif report.exit_code != 0:
        problem = f"ended with {'a code that is not known' if report.exit_code is None else f'code {report.exit_code}'}"
    if report.left:
        problem = f"{problem or 'ended'}, but its processes could not be ended: {report.describe()}"
    return Ended(
        output=read_ends(log_path), problem=problem, seconds=took, exit_code=report.exit_code, left=report.left
    )
