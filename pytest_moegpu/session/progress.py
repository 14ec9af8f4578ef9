"""How a run tells a waiting person where it is."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Named", "Progress", "Silent"]


class Progress(Protocol):
    """A live line that may be overwritten, and lines that stay."""

    def live(self, text: str) -> None:
        """Show what is being done now; only where somebody watches a terminal."""

    def line(self, text: str) -> None:
        """Report the end of a phase."""

    def done(self) -> None:
        """Leave the terminal to others for now."""


class Named:
    """Puts a name before everything, such as the scenario and the number of the start."""

    def __init__(self, inner: Progress, name: str) -> None:
        self._inner = inner
        self._name = name

    def live(self, text: str) -> None:
        """Show what is being done now."""
        self._inner.live(f"{self._name}: {text}")

    def line(self, text: str) -> None:
        """Report the end of a phase."""
        self._inner.line(f"{self._name}: {text}")

    def done(self) -> None:
        """Leave the terminal to others for now."""
        self._inner.done()


class Silent:
    """Shows nothing."""

    def live(self, text: str) -> None:
        """Show nothing."""

    def line(self, text: str) -> None:
        """Show nothing."""

    def done(self) -> None:
        """Show nothing."""
