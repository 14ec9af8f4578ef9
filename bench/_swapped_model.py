"""Starts a server with another model file than it is told: a stack that computes with other weights than those on disk.

    python _swapped_model.py ORDER.txt PROGRAM [ARGUMENT …]

ORDER.txt holds the path of the file that takes the place of the argument of `-m` or `--model`; where it is empty,
nothing changes. The path that the server gets is written to ORDER.txt.used, so that nobody has to believe it.
The plugin's command line stays the same whatever the injury, so that every run has the identity of the healthy one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["replaced", "used"]


def models(argv: list[str]) -> list[int]:
    """Return where model files stand. Python's own `-m` is followed by the name of a module."""
    return [n for n, word in enumerate(argv) if n and argv[n - 1] in ("-m", "--model") and word.endswith(".gguf")]


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
