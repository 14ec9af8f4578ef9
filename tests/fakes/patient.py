"""Loaded with `-p` into runs whose speeds nobody compares: there a client that a busy machine delays spoils nothing."""

from __future__ import annotations

from pytest_moegpu.checks import doubts


def pytest_configure() -> None:
    """Believe a client that is late by up to 0.1 s; what the real limits do is in test_checks_throughput.py."""
    doubts._MAX_LAG = dict.fromkeys(doubts._MAX_LAG, 0.1)
