"""A running server for tests that talk to it; the device is looked after as around a measured start."""

from __future__ import annotations

from pytest_moegpu.core.evidence import Phase, StartFailure
from pytest_moegpu.core.units import format_bytes
from pytest_moegpu.errors import ProbeError, StartError
from pytest_moegpu.host.probe import Probe
from pytest_moegpu.session.attached import AttachedServer
from pytest_moegpu.session.device import held, not_given_back, on_device, refuse_busy, used, wait_idle
from pytest_moegpu.session.serving import AnyServer, strangers

__all__ = ["Live"]


class Live:
    """At most one server, kept until another scenario's turn or a measurement.

    `unusable` says what the first server that was not gone without a trace left behind.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._server: AnyServer | None = None
        self._scenario = ""
        self._idle: int | None = None
        self.unusable = ""

    def of(self, scenario: str) -> AnyServer | None:
        """Return the server if it runs for this scenario."""
        return self._server if self._server is not None and self._server.alive and scenario == self._scenario else None

    def start(self, server: AnyServer, scenario: str, unusable: str) -> None:
        """Start a server; the one before must have been stopped. An attached one was there before, and stays.

        Raises:
            StartError: The device is in use or cannot be read, or the server did not come up; it is then already gone.
        """
        try:
            self._probe.follow(None)
            refuse_busy(strangers(on_device(self._probe, server.notes), server), unusable)
            reading = used(self._probe.read(0.0, "idle"))
            self._idle = None if isinstance(server, AttachedServer) else reading
        except ProbeError as error:
            failure = StartFailure(phase=Phase.PREFLIGHT, cause=f"the device cannot be read: {error}")
            raise StartError(failure) from error
        self._server, self._scenario = server, scenario
        try:
            server.start(self._probe.follow)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and wait for its memory; what it leaves is kept in `unusable`."""
        self.unusable = self.unusable or self._stop()

    def _stop(self) -> str:
        if self._server is None:
            return ""
        server, self._server = self._server, None
        report = server.stop()
        if report.describe():
            return f"a live server could not be ended: {report.describe()}"
        if isinstance(server, AttachedServer):
            return ""
        after, seconds = wait_idle(self._probe, self._idle, server.limits.idle_return_seconds)
        if after is None and self._idle is not None:
            return "the memory of the device could not be read after a live server was stopped"
        if not (rest := held(after, self._idle)):
            return ""
        try:
            still = on_device(self._probe, server.notes)
        except ProbeError as error:
            return f"a live server left {format_bytes(rest)} on the device, which cannot be read now: {error}"
        return f"a live server: {not_given_back(rest, seconds, still, server.tree, server.notes)}"
