"""What `moegpu watch` is asked: its arguments."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_moegpu.core.argtypes import pid, seconds

__all__ = ["add_watch"]


def add_watch(verb: argparse.ArgumentParser) -> None:
    """Describe the arguments of the verb."""
    verb.add_argument("pid", nargs="?", type=pid, metavar="PID", help="server whose tree is shown; ends when it ends")
    verb.add_argument(
        "--interval", type=seconds, default=1.0, metavar="SECONDS", help="time between two tables (default 1)"
    )
    verb.add_argument("--once", action="store_true", help="one table, after one interval")
    verb.add_argument(
        "--device", action="append", default=[], metavar="GPU", help="index or UUID of a GPU; may be repeated"
    )
    verb.add_argument("--replay", type=Path, metavar="FILE", help="telemetry file of a run to show instead")
