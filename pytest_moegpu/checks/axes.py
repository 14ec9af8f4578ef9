"""Are known answers still right under other conditions: long, cached, at once, after many requests, in a later turn?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pytest_moegpu.checks.common import broken, nothing, quote, reached, with_log
from pytest_moegpu.checks.longoutput import judge_long_output
from pytest_moegpu.checks.nearties import near_tie_lines, undecided
from pytest_moegpu.core.axes import Axis, amounts, left_out
from pytest_moegpu.core.channels import answered, misplaced
from pytest_moegpu.core.evidence import Evidence, Phase, RequestKind, RequestRecord, StartEvidence
from pytest_moegpu.core.model import Profile, Scenario
from pytest_moegpu.core.rates import say
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict

__all__ = ["judge"]

_CHECK = "axes"
_REFUSED = (400, 404, 422, 501)
# Conditions that ask what was right when asked plainly, and nothing else.
_NEED_KNOWN = (Axis.AFTER_REQUESTS, Axis.AFTER_IDLE, Axis.NOT_STREAMED, Axis.THINKING)

_Asked = tuple[StartEvidence, RequestRecord]


def judge(evidence: Evidence, scenario: Scenario, profile: Profile) -> tuple[Verdict, ...]:
    """Judge each condition of the scenario over all starts that were asked it, one verdict each.

    What was not right when asked plainly either is no fault of a condition: the check of the output tells it. A
    condition that could not be asked for want of a known answer that is sure is left undecided.
    """
    fault = broken(evidence, scenario, _CHECK)
    if fault is not None:
        return (fault,)
    starts = reached(evidence, _CHECK)
    kind = profile.gpu.kind
    notes = tuple(f"note: {axis} is not asked: {why}" for axis in Axis if (why := left_out(axis, scenario, kind)))
    verdicts = [_judged(axis, starts, scenario, profile) for axis in Axis if not left_out(axis, scenario, kind)]
    if not verdicts:
        return (replace(nothing(scenario, _CHECK, "no condition fits this scenario"), findings=notes),)
    return (replace(verdicts[0], findings=(*verdicts[0].findings, *notes)), *verdicts[1:])


def _judged(axis: Axis, starts: tuple[StartEvidence, ...], scenario: Scenario, profile: Profile) -> Verdict:
    asked = [(s, r) for s in starts for r in s.of_kind(RequestKind.AXIS) if r.axis == axis]
    if not asked:
        return _not_asked(axis, scenario)
    base = Verdict(
        outcome=Outcome.PASS,
        check=_CHECK,
        scenario=scenario.name,
        subject=axis.value,
        phase=Phase.AXES,
        reason="",
        lines=(("condition", _described(axis, asked, scenario, profile)),),
    )
    failed = [pair for pair in asked if pair[1].error is not None]
    if failed:
        return _with_errors(base, asked, failed)
    if axis is Axis.LONG_OUTPUT:
        return judge_long_output(base, asked)
    verdict = _answers(base, _Answers.of(axis, asked))
    if axis is Axis.THINKING and verdict.outcome.green:
        return _channels(verdict, asked, starts, scenario)
    return verdict


def _not_asked(axis: Axis, scenario: Scenario) -> Verdict:
    """Say why there is nothing to judge; most conditions need a known answer that is sure."""
    if axis not in _NEED_KNOWN:
        return nothing(scenario, _CHECK, f"no request was sent for {axis}", axis.value)
    return Verdict(
        outcome=Outcome.INCONCLUSIVE,
        check=_CHECK,
        scenario=scenario.name,
        subject=axis.value,
        phase=Phase.AXES,
        reason="no known answer was right and sure when asked plainly: see the check of the output",
    )


@dataclass(frozen=True, kw_only=True)
class _Answers:
    """The answers under one condition, sorted. `asked` are those with an expectation that are judged."""

    axis: Axis
    asked: list[_Asked]
    wrong: list[_Asked]
    undecided: list[_Asked]
    cross_talk: list[_Asked]

    @classmethod
    def of(cls, axis: Axis, given: list[_Asked]) -> _Answers:
        """Sort the answers."""
        # What was asked alone again is a control, and judges nothing.
        asked = [(s, r) for s, r in given if r.expect and not _is_control(r)]
        missed = [(s, r) for s, r in asked if not answered(r)]
        ties = [(s, r) for s, r in missed if undecided(r)]
        wrong = [pair for pair in missed if pair not in ties]
        return cls(
            axis=axis,
            asked=asked,
            wrong=wrong,
            undecided=ties,
            cross_talk=[pair for pair in missed if axis is Axis.CONCURRENT and _foreign_secret(pair[1], asked)],
        )

    @property
    def right(self) -> int:
        """How many are right."""
        return len(self.asked) - len(self.wrong) - len(self.undecided)


def _answers(base: Verdict, said: _Answers) -> Verdict:
    """Grade the answers under a condition: one wrong answer fails, a near-tie accuses nobody."""
    count = len(said.asked)
    ties = f", {len(said.undecided)} at a near-tie" if said.undecided else ""
    base = replace(base, more={"value": f"{said.right} of {count} right{ties}"})
    if said.cross_talk:
        reason = f"cross-talk: {say(len(said.cross_talk), count, 'hold the secret of another request')}"
        return _accused(base, reason, said.cross_talk, said)
    if said.wrong:
        return _accused(base, f"{say(len(said.wrong), count)}{ties}{_when(said)}", said.wrong, said)
    ties_told = near_tie_lines(said.undecided)
    if not said.right:
        reason = f"{base.more['value']}: a sound engine may go another way there, and a broken one as well"
        return replace(base, outcome=Outcome.INCONCLUSIVE, reason=reason, lines=(*base.lines, *ties_told))
    return replace(base, reason=f"{say(0, said.right)}{ties}", lines=(*base.lines, *ties_told))


def _accused(base: Verdict, reason: str, guilty: list[_Asked], said: _Answers) -> Verdict:
    start, record = guilty[0]
    verdict = replace(
        base,
        outcome=Outcome.FAILED,
        failed_class=FailedClass.CORRECTNESS,
        reason=reason,
        lines=(*base.lines, *_quoted(start, record)),
        findings=tuple(f"start {s.number}, request {r.name}: got {quote(r.text)}" for s, r in guilty[1:]),
    )
    return with_log(replace(verdict, findings=(*verdict.findings, *_controls(said, start))), start)


def _when(said: _Answers) -> str:
    """Say where the wrong answers lie among the right ones, as far as that tells what is broken."""
    names = [r.name for _, r in said.asked]
    bad = [r.name for _, r in said.wrong]
    first = names.index(bad[0])
    if said.axis is Axis.AFTER_REQUESTS and first and names[first:] == bad:
        return f"; all from request {first + 1} on, none before"
    if said.axis is Axis.AFTER_REQUESTS and len(bad) < len(names):
        return "; now and then"
    if said.axis is Axis.PROMPT_LENGTHS:
        lengths = sorted({_tokens(r) for _, r in said.wrong})
        good = sorted({_tokens(r) for _, r in said.asked} - set(lengths))
        right = f", right at {', '.join(good)}" if good else ""
        return f"; wrong at {', '.join(lengths)} tokens{right}"
    if said.axis is Axis.CACHED and "cached-cold" not in bad:
        return "; right past the cache, wrong out of it"
    return ""


def _tokens(record: RequestRecord) -> str:
    return "?" if record.prompt_tokens is None else str(record.prompt_tokens)


def _controls(said: _Answers, start: StartEvidence) -> Iterator[str]:
    """Tell what the same requests gave without the condition."""
    for record in start.of_kind(RequestKind.AXIS):
        if record.axis == said.axis and _is_control(record):
            yield f"alone, request {record.name}: {'right' if answered(record) else f'got {quote(record.text)}'}"
    if said.axis not in (*_NEED_KNOWN, Axis.SECOND_TURN):
        return
    plain = {r.prompt for r in start.of_kind(RequestKind.ANSWER) if r.error is None and answered(r)}
    if all(r.prompt in plain for s, r in said.wrong if s is start):
        yield "each of these was right when asked plainly"


def _is_control(record: RequestRecord) -> bool:
    return record.name.startswith(f"{Axis.CONCURRENT}-alone-")


def _foreign_secret(record: RequestRecord, asked: list[_Asked]) -> bool:
    """Tell whether an answer holds what only another request of the same moment was told."""
    others = {word for _, r in asked for word in r.expect} - set(record.expect)
    return any(word in record.text for word in others)


def _with_errors(base: Verdict, asked: list[_Asked], failed: list[_Asked]) -> Verdict:
    start, record = failed[0]
    counts = say(len(failed), len(asked), "requests failed")
    verdict = replace(
        base,
        outcome=Outcome.FAILED,
        failed_class=FailedClass.STABILITY,
        reason=counts,
        lines=(*base.lines, *_quoted(start, record)),
        more={"value": f"{len(failed)} of {len(asked)} failed"},
    )
    if all(r.too_long or r.status in _REFUSED for _, r in failed):
        # The form of a request that a server does not take says nothing about its text.
        verdict = replace(verdict, outcome=Outcome.INCONCLUSIVE, failed_class=None, reason=f"refused: {counts}")
    return with_log(verdict, start)


def _channels(verdict: Verdict, asked: list[_Asked], starts: tuple[StartEvidence, ...], scenario: Scenario) -> Verdict:
    """Judge in which field texts stand. A wrong one is a fault of the server's parser or template, not of a kernel."""
    plain = [(s, r) for s in starts for r in s.of_kind(RequestKind.ANSWER) if r.error is None]
    thinks = scenario.settings.thinking
    off = [pair for pair in asked if "-off-" in pair[1].name] + ([] if thinks else plain)
    strayed = [(pair, why) for pair in (*asked, *plain) if (why := misplaced(pair[1]))]
    unheeded = [(s, r) for s, r in off if r.reasoning.strip() and not misplaced(r)]
    count = len(asked) + len(plain)
    if strayed:
        (start, record), why = strayed[0]
        reason = f"{why}: {len(strayed)} of {count} answers: the server's parser or template, not its kernels"
    elif unheeded:
        start, record = unheeded[0]
        reason = f"thinking is off, and {len(unheeded)} of {len(off)} answers reason: the switch is not honoured"
    else:
        silent = thinks and not any(r.reasoning for _, r in asked)
        note = ("note: no answer reasons though thinking is on: the model may not be one that does",) if silent else ()
        return replace(verdict, findings=(*verdict.findings, *note))
    failed = replace(
        verdict,
        outcome=Outcome.FAILED,
        failed_class=FailedClass.ENVIRONMENT,
        reason=reason,
        lines=(*verdict.lines, *_quoted(start, record), ("reasoning", quote(record.reasoning))),
    )
    return with_log(failed, start)


