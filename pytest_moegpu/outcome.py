"""What every test judged: how that becomes the test's outcome, and what all of it together makes of the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from pytest_moegpu.core.evidence import StartFailure
from pytest_moegpu.core.gate import Decision, decide
from pytest_moegpu.core.verdict import Outcome, Verdict, worst
from pytest_moegpu.report.terminal import failure_text

__all__ = ["Ledger", "distinct"]


def distinct(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Leave each judgement once: two tests that ask the same differ in nothing but the line that asks again."""
    found: dict[object, Verdict] = {}
    for v in verdicts:
        found.setdefault((v.scenario, v.check, v.subject, v.metric, v.outcome, v.reason, v.limit), v)
    return tuple(found.values())


@dataclass
class Ledger:
    """Verdicts by test, and which of these tests counted. `gate`: a missing baseline fails."""

    gate: bool
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    passed: int = 0
    _verdicts: dict[str, tuple[Verdict, ...]] = field(default_factory=dict)
    _xfailed: set[str] = field(default_factory=set)
    _telling: dict[str, StartFailure] = field(default_factory=dict)
    _told: list[StartFailure] = field(default_factory=list)

    def begin(self, nodeid: str) -> None:
        """Forget what an earlier try of the same test judged."""
        self.outcomes.pop(nodeid, None)
        self._verdicts.pop(nodeid, None)
        self._telling.pop(nodeid, None)

    def settle(self, nodeid: str, verdicts: tuple[Verdict, ...], failure: StartFailure | None) -> None:
        """Note what a test judged; fail or skip it unless all is green. `failure`: what broke the scenario."""
        self._verdicts[nodeid] = (*self._verdicts.get(nodeid, ()), *verdicts)
        outcome = worst(tuple(v.outcome for v in self._verdicts[nodeid])) if verdicts else Outcome.ERROR
        self.outcomes[nodeid] = outcome
        if all(v.outcome.green for v in verdicts) and verdicts:
            return
        only = failure is not None and all(v.outcome.green or failure.cause in v.reason for v in verdicts)
        if failure is not None and only and any(failure is told for told in self._told):
            # The first cause was told once; the same again under every test would bury it.
            pytest.skip(f"not judged: {failure.phase}: {failure.cause}")
        if outcome is Outcome.NO_BASELINE and not self.gate:
            reason = next(v.reason for v in verdicts if v.outcome is Outcome.NO_BASELINE)
            pytest.skip(f"NO_BASELINE: {reason}")
        if failure is not None:
            self._telling[nodeid] = failure
        text = "\n\n".join(failure_text(v) for v in verdicts if not v.outcome.green) or "nothing was judged"
        pytest.fail(text, pytrace=False)

    def note(self, report: pytest.TestReport) -> None:
        """Take in what pytest made of a test: only a failure that stands has told its cause."""
        nodeid = report.nodeid
        if report.skipped and hasattr(report, "wasxfail"):
            self._xfailed.add(nodeid)
        elif report.failed and nodeid in self._telling:
            self._told.append(self._telling.pop(nodeid))
        elif report.when == "call" and report.passed and nodeid in self.outcomes:
            self.passed += 1

    @property
    def counted(self) -> tuple[Verdict, ...]:
        """The verdicts that decide on the run: each once, and none of a test that was expected to fail."""
        return distinct(v for nodeid, found in self._verdicts.items() if nodeid not in self._xfailed for v in found)

    @property
    def uncounted(self) -> int:
        """How many verdicts stand apart because their tests were expected to fail."""
        return len(distinct(v for nodeid in self._xfailed for v in self._verdicts.get(nodeid, ())))

    @property
    def decision(self) -> Decision:
        """The decision on what counts."""
        return decide(self.counted, gate=self.gate)

    def exit_status(self) -> pytest.ExitCode:
        """Return what the exit status has to be where no test failed: a skip or an xfail makes nothing good."""
        decision = self.decision
        if decision.exit_code and decision.counts.keys() - {Outcome.NO_BASELINE}:
            return pytest.ExitCode.TESTS_FAILED
        return pytest.ExitCode.OK if self.passed else pytest.ExitCode.NO_TESTS_COLLECTED
