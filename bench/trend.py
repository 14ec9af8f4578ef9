"""How often does a history show a change point that is none, and how often one that is? Simulated sessions.

    python bench/trend.py [--runs N] [--noise SHARE] [--json FILE]

Sessions lie 3 days apart, with normal noise of their logarithms. Prints a table and writes JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable
from pathlib import Path

from tabulate import tabulate

from pytest_moegpu.core.trend import drift, levels

COUNTS = (8, 12, 20, 40)
STEPS = (0.03, 0.05, 0.10)
DRIFTS = (0.01, 0.05)
DAYS = 3.0
SEED = 6


def series(rng: random.Random, days: list[float], noise: float, at: Callable[[int], float]) -> list[float]:
    return [100.0 * math.exp(rng.gauss(0.0, noise) + at(number)) for number in range(len(days))]


def row(count: int, runs: int, noise: float) -> dict[str, float]:
    rng = random.Random(SEED * 1000 + count)
    days = [DAYS * number for number in range(count)]
    found: dict[str, float] = {"sessions": count}
    steady = [series(rng, days, noise, lambda _: 0.0) for _ in range(runs)]
    found["false change points"] = sum(len(levels(days, each)) > 1 for each in steady) / runs
    for step in STEPS:
        half = count // 2

        def stepped(number: int, half: int = half, step: float = step) -> float:
            return math.log1p(-step) if number >= half else 0.0

        hits = 0
        for _ in range(runs):
            begins = [level.first for level in levels(days, series(rng, days, noise, stepped))[1:]]
            hits += any(abs(begin - half) <= 1 for begin in begins)
        found[f"step of {step:.0%} found"] = hits / runs
    for slope in DRIFTS:

        def sloping(number: int, slope: float = slope) -> float:
            return math.log1p(-slope) * DAYS * number / 30

        drawn = [series(rng, days, noise, sloping) for _ in range(runs)]
        told = [drift(days, each) for each in drawn]
        name = f"drift of {slope:.0%} in 30 days"
        found[f"{name} shown"] = sum(each is not None and each.shown for each in told) / runs
        found[f"{name} within its interval"] = (
            sum(each is not None and each.low <= -slope <= each.high for each in told) / runs
        )
        found[f"{name} taken for steps"] = sum(len(levels(days, each)) > 1 for each in drawn) / runs
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="histories of each kind")
    parser.add_argument("--noise", type=float, default=0.01, help="standard deviation of a session, a share of one")
    parser.add_argument("--json", type=Path, default=Path("bench/results/trend.json"))
    args = parser.parse_args()
    rows = [row(count, args.runs, args.noise) for count in COUNTS]
    names = list(rows[0])
    print(tabulate([[name, *(each[name] for each in rows)] for name in names], floatfmt=".3g"))
    args.json.write_text(json.dumps({"runs": args.runs, "noise": args.noise, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
