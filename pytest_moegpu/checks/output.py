"""Is the text right: known answers, and no sign of a broken kernel in anything the model wrote?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_moegpu.checks.common import broken, quote, reached, with_log
from pytest_moegpu.checks.nearties import contradiction, near_tie_lines, not_greedy, undecided, witness_lines
from pytest_moegpu.core.answers import is_right
from pytest_moegpu.core.channels import only_reasoned, spoken
from pytest_moegpu.core.evidence import Evidence, Phase, RequestKind, RequestRecord, StartEvidence
from pytest_moegpu.core.margins import is_witness
from pytest_moegpu.core.model import Profile, Scenario
from pytest_moegpu.core.probemargins import is_candidate
from pytest_moegpu.core.rates import say
from pytest_moegpu.core.text import examine
from pytest_moegpu.core.textfinding import Finding, TextVerdict
from pytest_moegpu.core.textfinding import verdict as text_verdict
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict

__all__ = ["judge", "judge_asked"]

# One or two questions can come out right by luck with a damaged model.
_MIN_QUESTIONS = 3

# A broken kernel misses nearly all questions; a healthy model that was never asked before may miss a few.
_MOST = 0.5

# A sound engine takes another way at a near-tie now and then; where it is more, a flat distribution looks the same.
_MOST_UNDECIDED = 0.25

_MIN_BEFORE_TRAIL = 20

_REPETITION = ("periodic-tail", "inner-loop", "distinct-n-grams")

_TEXT_KINDS = (RequestKind.ANSWER, RequestKind.THROUGHPUT, RequestKind.CONTEXT)
_PHASES = {RequestKind.THROUGHPUT: Phase.DECODE, RequestKind.CONTEXT: Phase.CONTEXT}

_Asked = tuple[StartEvidence, RequestRecord]


def judge(evidence: Evidence, scenario: Scenario, _profile: Profile) -> tuple[Verdict, ...]:
    """Judge the known answers of every start, and the form of every text of every start."""
    fault = broken(evidence, scenario, "output")
    if fault is not None:
        return (fault,)
    starts = reached(evidence, "output")
    return _known_answers(starts, scenario), _text_form(starts, scenario)


def judge_asked(evidence: Evidence, scenario: Scenario, _profile: Profile) -> tuple[Verdict, ...]:
    """Judge questions that somebody chose: as `judge`, however few they are."""
    fault = broken(evidence, scenario, "output")
    if fault is not None:
        return (fault,)
    starts = reached(evidence, "output")
    return _known_answers(starts, scenario, chosen=True), _text_form(starts, scenario)


def _known_answers(starts: tuple[StartEvidence, ...], scenario: Scenario, *, chosen: bool = False) -> Verdict:
    said = _Answers.of(starts, chosen=chosen)
    outcome, failed_class, reason, culprit = _graded(said, chosen=chosen)
    verdict = Verdict(
        outcome=outcome,
        check="output",
        scenario=scenario.name,
        subject="known answers",
        phase=Phase.OUTPUT,
        reason=reason,
        failed_class=failed_class,
        lines=(
            *(() if culprit is None else _quoted(culprit)),
            *((("rate", say(len(said.wrong), len(said.asked))),) if said.wrong else ()),
            *near_tie_lines(pair for pair in said.undecided if pair is not culprit),
            *witness_lines(said.witnesses),
        ),
        findings=(
            *_others(said.wrong, said.errors, culprit),
            *_unjudged(said.sent, said.asked),
            *_differences(said.sent),
            *_differences(said.witnesses),
            *not_greedy(said.asked),
            *_no_numbers(said),
        ),
        more={"value": said.counts},
    )
    return verdict if culprit is None else with_log(verdict, culprit[0])


@dataclass(frozen=True, kw_only=True)
class _Answers:
    """The answers of a run, sorted. `sent` are all with an expectation, `asked` those of them that are judged here.

    `broken` have tokens whose log-probability is no number; `undecided` are wrong behind a near-tie, `cut` while the
    model was still reasoning, `misplaced` are right but in the reasoning field alone.
    """

    sent: list[_Asked]
    asked: list[_Asked]
    witnesses: list[_Asked]
    errors: list[_Asked]
    broken: list[_Asked]
    wrong: list[_Asked]
    undecided: list[_Asked]
    cut: list[_Asked]
    misplaced: list[_Asked]

    @classmethod
    def of(cls, starts: tuple[StartEvidence, ...], *, chosen: bool) -> _Answers:
        """Sort the answers of these starts; `chosen` when somebody chose the questions."""
        given = [(s, r) for s in starts for r in s.of_kind(RequestKind.ANSWER) if r.expect]
        witnesses = [(s, r) for s, r in given if is_witness(r.margin)]
        sent = [pair for pair in given if pair not in witnesses]
        # Beside questions calibrated for the model, those without a margin are somebody's own, who judges them himself.
        measured = not chosen and any(r.margin is not None for _, r in sent)
        asked = [(s, r) for s, r in sent if (r.margin is not None if measured else not is_candidate(r))]
        missed = [(s, r) for s, r in asked if r.error is None and not _right(r)]
        misplaced = [(s, r) for s, r in missed if only_reasoned(r)]
        missed = [pair for pair in missed if pair not in misplaced]
        cut = [(s, r) for s, r in missed if not r.text and r.reasoning and r.finish_reason == "length"]
        undecided_ones = [pair for pair in missed if pair not in cut and undecided(pair[1])]
        return cls(
            sent=sent,
            asked=asked,
            witnesses=witnesses,
            errors=[(s, r) for s, r in asked if r.error is not None],
            broken=[(s, r) for s, r in (*asked, *witnesses) if r.error is None and r.logprobs_missing],
            wrong=[pair for pair in missed if pair not in cut and pair not in undecided_ones],
            undecided=undecided_ones,
            cut=cut,
            misplaced=misplaced,
        )

    @property
    def right(self) -> int:
        """How many are right."""
        return len(self.asked) - sum(map(len, (self.errors, self.wrong, self.undecided, self.cut, self.misplaced)))

    @property
    def decided(self) -> int:
        """How many different questions were judged, those behind a near-tie not counted."""
        return len({r.prompt for s, r in self.asked if (s, r) not in self.undecided})

    @property
    def numbers_lost(self) -> bool:
        """Whether it is a fault that log-probabilities are missing: beside others that are there, or a wrong answer."""
        others = any(r.tightest is not None for _, r in self.asked)
        return bool(self.broken) and (others or self.right < len(self.asked))

    @property
    def counts(self) -> str:
        """Print how many are right, and how many undecided."""
        ties = len(self.undecided)
        return f"{self.right} of {len(self.asked)} right" + (f", {ties} near-tie{'s' * (ties > 1)}" if ties else "")


def _graded(said: _Answers, *, chosen: bool) -> tuple[Outcome, FailedClass | None, str, _Asked | None]:
    """Return outcome, class, reason and the answer to show."""
    answered = len(said.asked) - len(said.errors)
    calibrated = chosen or any(r.margin is not None for _, r in said.wrong)
    accused = bool(said.wrong) and (calibrated or said.right < _MOST * answered)
    lost = len(said.broken) if said.numbers_lost else 0
    if said.errors and (len(said.errors) > len(said.wrong) or not (accused or lost)):
        reason = f"{said.counts}, {len(said.errors)} requests failed"
        return Outcome.FAILED, FailedClass.STABILITY, reason, said.errors[0]
    if lost:
        reason = f"{said.counts}, {lost} with tokens whose log-probability is no number: broken kernels"
        return Outcome.FAILED, FailedClass.CORRECTNESS, reason, said.broken[0]
    if accused:
        return Outcome.FAILED, FailedClass.CORRECTNESS, said.counts, said.wrong[0]
    if said.misplaced:
        where = "the answer is in the reasoning field only: the server's parser or template, not its kernels"
        return Outcome.FAILED, FailedClass.ENVIRONMENT, f"{said.counts}; {where}", said.misplaced[0]
    if said.wrong:
        why = "these questions were never calibrated for this model: a healthy one may miss some"
        return Outcome.INCONCLUSIVE, None, f"{said.counts}, but {why}", said.wrong[0]
    if said.cut:
        return Outcome.INCONCLUSIVE, None, f"{said.counts}, {len(said.cut)} cut off while reasoning", said.cut[0]
    ties = len(said.undecided)
    if ties and (chosen or ties > _MOST_UNDECIDED * answered):
        why = "a sound engine may go another way there, and a broken one as well"
        return Outcome.INCONCLUSIVE, None, f"{said.counts}: {why}", said.undecided[0]
    if said.decided < (1 if chosen else _MIN_QUESTIONS):
        few = f"too few: {said.decided} questions, at least {_MIN_QUESTIONS} needed"
        return Outcome.INCONCLUSIVE, None, few, None
    return Outcome.PASS, None, said.counts, None


def _right(record: RequestRecord) -> bool:
    """Tell whether an answer is right, an empty think pair before it not counted."""
    return is_right(record.rule, record.expect, spoken(record.text))


def _no_numbers(said: _Answers) -> Iterator[str]:
    """Note log-probabilities that an engine never gives as numbers, though its answers are right."""
    if said.broken and not said.numbers_lost:
        yield "note: the engine gives log-probabilities that are no numbers: near-ties cannot be seen"


def _quoted(pair: _Asked) -> tuple[tuple[str, str], ...]:
    start, record = pair
    got = ("error", quote(record.error)) if record.error is not None else ("got", quote(record.text))
    return (
        ("start", f"{start.number}, request {record.name}"),
        ("prompt", quote(record.prompt)),
        ("expected", " or ".join(quote(word) for word in record.expect)),
        got,
        *((("margin", said),) if (said := contradiction(record)) else ()),
        *(near_tie_lines([pair]) if record.error is None and undecided(record) else ()),
    )


def _got(record: RequestRecord) -> str:
    return f"error {quote(record.error)}" if record.error is not None else f"got {quote(record.text)}"


def _others(wrong: list[_Asked], errors: list[_Asked], first: _Asked | None) -> Iterator[str]:
    for start, record in (pair for pair in (*wrong, *errors) if pair is not first):
        yield f"start {start.number}: {quote(record.prompt)}: {_got(record)}"


def _unjudged(sent: list[_Asked], asked: list[_Asked]) -> Iterator[str]:
    """Note questions that were left to whoever chose them, and were not answered as expected."""
    judged = {id(record) for _, record in asked}
    for start, record in sent:
        if id(record) not in judged and (record.error is not None or not _right(record)):
            said = f"{quote(record.prompt)} is not calibrated and not judged here: {_got(record)}"
            yield f"note: start {start.number}: {said}"


def _differences(asked: list[_Asked]) -> Iterator[str]:
    """Note prompts answered differently from start to start, which equal launches at temperature 0 rarely are."""
    texts: dict[str, dict[str, None]] = {}
    for _, record in asked:
        if record.error is None:
            texts.setdefault(record.prompt, {})[record.text] = None
    for prompt, answers in texts.items():
        if len(answers) > 1:
            shown = " / ".join(quote(text) for text in answers)
            yield f"note: {len(answers)} different answers to {quote(prompt)} at temperature 0: {shown}"


def _texts(record: RequestRecord) -> tuple[str, ...]:
    """Return what the model wrote, reasoning and answer apart; one empty text when it wrote neither."""
    return tuple(text for text in (record.reasoning, record.text) if text) or ("",)


def _text_form(starts: tuple[StartEvidence, ...], scenario: Scenario) -> Verdict:
    count = 0
    found: dict[TextVerdict, list[tuple[StartEvidence, RequestRecord, str, Finding]]] = {}
    for start, record in ((s, r) for s in starts for r in s.requests if r.kind in _TEXT_KINDS and r.error is None):
        for text in _texts(record):
            count += 1
            findings = _findings(text, record)
            found.setdefault(text_verdict(findings), []).extend((start, record, text, f) for f in findings)
    bad, suspect = found.get(TextVerdict.BAD, []), found.get(TextVerdict.SUSPECT, [])
    outcome, seen = Outcome.PASS, sorted(bad or suspect, key=lambda item: -item[3].strength)
    if seen:
        outcome = Outcome.FAILED if bad else Outcome.INCONCLUSIVE
        reason = f"{'broken' if bad else 'suspect'} text: {seen[0][3].name}"
    elif not count:
        outcome, reason = Outcome.ERROR, "nothing was measured: no request gave a text"
    else:
        reason = f"no sign of broken text in {count} texts"
    verdict = Verdict(
        outcome=outcome,
        check="output",
        scenario=scenario.name,
        subject="text form",
        phase=_PHASES.get(seen[0][1].kind, Phase.OUTPUT) if seen else Phase.OUTPUT,
        reason=reason,
        failed_class=FailedClass.CORRECTNESS if bad else None,
        lines=_seen_lines(*seen[0]) if seen else (),
        findings=tuple(f"start {s.number}, request {r.name}: {f.name}, {f.detail}" for s, r, _, f in seen[1:]),
        more={"value": f"{count} texts"},
    )
    return with_log(verdict, seen[0][0]) if seen else verdict


def _findings(text: str, record: RequestRecord) -> tuple[Finding, ...]:
    """Examine one text. A model kept from ending its answer may well repeat itself, so there that is no sign."""
    found = examine(text, record.prompt, record.finish_reason)
    if record.kind is RequestKind.THROUGHPUT:
        # Filler without a question: a sound model says much the same again.
        found = tuple(f for f in found if f.name != "distinct-n-grams")
    if record.wanted_output_tokens is None:
        return found
    return tuple(f for f in found if f.name not in _REPETITION and not _rambles(f) and not _trails_off(text, f))


def _rambles(finding: Finding) -> bool:
    """Tell whether it is only doubtful that words are salad: one that goes on by force lists things in odd order."""
    return finding.name == "word-salad" and text_verdict((finding,)) is not TextVerdict.BAD


def _trails_off(text: str, finding: Finding) -> bool:
    """Tell whether a text ends in one character over and over, after enough other text to show that it went well."""
    before, tail = text[: finding.position], text[finding.position :].rstrip()
    kinds = set(tail) or {" "}
    if finding.name != "one-character-run" or len(kinds) > 1:
        return False
    return sum(not c.isspace() and c not in kinds for c in before) >= _MIN_BEFORE_TRAIL


def _seen_lines(
    start: StartEvidence, record: RequestRecord, text: str, finding: Finding
) -> tuple[tuple[str, str], ...]:
    return (
        ("start", f"{start.number}, request {record.name}"),
        ("finding", f"{finding.name} at character {finding.position}: {finding.detail}"),
        ("prompt", quote(record.prompt)),
        ("text", quote(text[finding.position :])),
    )
