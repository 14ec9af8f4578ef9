"""What `moegpu calibrate` is asked: its arguments."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_moegpu.core.probes import SEED, TIERS

__all__ = ["add_calibrate"]


def add_calibrate(verb: argparse.ArgumentParser) -> None:
    """Describe the arguments of the verb."""
    verb.description = (
        "Starts the server of a profile on each sound path, asks generated probes, and writes those that were right "
        "with a margin on all of them, as TOML for a model file. Exit code 1: none was."
    )
    verb.add_argument("profile", metavar="PROFILE", help="profile whose server and model are asked")
    verb.add_argument("--model", action="append", default=[], metavar="PATH", help="model; of several, all must pass")
    verb.add_argument("--seed", type=int, default=SEED, metavar="S", help=f"seed of the probes (default {SEED})")
    verb.add_argument(
        "--tier", type=int, action="append", choices=TIERS, default=[], metavar="N", help="tier from 1 to 4; repeatable"
    )
    verb.add_argument("--out", type=Path, metavar="FILE", help="file to write instead of printing")
    verb.add_argument(
        "--catalog", type=Path, action="append", default=[], metavar="FOLDER", help="folder with profiles of your own"
    )
