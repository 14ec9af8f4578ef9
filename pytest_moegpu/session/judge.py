"""From evidence to finished verdicts: the comparison with the stored baseline, and the lines only a run can add."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_moegpu.checks import get_check
from pytest_moegpu.checks.base import Check
from pytest_moegpu.checks.throughput import metrics
from pytest_moegpu.core.baseline import Baseline
from pytest_moegpu.core.compare import compare, wants_more_starts
from pytest_moegpu.core.designs import Design
from pytest_moegpu.core.evidence import Evidence, Part, Phase
from pytest_moegpu.core.model import Profile, Scenario
from pytest_moegpu.core.verdict import METRICS, FailedClass, Outcome, Verdict
from pytest_moegpu.host.boundedlog import tail

__all__ = ["Comparison", "finish", "untold_faults"]

# What must stand before a metric is compared: a number that is not valid has no baseline verdict. The throughput check
# itself asks for placement and output first.
_GUARDS = {"peak_memory": ("offload", "memory")}
_SPEED_GUARDS = ("throughput",)
_BLOCKING = (Outcome.ERROR, Outcome.INCONCLUSIVE, Outcome.NOT_COMPARABLE)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One metric of one scenario against a baseline, judged at the planned numbers of starts (`looks`).

    `design` says how the two sides were measured; `kin` are baselines of other scenarios of the profile, whose sessions
    tell of the spread between sessions too; `session_cv` (a share of one) is the spread to assume for speeds, None for
    that of the metric.
    """

    metric: str
    scenario: Scenario
    profile: Profile
    looks: tuple[int, ...] = ()
    varying: frozenset[str] | None = None
    design: Design = Design.STORED
    kin: tuple[Baseline, ...] = ()
    session_cv: float | None = None

    @property
    def guards(self) -> tuple[Check, ...]:
        """The checks that must stand first."""
        return tuple(get_check(name) for name in _GUARDS.get(self.metric, _SPEED_GUARDS))

    @property
    def needs(self) -> frozenset[Part]:
        """The parts of the workload that the guards need."""
        return frozenset[Part]().union(*(guard.needs for guard in self.guards))

    def run(self, evidence: Evidence, baseline: Baseline | None, more: Callable[[int], Evidence]) -> Verdict:
        """Judge; an undecided case gets more starts. Each look asks anew whether all starts may be believed."""
        verdict = self.look(evidence, baseline, 0)
        for look, starts in enumerate(self.looks[1:], 1):
            if not wants_more_starts(verdict):
                break
            if starts > len(evidence.starts):
                evidence = more(starts)
            verdict = self.look(evidence, baseline, look)
        return verdict

    def look(self, evidence: Evidence, baseline: Baseline | None, look: int = 0) -> Verdict:
        """Judge the starts of one look; the guards see all starts there are, also those another metric asked for."""
        guards = self.guards
        if self.looks and len(evidence.starts) > self.looks[0]:
            # The output test has judged the first starts; those that came later are judged here or nowhere.
            guards = (*guards, get_check("output"))
        guarding = [
            v
            for guard in guards
            for v in guard.judge(evidence, self.scenario, self.profile)
            if v.metric in (self.metric, None)
        ]
        seen = replace(evidence, starts=evidence.starts[: self.looks[look]]) if self.looks else evidence
        measured = metrics(seen)
        for verdict in guarding:
            wrong = verdict.check in ("offload", "output") and verdict.outcome is Outcome.FAILED
            if wrong or verdict.outcome in _BLOCKING or (self.metric not in measured and not verdict.outcome.green):
                blocked = replace(verdict, check="baseline", metric=self.metric, subject=METRICS[self.metric].title)
                # Told in full by the check itself; here it only keeps the metric from a verdict.
                return replace(blocked, outcome=Outcome.INCONCLUSIVE, failed_class=None) if wrong else blocked
        if self.metric not in measured:
            return self.impossible(f"nothing was measured: no start gave a value of {self.metric}")
        verdict = compare(
            measured[self.metric],
            seen,
            self.scenario,
            baseline,
            varying=self.varying,
            look=look,
            looks=self.looks,
            design=self.design,
            family=measured,
            kin=self.kin,
            session_cv=self.session_cv,
        )
        valid = tuple(line for guard in guarding for line in guard.lines if line[0] == "valid")
        return replace(verdict, lines=(*verdict.lines, *valid), log_path=seen.starts[-1].log_path)

    def impossible(self, reason: str) -> Verdict:
        """Return the verdict of a comparison that could not be made."""
        return Verdict(
            outcome=Outcome.ERROR,
            check="baseline",
            scenario=self.scenario.name,
            subject=METRICS[self.metric].title,
            phase=Phase.COMPARE,
            metric=self.metric,
            reason=reason,
        )


def untold_faults(
    evidence: Iterable[Evidence], told: Sequence[Verdict], scenario: Callable[[str], Scenario], profile: Profile
) -> tuple[str, ...]:
    """Return faults of a device that were seen in scenarios whose stability no test has asked for.

    Args:
        evidence: What was measured.
        told: The verdicts of the run.
        scenario: Finds a scenario by its name.
        profile: The profile of the run.
    """
    asked = {v.scenario for v in told if v.check == "stability"}
    return tuple(
        f"{found.scenario}: {verdict.reason}"
        for found in evidence
        if found.scenario not in asked
        for verdict in get_check("stability").judge(found, scenario(found.scenario), profile)
        if verdict.failed_class is FailedClass.STABILITY
    )


def finish(verdict: Verdict, folder: Path, rerun: str, rehearsal: str = "") -> Verdict:
    """Add what only the run knows: its folder in the promote command, the tail of the log, the line that asks again.

    `rehearsal` says on what a smaller card was emulated; the verdict then carries the mark wherever it is shown.
    """
    if rehearsal:
        verdict = replace(
            verdict,
            subject=f"{verdict.subject} (rehearsal)",
            lines=(*verdict.lines, ("rehearsal", rehearsal)),
            more=verdict.more | {"rehearsal": rehearsal},
        )
    last = verdict.log_tail
    if verdict.log_path and not last and not verdict.outcome.green:
        last = tail(Path(verdict.log_path))
    return replace(
        verdict,
        reason=verdict.reason.replace(".moegpu/runs/<id>", str(folder)),
        lines=(*verdict.lines, ("rerun", rerun)),
        log_tail=last,
    )
