"""`--moegpu-attribute`: wrong text is asked again of servers that differ in one thing each; see `core.trials`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pytest_moegpu.core.evidence import Evidence, Part, RequestKind, StartEvidence
from pytest_moegpu.core.model import Scenario
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.core.trials import Attribution, Change, Result, Trial, Tried, conclusion, plan
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from pytest_moegpu.errors import UserError
from pytest_moegpu.host.store import Bundle
from pytest_moegpu.session.measure import StartRun
from pytest_moegpu.session.probing import answers_of
from pytest_moegpu.session.progress import Named, Progress
from pytest_moegpu.session.reference import GOLDEN, References
from pytest_moegpu.session.server import Server
from pytest_moegpu.session.target import Target
from pytest_moegpu.session.variants import Variant, same_launch, variant_of
from pytest_moegpu.session.workload import Workload

__all__ = ["ATTRIBUTION", "Attributor"]

ATTRIBUTION = "attribution"
"""Label of the lines of a verdict that say what was tried."""

_CHECKS = ("output", GOLDEN)

_Judge = Callable[[Evidence], tuple[Verdict, ...]]


@dataclass
class Attributor:
    """Tries each scenario once, with at most `budget` server starts; a further question is judged from these.

    No server may live meanwhile. `unusable` says why nothing more may be started, and is empty while something may;
    `guard` looks at what a start left behind. After such a start no other one is made.
    """

    target: Target
    references: References
    progress: Progress
    budget: int
    unusable: Callable[[], str]
    guard: Callable[[StartEvidence], None]
    _known: dict[str, tuple[Tried, ...]] = field(default_factory=dict, init=False)

    def attributed(
        self,
        verdicts: tuple[Verdict, ...],
        evidence: Evidence,
        scenario: Scenario,
        judge: _Judge,
        bundle: Bundle,
        own: tuple[KnownAnswer, ...],
    ) -> tuple[Verdict, ...]:
        """Return the verdicts, the first of wrong text with what was tried and what cured it. No outcome changes.

        Args:
            verdicts: Of one question.
            evidence: What they judge.
            scenario: As it was measured.
            judge: Answers the same question from other evidence of the same scenario.
            bundle: Where logs and results are kept.
            own: Questions that the scenario was asked beside the known answers of its model.
        """
        wrong = next((v for v in verdicts if _wrong(v)), None)
        if wrong is None:
            return verdicts
        answers = (*answers_of(self.target, self.references.folder, scenario), *own)
        trials = _Trials(
            of=self,
            scenario=scenario,
            evidence=evidence,
            judge=judge,
            bundle=bundle,
            answers=answers,
            check=wrong.check,
        )
        known = self._known.get(scenario.name)
        tried, problem = trials.run() if known is None else (trials.again(known), "")
        self._known.setdefault(scenario.name, tried)
        line = (ATTRIBUTION, f"{trials.attribution(tried)}{problem}")
        # Once: the other verdicts of the same text would only repeat it.
        return tuple(replace(v, lines=(*v.lines, line)) if v is wrong else v for v in verdicts)


@dataclass(frozen=True, kw_only=True)
class _Trials:
    """The trials of one scenario and check."""

    of: Attributor
    scenario: Scenario
    evidence: Evidence
    judge: _Judge
    bundle: Bundle
    answers: tuple[KnownAnswer, ...]
    check: str

    def run(self) -> tuple[tuple[Tried, ...], str]:
        """Make the trials within the budget; return them, and what of them could not be written."""
        target, starts = self.of.target, self.evidence.good_starts
        constant = len(starts) > 1 and all(any(map(_wrong, self.judge(self._alone(start)))) for start in starts)
        trials = plan(self.scenario.settings, len(target.gpus), target.profile.gpu.kind, constant=constant)
        variants = [_variant(target, self.scenario, trial) for trial in trials]
        self._announce(variants)
        tried: list[Tried] = []
        problem = ""
        for number, (trial, variant) in enumerate(zip(trials, variants, strict=True), len(self.evidence.starts) + 1):
            made = sum(each.start is not None for each in tried)
            left_out = variant if isinstance(variant, str) else self.of.unusable() or self._left_out(trial, tried, made)
            if isinstance(variant, str) or left_out:
                tried.append(Tried(trial=trial, result=Result.NOT_TRIED, detail=left_out))
            else:
                tried.append(self._tried(variant, trial, number))
            try:
                self.bundle.write_attribution(self.attribution(tried))
            except OSError as error:
                # Told with the result; what was found out is true all the same.
                problem = f"\nNOT KEPT: {error}"
        return tuple(tried), problem

    def again(self, tried: Sequence[Tried]) -> tuple[Tried, ...]:
        """Judge another question from starts that were made before."""
        return tuple(each if each.start is None else self._result(each, each.start) for each in tried)

    def attribution(self, tried: Sequence[Tried]) -> Attribution:
        """Say what the results mean together."""
        return Attribution(
            scenario=self.scenario.name,
            check=self.check,
            budget=self.of.budget,
            tried=tuple(tried),
            conclusion=conclusion(tried),
        )

    def _result(self, tried: Tried, start: StartEvidence) -> Tried:
        result, detail = self._judged(start)
        return replace(tried, result=result, detail=detail)

    def _alone(self, start: StartEvidence) -> Evidence:
        return replace(self.evidence, starts=(start,), oneshot=None)

    def _announce(self, variants: Sequence[Variant | str]) -> None:
        """Say before anything is started how many starts there may be and how long that takes."""
        most = min(self.of.budget, sum(isinstance(each, Variant) for each in variants))
        each = _seconds(self.evidence)
        about = "" if each is None else f", about {most * each:.0f} s at the {each:.1f} s of a measured one"
        name = self.scenario.name
        starts = f"{most} start{'' if most == 1 else 's'}"
        self.of.progress.line(f"{name}: wrong text, looking for what cures it: at most {starts}{about}")

    def _left_out(self, trial: Trial, tried: Sequence[Tried], made: int) -> str:
        """Say why a trial is left out; empty when it is to be made."""
        results = {each.trial.change: each.result for each in tried}
        if results.get(Change.NOTHING, Result.WRONG) is not Result.WRONG:
            return "the start as it was did not fail again"
        if trial.change is Change.FLASH_ATTENTION and results.get(Change.KV_CACHE) is Result.CURED:
            return "the f16 cache alone is right, and belongs to this one"
        return f"the budget of {self.of.budget} starts is used" if made >= self.of.budget else ""

    def _tried(self, variant: Variant, trial: Trial, number: int) -> Tried:
        began = time.monotonic()
        start = self._start(variant, trial, number)
        self.of.guard(start)
        seconds = time.monotonic() - began
        made = Tried(trial=trial, result=Result.NO_ANSWER, detail="", seconds=seconds, start=start)
        return self._result(made, start)

    def _start(self, variant: Variant, trial: Trial, number: int) -> StartEvidence:
        target, scenario = variant.target, variant.scenario
        progress = Named(self.of.progress, f"{scenario.name} attribution, {trial.title}")
        scratch = self.bundle.scratch(f"{scenario.name}-{trial.change}", number)
        log_path = self.bundle.trial_log_path(scenario.name, trial.change)
        server = Server(target.backend, target.launch(scenario, scratch), scenario.limits, log_path)
        golden = self.of.references.golden(scenario.name) if target.backend.score_method is not None else None
        workload = Workload(
            server=server,
            scenario=scenario,
            answers=self.answers,
            context_tokens=(),
            recall_reach=target.model.recall_reach,
            enter=lambda _phase: None,
            progress=progress,
        )
        run = StartRun(
            server=server,
            probe=target.probe,
            number=number,
            workload=workload,
            parts=frozenset({Part.OUTPUT} if golden is None else {Part.OUTPUT, Part.SCORES}),
            progress=progress,
            golden=golden,
        )
        return run.run().start

    def _judged(self, start: StartEvidence) -> tuple[Result, str]:
        """Judge one trial. Right again is only what is green in all that was asked; all else cures nothing."""
        if start.failure is not None:
            return Result.NO_ANSWER, f"{start.failure.phase}: {start.failure.cause}"
        asked = self.judge(self._alone(start))
        references, profile = self.of.references, self.of.target.profile
        scored = self.check != GOLDEN and Part.SCORES in start.parts
        numbers = references.judge(self._alone(start), self.scenario, profile) if scored else ()
        told = (*asked, *(v for v in numbers if v.outcome is not Outcome.NO_BASELINE))
        if failed := [v for v in told if v.outcome is Outcome.FAILED]:
            return Result.WRONG, _said(failed[0])
        if unclear := [v for v in told if not v.outcome.green]:
            return Result.NO_ANSWER, _said(unclear[0])
        if not asked:
            return Result.NO_ANSWER, "nothing was judged"
        return Result.CURED, "; ".join(map(_said, told))


def _wrong(verdict: Verdict) -> bool:
    correctness = verdict.outcome is Outcome.FAILED and verdict.failed_class is FailedClass.CORRECTNESS
    return correctness and verdict.check in _CHECKS


def _said(verdict: Verdict) -> str:
    return f"{verdict.subject} {verdict.more.get('value') or verdict.reason or verdict.outcome}"


def _variant(target: Target, scenario: Scenario, trial: Trial) -> Variant | str:
    """Return a target and scenario that differ as the trial asks, or why there are none."""
    try:
        variant = variant_of(target, scenario, trial)
        same = trial.change is not Change.NOTHING and same_launch(target, scenario, variant)
    except UserError as error:
        return str(error)
    return "it changes nothing in how this server is started" if same else variant


def _seconds(evidence: Evidence) -> float | None:
    """Return how long a start takes that is only asked the known answers: the median of those measured."""
    known = [
        start.load_seconds
        + (start.return_seconds or 0.0)
        + sum(r.finished - r.sent for r in start.of_kind(RequestKind.ANSWER) if r.finished is not None)
        for start in evidence.good_starts
        if start.load_seconds is not None
    ]
    return statistics.median(known) if known else None
