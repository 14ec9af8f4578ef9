"""Proof by injury: a real server computes with damaged weights. Which checks see it, and does the speed tell anything?

    python -m bench.injury [--program LLAMA_SERVER] [--model FILE] [--profile embedded] [--only WORD,…] [--json FILE]

Each injury (bench/_injuries.py) is done to a copy of the model. The plugin runs its own suites in a process of its own,
on a server program that loads the damaged copy in place of the file it is told (bench/_swapped_model.py): for the
plugin file, flags and program are those of the healthy run, as with a broken kernel. The healthy run is promoted first,
so that checks that need a baseline have one. Rows that are in the JSON already are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tabulate import tabulate

from bench._injuries import INJURIES, Injury, injure
from bench._swapped_model import used
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.evidence import RequestKind
from pytest_moegpu.core.record import RunRecord
from pytest_moegpu.core.timing import decode_rate
from pytest_moegpu.core.upcycle import How, Order
from pytest_moegpu.core.verdict import Outcome, worst
from pytest_moegpu.errors import MoegpuError
from pytest_moegpu.host.fetch import fetch_model
from pytest_moegpu.host.store import RunStore, read_run
from pytest_moegpu.host.upcycle import upcycle

ROOT = Path(__file__).parents[1]
MODEL = "smollm2-135m-instruct"
CHECKS = "output or context or golden or axes or conditions or throughput"
ORDERS = {
    "slices": Order(how=How.SLICES, experts=4, used=4),
    "copies": Order(how=How.COPIES, experts=4, used=2, seed=1),
}
RUN_SECONDS = 400
TRIES = 3
# Words of a speed or a comparison of speeds, which say nothing about the text.
SPEED_CHECKS = ("throughput", "baseline")
CAUGHT = (Outcome.FAILED, Outcome.ERROR)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one injured run showed. `checks` are worst outcomes by check and subject, `decode` tok/s or None."""

    kind: str
    strength: str
    model: str
    harmless: bool
    checks: dict[str, str]
    finding: str
    decode: float | None
    seconds: float

    @property
    def state(self) -> str:
        """What the run says of the text: FAILED, INCONCLUSIVE or PASS."""
        outcomes = {Outcome(text) for name, text in self.checks.items() if not name.startswith(SPEED_CHECKS)}
        if outcomes & set(CAUGHT):
            return "FAILED"
        return "INCONCLUSIVE" if Outcome.INCONCLUSIVE in outcomes or not outcomes else "PASS"


