"""What all tests share."""

from __future__ import annotations

import signal

import pytest


def pytest_configure() -> None:
    """Hear Ctrl-C even where a shell started this in the background: tests send it, and what they start inherits it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _not_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pytest that a test starts is no worker of the one that runs the test, which pytest-benchmark takes it for."""
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(name, raising=False)
