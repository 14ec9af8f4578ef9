"""Does the rule alarm where nothing changed, and find a loss that is there? Starts of a real server, judged pairwise.

    python -m bench.real_ab PROFILE [--model FILE] [--server PROGRAM] [--starts 40] [--seed S] [--json FILE]
        [--loss SETTING]… [--loss-starts 12] [--catalog FOLDER] [--runs FOLDER] [--measured FILE]
    python -m bench.real_ab PROFILE --judge FILE [--json FILE]

All starts are made in one session, in random order: `--starts` as the profile says (A), and `--loss-starts` of each
`--loss`, a launch setting as for `moegpu ab --b-set`. Then, with nothing pooled but starts:

* interleaved, nothing changed: each window of 12 A in a row, divided in ABBA order into 6 and 6, one side against the
  other and the other way round; and random divisions of any 12 A (these share starts, so their number is no count of
  independent trials);
* stored, nothing changed: each 5 A in a row as a session of its own, judged against every earlier one;
* each loss: windows of 6 of its starts against the 6 A that were made nearest in time.

All compared metrics of a comparison share the level of 1 %, as in every run. `--measured` keeps the starts as they are
made and judges none; `--judge` judges those of such a file, which needs no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
from tabulate import tabulate

from pytest_moegpu.catalog import Catalog
from pytest_moegpu.checks.throughput import metrics
from pytest_moegpu.core.abargs import AbOrder, SideOrder
from pytest_moegpu.core.baseline import BASELINE_SCHEMA, Baseline, BaselineSession
from pytest_moegpu.core.evidence import Evidence, StartEvidence
from pytest_moegpu.core.model import Profile, Scenario
from pytest_moegpu.core.verdict import METRICS, Outcome, Verdict
from pytest_moegpu.errors import MoegpuError
from pytest_moegpu.session.abjudge import AbJudge
from pytest_moegpu.session.abside import AbSide, open_side
from pytest_moegpu.session.calibrate import Told
from pytest_moegpu.session.judge import Comparison

SIDE, SESSION = 6, 5
DIVISIONS = 60
ABBA = "ABBABAABABBA"


@dataclass(frozen=True, kw_only=True)
class Made:
    """One start, and when it was made among all."""

    place: int
    start: StartEvidence


@dataclass(frozen=True, kw_only=True)
class Side:
    """All starts of one side, and the places of each among all."""

    name: str
    scenario: Scenario
    evidence: Evidence
    places: tuple[int, ...]

    @property
    def made(self) -> list[Made]:
        """The starts, in the order they were made in."""
        return [Made(place=p, start=s) for p, s in zip(self.places, self.evidence.starts, strict=True)]


class Judge:
    """Judges starts of one session against others of it."""

    def __init__(self, a: Side, profile: Profile) -> None:
        self.side, self.profile, self.base = a, profile, a.evidence

    def interleaved(self, a: Sequence[Made], b: Sequence[Made], now: Side) -> dict[str, Verdict]:
        """Judge B against A as `moegpu ab` does at a first and only look."""
        judge = AbJudge(self.profile, self.side.scenario, now.scenario, (len(a),))
        judge.look(_with(self.base, a), _with(now.evidence, b), 0)
        return judge.verdicts

    def stored(self, base: Sequence[Made], now: Sequence[Made]) -> dict[str, Verdict]:
        """Judge starts against a stored session of others."""
        before, after = _with(self.base, base), _with(self.base, now)
        found = metrics(before)
        baseline = Baseline(
            schema=BASELINE_SCHEMA,
            profile=before.profile,
            scenario=before.scenario,
            backend=before.backend,
            check_version=before.check_version,
            identity=before.identity,
            stack=before.stack,
            sessions=(
                BaselineSession(
                    run="stored",
                    recorded_at=before.starts[0].started_at,
                    metrics={name: metric.values for name, metric in found.items()},
                    noted=before.noted,
                ),
            ),
            units={name: METRICS[name].unit for name in found},
            better={name: METRICS[name].better.value for name in found},
        )
        return {
            name: Comparison(metric=name, scenario=self.side.scenario, profile=self.profile).look(after, baseline)
            for name in found
            if METRICS[name].compared
        }


def evidence_of(side: AbSide) -> Evidence:
    """Return what a side measured."""
    assert side.evidence is not None
    return side.evidence


def _with(evidence: Evidence, made: Sequence[Made]) -> Evidence:
    ordered = sorted(made, key=lambda each: each.place)
    return replace(evidence, starts=tuple(each.start for each in ordered))


def measured(sides: Sequence[AbSide], counts: Sequence[int], seed: int, kept: Path | None) -> list[Side]:
    """Make all starts, in random order; a start whose speeds may not be believed is made again, as `ab` does."""
    turns = [number for number, count in enumerate(counts) for _ in range(count)]
    random.Random(seed).shuffle(turns)
    places: list[list[int]] = [[] for _ in sides]
    for place, number in enumerate(turns):
        side = sides[number]
        for _ in range(3):
            evidence = side.start()
            if evidence.failure is not None or side.session.unusable:
                raise SystemExit(f"{side.name}: {side.session.unusable or evidence.failure}")
            if not (doubt := side.doubt()):
                break
            print(f"{side.name}: made again: {doubt}", file=sys.stderr)
            side.drop()
        else:
            continue
        places[number].append(place)
        print(f"{place + 1}/{len(turns)} {side.name}: {_shown(evidence_of(side))}", file=sys.stderr, flush=True)
        if kept is not None and all(places):
            # After each: a time limit must not cost what was measured before it.
            kept.write_bytes(msgspec.json.encode(_sides(sides, places)))
    return _sides(sides, places)


def _sides(sides: Sequence[AbSide], places: Sequence[Sequence[int]]) -> list[Side]:
    return [
        Side(name=side.name, scenario=side.scenario, evidence=evidence_of(side), places=tuple(at))
        for side, at in zip(sides, places, strict=True)
    ]


def _shown(evidence: Evidence) -> str:
    last = metrics(replace(evidence, starts=evidence.starts[-1:]))
    return ", ".join(f"{name} {metric.values[0]:.5g}" for name, metric in last.items() if metric.values)


def tally(name: str, comparisons: Iterable[dict[str, Verdict]]) -> dict[str, Any]:
    """Count comparisons by their worst, and each metric by outcome."""
    rows = list(comparisons)
    wrong = [{v.outcome for v in row.values()} for row in rows]
    by_metric: dict[str, Counter[str]] = {}
    for row in rows:
        for metric, verdict in row.items():
            by_metric.setdefault(metric, Counter())[verdict.outcome.value] += 1
    changes = {
        metric: statistics.median(v.change for row in rows if (v := row.get(metric)) and v.change is not None)
        for metric in by_metric
        if any((v := row.get(metric)) and v.change is not None for row in rows)
    }
    return {
        "name": name,
        "comparisons": len(rows),
        "worse": sum(Outcome.REGRESSED in outcomes for outcomes in wrong),
        "better": sum(Outcome.IMPROVED in outcomes for outcomes in wrong),
        "all pass": sum(outcomes == {Outcome.PASS} for outcomes in wrong),
        "metrics": {metric: dict(counts) for metric, counts in by_metric.items()},
        "median change": changes,
    }


def unchanged(judge: Judge, a: Sequence[Made], seed: int) -> list[dict[str, Any]]:
    """Judge the starts of one build against each other in every way, on all cores."""
    rng = random.Random(seed)
    windows = [a[first : first + 2 * SIDE] for first in range(len(a) - 2 * SIDE + 1)]
    pairs = [
        (*([each for each, word in zip(window, ABBA, strict=True) if word == side] for side in sides),)
        for window in windows
        for sides in ("AB", "BA")
    ]
    divided = []
    for _ in range(DIVISIONS):
        chosen = rng.sample(list(a), 2 * SIDE)
        divided.append((chosen[:SIDE], chosen[SIDE:]))
    apart = len(a) // (2 * SIDE)
    separate = [pairs[2 * 2 * SIDE * number] for number in range(apart)]
    sessions = [a[first : first + SESSION] for first in range(0, len(a) - SESSION + 1, SESSION)]
    with ProcessPoolExecutor(mp_context=get_context("fork"), initializer=_use, initargs=(judge,)) as pool:
        return [
            tally("interleaved 6 + 6, apart", pool.map(_interleaved, separate)),
            tally("interleaved 6 + 6, windows", pool.map(_interleaved, pairs)),
            tally("interleaved 6 + 6, random", pool.map(_interleaved, divided)),
            tally("stored, 5 against 5", pool.map(_stored, itertools.combinations(sessions, 2))),
        ]


_used: list[Judge] = []


def _use(judge: Judge) -> None:
    _used.append(judge)


def _interleaved(sides: tuple[Sequence[Made], ...]) -> dict[str, Verdict]:
    (judge,) = _used
    a, b = sides
    return judge.interleaved(a, b, judge.side)


def _stored(sessions: tuple[Sequence[Made], ...]) -> dict[str, Verdict]:
    (judge,) = _used
    base, now = sessions
    return judge.stored(base, now)


def changed(judge: Judge, a: Sequence[Made], b: Sequence[Made], now: Side) -> Iterable[dict[str, Verdict]]:
    """Judge windows of 6 starts of a loss against the 6 of A made nearest to them."""
    for first in range(0, len(b) - SIDE + 1, SIDE):
        window = b[first : first + SIDE]
        middle = statistics.mean(each.place for each in window)
        near = sorted(a, key=lambda each: abs(each.place - middle))[:SIDE]
        yield judge.interleaved(near, window, now)


def main() -> int:
    """Measure, judge, print the table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile")
    parser.add_argument("--model")
    parser.add_argument("--server")
    parser.add_argument("--scenario")
    parser.add_argument("--starts", type=int, default=40)
    parser.add_argument("--loss", action="append", default=[], help="a launch setting, such as settings.ubatch=64")
    parser.add_argument("--loss-starts", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--catalog", type=Path, action="append", default=[])
    parser.add_argument("--runs", type=Path, default=Path(".moegpu/runs"))
    parser.add_argument("--measured", type=Path, help="keep the starts in this file; judge none")
    parser.add_argument("--judge", type=Path, help="judge the starts of this file; make none")
    parser.add_argument("--json", type=Path, default=Path("real_ab.json"))
    args = parser.parse_args()
    if args.judge is None:
        sides = _measure(args)
        if args.measured is not None:
            return 0
    else:
        sides = msgspec.json.decode(args.judge.read_bytes(), type=list[Side])
    result = judged(sides, Catalog.load(args.catalog).profile(args.profile), args.seed)
    args.json.write_text(
        json.dumps({"command": sys.argv, **result}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    print(table(result["rows"]))
    print("CV of A over starts: " + ", ".join(f"{name} {cv:.2%}" for name, cv in result["cv"].items()))
    return 0


def _measure(args: argparse.Namespace) -> list[Side]:
    """Open all sides and make their starts."""
    plain = SideOrder(server=args.server, scenario=args.scenario)
    asked = AbOrder(
        profile=args.profile, a=plain, b=plain, model=args.model, catalog=tuple(args.catalog), runs=args.runs
    )
    told = Told(sys.stderr)
    sides: list[AbSide] = []
    with contextlib.ExitStack() as stack:
        for name, words in (("A", ()), *((loss, (loss,)) for loss in args.loss)):
            # An option of that name is what a wrong setting is blamed on.
            sides.append(open_side("b" if words else "a", asked, replace(plain, settings=words), told, tuple(sys.argv)))
            sides[-1].name = name
            stack.callback(sides[-1].session.close, "finished")
        return measured(sides, [args.starts, *(args.loss_starts for _ in args.loss)], args.seed, args.measured)


def judged(sides: Sequence[Side], profile: Profile, seed: int) -> dict[str, Any]:
    """Judge the starts of the first side against each other, and those of the others against them."""
    a, *losses = sides
    judge = Judge(a, profile)
    rows = unchanged(judge, a.made, seed)
    rows += [tally(f"{side.name}, 6 + 6", changed(judge, a.made, side.made, side)) for side in losses]
    values = {side.name: {name: metric.values for name, metric in metrics(side.evidence).items()} for side in sides}
    spread = {
        name: statistics.stdev(found) / statistics.mean(found)
        for name, found in values[a.name].items()
        if len(found) > 1 and statistics.mean(found)
    }
    return {
        "gpus": [gpu.name for gpu in judge.base.gpus],
        "engine": judge.base.stack.engine_version,
        "starts": {side.name: len(side.places) for side in sides},
        "cv": spread,
        "rows": rows,
        "values": values,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Print one line for each way of judging."""
    names = list(dict.fromkeys(metric for row in rows for metric in row["metrics"]))
    lines = [
        [
            row["name"],
            row["comparisons"],
            row["worse"],
            row["better"],
            row["all pass"],
            *(_cell(row, name) for name in names),
        ]
        for row in rows
    ]
    head = ["starts", "comparisons", "REGRESSED", "IMPROVED", "all PASS", *names]
    return tabulate(lines, headers=head, tablefmt="github", disable_numparse=True)


def _cell(row: dict[str, Any], metric: str) -> str:
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(row["metrics"].get(metric, {}).items()))
    change = row["median change"].get(metric)
    return counts if change is None else f"{counts} ({change:+.1%})"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MoegpuError as error:
        sys.exit(str(error))
