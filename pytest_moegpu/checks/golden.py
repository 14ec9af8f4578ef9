"""Does the model give the numbers of the known-good stack? Log-probabilities of fixed texts, never exact text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pytest_moegpu.checks.base import Judge
from pytest_moegpu.checks.common import broken, nothing, start_phrase, with_log
from pytest_moegpu.core.baseline import Baseline
from pytest_moegpu.core.evidence import Evidence, Phase, StartEvidence
from pytest_moegpu.core.golden import Golden, ScoreMethod, TextScore
from pytest_moegpu.core.goldenfit import FLOOR, PRECISION_FLOOR, QUANTISED_FLOOR, Agreement, Floor, Grade, agree, grade
from pytest_moegpu.core.goldentexts import TEXTS_VERSION
from pytest_moegpu.core.identity import differences, stack_changes
from pytest_moegpu.core.model import DeviceKind, Profile, Scenario
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict

__all__ = ["Reference", "judge", "judge_against", "unlike_itself"]

_CHECK = "golden"
_ORDER = (Grade.IDENTICAL, Grade.WITHIN, Grade.SHORT, Grade.BEYOND, Grade.NO_NUMBER)
_OUTCOMES = {
    Grade.IDENTICAL: Outcome.PASS,
    Grade.WITHIN: Outcome.PASS,
    Grade.SHORT: Outcome.INCONCLUSIVE,
    Grade.BEYOND: Outcome.FAILED,
    Grade.NO_NUMBER: Outcome.FAILED,
}
_KIND = {
    ScoreMethod.STEPS: "fixed texts token by token",
    ScoreMethod.PROMPT: "fixed texts as prompts",
    ScoreMethod.GREEDY: "greedy answers, as far as they are the same",
}
_SHA = "model.sha256"
_KV = "settings.kv_cache"
_QUANTISATION = "model.quantisation"
# Weights that no kernel multiplies as integers.
_WHOLE = ("F32", "F16", "BF16")
_MOST_MOVED = 8


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The baseline whose golden judges. `asked` when the command line names it: another file of the model is allowed.

    `source` says where it is from.
    """

    baseline: Baseline
    source: str
    asked: bool = False

    @property
    def golden(self) -> Golden | None:
        """Its golden."""
        return self.baseline.golden


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """How one start agrees."""

    start: StartEvidence
    agreement: Agreement
    grade: Grade


def judge(evidence: Evidence, scenario: Scenario, profile: Profile) -> tuple[Verdict, ...]:
    """Judge without a golden: numbers that are none fail, and starts that differ; else there is nothing to compare."""
    return _judge(evidence, scenario, profile, None)


def judge_against(reference: Reference | None) -> Judge:
    """Return the judge that holds the scores of every start against a golden.

    PASS when all starts are identical or within the floor of sound kernels; FAILED (correctness) beyond it, and for
    numbers that are none; INCONCLUSIVE when too little could be compared. NO_BASELINE without a golden, NOT_COMPARABLE
    with one of another model file, unless it was asked for.
    """

    def judged(evidence: Evidence, scenario: Scenario, profile: Profile) -> tuple[Verdict, ...]:
        return _judge(evidence, scenario, profile, reference)

    return judged


def unlike_itself(starts: Iterable[tuple[int, tuple[TextScore, ...]]]) -> str:
    """Say which of the starts of one stack do not agree with the first; empty when all do."""
    first, *others = starts
    bad = []
    for number, scores in others:
        fit = agree(first[1], scores)
        found = grade(fit, FLOOR)
        if found in (Grade.BEYOND, Grade.NO_NUMBER):
            bad.append(f"start {number} is {found} of start {first[0]}: {_figures(fit)}")
    return "; ".join(bad)


