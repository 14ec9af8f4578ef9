"""How often does a rule cry wolf, and how often does it see a loss? Simulated starts, sessions and requests.

    python -m bench.verdicts [--trials 4000] [--seed 1] [--short] [--json FILE] [--markdown FILE]

In logs: request = level + session + start + request noise; 30 requests a start (CV 3 %), whose median adds 0.7 % to the
spread of starts (CV 1 %). Slow starts: 8 % of them are 8 % slower. Drift: speed falls by 2 % from the first start of a
session to the last. Interleaved starts come in ABBA or BAAB blocks at random; all A then all B is shown beside it.
Every table has the share of trials (%) with an alarm, by the true loss. Exit code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from bench import _verdict_rules as rules
from bench._verdict_noise import Noise, one_session, sessions
from pytest_moegpu.core.designs import ALPHA, FAR
from pytest_moegpu.core.holm import holm, step_down

Array = NDArray[Any]
LOSSES = (0.0, 0.02, 0.03, 0.05, 0.08, 0.10, 0.167)
LOOKS = ((5, 7, 10), (6, 8, 10))
STORED_LOOKS = (3, 7)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Shares of trials (of one) with an alarm by true loss; `passed` and `passed_at_5` are shares that passed."""

    table: str
    rule: str
    alarms: dict[str, float]
    passed: float | None = None
    passed_at_5: float | None = None
    starts: dict[str, float] | None = None


def key(loss: float) -> str:
    return f"{loss * 100:g}"


def row(table: str, name: str, answers: dict[float, rules.Answer], *, passes: bool = False) -> Row:
    alarms = {key(loss): float(answer.alarm.mean()) for loss, answer in answers.items()}
    if not passes:
        return Row(table=table, rule=name, alarms=alarms)
    at_5 = float(answers[0.05].passed.mean()) if 0.05 in answers else None
    return Row(table=table, rule=name, alarms=alarms, passed=float(answers[0.0].passed.mean()), passed_at_5=at_5)


def interleaved_rows(rng: np.random.Generator, trials: int) -> Iterator[Row]:
    """Every rule on starts of one session, by number of starts and kind of noise."""
    clean = Noise()
    cases = {
        "5+5": (5, clean, True),
        "6+6": (6, clean, True),
        "10+10": (10, clean, True),
        "6+6, 1 % in all": (6, replace(clean, request=0.0), True),
        "6+6, slow starts": (6, replace(clean, slow_share=0.08), True),
        "10+10, slow starts": (10, replace(clean, slow_share=0.08), True),
        "6+6, drift, ABBA": (6, replace(clean, drift=0.02), True),
        "6+6, drift, first A then B": (6, replace(clean, drift=0.02), False),
    }
    with_passes = ("ours", "inference")
    for table, (count, noise, in_turn) in cases.items():
        now, base = one_session(rng, trials, count, noise, in_turn=in_turn)
        for name, rule in rules.RULES.items():
            answers = {loss: rule(now + math.log1p(-loss), base) for loss in LOSSES}
            yield row(f"interleaved {table}", name, answers, passes=name.startswith(with_passes))


def look_rows(rng: np.random.Generator, trials: int) -> Iterator[Row]:
    """Planned looks against one look at the last number of starts: alarms, and starts of each side taken."""
    for label, noise in (("", Noise()), (", slow starts", Noise(slow_share=0.08)), (", drift", Noise(drift=0.02))):
        now, base = (rules.starts_of(side) for side in one_session(rng, trials, LOOKS[0][-1], noise))
        for looks in LOOKS:
            answers, taken = {}, {}
            for loss in LOSSES:
                answers[loss], starts = rules.in_looks(now + math.log1p(-loss), base, looks)
                taken[key(loss)] = float(starts.mean())
            name = f"looks {', '.join(map(str, looks))}"
            yield replace(row(f"looks{label}", name, answers, passes=True), starts=taken)
        answers = {loss: rules.interleaved(now + math.log1p(-loss), base) for loss in LOSSES}
        yield row(f"looks{label}", f"one look at {LOOKS[0][-1]}", answers, passes=True)


