"""Does a golden of one engine judge the others: none accused when healthy, all caught with damaged weights?

    python -m bench.cross_engine --engine PROFILE[:SCENARIO]=MODEL=PROGRAM … [--json FILE] [--only WORD,…]
        [--checks WORDS] [--work FOLDER]

The first engine is run healthy and promoted; its golden judges every run after it (`--moegpu-golden`). Each engine is
then run on its model as it is, and with damaged copies of it, which its program loads in place of the file it is told
(bench/_swapped_model.py). `--checks` asks more of the healthy runs, in pytest's words for `-k`. MODEL is a GGUF file or
a folder of Hugging Face's form, all of the same weights.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path

from tabulate import tabulate

from bench._injuries import INJURIES, injure
from bench._patient import opened
from bench._safetensors import negate_blocks, swap_layers
from bench._swapped_model import used
from pytest_moegpu.core.record import RunRecord
from pytest_moegpu.core.verdict import Outcome, Verdict
from pytest_moegpu.errors import MoegpuError
from pytest_moegpu.host.store import RunStore, read_run

ROOT = Path(__file__).parents[1]
HEALTHY = "none"
DAMAGE: Mapping[str, tuple[str, Callable[[Path], None]]] = {
    "block negated, 1 %": ("block negated 1e-2", lambda folder: negate_blocks(folder, 0.01)),
    "layers swapped, 5 and 25": ("layers swapped 5, 25", lambda folder: swap_layers(folder, 5, 25)),
}
"""What is done: the injury of a GGUF file, and the same to a folder of safetensors."""
CHECKS = "output or golden"
RUN_SECONDS = 400


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One server program with its model, by the profile it is run in, and of its scenarios one or all."""

    profile: str
    scenario: str
    model: Path
    program: str

    @classmethod
    def of(cls, text: str) -> Engine:
        """Read `PROFILE[:SCENARIO]=MODEL=PROGRAM`."""
        place, model, program = text.split("=", 2)
        profile, _, scenario = place.partition(":")
        return cls(profile=profile, scenario=scenario, model=Path(model).absolute(), program=program)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one run showed: outcomes and reasons of the text and of the golden."""

    profile: str
    model: str
    damage: str
    output: str
    answers: str
    golden: str
    numbers: str
    seconds: float

    @property
    def right(self) -> bool:
        """Tell whether a healthy engine is not accused, and a damaged one is."""
        accused = Outcome.FAILED.value in (self.output, self.golden)
        judged = self.golden == Outcome.PASS.value and self.output == Outcome.PASS.value
        return judged if self.damage == HEALTHY else accused


def damaged(engine: Engine, damage: str, folder: Path) -> Path:
    """Make a damaged copy of a model; returns its path."""
    name, to_folder = DAMAGE[damage]
    if engine.model.is_dir():
        copy = folder / "injured"
        shutil.copytree(engine.model, copy)
        to_folder(copy)
        return copy
    copy = folder / "injured.gguf"
    shutil.copyfile(engine.model, copy)
    with opened(copy) as patient:
        if not patient.scaled() and name.startswith("block"):
            # A file of floats has no blocks with scales.
            name = "norm weights, noise 20 %, all layers"
    injure(copy, next(each for each in INJURIES if each.name == name))
    return copy


def run(engine: Engine, order: Path, injured: Path | None, golden: Path | None, checks: str) -> RunRecord:
    """Run the plugin's own suites once in the folder of `order`.

    Raises:
        ValueError: The server was not given the model it should have, or no run was kept; with what pytest printed.
    """
    order.write_text(str(injured or ""), encoding="utf-8")
    used(order).unlink(missing_ok=True)
    runs = order.parent / ".moegpu/runs"
    before = set(runs.glob("*/run.json"))
    server = f"{shlex.join([sys.executable, str(ROOT / 'bench/_swapped_model.py'), str(order)])} {engine.program}"
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--moegpu={engine.profile}"]
    if not any(point.name == "moegpu" for point in entry_points(group="pytest11")):
        argv += ["-p", "pytest_moegpu.plugin"]  # the package lies on PYTHONPATH and is not installed
    argv += [f"--moegpu-server={server}", f"--moegpu-model={engine.model}", "--moegpu-starts=1", "-k", checks]
    argv += [f"--moegpu-scenario={engine.scenario}"] if engine.scenario else []
    argv += [f"--moegpu-golden={golden}"] if golden else []
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        argv,
        cwd=order.parent,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    said = (done.stdout + done.stderr).strip()[-3000:]
    got = used(order).read_text(encoding="utf-8") if used(order).exists() else "no model"
    if got != str(injured or engine.model):
        raise ValueError(f"the server was given {got}: {said}")
    if not set(runs.glob("*/run.json")) - before:
        raise ValueError(f"no run was kept: {said}")
    return read_run(RunStore(runs).find("latest"))


def row_of(engine: Engine, damage: str, record: RunRecord, seconds: float) -> Row:
    """Sum one run up."""

    def first(check: str, subject: str = "") -> Verdict | None:
        of_check = [v for v in record.verdicts if v.check == check and subject in v.subject]
        return next((v for v in of_check if v.outcome is Outcome.FAILED), of_check[0] if of_check else None)

    output, answers, golden = first("output"), first("output", "known answers"), first("golden")
    return Row(
        profile=engine.profile,
        model=engine.model.name,
        damage=damage,
        output=output.outcome.value if output else "-",
        answers=str(answers.more.get("value", answers.reason)) if answers else "-",
        golden=golden.outcome.value if golden else "-",
        numbers=_numbers(golden) if golden else "-",
        seconds=round(seconds, 1),
    )


def _numbers(verdict: Verdict) -> str:
    """Return the figures of a golden: what it says of the whole, else its reason."""
    return "; ".join(text for label, text in verdict.lines if label in ("figures", "agreement")) or verdict.reason


def promoted(folder: Path) -> Path:
    """Make the latest run the baseline; returns its file.

    Raises:
        ValueError: It is refused, with what was said.
    """
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    argv = [sys.executable, "-m", "pytest_moegpu.cli", "promote", "latest"]
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(done.stdout + done.stderr)
    return next((folder / "baselines").rglob("*.json")).absolute()


def main() -> int:
    """Run what is not in the JSON yet, and print the table. Exit code 1: one is accused or missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", type=Engine.of, required=True)
    parser.add_argument("--only", default="", help="engines whose profile or model has one of these words in its name")
    parser.add_argument("--checks", default=CHECKS, help="of healthy engines (default: %(default)s)")
    parser.add_argument("--work", type=Path, help="folder that is kept, with the golden and bundles")
    parser.add_argument("--json", type=Path, default=Path("cross_engine.json"))
    args = parser.parse_args()
    stored = json.loads(args.json.read_text(encoding="utf-8")) if args.json.exists() else []
    rows = [Row(**row) for row in stored]
    with tempfile.TemporaryDirectory(prefix="cross-") as name:
        folder = (args.work or Path(name)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        order = folder / "order.txt"
        goldens = sorted((folder / "baselines").rglob("*.json"))
        try:
            if not goldens:
                run(args.engine[0], order, None, None, f"{CHECKS} or throughput")
            golden = goldens[0] if goldens else promoted(folder)
        except (subprocess.TimeoutExpired, MoegpuError, ValueError) as error:
            print(f"no golden: {error}", file=sys.stderr)
            return 2
        for engine in args.engine:
            if not any(word in f"{engine.profile} {engine.model.name}" for word in args.only.split(",")):
                continue
            for damage in (HEALTHY, *DAMAGE):
                if any((r.profile, r.model, r.damage) == (engine.profile, engine.model.name, damage) for r in rows):
                    continue
                if (row := _row(engine, damage, order, golden, args.checks)) is None:
                    continue
                rows.append(row)
                args.json.write_text(json.dumps([asdict(r) for r in rows], indent=1, ensure_ascii=False) + "\n")
                print(f"{engine.profile} {engine.model.name} {damage}: {row.output}, {row.golden}", flush=True)
    head = ["profile", "model", "damage", "output", "known answers", "golden", "figures", "seconds"]
    print(tabulate([list(asdict(r).values()) for r in rows], headers=head, tablefmt="github", disable_numparse=True))
    return 0 if rows and all(row.right for row in rows) else 1


def _row(engine: Engine, damage: str, order: Path, golden: Path, checks: str) -> Row | None:
    """Run an engine on its model, damaged or not; None, with a message, when that was not possible."""
    with tempfile.TemporaryDirectory(prefix="injured-") as name:
        try:
            injured = None if damage == HEALTHY else damaged(engine, damage, Path(name))
            began = time.monotonic()
            record = run(engine, order, injured, golden, checks if injured is None else CHECKS)
        except (subprocess.TimeoutExpired, MoegpuError, ValueError) as error:
            print(f"{engine.profile} {damage}: not run: {error}", file=sys.stderr)
            return None
        return row_of(engine, damage, record, time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