def _judge(
    evidence: Evidence, scenario: Scenario, _profile: Profile, reference: Reference | None
) -> tuple[Verdict, ...]:
    fault = broken(evidence, scenario, _CHECK)
    if fault is not None:
        return (fault,)
    starts = evidence.good_starts
    if not any(start.scores for start in starts):
        return (nothing(scenario, _CHECK, "no text was scored in any start; the engine may give no log-probabilities"),)
    verdict = Verdict(
        outcome=Outcome.NO_BASELINE,
        check=_CHECK,
        scenario=scenario.name,
        subject="golden",
        phase=Phase.OUTPUT,
        findings=_errors(starts),
    )
    if bad := _no_numbers(starts):
        reason = f"log-probabilities that are no numbers: {bad}"
        failed = replace(verdict, outcome=Outcome.FAILED, failed_class=FailedClass.CORRECTNESS, reason=reason)
        return (with_log(replace(failed, more={"value": Grade.NO_NUMBER}), starts[0]),)
    if parted := unlike_itself((start.number, start.scores) for start in starts):
        failed = replace(verdict, outcome=Outcome.FAILED, failed_class=FailedClass.CORRECTNESS, reason=parted)
        return (with_log(replace(failed, more={"value": "starts differ"}), starts[0]),)
    golden = reference.golden if reference is not None else None
    if reference is None or golden is None:
        reason = (
            "there is no golden of this model; promote a good run: moegpu promote .moegpu/runs/<id>"
            if reference is None
            else f"{reference.source} holds no golden; promote a run of this version"
        )
        return (replace(verdict, reason=reason),)
    return (_compared(verdict, evidence, reference, golden),)


def _compared(verdict: Verdict, evidence: Evidence, reference: Reference, golden: Golden) -> Verdict:
    sha = evidence.identity.get(_SHA, "")
    same_file = golden.model_sha256 == sha
    if not same_file and not reference.asked:
        reason = f"the golden is of another model file: {_SHA} {golden.model_sha256} → {sha}"
        return replace(verdict, outcome=Outcome.NOT_COMPARABLE, reason=reason)
    if golden.texts_version != TEXTS_VERSION:
        reason = f"the golden has texts of version {golden.texts_version}, this run of version {TEXTS_VERSION}"
        return replace(verdict, outcome=Outcome.NOT_COMPARABLE, reason=reason)
    precision = "" if same_file else "another precision of the model, as asked for"
    if same_file and _other_cache(evidence, reference.baseline):
        precision = "another precision of the KV cache"
    floor = PRECISION_FLOOR if precision else _floor(evidence)
    fits = [_fit(start, golden, floor) for start in evidence.good_starts]
    worst = max(fits, key=lambda fit: (_ORDER.index(fit.grade), fit.agreement.divergence))
    kind = f" ({precision})" if precision else ""
    moved = _moved(evidence, reference.baseline)
    outcome = _OUTCOMES[worst.grade]
    reason = f"{worst.grade}{kind}"
    if worst.grade in (Grade.WITHIN, Grade.BEYOND):
        reason = f"{reason}: {_figures(worst.agreement)}"
    elif worst.grade is Grade.SHORT:
        reason = f"{reason}: {worst.agreement.tokens} of {worst.agreement.expected} tokens could be compared"
    lines = [
        ("agreement", f"{start_phrase(f.start.number for f in fits)}: {_spread(fits)}"),
        ("allowed", _allowed(floor)),
        ("margin", _margin(worst.agreement, floor)),
        ("first other", _first(worst.agreement)),
        ("golden", f"{reference.source}, made with {golden.made_with}; {_method(golden.texts, evidence)}"),
        ("changed", moved if worst.grade is not Grade.IDENTICAL else ""),
    ]
    value = worst.grade if worst.grade is Grade.SHORT else f"{worst.agreement.difference:.4f} nat"
    done = replace(
        verdict,
        outcome=outcome,
        failed_class=FailedClass.CORRECTNESS if outcome is Outcome.FAILED else None,
        reason=reason,
        lines=tuple((label, text) for label, text in lines if text),
        more={"value": str(value), "grade": str(worst.grade)},
    )
    if worst.grade is Grade.WITHIN:
        note = f"the numbers moved, within the floor: {_figures(worst.agreement)}; moved: {moved or 'nothing known'}"
        done = replace(done, findings=(*done.findings, note))
    return with_log(done, worst.start)


