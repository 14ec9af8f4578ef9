"""What `moegpu doctor` found, ready to be printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_moegpu.core.machine import FoundEngine, Machine
from pytest_moegpu.core.ruled import Ruled, worst_severity
from pytest_moegpu.core.rules import Facts, Severity

__all__ = ["Diagnosis"]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything that was found.

    Args:
        machine: The machine, with the GPUs chosen.
        engines: Server programs that were found, and those given that are not there.
        missing: Backends of which no program was found, each with how to install it.
        findings: What is wrong, the worst first.
        unjudged: Facts that were missing, by the id of each rule that could not be judged of anything.
        silenced: What is to be said of rules that a person silenced.
        facts: What the rules looked at, without engines; with a profile also its engine, model and first scenario.
        unknown: What could not be read, and why.
        profile: Name of the profile examined, or empty.
        rules: How many rules were held against the facts.
    """

    machine: Machine
    engines: tuple[FoundEngine, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    findings: tuple[Ruled, ...] = ()
    unjudged: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    silenced: tuple[str, ...] = ()
    facts: Facts = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    profile: str = ""
    rules: int = 0

    @property
    def exit_code(self) -> int:
        """0: clean, 1: warnings, 2: something that keeps a run from working."""
        worst = worst_severity(self.findings)
        return 2 if worst is Severity.BLOCKING else 1 if worst is Severity.WARNING else 0
