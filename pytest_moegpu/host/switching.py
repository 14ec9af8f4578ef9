"""How long a thread may keep the GIL when another one asks for it, while device samplers run."""

from __future__ import annotations

import sys
import threading

__all__ = ["switching"]

_SECONDS = 0.0005


class _Switching:
    """Has threads give up the GIL when asked for 0.5 ms, while any sampler runs; the setting is the whole process's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._before = 0.0

    def begin(self) -> None:
        with self._lock:
            if not self._running:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, _SECONDS))
            self._running += 1

    def end(self) -> None:
        with self._lock:
            self._running -= 1
            if not self._running:
                sys.setswitchinterval(self._before)


switching = _Switching()
"""The one of this process: `begin` and `end` once for each sampler."""
