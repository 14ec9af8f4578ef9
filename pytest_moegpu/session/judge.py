"""From evidence to finished verdicts: the comparison with the stored baseline, and the lines only a run can add."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_moegpu.checks import get_check
from pytest_moegpu.checks.base import Check
from pytest_moegpu.checks.throughput import metrics
from pytest_moegpu.core.baseline import Baseline
from pytest_moegpu.core.compare import compare, wants_more_starts
from pytest_moegpu.core.evidence import Evidence, Phase
from pytest_moegpu.core.model import Profile, Scenario
from pytest_moegpu.core.verdict import METRICS, Outcome, Verdict
from pytest_moegpu.errors import RecordError
from pytest_moegpu.host.process import tail
from pytest_moegpu.host.store import read_baseline

__all__ = ["Comparison", "finish"]

# The check that must stand before a metric is compared: a number that is not valid has no baseline verdict.
_GUARD = {"peak_memory": "memory"}
_BLOCKING = (Outcome.ERROR, Outcome.INCONCLUSIVE, Outcome.NOT_COMPARABLE)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One metric of one scenario against the baseline at `path`, judged at the planned numbers of starts (`looks`)."""

    metric: str
    scenario: Scenario
    profile: Profile
    path: Path
    looks: tuple[int, ...]
    varying: frozenset[str] | None

    @property
    def guard(self) -> Check:
        """The check that must stand first."""
        return get_check(_GUARD.get(self.metric, "throughput"))

    def run(self, evidence: Evidence, more: Callable[[int], Evidence]) -> Verdict:
        """Judge; an undecided case gets more starts. Each look asks anew whether its starts may be believed."""
        try:
            baseline = read_baseline(self.path) if self.path.exists() else None
        except RecordError as error:
            return replace(self._blank(), reason=str(error))
        for look, starts in enumerate(self.looks):
            if starts > len(evidence.starts) and evidence.failure is None:
                evidence = more(starts)
            # A start that broke stays in sight, whatever the look.
            seen = evidence if evidence.failure else replace(evidence, starts=evidence.starts[:starts])
            verdict = self._look(seen, baseline, look)
            if not wants_more_starts(verdict):
                break
        return verdict

    def _look(self, evidence: Evidence, baseline: Baseline | None, look: int) -> Verdict:
        guarding = [
            v for v in self.guard.judge(evidence, self.scenario, self.profile) if v.metric in (self.metric, None)
        ]
        measured = metrics(evidence, self.scenario)
        for verdict in guarding:
            if verdict.outcome in _BLOCKING or (self.metric not in measured and not verdict.outcome.green):
                return replace(verdict, check="baseline", metric=self.metric, subject=METRICS[self.metric].title)
        if self.metric not in measured:
            return replace(self._blank(), reason=f"nothing was measured: no start gave a value of {self.metric}")
        verdict = compare(
            measured[self.metric],
            evidence,
            self.scenario,
            baseline,
            varying=self.varying,
            look=look,
            looks=self.looks,
        )
        valid = tuple(line for guard in guarding for line in guard.lines if line[0] == "valid")
        return replace(verdict, lines=(*verdict.lines, *valid), log_path=evidence.starts[-1].log_path)

    def _blank(self) -> Verdict:
        return Verdict(
            outcome=Outcome.ERROR,
            check="baseline",
            scenario=self.scenario.name,
            subject=METRICS[self.metric].title,
            phase=Phase.COMPARE,
            metric=self.metric,
        )


def finish(verdict: Verdict, folder: Path, rerun: str) -> Verdict:
    """Add what only the run knows: its folder in the promote command, the tail of the log, the line that asks again."""
    last = verdict.log_tail
    if verdict.log_path and not last and not verdict.outcome.green:
        last = tail(Path(verdict.log_path))
    return replace(
        verdict,
        reason=verdict.reason.replace(".moegpu/runs/<id>", str(folder)),
        lines=(*verdict.lines, ("rerun", rerun)),
        log_tail=last,
    )
