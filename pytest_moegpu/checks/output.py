"""Is the text right: known answers, and no sign of a broken kernel in anything the model wrote?"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_moegpu.checks.common import broken, quote, reached, with_log
from pytest_moegpu.core.evidence import Evidence, Phase, RequestKind, RequestRecord, StartEvidence
from pytest_moegpu.core.model import Profile, Scenario
from pytest_moegpu.core.text import Finding, TextVerdict, examine
from pytest_moegpu.core.text import verdict as text_verdict
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict

__all__ = ["contains", "judge", "judge_asked"]

# One or two questions can come out right by luck with a damaged model.
_MIN_QUESTIONS = 3

# A broken kernel misses nearly all questions; a healthy model that was never asked before may miss a few.
_MOST = 0.5

_MIN_BEFORE_TRAIL = 20

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


def contains(text: str, expect: tuple[str, ...]) -> bool:
    """Tell whether a text holds one of the expected answers, whatever the case of its letters."""
    lowered = text.casefold()
    return any(word.casefold() in lowered for word in expect)


def _known_answers(starts: tuple[StartEvidence, ...], scenario: Scenario, *, chosen: bool = False) -> Verdict:
    sent = [(s, r) for s in starts for r in s.of_kind(RequestKind.ANSWER) if r.expect]
    # Beside questions calibrated for the model, those without a margin are somebody's own, who judges them himself.
    measured = not chosen and any(r.margin is not None for _, r in sent)
    asked = [(s, r) for s, r in sent if r.margin is not None] if measured else sent
    errors = [(s, r) for s, r in asked if r.error is not None]
    missed = [(s, r) for s, r in asked if r.error is None and not contains(r.text, r.expect)]
    cut = [(s, r) for s, r in missed if not r.text and r.reasoning and r.finish_reason == "length"]
    wrong = [pair for pair in missed if pair not in cut]
    right = len(asked) - len(errors) - len(missed)
    questions = len({r.prompt for _, r in asked})
    counts = f"{right} of {len(asked)} right"
    outcome, failed_class, reason, culprit = Outcome.PASS, None, counts, None
    calibrated = chosen or any(r.margin is not None for _, r in wrong)
    accused = bool(wrong) and (calibrated or right < _MOST * (len(asked) - len(errors)))
    if errors and (len(errors) > len(wrong) or not accused):
        outcome, failed_class, culprit = Outcome.FAILED, FailedClass.STABILITY, errors[0]
        reason = f"{counts}, {len(errors)} requests failed"
    elif accused:
        outcome, failed_class, reason, culprit = Outcome.FAILED, FailedClass.CORRECTNESS, counts, wrong[0]
    elif wrong:
        outcome, culprit = Outcome.INCONCLUSIVE, wrong[0]
        reason = f"{counts}, but these questions were never calibrated for this model: a healthy one may miss some"
    elif cut:
        outcome, reason, culprit = Outcome.INCONCLUSIVE, f"{counts}, {len(cut)} cut off while reasoning", cut[0]
    elif questions < _MIN_QUESTIONS and not chosen:
        outcome, reason = Outcome.INCONCLUSIVE, f"too few: {questions} questions, at least {_MIN_QUESTIONS} needed"
    verdict = Verdict(
        outcome=outcome,
        check="output",
        scenario=scenario.name,
        subject="known answers",
        phase=Phase.OUTPUT,
        reason=reason,
        failed_class=failed_class,
        lines=() if culprit is None else _quoted(culprit),
        findings=(*_others(wrong, errors, culprit), *_unjudged(sent, asked), *_differences(sent)),
        more={"value": counts},
    )
    return verdict if culprit is None else with_log(verdict, culprit[0])


def _quoted(pair: _Asked) -> tuple[tuple[str, str], ...]:
    start, record = pair
    got = ("error", quote(record.error)) if record.error is not None else ("got", quote(record.text))
    return (
        ("start", f"{start.number}, request {record.name}"),
        ("prompt", quote(record.prompt)),
        ("expected", " or ".join(quote(word) for word in record.expect)),
        got,
    )


def _others(wrong: list[_Asked], errors: list[_Asked], first: _Asked | None) -> Iterator[str]:
    for start, record in (pair for pair in (*wrong, *errors) if pair is not first):
        got = f"error {quote(record.error)}" if record.error is not None else f"got {quote(record.text)}"
        yield f"start {start.number}: {quote(record.prompt)}: {got}"


def _unjudged(sent: list[_Asked], asked: list[_Asked]) -> Iterator[str]:
    """Note questions that were left to whoever chose them, and were not answered as expected."""
    judged = {id(record) for _, record in asked}
    for start, record in sent:
        if id(record) not in judged and (record.error is not None or not contains(record.text, record.expect)):
            got = f"error {quote(record.error)}" if record.error is not None else f"got {quote(record.text)}"
            yield f"note: start {start.number}: {quote(record.prompt)} is not calibrated and not judged here: {got}"


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
    if record.wanted_output_tokens is None:
        return found
    return tuple(f for f in found if f.name != "periodic-tail" and not _trails_off(text, f))


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
