"""`moegpu`: what is done with runs and baselines outside pytest. One function per verb.

Exit codes: 0 good, 1 worse (`compare`) or wrong (`check-launch`), 2 something is wrong with the input or no answer is
possible, 3 wrong usage.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pytest_moegpu import __version__
from pytest_moegpu.errors import MoegpuError, nearest

__all__ = ["VERBS", "main", "parser"]

_USAGE = 3


class _Parser(argparse.ArgumentParser):
    """Exits with 3 on wrong usage, and offers the nearest verb."""

    def error(self, message: str) -> NoReturn:
        """Print one message and leave."""
        words = message.split("'")
        if "invalid choice" in message and len(words) > 1:
            message = f"unknown verb {words[1]!r}{nearest(words[1], VERBS)}; known: {', '.join(VERBS)}"
        print(f"moegpu: {message}", file=sys.stderr)
        raise SystemExit(_USAGE)


def _show(args: argparse.Namespace) -> int:
    from pytest_moegpu.session import records

    print(records.show(args.run, args.runs))
    return 0


def _compare(args: argparse.Namespace) -> int:
    from pytest_moegpu.session import records

    text, code = records.compare_runs(args.a, args.b, args.runs)
    print(text)
    return code


def _promote(args: argparse.Namespace) -> int:
    from pytest_moegpu.session import records

    for line in records.promote(args.run, args.runs, args.baselines, args.add):
        print(line)
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from pytest_moegpu.session import doctor

    text, code = doctor.examine(args.profile, args.catalog)
    print(text)
    return code


def _watch(args: argparse.Namespace) -> int:
    from pytest_moegpu.session import watch

    order = watch.Order(
        pid=args.pid, interval=args.interval, once=args.once, devices=tuple(args.device), replay=args.replay
    )
    return watch.watch(order, sys.stdout)


def _check_baselines(args: argparse.Namespace) -> int:
    from pytest_moegpu.session import records

    lines, code = records.check_baselines(args.folder)
    print("\n".join(lines))
    return code


def _check_launch(args: argparse.Namespace) -> int:
    from pytest_moegpu.core.launchcheck import as_json, as_text
    from pytest_moegpu.errors import UserError
    from pytest_moegpu.session.launchcheck import check_line

    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    try:
        report = check_line(words, args.gpu)
    except UserError as error:
        print(f"moegpu check-launch: {error}", file=sys.stderr)
        return _USAGE
    print(json.dumps(as_json(report), ensure_ascii=False, indent=1) if args.json else as_text(report))
    return 1 if report.problems else 0


VERBS = {
    "show": _show,
    "compare": _compare,
    "promote": _promote,
    "doctor": _doctor,
    "watch": _watch,
    "check-baselines": _check_baselines,
    "check-launch": _check_launch,
}


def _add_runs(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--runs", type=Path, default=Path(".moegpu/runs"), metavar="FOLDER", help="where runs are kept")


def _add_watch(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("pid", nargs="?", type=_pid, metavar="PID", help="server whose tree is shown; ends when it ends")
    verb.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="SECONDS", help="time between two tables (default 1)"
    )
    verb.add_argument("--once", action="store_true", help="one table, after one interval")
    verb.add_argument(
        "--device", action="append", default=[], metavar="GPU", help="index or UUID of a GPU; may be repeated"
    )
    verb.add_argument("--replay", type=Path, metavar="FILE", help="telemetry file of a run to show instead")


def _add_check_launch(verb: argparse.ArgumentParser) -> None:
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    verb.description = (
        "Holds a command line against the flags of the program that it starts, and writes the line that does what was\n"
        "meant. Exit code 0: nothing wrong, 1: something wrong, 3: no known server in it."
    )
    verb.epilog = "example:\n  moegpu check-launch --gpu 8.6 -- llama-server -m model.gguf --max-model-len 6144"
    verb.add_argument("--json", action="store_true", help="write JSON")
    verb.add_argument(
        "--gpu", type=_capability, metavar="X.Y", help="compute capability of the GPU it is for, such as 8.6"
    )
    verb.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="the command line: its words behind --, or all of it as one text in quotes",
    )


def _capability(text: str) -> str:
    major, _, minor = text.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a compute capability: write it as 8.6")
    return text


def _pid(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a pid: write a whole number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write a number of seconds above 0")
    return seconds


def parser() -> argparse.ArgumentParser:
    """Describe the verbs and their arguments."""
    p = _Parser(prog="moegpu", description="Runs and baselines of pytest --moegpu=PROFILE.")
    p.add_argument("--version", action="version", version=f"pytest-moegpu {__version__}")
    verbs = p.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_Parser)
    run_help = "folder of a run, its id, the start of its id, or 'latest'"

    show = verbs.add_parser("show", help="print what a run measured and judged")
    show.add_argument("run", nargs="?", default="latest", help=run_help)
    _add_runs(show)

    compare = verbs.add_parser("compare", help="judge run B against run A, as against a baseline; exit code 1 if worse")
    compare.add_argument("a", metavar="A", help=run_help)
    compare.add_argument("b", metavar="B", help=run_help)
    _add_runs(compare)

    promote = verbs.add_parser("promote", help="make runs the baseline of their profile, scenario and backend")
    promote.add_argument("run", nargs="+", metavar="RUN", help=run_help)
    _add_runs(promote)
    promote.add_argument("--add", action="store_true", help="add to the sessions of a baseline instead of replacing it")
    promote.add_argument(
        "--baselines", type=Path, default=Path("baselines"), metavar="FOLDER", help="where baselines are kept"
    )

    doctor = verbs.add_parser("doctor", help="say what this machine is, and whether a profile can run on it")
    doctor.add_argument("profile", nargs="?", help="profile to check, or none to describe the machine")
    doctor.add_argument(
        "--catalog", type=Path, action="append", default=[], metavar="FOLDER", help="folder with profiles of your own"
    )

    _add_watch(verbs.add_parser("watch", help="show what the sampler sees of GPUs and a server, live"))

    _add_check_launch(verbs.add_parser("check-launch", help="say what is wrong with the command line of a server"))

    check = verbs.add_parser("check-baselines", help="read every baseline below a folder and name what is damaged")
    check.add_argument("folder", type=Path)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    args = parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Under LC_ALL=C an arrow becomes a question mark, not an error.
        sys.stdout.reconfigure(errors="replace")
    try:
        code = VERBS[args.verb](args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader left, as `head` does. What is still buffered goes nowhere, or Python would complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except (MoegpuError, OSError) as error:
        print(f"moegpu {args.verb}: {error}", file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())
