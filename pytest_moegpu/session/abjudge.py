"""The judgement of interleaved starts: what differs between the sides, and every metric of B against A."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist, stdev

from pytest_moegpu.checks.throughput import metrics
from pytest_moegpu.core.baseline import BASELINE_SCHEMA, Baseline, BaselineSession
from pytest_moegpu.core.compare import wants_more_starts
from pytest_moegpu.core.designs import Design
from pytest_moegpu.core.evidence import Evidence
from pytest_moegpu.core.identity import Difference, differences, stack_changes
from pytest_moegpu.core.model import Profile, Scenario, Stack
from pytest_moegpu.core.planned import planned_loss
from pytest_moegpu.core.units import format_percent
from pytest_moegpu.core.verdict import METRICS, Outcome, Verdict
from pytest_moegpu.session.judge import Comparison

__all__ = ["ASSUMED_CV", "AbJudge", "foretold", "may_differ", "must_match", "told"]

ASSUMED_CV = 0.01
"""Spread of starts to tell by what can be found, before any was made."""
_SETTINGS = "settings."
_BLOCKING = (Outcome.ERROR, Outcome.INCONCLUSIVE, Outcome.NOT_COMPARABLE)
_CORRECTNESS = ("offload", "output")


def must_match(a: Evidence, b: Evidence) -> tuple[Difference, ...]:
    """Return what differs between the sides and may not: all of the identity but the launch settings."""
    return tuple(d for d in differences(a.identity, b.identity) if not d.field.startswith(_SETTINGS))


def may_differ(a: Evidence, b: Evidence) -> tuple[Difference, ...]:
    """Return what is under test: launch settings, and what moved in the stack."""
    settings = (d for d in differences(a.identity, b.identity) if d.field.startswith(_SETTINGS))
    return (*settings, *stack_changes(a.stack, b.stack))


def foretold(looks: tuple[int, ...], scenario: Scenario) -> str:
    """Say what loss of a speed each look will find, if starts spread as is assumed."""
    count = looks[-1]
    scores = [NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)]
    values = tuple(math.exp(ASSUMED_CV * score / stdev(scores)) for score in scores)
    assumed = Baseline(
        schema=BASELINE_SCHEMA,
        profile="",
        scenario=scenario.name,
        backend="",
        check_version=0,
        identity={},
        stack=Stack(),
        sessions=(BaselineSession(run="", recorded_at="", metrics={"decode": values}),),
    )
    planned = planned_loss("decode", scenario, assumed, looks, design=Design.INTERLEAVED)
    found = [(n, loss) for n, loss in planned.losses if loss is not None] if planned is not None else []
    shown = ", ".join(f"{format_percent(loss, signed=False)} with {n} + {n} starts" for n, loss in found)
    cv = format_percent(ASSUMED_CV, signed=False)
    return f"a loss of {shown or 'no size'} is found 9 times in 10, if starts differ by {cv} (CV)"


@dataclass
class AbJudge:
    """Judges the metrics of B against A at planned looks; a metric that is decided at one look stays so."""

    profile: Profile
    a: Scenario
    b: Scenario
    looks: tuple[int, ...]

    def __post_init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}

    @property
    def decided(self) -> bool:
        """Tell whether no metric wants more starts; False before the first look."""
        return bool(self.verdicts) and not any(map(wants_more_starts, self.verdicts.values()))

    def look(self, base: Evidence, now: Evidence, look: int) -> None:
        """Judge every metric that is still open, at one of the looks; both sides have the starts it was planned with.

        What one side did not measure is an ERROR; a metric that neither did is left out.
        """
        count = self.looks[look]
        base = replace(base, starts=base.starts[:count])
        known, measured = metrics(base), metrics(now)
        baseline = _baseline(base, now)
        for name, kind in METRICS.items():
            open_still = name not in self.verdicts or wants_more_starts(self.verdicts[name])
            if kind.compared and open_still and (name in known or name in measured):
                self.verdicts[name] = self._judge(name, base, now, baseline, look)

    def _judge(self, name: str, base: Evidence, now: Evidence, baseline: Baseline, look: int) -> Verdict:
        comparison = Comparison(
            metric=name, scenario=self.b, profile=self.profile, looks=self.looks, design=Design.INTERLEAVED
        )
        if doubt := self._doubt(comparison, base):
            verdict = comparison.impossible(f"A is no measure for B: {doubt}")
            return replace(verdict, outcome=Outcome.INCONCLUSIVE)
        if name not in metrics(base):
            return comparison.impossible(f"A did not measure {name}")
        verdict = comparison.look(now, baseline, look)
        lines = tuple((label, _said(label, text, base, now)) for label, text in verdict.lines)
        return replace(verdict, lines=lines)

    def _doubt(self, comparison: Comparison, base: Evidence) -> str:
        """Return why the values of A may not be believed; empty when they may."""
        for check in comparison.guards:
            for verdict in check.judge(base, self.a, self.profile):
                wrong = verdict.check in _CORRECTNESS and verdict.outcome is Outcome.FAILED
                if verdict.metric in (comparison.metric, None) and (wrong or verdict.outcome in _BLOCKING):
                    return f"{verdict.check} {verdict.outcome}: {verdict.reason}"
        return ""


def _said(label: str, text: str, base: Evidence, now: Evidence) -> str:
    """Have a line of a verdict say what is under test here, launch settings too."""
    moved = may_differ(base, now)
    if label == "changed":
        return ", ".join(map(str, moved)) or "nothing: A and B are the same"
    if label == "same" and any(d.field.startswith(_SETTINGS) for d in moved):
        return text.replace("settings", "other settings", 1)
    return text


def _baseline(base: Evidence, now: Evidence) -> Baseline:
    """Return the starts of A as what B is compared with; settings are under test, so they are those of B."""
    settings = {key: text for key, text in now.identity.items() if key.startswith(_SETTINGS)}
    others = {key: text for key, text in base.identity.items() if not key.startswith(_SETTINGS)}
    found = metrics(base)
    return Baseline(
        schema=BASELINE_SCHEMA,
        profile=base.profile,
        scenario=base.scenario,
        backend=base.backend,
        check_version=base.check_version,
        identity=others | settings,
        stack=base.stack,
        sessions=(
            BaselineSession(
                run="A",
                recorded_at=base.starts[0].started_at,
                metrics={name: metric.values for name, metric in found.items()},
                noted=base.noted,
            ),
        ),
        units={name: METRICS[name].unit for name in found},
        better={name: METRICS[name].better.value for name in found},
    )


def told(verdict: Verdict) -> str:
    """Say in a line what one comparison saw, and what it could have seen."""
    if verdict.change is None:
        return f"{verdict.subject}: not compared"
    interval = ""
    if verdict.interval is not None and verdict.confidence is not None:
        low, high = (format_percent(bound) for bound in verdict.interval)
        interval = f" ({verdict.confidence * 100:.3g} % interval {low} … {high})"
    seen = "none" if verdict.smallest_loss is None else format_percent(verdict.smallest_loss, signed=False)
    return f"{verdict.subject}: B/A {format_percent(verdict.change)}{interval}; smallest loss it could see: {seen}"
