"""Progress on the terminal: a live line where somebody watches, plain lines at phase ends in a log."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

__all__ = ["TerminalProgress", "real_stdout"]

_WIDTH = 100


def real_stdout() -> TextIO:
    """Return a stream of its own on the real standard output, which pytest's capturing cannot redirect later."""
    try:
        return os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", errors="replace")
    except (OSError, ValueError, AttributeError):
        return sys.stdout


class TerminalProgress:
    """Writes progress between pytest's own dots. A burst of lines starts on a line of its own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._watched = stream.isatty()
        self._fresh = False
        self._live = False

    def _write(self, text: str) -> None:
        # A terminal that is gone (EIO, a closed stream) must not keep a run from ending its server.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text if self._fresh else f"\n{text}")
            self._stream.flush()
        self._fresh = True

    def live(self, text: str) -> None:
        """Overwrite the live line; nothing where output is not a terminal."""
        if self._watched:
            self._write(f"\r{text[:_WIDTH].ljust(_WIDTH)}")
            self._live = True

    def line(self, text: str) -> None:
        """Write a line that stays, in place of the live line."""
        self._write(f"\r{text.ljust(_WIDTH)}\n" if self._live else f"{text}\n")
        self._live = False

    def done(self) -> None:
        """End a burst: clear the live line; pytest goes on writing here."""
        if self._live:
            self._write(f"\r{' ' * _WIDTH}\r")
        self._live = False
        self._fresh = False