def stored_rows(rng: np.random.Generator, trials: int) -> Iterator[Row]:
    """A new session of 5 starts against stored ones of 5; the naive rules pool what is stored."""
    for cv in (0.005, 0.015, 0.03):
        for held in (1, 3, 5, 10):
            now, old = sessions(rng, trials, held, 5, STORED_LOOKS[-1], Noise(session=cv))
            table = f"stored, session CV {cv * 100:g} %"
            new, kept = rules.starts_of(now), rules.starts_of(old)
            shifted = {loss: math.log1p(-loss) for loss in LOSSES}
            told = {loss: rules.stored(new[:, :5] + shift, kept, 0.015) for loss, shift in shifted.items()}
            yield row(table, f"ours, H = {held}", told, passes=True)
            told = {loss: rules.stored_looks(new + shift, kept, 0.015, STORED_LOOKS) for loss, shift in shifted.items()}
            yield row(table, f"ours, H = {held}, looks at 3 and 7", told, passes=True)
            if cv > 0.015:
                told = {loss: rules.stored(new[:, :5] + shift, kept, cv) for loss, shift in shifted.items()}
                yield row(table, f"ours, H = {held}, session_cv = {cv * 100:g} %", told, passes=True)
            if held == 1 and cv == 0.015:
                pooled = old.reshape(trials, -1, old.shape[-1])
                for name, rule in rules.RULES.items():
                    label = name.replace("ours (Mann-Whitney of starts)", "Mann-Whitney of starts")
                    told = {loss: rule(now[:, :5] + shift, pooled) for loss, shift in shifted.items()}
                    yield row(table, f"{label}, H = 1", told, passes="inference" in name)


def family_rows(rng: np.random.Generator, trials: int) -> Iterator[Row]:
    """Decode, prefill, TTFT and a constant memory together: any false alarm, and what a loss of 5 % is seen by."""
    for count_now, count_base in ((5, 5), (6, 6), (7, 5)):
        false = dict.fromkeys(("one by one", "Holm", "step-down"), 0)
        seen_one, seen_all = dict.fromkeys(false, 0), dict.fromkeys(false, 0)
        for _ in range(trials):
            null = {}
            # What a start is slow by is shared in part by its decode and its prefill; TTFT is prefill turned over.
            shared = [rng.normal(0, 0.007, n) for n in (count_now, count_base)]
            for name in ("decode", "prefill"):
                null[name] = [s + rng.normal(0, 0.01, len(s)) for s in shared]
            null["ttft"] = [s + rng.normal(0, 0.001, len(s)) for s in null["prefill"]]
            null["peak_memory"] = [np.zeros(count_now), np.zeros(count_base)]
            all_lost = {name: [now - 0.0513, base] for name, (now, base) in null.items() if name != "peak_memory"}
            one_lost = null | {"decode": all_lost["decode"]}
            for rule, adjusted in _adjusted(null).items():
                false[rule] += min(adjusted.values()) <= ALPHA
            for rule, adjusted in _adjusted(one_lost).items():
                seen_one[rule] += adjusted["decode"] <= ALPHA
            for rule, adjusted in _adjusted(all_lost | {"peak_memory": null["peak_memory"]}).items():
                seen_all[rule] += max(adjusted[name] for name in all_lost) <= ALPHA
        for rule in false:
            alarms = {"0": false[rule], "one 5": seen_one[rule], "all 5": seen_all[rule]}
            shares = {name: number / trials for name, number in alarms.items()}
            yield Row(table=f"four metrics, {count_now}+{count_base}", rule=rule, alarms=shares)


def _adjusted(sides: dict[str, list[Array]]) -> dict[str, dict[str, float]]:
    raw = {}
    for name, (now, base) in sides.items():
        constant = len({*now, *base}) == 1
        raw[name] = 1.0 if constant else float(rules.u_loss(now[None], base[None])[0])
    together = step_down({name: (tuple(now), tuple(base)) for name, (now, base) in sides.items()})
    assert together is not None
    return {"one by one": raw, "Holm": holm(raw), "step-down": together}


def contradiction_rows(rng: np.random.Generator, trials: int) -> Iterator[Row]:
    """How often Mann-Whitney and Yuen contradict each other: one at 1 %, the other above a limit."""
    for label, noise in (("clean", Noise()), ("slow starts", Noise(slow_share=0.08))):
        for count in (6, 10):
            now, base = (rules.starts_of(side) for side in one_session(rng, trials, count, noise))
            for limit in (0.03, 0.05, FAR, 0.2):
                shares = {}
                for loss in (0.0, 0.02, 0.03, 0.05):
                    p = rules.u_loss(now + math.log1p(-loss), base), rules.yuen_p(now + math.log1p(-loss), base)
                    split = (np.minimum(*p) <= ALPHA) & (np.maximum(*p) > limit)
                    shares[key(loss)] = float(split.mean())
                yield Row(table=f"contradictions, {label}, {count}+{count}", rule=f"limit {limit:g}", alarms=shares)


