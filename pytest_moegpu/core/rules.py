"""Known-bad and suspicious combinations as data: facts of a machine, an engine and a model held against rules.

A fact that is not there is not known, and no rule fires on it: what cannot be judged is told apart from what is clean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pytest_moegpu.core.ruleversions import in_range, newer, newer_major, runs_on

__all__ = [
    "FACTS",
    "Condition",
    "Confidence",
    "Fact",
    "Facts",
    "Operator",
    "Rule",
    "RuleFinding",
    "Severity",
    "State",
    "evaluate",
    "is_fact",
]

Fact = str | bool | int | float | tuple[str, ...]
Facts = Mapping[str, Fact]

FACTS = (
    "os.class",
    "os.kernel",
    "container.runner",
    "ram.free_bytes",
    "disk.free_bytes",
    "driver.known",
    "driver.version",
    "driver.cuda",
    "driver.mismatch",
    "driver.problem",
    "gpu.count",
    "gpu.names",
    "gpu.capabilities",
    "gpu.persistence_off",
    "gpu.power_limited",
    "gpu.display",
    "gpu.foreign",
    "gpu.mig",
    "gpu.pcie_below",
    "gpu.family",
    "toolkit.versions",
    "engine.name",
    "engine.version",
    "engine.build",
    "engine.toolkit",
    "engine.cuda_runtime",
    "engine.architectures",
    "model.name",
    "model.architecture",
    "model.quantisation",
    "model.format",
    "model.tensor_types",
    "run.baseline",
    "env.known",
)
"""Every fact that a rule may ask for, beside those of `_FAMILIES`."""
_FAMILIES = ("env.", "settings.", "library.")
_WHOLE = ("env", "library")


class Severity(StrEnum):
    """How bad it is when a rule fires."""

    NOTE = "note"
    WARNING = "warning"
    BLOCKING = "blocking"


class Confidence(StrEnum):
    """How well it is known."""

    CERTAIN = "certain"
    LIKELY = "likely"
    REPORTED = "reported"
    """By one person or a few, without a cause."""


class Operator(StrEnum):
    """What a condition asks of its fact."""

    IS = "is"
    IN = "in"
    ANY_OF = "any_of"
    """One of a list's texts is among these."""
    MATCHES = "matches"
    """A regular expression is found in the text, or in one of a list's texts."""
    PRESENT = "present"
    VERSION = "version"
    """A version in a range, such as `>=13.2.0, <13.2.2`."""
    NEWER_THAN = "newer_than"
    """A version newer than that of another fact, by its first two numbers."""
    NEWER_MAJOR_THAN = "newer_major_than"
    """A version of a newer major than that of another fact."""
    NONE_RUNS_ON = "none_runs_on"
    """None of a build's architectures runs on one of the compute capabilities that another fact lists."""
    ABOVE = "above"
    BELOW = "below"


_OF_TWO = (Operator.NEWER_THAN, Operator.NEWER_MAJOR_THAN, Operator.NONE_RUNS_ON)


class State(StrEnum):
    """What a rule says of some facts."""

    FIRES = "fires"
    QUIET = "quiet"
    UNJUDGED = "not judged"


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One question about one fact. Of some operators the value is the name of another fact."""

    fact: str
    operator: Operator
    value: Fact

    @property
    def asks(self) -> tuple[str, ...]:
        """The facts that it looks at."""
        return (self.fact, str(self.value)) if self.operator in _OF_TWO else (self.fact,)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One combination.

    Args:
        id: Short name that a person can silence it by.
        title: What it is, in a few words.
        when: Conditions that must all hold.
        what: What happens.
        do: What to do about it.
        severity: How bad it is.
        confidence: How well it is known.
        affects: The failed class it leads to: correctness, memory, performance, stability or environment.
        sources: Addresses where it was reported or explained.
        date: The day on which these were last looked at, such as 2026-11-30.
    """

    id: str
    title: str
    when: tuple[Condition, ...]
    what: str
    do: str
    severity: Severity
    confidence: Confidence
    affects: str
    sources: tuple[str, ...]
    date: str


