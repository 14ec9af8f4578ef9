"""What `moegpu doctor` is asked: its arguments, and the order that they make."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DoctorOrder", "add_doctor"]


@dataclass(frozen=True, kw_only=True)
class DoctorOrder:
    """What to examine. No profile: the machine and all engines; no devices: those a run would take."""

    profile: str | None = None
    devices: tuple[str, ...] = ()
    json: bool = False
    catalog: tuple[Path, ...] = ()
    runs: Path = Path(".moegpu/runs")

    @classmethod
    def of(cls, args: argparse.Namespace) -> DoctorOrder:
        """Take the order from what was parsed."""
        return cls(
            profile=args.profile,
            devices=tuple(args.device),
            json=args.json,
            catalog=tuple(args.catalog),
            runs=args.runs,
        )


def add_doctor(verb: argparse.ArgumentParser) -> None:
    """Describe the arguments of the verb."""
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    verb.description = (
        "Says what this machine is: system, driver, GPUs, CUDA toolkits, engines and how they were built, and which\n"
        "known-bad combinations it has; with a profile, whether that can run here. Starts no server.\n"
        "Exit code 0: clean, 1: warnings, 2: something that keeps a run from working, 3: wrong usage."
    )
    verb.epilog = "examples:\n  moegpu doctor\n  moegpu doctor rtx3090 --device 1\n  moegpu doctor --json"
    verb.add_argument("profile", nargs="?", metavar="PROFILE", help="profile to check, or none to describe the machine")
    verb.add_argument(
        "--device", action="append", default=[], metavar="GPU", help="GPU by index or UUID; may be repeated"
    )
    verb.add_argument("--json", action="store_true", help="write JSON, sizes in bytes")
    verb.add_argument(
        "--catalog",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="folder with profiles and rules of your own",
    )
