"""Do long contexts work: answered, remembered, and still fast enough at depth?"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median

from pytest_moegpu.checks.beyond import judge_beyond
from pytest_moegpu.checks.capacity import judge_served_context
from pytest_moegpu.checks.common import broken, grouped, nothing, quote, with_log
from pytest_moegpu.checks.doubts import median_lag, throttled, too_late, valid
from pytest_moegpu.checks.throughput import metrics
from pytest_moegpu.core.answers import contains
from pytest_moegpu.core.evidence import Evidence, Phase, RequestKind, RequestRecord, StartEvidence
from pytest_moegpu.core.faults import OUT_OF_MEMORY, find
from pytest_moegpu.core.model import Profile, Scenario
from pytest_moegpu.core.timing import decode_rate, ttft
from pytest_moegpu.core.units import format_percent, format_value
from pytest_moegpu.core.verdict import METRICS, FailedClass, Outcome, Verdict

__all__ = ["judge"]

# A prompt shorter than this share of what was wanted did not test the context it stands for.
_MIN_LENGTH_SHARE = 0.9

# Over fewer tokens one late read decides the rate.
_MIN_TOKENS_FOR_RATE = 8

_BAD_REQUEST = 400

_Asked = tuple[StartEvidence, RequestRecord]


@dataclass
class _Said:
    """What was found wrong with one fill, in the order of its weight."""

    faults: list[tuple[Outcome, FailedClass | None, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    culprit: _Asked | None = None

    def blame(self, outcome: Outcome, failed_class: FailedClass | None, reason: str, pair: _Asked) -> None:
        """Add a fault; the first one names the request that is shown."""
        self.culprit = self.culprit or pair
        self.faults.append((outcome, failed_class, reason))


def judge(evidence: Evidence, scenario: Scenario, profile: Profile) -> tuple[Verdict, ...]:
    """Judge every fill of the context over all depths and starts, one verdict each.

    A start that broke at a long context gives a verdict of its own, beside those of the fills that were asked; so do a
    server that allows less context than was asked for, and the prompt longer than the context.
    """
    fault = broken(evidence, scenario, "context")
    served = judge_served_context(evidence, scenario)
    if fault is not None and fault.phase is not Phase.CONTEXT:
        return (*served, fault)
    context = scenario.settings.context
    wanted = () if fault else scenario.workload.context_fills
    # Keyed by tokens: the share of a whole number of tokens is not exactly the share that was asked for.
    asked: dict[int, list[_Asked]] = {round(fill * context): [] for fill in wanted}
    for start in evidence.starts:
        for record in start.of_kind(RequestKind.CONTEXT):
            if record.fill is not None:
                asked.setdefault(round(record.fill * context), []).append((start, record))
    speed = metrics(evidence).get("decode")
    short = None if speed is None else speed.median
    doubts = valid(evidence, scenario, profile, "decode")
    verdicts = tuple(_judge_fill(tokens, asked[tokens], short, scenario, doubts) for tokens in sorted(asked))
    broke = () if fault is None else (fault,)
    return (*served, *broke, *verdicts, *judge_beyond(evidence, scenario))


def _judge_fill(
    tokens: int, asked: list[_Asked], short: float | None, scenario: Scenario, doubts: tuple[str, ...]
) -> Verdict:
    subject = f"context {tokens} tokens ({tokens / scenario.settings.context * 100:.0f} %)"
    if not asked:
        return nothing(scenario, "context", "no request of this length was sent", subject)
    said = _Said()
    answered = [(s, r) for s, r in asked if r.error is None]
    _errors(said, asked)
    right = _recall(said, asked, answered, scenario)
    _refused(said, asked)
    _length(said, answered, tokens)
    if answered:
        _speed(said, answered, short, scenario, doubts)
    verdict = Verdict(
        outcome=Outcome.PASS,
        check="context",
        scenario=scenario.name,
        subject=subject,
        phase=Phase.CONTEXT,
        reason=f"answered and recalled at {len({r.depth for _, r in asked})} depths",
        lines=tuple(said.facts),
        findings=tuple(said.notes),
        more={"value": _recalled(right, asked), "tokens": str(tokens)},
    )
    if not said.faults or said.culprit is None:
        return verdict
    outcome, failed_class, reason = said.faults[0]
    others = tuple(text for _, _, text in said.faults[1:])
    start, record = said.culprit
    verdict = replace(
        verdict,
        outcome=outcome,
        failed_class=failed_class,
        reason=reason,
        lines=(*_quoted(start, record), *said.facts),
        findings=(*others, *said.notes),
    )
    return with_log(verdict, start)


def _recalled(right: int, asked: list[_Asked]) -> str:
    judged = sum(bool(r.expect) for _, r in asked)
    return f"recall {right} of {judged}" if judged else "recall not judged"


def _errors(said: _Said, asked: list[_Asked]) -> None:
    failed = [(s, r) for s, r in asked if r.error is not None and not _too_long(r)]
    memory = [(s, r) for s, r in failed if _out_of_memory(s, r)]
    if memory:
        reason = f"out of memory in {len(memory)} of {len(asked)} requests"
        said.blame(Outcome.FAILED, FailedClass.MEMORY, reason, memory[0])
    others = [pair for pair in failed if pair not in memory]
    if others:
        reason = f"{len(others)} of {len(asked)} requests failed"
        said.blame(Outcome.FAILED, FailedClass.STABILITY, reason, others[0])


def _refused(said: _Said, asked: list[_Asked]) -> None:
    refused = [(s, r) for s, r in asked if _too_long(r)]
    if refused:
        reason = f"{len(refused)} of {len(asked)} prompts were longer than the context, which is our fault"
        said.blame(Outcome.INCONCLUSIVE, None, reason, refused[0])


def _too_long(record: RequestRecord) -> bool:
    if record.too_long:
        return True
    error = (record.error or "").casefold()
    refused = record.status == _BAD_REQUEST or error.startswith(f"http {_BAD_REQUEST}")
    return refused and "context" in error


def _out_of_memory(start: StartEvidence, record: RequestRecord) -> bool:
    """Tell whether a request failed for want of memory; a line in the log of a server that lived on is not enough."""
    if start.failure is not None and start.failure.out_of_memory:
        return True
    if "out of memory" in (record.error or "").casefold():
        return True
    cut_off = record.status is None or record.finished is None
    fault = find(start.log.oom_lines)
    return cut_off and fault is not None and fault.name == OUT_OF_MEMORY


def _recall(said: _Said, asked: list[_Asked], answered: list[_Asked], scenario: Scenario) -> int:
    """Judge what was recalled, and return how many answers were right."""
    judged = [(s, r) for s, r in answered if r.expect]
    beyond = sorted({r.depth for _, r in asked if not r.expect and r.depth is not None})
    if beyond:
        depths = ", ".join(f"{depth:g}" for depth in beyond)
        said.notes.append(
            f"recall at depth {depths} not judged: a healthy model of this kind does not reach that far back"
        )
    wrong = [(s, r) for s, r in judged if not contains(r.text, r.expect)]
    right, least = len(judged) - len(wrong), scenario.limits.recall_min_share
    if wrong and right / len(judged) < least:
        depths = ", ".join(f"{depth:g}" for depth in sorted({r.depth for _, r in wrong if r.depth is not None}))
        reason = (
            f"recall {right} of {len(judged)}, wrong at depth {depths or 'unknown'}; "
            f"at least {format_percent(least, signed=False)} must be right"
        )
        said.blame(Outcome.FAILED, FailedClass.CORRECTNESS, reason, wrong[0])
    elif wrong:
        said.notes.append(f"recall {right} of {len(judged)}, which the scenario allows")
    return right


def _length(said: _Said, answered: list[_Asked], tokens: int) -> None:
    unknown = [(s, r) for s, r in answered if r.prompt_tokens is None]
    known = [(s, r, r.prompt_tokens) for s, r in answered if r.prompt_tokens is not None]
    if unknown:
        reason = f"the engine does not say how long {len(unknown)} of {len(answered)} prompts were"
        said.blame(Outcome.INCONCLUSIVE, None, reason, unknown[0])
    if known:
        start, record, least = min(known, key=lambda item: item[2])
        said.facts.append(("prompt", f"{least} tokens or more"))
        if least < _MIN_LENGTH_SHARE * tokens:
            reason = f"prompt too short: {least} of {tokens} tokens"
            said.blame(Outcome.INCONCLUSIVE, None, reason, (start, record))


def _speed(
    said: _Said, answered: list[_Asked], short: float | None, scenario: Scenario, doubts: tuple[str, ...]
) -> None:
    rates = [
        (rate, pair)
        for pair in answered
        if (pair[1].output_tokens or 0) >= _MIN_TOKENS_FOR_RATE and (rate := decode_rate(pair[1])) is not None
    ]
    if not rates:
        said.notes.append(f"decode at depth not judged: no answer of {_MIN_TOKENS_FOR_RATE} tokens or more")
        return
    unit = METRICS["decode"].unit
    deep = median(rate for rate, _ in rates)
    if short is None:
        said.facts.append(("decode", format_value(deep, unit)))
        said.notes.append("decode at depth not judged: no short-context decode was measured")
        return
    share, least = deep / short, scenario.limits.decode_at_depth_min_share
    fact = (
        f"{format_value(deep, unit)}, {format_percent(share, signed=False)} of {format_value(short, unit)} when short"
    )
    said.facts.append(("decode", fact))
    doubts = (*doubts, *_doubts(answered))
    if share < least and doubts:
        reason = f"decode at depth is {format_percent(share, signed=False)} of short, not judged: {'; '.join(doubts)}"
        said.blame(Outcome.INCONCLUSIVE, None, reason, min(rates, key=lambda item: item[0])[1])
    elif share < least:
        reason = f"decode at depth is {format_percent(share, signed=False)} of short, at least {least * 100:g} % needed"
        slowest = min(rates, key=lambda item: item[0])[1]
        said.blame(Outcome.FAILED, FailedClass.PERFORMANCE, reason, slowest)


def _doubts(answered: list[_Asked]) -> tuple[str, ...]:
    """Return why a speed at depth may not be believed: heat while it was measured, or a client that lagged."""
    starts = {s.number: s for s, _ in answered}.values()
    hot = grouped((s.number, text) for s in starts if (text := throttled(s, Phase.CONTEXT)))
    records = [r for _, r in answered]
    firsts = [seconds for r in records if (seconds := ttft(r)) is not None]
    late = too_late(median_lag(records), "decode", median(firsts) if firsts else None)
    return (*hot, late) if late else hot


def _quoted(start: StartEvidence, record: RequestRecord) -> tuple[tuple[str, str], ...]:
    depth = "unknown" if record.depth is None else f"{record.depth:g}"
    got = ("error", quote(record.error)) if record.error is not None else ("got", quote(record.text))
    return (
        ("start", f"{start.number}, request {record.name}, depth {depth}"),
        ("expected", " or ".join(quote(word) for word in record.expect)),
        got,
    )