def _floor(evidence: Evidence) -> Floor:
    """Return how far sound kernels may be apart with these weights on these devices."""
    on_gpu = any(gpu.kind is DeviceKind.GPU for gpu in evidence.gpus)
    return QUANTISED_FLOOR if on_gpu and evidence.identity.get(_QUANTISATION) not in _WHOLE else FLOOR


def _other_cache(evidence: Evidence, baseline: Baseline) -> bool:
    then, now = baseline.identity.get(_KV), evidence.identity.get(_KV)
    return then is not None and now is not None and then != now


def _fit(start: StartEvidence, golden: Golden, floor: Floor) -> _Fit:
    found = agree(golden.texts, start.scores)
    return _Fit(start=start, agreement=found, grade=grade(found, floor))


def _figures(fit: Agreement) -> str:
    return (
        f"mean difference {fit.difference:.4f} nat (largest {fit.difference_max:.3f}), "
        f"KL at least {fit.divergence:.4f} nat (p99 {fit.divergence_p99:.3f}), "
        f"same first choice {fit.top1:.1%} of {fit.tokens} tokens"
    )


def _spread(fits: list[_Fit]) -> str:
    if len({fit.agreement for fit in fits}) == 1:
        return _figures(fits[0].agreement)
    return " | ".join(_figures(fit.agreement) for fit in fits)


def _allowed(floor: Floor) -> str:
    return (
        f"for {floor.what}: mean difference {floor.difference:g} nat, KL {floor.divergence:g} nat "
        f"(p99 {floor.divergence_p99:g}), same first choice {floor.top1:.0%}"
    )


def _margin(fit: Agreement, floor: Floor) -> str:
    """Say how much of what is allowed was used, of the figure that is nearest to its limit."""
    if not fit.tokens:
        return ""
    used = {
        "mean difference": fit.difference / floor.difference,
        "KL": fit.divergence / floor.divergence,
        "p99 of KL": fit.divergence_p99 / floor.divergence_p99,
        "first choice": (1 - fit.top1) / (1 - floor.top1),
    }
    name = max(used, key=lambda key: used[key])
    where = f", most in the text {fit.worst_text!r}" if used[name] else ""
    return f"{used[name]:.0%} of what is allowed ({name}){where}"


def _first(fit: Agreement) -> str:
    place = fit.first
    if place is None:
        return ""
    gap = "by more than the listed ones tell" if place.gap is None else f"by {place.gap:.2f} nat"
    kind = "a near-tie" if place.near_tie else "no near-tie"
    where = f"{place.text!r}, token {place.position}"
    return f"{where}: the golden had {place.golden!r} before {place.now!r} {gap}, {kind}"


def _method(golden: tuple[TextScore, ...], evidence: Evidence) -> str:
    then = {score.method for score in golden}
    now = {score.method for start in evidence.good_starts for score in start.scores}
    told = " and ".join(sorted(_KIND[method] for method in then | now))
    return told if then == now else f"{told}: other kernels, the same tokens"


def _moved(evidence: Evidence, baseline: Baseline) -> str:
    """Name what is not as it was, the stack first."""
    changes = (*stack_changes(baseline.stack, evidence.stack), *differences(baseline.identity, evidence.identity))
    found = [str(change) for change in changes]
    more = [f"and {len(found) - _MOST_MOVED} more"] if len(found) > _MOST_MOVED else []
    return "; ".join(found[:_MOST_MOVED] + more)


def _no_numbers(starts: tuple[StartEvidence, ...]) -> str:
    places = [
        f"start {start.number}, {score.text}, token {place}"
        for start in starts
        for score in start.scores
        for place, token in enumerate(score.tokens)
        if not token.is_number
    ]
    return f"{len(places)} places, the first: {places[0]}" if places else ""


def _errors(starts: tuple[StartEvidence, ...]) -> tuple[str, ...]:
    told = [f"{score.text}: {score.error}" for start in starts for score in start.scores if score.error]
    return tuple(f"not scored: {error}" for error in dict.fromkeys(told))
