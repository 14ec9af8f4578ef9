"""What `moegpu ab` is asked: its arguments, and the order that they make."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from pytest_moegpu.core.argtypes import seconds_or_none
from pytest_moegpu.core.blocks import DEFAULT_LOOKS

__all__ = ["AbOrder", "SideOrder", "add_ab"]

_COOL_DOWN_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class SideOrder:
    """One side. None and empty: as the profile says. `settings` are texts such as `settings.ubatch=256`."""

    server: str | None = None
    scenario: str | None = None
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AbOrder:
    """Two sides of one profile, started in turn in one session.

    `starts` are at most of each side; `cool_down` is how long to wait for the temperature before a start, in seconds;
    `seed` chooses the order of the blocks, None a new one.
    """

    profile: str
    a: SideOrder
    b: SideOrder
    model: str | None = None
    devices: tuple[str, ...] = ()
    starts: int = DEFAULT_LOOKS[-1]
    seed: int | None = None
    cool_down: float = _COOL_DOWN_SECONDS
    catalog: tuple[Path, ...] = ()
    runs: Path = Path(".moegpu/runs")
    baselines: Path = Path("baselines")

    @classmethod
    def of(cls, args: argparse.Namespace) -> AbOrder:
        """Take the order from what was parsed; a side's own scenario goes before that of both."""
        a, b = (
            SideOrder(
                server=getattr(args, f"{side}_server"),
                scenario=getattr(args, f"{side}_scenario") or args.scenario,
                settings=tuple(getattr(args, f"{side}_set")),
            )
            for side in ("a", "b")
        )
        return cls(
            profile=args.profile,
            a=a,
            b=b,
            model=args.model,
            devices=tuple(args.device),
            starts=args.starts,
            seed=args.seed,
            cool_down=args.cool_down,
            catalog=tuple(args.catalog),
            runs=args.runs,
            baselines=args.baselines,
        )


def add_ab(verb: argparse.ArgumentParser) -> None:
    """Describe the arguments of the verb."""
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    verb.description = (
        "Starts A and B in turn, in random blocks of ABBA and BAAB, and judges B against A. Exit code 0: B is not\n"
        "worse, 1: worse or failed, 2: no answer, 3: wrong usage."
    )
    verb.epilog = (
        "examples:\n  moegpu ab rtx3090 --a-server old/llama-server --b-server new/llama-server\n"
        "  moegpu ab rtx3090 --b-set settings.flash_attention=off"
    )
    verb.add_argument("profile", metavar="PROFILE", help="profile that both sides are of")
    for side in ("a", "b"):
        name = side.upper()
        verb.add_argument(f"--{side}-server", metavar="PROGRAM", help=f"server program of {name}")
        verb.add_argument(f"--{side}-scenario", metavar="NAME", help=f"scenario of {name}")
        verb.add_argument(
            f"--{side}-set",
            action="append",
            default=[],
            metavar="SETTING",
            help=f"a launch setting of {name}, such as settings.ubatch=256; may be repeated",
        )
    verb.add_argument("--scenario", metavar="NAME", help="scenario of both (default the profile's first)")
    verb.add_argument("--model", metavar="FILE", help="model file, or the name of a model")
    verb.add_argument(
        "--device", action="append", default=[], metavar="GPU", help="GPU by index or UUID; may be repeated"
    )
    verb.add_argument(
        "--starts",
        type=int,
        default=DEFAULT_LOOKS[-1],
        metavar="N",
        help=f"starts of each side at most, even (default {DEFAULT_LOOKS[-1]}); judged at "
        f"{', '.join(map(str, DEFAULT_LOOKS))}",
    )
    verb.add_argument("--seed", type=int, metavar="S", help="seed of the order of blocks (default a new one, printed)")
    verb.add_argument(
        "--cool-down",
        type=seconds_or_none,
        default=_COOL_DOWN_SECONDS,
        metavar="SECONDS",
        help=f"longest wait for the temperature of the first start (default {_COOL_DOWN_SECONDS:g})",
    )
    verb.add_argument(
        "--catalog", type=Path, action="append", default=[], metavar="FOLDER", help="folder with profiles of your own"
    )
    verb.add_argument(
        "--baselines", type=Path, default=Path("baselines"), metavar="FOLDER", help="where baselines are kept"
    )
