"""What `moegpu gate` is asked: its arguments, and the order that they make."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

__all__ = ["STEPS", "GateOrder", "add_gate"]

STEPS = ("before", "after", "back", "show", "forget")
_LATEST = "latest"


@dataclass(frozen=True, kw_only=True)
class GateOrder:
    """Runs to decide on, or one step of an upgrade that goes there and back.

    `varying` are words of `identity.VARYING_WORDS` with commas; `expected` is the file of expected failures, None the
    one in its usual place, which need not be there.
    """

    runs: tuple[str, ...] = (_LATEST,)
    varying: str | None = None
    baselines: Path = Path("baselines")
    root: Path = Path(".moegpu/runs")
    markdown: Path | None = None
    expected: Path | None = None
    step: str | None = None

    @classmethod
    def of(cls, args: argparse.Namespace) -> GateOrder:
        """Take the order from what was parsed."""
        return cls(
            runs=tuple(args.run) or (_LATEST,),
            varying=args.varying,
            baselines=args.baselines,
            root=args.runs,
            markdown=args.markdown,
            expected=args.expected,
            step=args.step,
        )


def add_gate(verb: argparse.ArgumentParser, run_help: str) -> None:
    """Describe the arguments of the verb."""
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    verb.description = (
        "Decides on runs against the stored baselines. Exit code 0: pass, 1: regressed or failed, 2: no answer,\n"
        "3: wrong usage."
    )
    verb.epilog = (
        "examples:\n  moegpu gate latest --varying driver,cuda\n"
        "  moegpu gate --step before    then the upgrade, a new run, and --step after; back again, and --step back"
    )
    verb.add_argument("run", nargs="*", metavar="RUN", help=f"{run_help} (default {_LATEST})")
    verb.add_argument(
        "--varying", metavar="WORDS", help="what may have moved: driver,cuda,engine,libraries,kernel (default all)"
    )
    verb.add_argument(
        "--baselines", type=Path, default=Path("baselines"), metavar="FOLDER", help="where baselines are kept"
    )
    verb.add_argument("--markdown", type=Path, metavar="FILE", help="write the page as Markdown as well")
    verb.add_argument(
        "--expected",
        type=Path,
        metavar="FILE",
        help="expected failures (default .moegpu/expected.toml, if there)",
    )
    verb.add_argument(
        "--step",
        choices=STEPS,
        metavar="STEP",
        help="a step of an upgrade, which is remembered: before, after, back; show says what is next, forget ends it",
    )
