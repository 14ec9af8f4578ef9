"""A run as it is stored: what was asked, what was found, what was judged."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_moegpu.core.evidence import Evidence
from pytest_moegpu.core.model import Profile, Scenario
from pytest_moegpu.core.verdict import Verdict

__all__ = ["RUN_SCHEMA", "RunRecord"]

RUN_SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One execution. `status` is running, finished, or interrupted; a run that was killed stays at running.

    `asked` and `scenarios` are the profile and scenarios as they were, so that stored evidence can be judged again.
    """

    schema: int
    id: str
    status: str
    started_at: str
    moegpu_version: str
    profile: str
    command: tuple[str, ...] = ()
    finished_at: str | None = None
    host: dict[str, str] = field(default_factory=dict)
    asked: Profile | None = None
    scenarios: tuple[Scenario, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
