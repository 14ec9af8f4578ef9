"""`moegpu`: what is done with runs and baselines outside pytest. One function per verb.

Exit codes: 0 good, 1 worse (`compare`, `ab`, `gate`), wrong (`check-launch`), bad (`check-text`), warned of (`doctor`)
or died (`serve`), 2 something is wrong with the input, the machine (`doctor`), or no clear answer is possible, 3 wrong
usage.
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
from pytest_moegpu.core.abargs import AbOrder, add_ab
from pytest_moegpu.core.calibrateargs import add_calibrate
from pytest_moegpu.core.checklaunchargs import add_check_launch
from pytest_moegpu.core.checktextargs import add_check_text
from pytest_moegpu.core.doctorargs import DoctorOrder, add_doctor
from pytest_moegpu.core.gateargs import GateOrder, add_gate
from pytest_moegpu.core.historyargs import HistoryOrder, add_history
from pytest_moegpu.core.modelargs import FactsOrder, add_model
from pytest_moegpu.core.planargs import PlanOrder, add_plan
from pytest_moegpu.core.serveargs import ServeOrder, add_serve
from pytest_moegpu.core.watchargs import add_watch
from pytest_moegpu.errors import MoegpuError, nearest

__all__ = ["VERBS", "main", "parser"]

_USAGE = 3


class _Parser(argparse.ArgumentParser):
    """Exits with 3 on wrong usage, and offers the nearest verb."""

    def error(self, message: str) -> NoReturn:
        """Print one message and leave."""
        words = message.split("'")
        if message.startswith("argument VERB: invalid choice") and len(words) > 1:
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

    return doctor.run(DoctorOrder.of(args), sys.stdout, sys.stderr)


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


def _model(args: argparse.Namespace) -> int:
    from pytest_moegpu.errors import UserError
    from pytest_moegpu.session import modelfiles, modelshape

    try:
        if args.kind == "facts":
            told = modelshape.told(FactsOrder.of(args))
        else:
            told = "\n".join(
                modelfiles.upcycle(
                    args.dense, args.out, args.how, args.experts, args.used, seed=args.seed, force=args.force
                )
            )
    except (UserError, OSError) as error:
        print(f"moegpu model {args.kind}: {error}", file=sys.stderr)
        return _USAGE
    print(told)
    return 0


def _check_text(args: argparse.Namespace) -> int:
    from pytest_moegpu.session.checktext import check_texts

    return check_texts(args.file, sys.stdin.buffer, sys.stdout, sys.stderr, jsonl=args.jsonl, as_json=args.json)


def _calibrate(args: argparse.Namespace) -> int:
    from pytest_moegpu.session import calibrate

    models, tiers, catalog = map(tuple, (args.model, args.tier, args.catalog))
    order = calibrate.Order(profile=args.profile, models=models, seed=args.seed, tiers=tiers, catalog=catalog)
    found = calibrate.calibrate(order, calibrate.Told(sys.stderr))
    text = calibrate.as_toml(found, order)
    print(text if args.out is None else calibrate.write(args.out, text))
    return 0 if found else 1


def _ab(args: argparse.Namespace) -> int:
    from pytest_moegpu.session import ab

    return ab.run(AbOrder.of(args), sys.stdout, sys.stderr, ("moegpu", *sys.argv[1:]))


def _gate(args: argparse.Namespace) -> int:
    from pytest_moegpu.session import gate

    return gate.run(GateOrder.of(args), sys.stdout, sys.stderr)


def _history(args: argparse.Namespace) -> int:
    from pytest_moegpu.session import history

    print(history.told(HistoryOrder.of(args)))
    return 0


def _serve(args: argparse.Namespace) -> int:
    from pytest_moegpu.session import serve

    return serve.run(ServeOrder.of(args), sys.stdout, sys.stderr)


def _plan(args: argparse.Namespace) -> int:
    from pytest_moegpu.session import plan

    return plan.run(PlanOrder.of(args), sys.stdout, sys.stderr)


VERBS = {
    "show": _show,
    "compare": _compare,
    "promote": _promote,
    "ab": _ab,
    "gate": _gate,
    "history": _history,
    "doctor": _doctor,
    "watch": _watch,
    "check-baselines": _check_baselines,
    "check-launch": _check_launch,
    "calibrate": _calibrate,
    "check-text": _check_text,
    "model": _model,
    "serve": _serve,
    "plan": _plan,
}


def _add_runs(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--runs", type=Path, default=Path(".moegpu/runs"), metavar="FOLDER", help="where runs are kept")


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

    ab = verbs.add_parser("ab", help="judge two builds or configurations against each other, started in turn")
    add_ab(ab)
    _add_runs(ab)

    gate = verbs.add_parser("gate", help="decide on runs by the stored baselines, or guide an upgrade there and back")
    add_gate(gate, run_help)
    _add_runs(gate)

    moved = verbs.add_parser("history", help="show how metrics moved over all stored runs")
    add_history(moved)
    _add_runs(moved)

    doctor = verbs.add_parser("doctor", help="say what this machine is, what of it is bad, and what can run on it")
    add_doctor(doctor)
    _add_runs(doctor)

    add_watch(verbs.add_parser("watch", help="show what the sampler sees of GPUs and a server, live"))

    add_check_launch(verbs.add_parser("check-launch", help="say what is wrong with the command line of a server"))

    add_model(verbs.add_parser("model", help="what a model is made of, and mixtures made of a dense one"), _Parser)

    add_check_text(verbs.add_parser("check-text", help="look for signs of broken text in answers of a model"))

    add_calibrate(verbs.add_parser("calibrate", help="find the known answers that a model gives with a margin"))

    planned = verbs.add_parser("plan", help="say what a model takes of a GPU's memory, and what fits")
    add_plan(planned)
    _add_runs(planned)

    served = verbs.add_parser("serve", help="start the server of a scenario, and say how to reach it")
    add_serve(served)
    _add_runs(served)

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
    except KeyboardInterrupt:
        print(f"moegpu {args.verb}: interrupted", file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())
