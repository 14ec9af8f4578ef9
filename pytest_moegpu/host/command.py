"""A command that is run to its end, or ended with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

__all__ = ["run_command"]


def run_command(
    argv: Sequence[str], *, seconds: float, environment: Mapping[str, str] | None = None, folder: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command without input; what it printed is text, whatever bytes it was.

    Args:
        argv: Program and arguments.
        seconds: How long it may take.
        environment: All of its variables; None for those of this process.
        folder: Where it runs; None for the folder of this process.

    Raises:
        OSError: It cannot be started.
        subprocess.TimeoutExpired: It did not end in time; it and its process group are gone.
    """
    # A session of its own, so that all it may have started ends with it.
    with subprocess.Popen(
        argv,
        env=None if environment is None else dict(environment),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=seconds)
        except BaseException:
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, out, errors)
