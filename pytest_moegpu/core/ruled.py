"""What rules said of some facts, in a form that is printed, and kept in a run's evidence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pytest_moegpu.core.rules import Confidence, Rule, RuleFinding, Severity, State

__all__ = ["Ruled", "fired", "together", "unjudged", "worst_severity"]

_ORDER = (Severity.NOTE, Severity.WARNING, Severity.BLOCKING)


@dataclass(frozen=True, kw_only=True)
class Ruled:
    """One rule that fired, or a fault that was found without one, whose `id` then is no rule's.

    `because` are the facts that it looked at; `subject` is what it is about where that is not the whole machine:
    an engine, a profile, a scenario.
    """

    id: str
    title: str
    severity: Severity
    what: str
    do: str
    confidence: Confidence = Confidence.CERTAIN
    affects: str = ""
    sources: tuple[str, ...] = ()
    date: str = ""
    because: tuple[str, ...] = ()
    subject: str = ""


def fired(findings: Iterable[RuleFinding], subject: str = "") -> tuple[Ruled, ...]:
    """Return the rules that fired, the worst first."""
    told = [_ruled(finding.rule, finding.because, subject) for finding in findings if finding.state is State.FIRES]
    return tuple(sorted(told, key=lambda ruled: -_ORDER.index(ruled.severity)))


def _ruled(rule: Rule, because: tuple[str, ...], subject: str) -> Ruled:
    return Ruled(
        id=rule.id,
        title=rule.title,
        severity=rule.severity,
        what=rule.what,
        do=rule.do,
        confidence=rule.confidence,
        affects=rule.affects,
        sources=rule.sources,
        date=rule.date,
        because=because,
        subject=subject,
    )


def unjudged(findings: Iterable[RuleFinding]) -> dict[str, tuple[str, ...]]:
    """Return the facts that were missing, by the id of each rule that could not be judged."""
    return {finding.rule.id: finding.unknown for finding in findings if finding.state is State.UNJUDGED}


def worst_severity(ruled: Iterable[Ruled]) -> Severity | None:
    """Return the worst; None where there is nothing."""
    return max((each.severity for each in ruled), key=_ORDER.index, default=None)


def together(ruled: Iterable[Ruled]) -> tuple[Ruled, ...]:
    """Tell one rule once, with all that it is about, the worst first."""
    found: dict[tuple[str, str], Ruled] = {}
    for each in ruled:
        before = found.get((each.id, each.what))
        subjects = [*(before.subject.split(", ") if before is not None and before.subject else []), each.subject]
        found[each.id, each.what] = replace(each, subject=", ".join(dict.fromkeys(filter(None, subjects))))
    return tuple(sorted(found.values(), key=lambda each: -_ORDER.index(each.severity)))