def _described(axis: Axis, asked: list[_Asked], scenario: Scenario, profile: Profile) -> str:
    """Say what was asked, in numbers that were measured where the server tells them."""
    asked_for, records = amounts(scenario, profile.gpu.kind), [r for _, r in asked]
    lengths = sorted({r.prompt_tokens for r in records if r.prompt_tokens is not None})
    cached = [r.cached_tokens for r in records if r.name == f"{Axis.CACHED}-repeated" and r.cached_tokens is not None]
    said = {
        Axis.LONG_OUTPUT: f"an answer of {max((r.output_tokens or 0 for r in records), default=0)} tokens",
        Axis.PROMPT_LENGTHS: f"prompts of {', '.join(map(str, lengths)) or 'unknown'} tokens",
        Axis.SECOND_TURN: "after a question and its answer",
        Axis.CACHED: f"the same prompt again, {max(cached) if cached else 'unknown how many'} tokens from the cache",
        Axis.CONCURRENT: f"{asked_for.concurrent} prompts at once, {scenario.settings.slots} slots",
        Axis.AFTER_REQUESTS: f"{len(records)} requests in a row",
        Axis.AFTER_IDLE: f"after {asked_for.idle_seconds:g} s without a request",
        Axis.NOT_STREAMED: "as one answer, not streamed",
        Axis.THINKING: "thinking off" + (", then on" if scenario.settings.thinking else ""),
    }
    return f"{said[axis]}; KV cache {scenario.settings.kv_cache}"


def _quoted(start: StartEvidence, record: RequestRecord) -> tuple[tuple[str, str], ...]:
    got = ("error", quote(record.error)) if record.error is not None else ("got", quote(record.text))
    expected = (("expected", " or ".join(quote(word) for word in record.expect)),) if record.expect else ()
    return (
        ("start", f"{start.number}, request {record.name}"),
        ("prompt", quote(record.prompt)),
        *expected,
        got,
    )
