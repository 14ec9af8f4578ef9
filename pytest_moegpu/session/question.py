"""One question to a session: a check, the limits to hold it against, and which of its verdicts count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pytest_moegpu.checks.base import Judge
from pytest_moegpu.core.evidence import Evidence
from pytest_moegpu.core.model import Scenario
from pytest_moegpu.core.verdict import Verdict

__all__ = ["Question", "all_verdicts", "same_limits"]


def same_limits(scenario: Scenario) -> Scenario:
    """Return the scenario as it is."""
    return scenario


def all_verdicts(_verdict: Verdict) -> bool:
    """Let every verdict through."""
    return True


@dataclass(frozen=True, kw_only=True)
class Question:
    """One check, with the limits changed by `change` and only the verdicts that `only` lets through.

    `judge` stands in for the check's own judge; `keyword` selects this question among others of the check.
    """

    check: str
    change: Callable[[Scenario], Scenario] = same_limits
    only: Callable[[Verdict], bool] = all_verdicts
    judge: Judge | None = None
    keyword: str = ""
    asked: frozenset[tuple[str, tuple[str, ...]]] | None = None

    def narrow(self, evidence: Evidence) -> Evidence:
        """Leave only the requests with a prompt and an expectation of `asked`, where only these are in question."""
        if self.asked is None:
            return evidence
        starts = tuple(
            replace(start, requests=tuple(r for r in start.requests if (r.prompt, r.expect) in self.asked))
            for start in evidence.starts
        )
        return replace(evidence, starts=starts)