class Project:
    """A folder with a catalog of its own, in which pytest is run."""

    def __init__(self, folder: Path, args: argparse.Namespace, model: Path) -> None:
        self.folder, self.args, self.model = folder, args, model
        self.order = folder / "order.txt"
        real = args.program or f"{shlex.quote(sys.executable)} -m pytest_moegpu.host.embedded_server"
        words = [sys.executable, str(ROOT / "bench/_swapped_model.py"), str(self.order)]
        program = f"{shlex.join(words)} {real}"
        files = {
            "profiles/injury.toml": {
                "schema": 1,
                "name": "injury",
                "extends": args.profile,
                "title": "Injured weights",
                "program": program,
                "model_path": str(model),
                "scenarios": ["injury-1k"],
            },
            "scenarios/injury-1k.toml": {
                "schema": 1,
                "name": "injury-1k",
                "extends": Catalog.load().profile(args.profile).scenarios[0],
                "title": "Short, on injured weights",
                "settings": {"context": 1024},
                "workload": {
                    "prompt_tokens": 64,
                    "output_tokens": 48,
                    "requests": 3,
                    "warmup_requests": 1,
                    "context_fills": [0.5],
                    "context_depths": [0.5],
                    "context_output_tokens": 16,
                    # Damaged weights are the same after many requests and after a pause.
                    "axes": ["long-output", "prompt-lengths", "second-turn", "cached", "concurrent", "not-streamed"],
                    "axis_prompt_tokens": [600],
                    "known_answers": 1000,
                },
                # Any speed may stand here: it is only shown.
                "limits": {"decode_at_depth_min_share": "1 %", "memory_budget": "8 GiB"},
            },
        }
        for name, values in files.items():
            path = folder / "catalog" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(toml(values), encoding="utf-8")

    @property
    def path(self) -> str:
        """Where a process of its own finds this package, and what the caller has there."""
        return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])

    def run(self, injured: Path | None) -> RunRecord:
        """Run the suites once.

        Raises:
            ValueError: The server was not given the file it should have, or no run was kept; with what pytest printed.
        """
        self.order.write_text(str(injured or ""), encoding="utf-8")
        used(self.order).unlink(missing_ok=True)
        before = set((self.folder / ".moegpu/runs").glob("*/run.json"))
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--moegpu=injury"]
        if not any(point.name == "moegpu" for point in entry_points(group="pytest11")):
            argv += ["-p", "pytest_moegpu.plugin"]  # the package lies on PYTHONPATH and is not installed
        argv += ["--moegpu-catalog=catalog", "--moegpu-starts=1", "--moegpu-max-starts=1", "-k", self.args.checks]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MOEGPU_") or k == "MOEGPU_CACHE"}
        environment["PYTHONPATH"] = self.path
        done = subprocess.run(
            argv, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
        )
        said = (done.stdout + done.stderr).strip()[-2000:]
        got = used(self.order).read_text(encoding="utf-8") if used(self.order).exists() else "no model"
        if got != str(injured or self.model):
            raise ValueError(f"the server was given {got}: {said}")
        if not set((self.folder / ".moegpu/runs").glob("*/run.json")) - before:
            raise ValueError(f"no run was kept: {said}")
        return read_run(RunStore(self.folder / ".moegpu/runs").find("latest"))

    def promote(self) -> str:
        """Make the latest run the baseline; returns what was said against it."""
        argv = [sys.executable, "-m", "pytest_moegpu.cli", "promote", "latest"]
        environment = os.environ | {"PYTHONPATH": self.path}
        done = subprocess.run(argv, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()


def toml(values: dict[str, Any], table: str = "") -> str:
    """Write a small TOML file: JSON's texts, numbers and lists are TOML's as well."""
    plain = [f"{k} = {json.dumps(v)}" for k, v in values.items() if not isinstance(v, dict)]
    head = [f"\n[{table}]"] if table else []
    return "\n".join([*head, *plain, *(toml(v, k) for k, v in values.items() if isinstance(v, dict))]) + "\n"


def row_of(injury: Injury, record: RunRecord, seconds: float) -> Row:
    """Sum one run up."""
    checks: dict[str, list[Outcome]] = {}
    for verdict in record.verdicts:
        # Lengths differ a little from run to run, where the tokenizer was injured.
        subject = re.sub(r"\d[\d.]*", "N", verdict.subject)
        checks.setdefault(f"{verdict.check}: {subject}", []).append(verdict.outcome)
    bad = [v for v in record.verdicts if v.outcome in CAUGHT and v.check not in SPEED_CHECKS]
    doubtful = [v for v in record.verdicts if v.outcome is Outcome.INCONCLUSIVE and v.check not in SPEED_CHECKS]
    first = next(iter([*bad, *doubtful]), None)
    rates = [
        rate
        for evidence in record.evidence
        for start in evidence.starts
        for request in start.of_kind(RequestKind.THROUGHPUT)
        if (rate := decode_rate(request)) is not None
    ]
    return Row(
        kind=injury.kind,
        strength=injury.strength,
        model=injury.model,
        harmless=injury.harmless,
        checks={name: worst(tuple(outcomes)).value for name, outcomes in checks.items()},
        finding="" if first is None else f"{first.check}: {first.subject}: {first.reason}"[:200],
        decode=statistics.median(rates) if rates else None,
        seconds=round(seconds, 1),
    )


def markdown(rows: list[Row]) -> str:
    """Print the table, the smallest injury caught of each kind, and the kinds that were not caught."""
    columns = list(dict.fromkeys(n for row in rows for n in row.checks if not n.startswith(SPEED_CHECKS)))
    bases = {model: _healthy_speed(rows, model) for model in {row.model for row in rows}}
    lines = []
    for row in rows:
        base = bases[row.model]
        ratio = f"{row.decode / base:.2f}" if row.decode and base else "-"
        speed = f"{row.decode:.0f}" if row.decode else "-"
        outcomes = [row.checks.get(name, "-") for name in columns]
        lines.append([row.kind, row.strength, row.state, *outcomes, speed, ratio, row.finding.replace("|", "/")])
    head = ["injury", "strength", "text", *columns, "decode tok/s", "of healthy", "first finding"]
    kinds = list(dict.fromkeys(row.kind for row in rows if not row.harmless))
    summary = []
    for kind in kinds:
        of_kind = [row for row in rows if row.kind == kind and not row.harmless]
        caught = [row.strength for row in of_kind if row.state == "FAILED"]
        missed = [f"{row.strength} ({row.state})" for row in of_kind if row.state != "FAILED"]
        summary.append([kind, caught[0] if caught else "none", "; ".join(missed) or "-"])
    told = tabulate(lines, headers=head, tablefmt="github", disable_numparse=True)
    short = tabulate(summary, headers=["kind", "smallest caught", "not caught"], tablefmt="github")
    accused = [f"{row.kind} {row.strength}" for row in rows if row.harmless and row.state == "FAILED"]
    return f"{told}\n\n{short}\n\nHarmless and accused: {', '.join(accused) or 'none'}\n"


def _healthy_speed(rows: list[Row], model: str) -> float | None:
    """Median decode speed of the rows of one model that nothing was done to; None where there is none."""
    found = [row.decode for row in rows if row.kind == "none" and row.model == model and row.decode]
    return statistics.median(found) if found else None


def main() -> int:
    """Run what is not in the JSON yet, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", help="server program, with its arguments (default: the embedded server)")
    parser.add_argument("--model", type=Path, help="intact GGUF file (default: the embedded model)")
    parser.add_argument("--profile", default="embedded", help="profile to extend (default embedded)")
    parser.add_argument("--only", default="", help="run those with one of these words in the name, comma separated")
    parser.add_argument("--checks", default=CHECKS, help="pytest -k")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no run after this time")
    parser.add_argument("--work", type=Path, help="folder that is kept, with baseline and bundles (default: temporary)")
    parser.add_argument("--json", type=Path, default=Path("injury.json"))
    args = parser.parse_args()
    began = time.monotonic()
    model: Path = args.model or fetch_model(Catalog.load().model(MODEL))
    stored = json.loads(args.json.read_text(encoding="utf-8")) if args.json.exists() else []
    rows = {f"{row['kind']} {row['strength']}".strip(): Row(**row) for row in stored}
    with tempfile.TemporaryDirectory(prefix="injury-") as name:
        folder = (args.work or Path(name)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        project = Project(folder, args, model.absolute())
        if not (folder / "baselines").exists():
            # A machine that was busy for a moment has no valid speed, and no baseline is made of that.
            for _ in range(TRIES):
                try:
                    project.run(None)
                except (subprocess.TimeoutExpired, MoegpuError, ValueError) as error:
                    print(f"the healthy run failed: {error}", file=sys.stderr)
                    return 2
                if not (refused := project.promote()):
                    break
            else:
                print(f"no baseline, checks that need one say so: {refused}", file=sys.stderr)
        for injury in INJURIES:
            wanted = any(word in injury.name for word in args.only.split(","))
            if injury.name in rows or not wanted or time.monotonic() - began > args.seconds:
                continue
            try:
                rows[injury.name] = run(project, injury, folder, model)
            except (subprocess.TimeoutExpired, MoegpuError, ValueError) as error:
                print(f"{injury.name}: not run: {error}", file=sys.stderr)
                continue
            ordered = [rows[each.name] for each in INJURIES if each.name in rows]
            args.json.write_text(json.dumps([asdict(row) for row in ordered], indent=1, ensure_ascii=False) + "\n")
            print(f"{rows[injury.name].state:13} {injury.name}  {rows[injury.name].finding}", flush=True)
    ordered = [rows[each.name] for each in INJURIES if each.name in rows]
    print(markdown(ordered))
    return 1 if any(row.harmless and row.state == "FAILED" for row in ordered) else 0


def run(project: Project, injury: Injury, folder: Path, model: Path) -> Row:
    """Make the damaged file, run, and take it away again."""
    source = model
    if injury.model != "dense":
        source = folder / f"{injury.model}.gguf"
        if not source.exists():
            upcycle(model, source, ORDERS[injury.model])
    damaged = folder / "injured.gguf"
    shutil.copyfile(source, damaged)
    try:
        injure(damaged, injury)
        began = time.monotonic()
        record = project.run(damaged)
        return row_of(injury, record, time.monotonic() - began)
    finally:
        damaged.unlink()


if __name__ == "__main__":
    sys.exit(main())