@dataclass(frozen=True, kw_only=True)
class RuleFinding:
    """What one rule said. `because` are the facts that it looked at, as text; `unknown` those that it needed."""

    rule: Rule
    state: State
    because: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def is_fact(name: str) -> bool:
    """Tell whether a rule may ask for a fact of this name."""
    return name in FACTS or any(name.startswith(family) and len(name) > len(family) for family in _FAMILIES)


def evaluate(rules: Iterable[Rule], facts: Facts) -> tuple[RuleFinding, ...]:
    """Hold facts against rules.

    A rule is quiet as soon as one of its conditions does not hold, whatever else is not known.
    """
    return tuple(_judged(rule, facts) for rule in rules)


def _judged(rule: Rule, facts: Facts) -> RuleFinding:
    answers = [(condition, _holds(condition, facts)) for condition in rule.when]
    if any(answer is False for _, answer in answers):
        return RuleFinding(rule=rule, state=State.QUIET)
    unknown = tuple(name for condition, answer in answers if answer is None for name in _missing(condition, facts))
    if unknown:
        return RuleFinding(rule=rule, state=State.UNJUDGED, unknown=tuple(dict.fromkeys(unknown)))
    names = dict.fromkeys(name for condition, _ in answers for name in condition.asks if name in facts)
    return RuleFinding(rule=rule, state=State.FIRES, because=tuple(f"{name} {_text(facts[name])}" for name in names))


def _missing(condition: Condition, facts: Facts) -> tuple[str, ...]:
    # All there, and no answer: one of them is of a form that cannot be compared.
    return tuple(name for name in condition.asks if name not in facts) or condition.asks


def _holds(condition: Condition, facts: Facts) -> bool | None:
    """Answer one condition; None where a fact is not known, or is of a form that cannot be compared."""
    value = facts.get(condition.fact)
    if value is None:
        return _absent(condition, facts)
    if condition.operator is Operator.PRESENT:
        return bool(condition.value)
    if condition.operator in _OF_TWO:
        other = facts.get(str(condition.value))
        if other is None:
            return None
        if condition.operator is Operator.NEWER_THAN:
            return newer(str(value), str(other))
        if condition.operator is Operator.NEWER_MAJOR_THAN:
            return newer_major(str(value), str(other))
        return _none_runs_on(value, other)
    return _compared(condition.operator, value, condition.value)


def _absent(condition: Condition, facts: Facts) -> bool | None:
    """Answer for a fact that is not there: it is not known, or one of a family that was looked at as a whole."""
    family = condition.fact.partition(".")[0]
    if f"{family}.known" not in facts:
        return None
    if condition.operator is Operator.PRESENT:
        return not condition.value
    # Of a known driver something may still be unknown; a variable or library that is absent has no value.
    return False if family in _WHOLE else None


def _none_runs_on(built: Fact, found: Fact) -> bool | None:
    if not isinstance(built, tuple) or not isinstance(found, tuple) or not built or not found:
        return None
    return any(not any(runs_on(each, capability) for each in built) for capability in found)


def _compared(operator: Operator, value: Fact, wanted: Fact) -> bool | None:
    texts = value if isinstance(value, tuple) else (str(value),)
    match operator:
        case Operator.IS:
            return value == wanted
        case Operator.IN:
            return isinstance(wanted, tuple) and str(value) in wanted
        case Operator.ANY_OF:
            return isinstance(wanted, tuple) and not set(texts).isdisjoint(wanted)
        case Operator.MATCHES:
            return any(re.search(str(wanted), text) for text in texts)
        case Operator.VERSION:
            answers = [in_range(text, str(wanted)) for text in texts]
            return True if True in answers else None if None in answers or not answers else False
        case _:
            if isinstance(value, (bool, str, tuple)) or isinstance(wanted, (bool, str, tuple)):
                return None
            return value > wanted if operator is Operator.ABOVE else value < wanted


def _text(value: Fact) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)
