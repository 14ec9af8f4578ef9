"""What a check is: one question, the parts of the workload it needs, and a pure judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_moegpu.core.evidence import Evidence, Part
from pytest_moegpu.core.model import Profile, Scenario
from pytest_moegpu.core.verdict import Verdict

__all__ = ["Check", "Judge"]

Judge = Callable[[Evidence, Scenario, Profile], tuple[Verdict, ...]]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question. `level` is 1 (quick), 2 (medium) or 3 (long); `rank` orders checks, correctness before speed."""

    name: str
    title: str
    rank: int
    level: int
    needs: frozenset[Part]
    judge: Judge
