"""Verdicts and provenance as JUnit properties."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pytest_moegpu.core.units import format_percent, format_value
from pytest_moegpu.core.verdict import METRICS, Outcome, Verdict, worst

__all__ = ["properties", "suite_properties"]


def properties(verdicts: Sequence[Verdict]) -> tuple[tuple[str, str], ...]:
    """Return the properties of one test.

    `moegpu.outcome` is the worst outcome (ERROR when nothing was judged); `moegpu.<metric>` is the median over starts
    with its unit, `.starts` the value of each start, and `.limit`, `.baseline`, `.change` what it was held against.
    """
    if not verdicts:
        return (("moegpu.outcome", Outcome.ERROR.value), ("moegpu.reason", "nothing was judged"))
    outcome = worst(tuple(v.outcome for v in verdicts))
    cause = next(v for v in verdicts if v.outcome is outcome)
    about = {
        "outcome": outcome.value,
        "class": cause.failed_class.value if cause.failed_class else "",
        "phase": "" if outcome.green else cause.phase.value,
        "reason": "" if outcome.green else cause.reason,
        "scenario": ", ".join(dict.fromkeys(v.scenario for v in verdicts)),
        "check": ", ".join(dict.fromkeys(v.check for v in verdicts)),
        "rehearsal": cause.more.get("rehearsal", ""),
    }
    named = tuple((f"moegpu.{name}", text) for name, text in about.items() if text)
    return (*named, *dict.fromkeys(pair for v in verdicts for pair in _numbers(v)))


def suite_properties(facts: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the provenance of a whole run, each label as `moegpu.<label>` in small letters with underscores."""
    return tuple((f"moegpu.{_slug(label)}", value) for label, value in facts)


def _slug(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")


def _numbers(verdict: Verdict) -> Iterator[tuple[str, str]]:
    name, value = verdict.metric, verdict.value
    if name is None or name not in METRICS or value is None:
        return
    unit = METRICS[name].unit
    yield f"moegpu.{name}", format_value(value, unit)
    if verdict.values:
        yield f"moegpu.{name}.starts", ", ".join(format_value(v, unit) for v in verdict.values)
    if verdict.limit is not None:
        yield f"moegpu.{name}.limit", format_value(verdict.limit, unit)
    if verdict.baseline is not None:
        yield f"moegpu.{name}.baseline", format_value(verdict.baseline, unit)
    if verdict.change is not None:
        yield f"moegpu.{name}.change", format_percent(verdict.change)
