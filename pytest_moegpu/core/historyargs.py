"""What `moegpu history` is asked: its arguments, and the order that they make."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from pytest_moegpu.core.verdict import METRICS

__all__ = ["HistoryOrder", "add_history"]


@dataclass(frozen=True, kw_only=True)
class HistoryOrder:
    """Which histories, and where from. None stands for all."""

    runs: Path
    baselines: Path
    profile: str | None = None
    scenario: str | None = None
    metric: str | None = None
    json: bool = False

    @classmethod
    def of(cls, args: argparse.Namespace) -> HistoryOrder:
        """Take the order from what was parsed."""
        return cls(
            runs=args.runs,
            baselines=args.baselines,
            profile=args.profile,
            scenario=args.scenario,
            metric=args.metric,
            json=args.json,
        )


def add_history(verb: argparse.ArgumentParser) -> None:
    """Describe the arguments of the verb."""
    verb.description = (
        "Draws each metric over all stored runs and the sessions of baselines, with changes of the stack, dated change "
        "points (extra `history`) and slow drift. It decides nothing: exit code 0, or 2 when there is no session."
    )
    compared = [name for name, kind in METRICS.items() if kind.compared]
    verb.add_argument("profile", nargs="?", metavar="PROFILE", help="only this profile")
    verb.add_argument("--scenario", metavar="NAME", help="only this scenario")
    verb.add_argument("--metric", choices=compared, metavar="NAME", help=f"only this metric: {', '.join(compared)}")
    verb.add_argument("--json", action="store_true", help="write JSON, with every value of every start")
    verb.add_argument(
        "--baselines", type=Path, default=Path("baselines"), metavar="FOLDER", help="where baselines are kept"
    )
