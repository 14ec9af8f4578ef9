"""Starts a server with another model than it is told: a stack that computes with other weights than those on disk.

    python _swapped_model.py ORDER.txt PROGRAM [ARGUMENT …]

ORDER.txt holds the path of the file or folder that takes the place of the argument of `-m`, `--model`, `--model-path`
or `serve`; where it is empty, nothing changes. The path that the server gets is written to ORDER.txt.used, so that
nobody has to believe it.
The plugin's command line stays the same whatever the injury, so that every run has the identity of the healthy one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["replaced", "used"]

_BEFORE = ("-m", "--model", "--model-path", "serve")


def models(argv: list[str]) -> list[int]:
    """Return where models stand. Python's own `-m` is followed by the name of a module."""
    places = [n for n, before in enumerate(argv, 1) if before in _BEFORE and n < len(argv)]
    return [n for n in places if argv[n].endswith(".gguf") or (Path(argv[n]) / "config.json").is_file()]


def replaced(argv: list[str], model: str) -> list[str]:
    """Return a command line with another model file."""
    places = models(argv)
    return [model if model and n in places else word for n, word in enumerate(argv)]


def used(order: Path) -> Path:
    """Return where the model is noted that a server was given."""
    return order.with_name(f"{order.name}.used")


if __name__ == "__main__":
    order, command = Path(sys.argv[1]), sys.argv[2:]
    command = replaced(command, order.read_text(encoding="utf-8").strip())
    if places := models(command):
        used(order).write_text(command[places[0]], encoding="utf-8")
    os.execvp(command[0], command)
