"""An Ollama that runs already: refused, because it may hold memory of the GPU and be asked by somebody else."""

from __future__ import annotations

import os

from pytest_moegpu.backends.base import Backend
from pytest_moegpu.backends.ollama import Ollama, daemon_address
from pytest_moegpu.errors import UserError
from pytest_moegpu.host.control import Control, listener

__all__ = ["refuse_daemon"]

_VARIABLE = "OLLAMA_HOST"


def refuse_daemon(backend: Backend) -> None:
    """Make sure that no Ollama of this user listens where its programs look for one.

    Raises:
        UserError: One does; names its pid where that can be seen, and says what to do.
    """
    if backend.name != Ollama.name:
        return
    host, port = daemon_address(os.environ.get(_VARIABLE))
    if Control(host, port, "none").get(backend.health_path) is None:
        return
    owner = listener(host, port)
    who = f" (pid {owner.pid}, {owner.name or 'unknown'})" if owner is not None else ""
    raise UserError(
        f"an Ollama runs already at {host}:{port}{who}: it may hold memory of the GPU. Stop it, and this run starts "
        f"one of its own; or measure that one with --moegpu-backend={backend.name} "
        f"--moegpu-attach=http://{host}:{port}"
    )
