"""What is known of a server's end."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StopReport"]


@dataclass(frozen=True, kw_only=True)
class StopReport:
    """How a server ended. `killed` ignored SIGTERM; `left` could not be ended at all, `states` says more of each.

    `unended` says what is left of a container, which is no process of ours; empty when nothing is.
    """

    exit_code: int | None
    killed: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    states: tuple[str, ...] = ()
    unended: str = ""

    def describe(self) -> str:
        """Name what could not be ended, with program and state as far as known; empty when nothing was left."""
        known = self.states or tuple(f"pid {pid}" for pid in self.left)
        return ", ".join((*known, *filter(None, (self.unended,))))