def everything(trials: int, seed: int) -> list[Row]:
    """Return all rows; every table has a generator of its own, so that one can change without the others."""
    made: list[Row] = []
    parts = (interleaved_rows, look_rows, stored_rows, contradiction_rows, family_rows)
    for number, part in enumerate(parts):
        rng = np.random.default_rng([seed, number])
        # Every trial of the family enumerates all divisions of its starts.
        made += part(rng, max(trials // 4, 50) if part is family_rows else trials)
    return made


def find(rows: list[Row], table: str, rule: str) -> Row:
    return next(r for r in rows if (r.table, r.rule) == (table, rule))


@dataclass(frozen=True, kw_only=True)
class Target:
    """A figure that was promised; `margin` is three standard errors of a share where chance has a part in it."""

    name: str
    figure: float
    limit: float
    margin: float
    at_most: bool = True

    @property
    def met(self) -> bool:
        """True when the figure keeps the limit, with the margin."""
        return self.figure <= self.limit + self.margin if self.at_most else self.figure >= self.limit - self.margin


def targets(rows: list[Row], trials: int) -> list[Target]:
    """Return what issue and documentation promise of our rule."""

    def share(name: str, figure: float, limit: float, *, at_most: bool = True) -> Target:
        margin = 3 * math.sqrt(limit * (1 - limit) / trials)
        return Target(name=name, figure=figure, limit=limit, margin=margin, at_most=at_most)

    ours, mann = "ours (Mann-Whitney of starts)", [r for r in rows if r.rule.startswith("ours (")]
    turned = [r for r in mann if r.table.startswith("interleaved") and "first A" not in r.table]
    stored = [r for r in rows if r.table == "stored, session CV 1.5 %" and r.rule.startswith("ours, H")]
    looks = find(rows, "looks", f"looks {', '.join(map(str, LOOKS[0]))}")
    assert looks.starts is not None
    kept = [r for r in rows if r.rule.startswith("looks")]
    judged = (*turned, *kept, *stored)
    six = find(rows, "interleaved 6+6, 1 % in all", ours)
    part = Target(
        name="starts with looks / without, loss of 5 %", figure=looks.starts["5"] / LOOKS[0][-1], limit=0.6, margin=0
    )
    return [
        share("false alarms, interleaved, worst case", max(r.alarms["0"] for r in turned), 0.01),
        share("false alarms with looks, worst case", max(r.alarms["0"] for r in kept), 0.01),
        share("false alarms, stored, session CV 1.5 %, worst case", max(r.alarms["0"] for r in stored), 0.01),
        share("passed at a loss of 5 %, worst case", max(r.passed_at_5 or 0.0 for r in judged), 0.05),
        share("loss of 3 % seen, 6+6, starts with a CV of 1 % in all", six.alarms["3"], 0.9, at_most=False),
        part,
    ]


def shown(rows: list[Row]) -> Iterator[tuple[str, str]]:
    """Yield a heading and a table in GitHub's format for each table."""
    for table in dict.fromkeys(r.table for r in rows):
        own = [r for r in rows if r.table == table]
        losses = list(own[0].alarms)
        heads = ["rule", *(f"{loss} %" for loss in losses)]
        cells: list[list[str]] = [[r.rule, *(f"{100 * r.alarms[loss]:.1f}" for loss in losses)] for r in own]
        if any(r.passed is not None for r in own):
            heads += ["passed at 0 %", "passed at 5 %"]
            cells = [[*c, *map(_cell, (r.passed, r.passed_at_5))] for c, r in zip(cells, own, strict=True)]
        if any(r.starts for r in own):
            heads += ["starts at 0 %", "starts at 5 %"]
            taken = [r.starts or {} for r in own]
            cells = [[*c, *(f"{t[k]:.1f}" if t else "" for k in ("0", "5"))] for c, t in zip(cells, taken, strict=True)]
        yield table, tabulate(cells, heads, tablefmt="github", disable_numparse=True)


def _cell(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def main(argv: list[str] | None = None) -> int:
    """Run the bench; returns 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="300 trials")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args(argv)
    trials, began = 300 if args.short else args.trials, time.perf_counter()
    rows = everything(trials, args.seed)
    promised = targets(rows, trials)
    kept = [
        [t.name, f"{t.figure:.3f}", f"{'at most' if t.at_most else 'at least'} {t.limit:g}", "yes" if t.met else "NO"]
        for t in promised
    ]
    parts = [f"## {heading}\n\n{table}" for heading, table in shown(rows)]
    parts.append("## Targets\n\n" + tabulate(kept, ["what", "figure", "target", "met"], tablefmt="github"))
    text = f"{trials} trials, seed {args.seed}. Share of trials with an alarm (%), by the true loss.\n\n"
    text += "\n\n".join(parts) + "\n"
    print(text)
    print(f"{time.perf_counter() - began:.1f} s")
    if args.markdown:
        args.markdown.write_text(f"# Verdicts, simulated\n\n`python -m bench.verdicts`. {text}", encoding="utf-8")
    if args.json:
        kept_as = {"rows": [asdict(r) for r in rows], "targets": [asdict(t) | {"met": t.met} for t in promised]}
        parts = [f'"{name}": [\n' + ",\n".join(map(json.dumps, items)) + "\n]" for name, items in kept_as.items()]
        head = f'"trials": {trials}, "seed": {args.seed}'
        args.json.write_text("{" + ",\n".join([head, *parts]) + "}\n", encoding="utf-8")
    return 0 if all(t.met for t in promised) else 1


if __name__ == "__main__":
    sys.exit(main())
