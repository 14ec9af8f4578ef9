"""What a gate found, grouped by profile, scenario and backend, with failures that were expected taken out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from pytest_moegpu.core.gate import Decision, decide
from pytest_moegpu.core.verdict import Outcome, Verdict

__all__ = ["Expected", "GatePage", "Group", "in_order"]

_ORDER = (
    *("preflight", "output", "golden", "crosscheck", "axes", "context", "offload", "memory"),
    *("throughput", "baseline", "stability"),
)
_MEMORY = _ORDER.index("memory")
_WORSE = (Outcome.REGRESSED, Outcome.FAILED)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A failure that is known: which one, why it is let through, where that is written, and until when."""

    scenario: str
    check: str
    reason: str
    link: str
    expires: date
    metric: str | None = None

    @property
    def what(self) -> str:
        """The failure in words, such as `fake-1k baseline decode`."""
        return " ".join(word for word in (self.scenario, self.check, self.metric) if word)

    def is_of(self, verdict: Verdict) -> bool:
        """Tell whether this is about a verdict, whatever its outcome."""
        same = (verdict.scenario, verdict.check) == (self.scenario, self.check)
        return same and self.metric in (None, verdict.metric)


@dataclass(frozen=True, kw_only=True)
class Group:
    """One scenario of one run. `changed` says what moved against the baseline; `promote` would keep the run."""

    profile: str
    scenario: str
    backend: str
    run: str
    verdicts: tuple[Verdict, ...]
    changed: str
    promote: str

    @property
    def title(self) -> str:
        """The group in words."""
        return f"{self.profile}, {self.scenario}, {self.backend}"


@dataclass(frozen=True, kw_only=True)
class GatePage:
    """All groups of a gate. `today` is the day by which expected failures have expired or not."""

    groups: tuple[Group, ...]
    expected: tuple[Expected, ...]
    today: date
    notes: tuple[str, ...] = ()

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """All verdicts, in the order of the groups."""
        return tuple(v for group in self.groups for v in group.verdicts)

    def excused(self, verdict: Verdict) -> Expected | None:
        """Return the entry that lets a failure through; None where there is none, or it has expired."""
        if verdict.outcome not in _WORSE:
            return None
        return next((e for e in self.expected if e.is_of(verdict) and e.expires >= self.today), None)

    @property
    def decision(self) -> Decision:
        """Decide on everything but what was expected to fail."""
        return decide([v for v in self.verdicts if self.excused(v) is None], gate=True)

    def expected_lines(self) -> list[str]:
        """Say of every entry whether it happened, did not happen, or has expired."""
        lines = []
        for entry in self.expected:
            about = [v for v in self.verdicts if entry.is_of(v)]
            happened = [v for v in about if v.outcome in _WORSE]
            end = f"{entry.reason} ({entry.link}), until {entry.expires.isoformat()}"
            if happened and entry.expires < self.today:
                lines.append(f"EXPIRED   {entry.what}: still {happened[0].outcome}, and no longer let through: {end}")
            elif happened:
                lines.append(f"EXPECTED  {entry.what}: {happened[0].outcome}, let through: {end}")
            elif about:
                lines.append(f"note      {entry.what}: expected to fail and did not; take it out: {end}")
            else:
                lines.append(f"note      {entry.what}: expected to fail, and nothing of it was judged: {end}")
        return lines


def in_order(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Sort verdicts: correctness first, then memory, speed and stability."""
    return tuple(sorted(verdicts, key=_place))


def _place(verdict: Verdict) -> int:
    if verdict.metric == "peak_memory":
        return _MEMORY
    return _ORDER.index(verdict.check) if verdict.check in _ORDER else len(_ORDER)
