"""Does a long answer hold out? Some broken kernels write well for a hundred tokens and then fade."""

from __future__ import annotations

from dataclasses import replace

from pytest_moegpu.checks.common import quote, with_log
from pytest_moegpu.core.counting import Counted, counted
from pytest_moegpu.core.evidence import RequestRecord, StartEvidence
from pytest_moegpu.core.margins import is_near_tie
from pytest_moegpu.core.text import examine
from pytest_moegpu.core.textfinding import TextVerdict
from pytest_moegpu.core.textfinding import verdict as text_verdict
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict

__all__ = ["judge_long_output"]

_LEAST_TOKENS = 64
_SHOWN_BEFORE = 40

_Asked = tuple[StartEvidence, RequestRecord]


def judge_long_output(base: Verdict, asked: list[_Asked]) -> Verdict:
    """Judge answers that count up. One that leaves off is judged by the form of what stands there instead.

    A model may stop counting, and a sound engine may go another way at a near-tie; neither writes a wrong number with
    certainty, or a text that no healthy model writes.
    """
    for start, record in asked:
        said = counted(record.text, cut=record.finish_reason == "length")
        if said.position is not None and (why := _fault(record, said)):
            return with_log(_failed(base, start, record, said, why), start)
    undone = [
        (s, r, c) for s, r in asked if (c := counted(r.text, cut=r.finish_reason == "length")).position is not None
    ]
    tokens = max((r.output_tokens or 0 for _, r in asked), default=0)
    if tokens < _LEAST_TOKENS:
        reason = f"too short: {tokens} tokens, at least {_LEAST_TOKENS} needed"
        return replace(base, outcome=Outcome.INCONCLUSIVE, reason=reason, more={"value": f"{tokens} tokens"})
    if undone:
        start, record, said = undone[0]
        reason = f"no sign of broken text in {tokens} tokens; it stopped counting after {said.last}"
        note = f"note: start {start.number}: after {said.last} stands {quote(said.rest, 60)}"
        return replace(base, reason=reason, findings=(note,), more={"value": f"{tokens} tokens"})
    last = min(counted(r.text, cut=r.finish_reason == "length").last or 0 for _, r in asked)
    reason = f"counted to {last} without a fault in {tokens} tokens"
    return replace(base, reason=reason, more={"value": f"{tokens} tokens"})


def _fault(record: RequestRecord, said: Counted) -> str:
    """Say what is wrong with what stands where counting leaves off; empty where a healthy model may have written it."""
    found = examine(said.rest, record.prompt, record.finish_reason)
    # Kept from ending its answer, a model may well repeat itself.
    found = tuple(f for f in found if record.wanted_output_tokens is None or f.name != "periodic-tail")
    if text_verdict(found) is TextVerdict.BAD:
        worst = max(found, key=lambda finding: finding.strength)
        return f"broken text: {worst.name}"
    if said.miscounted and not is_near_tie(record.tightest):
        return "a wrong number"
    return ""


def _failed(base: Verdict, start: StartEvidence, record: RequestRecord, said: Counted, why: str) -> Verdict:
    at = said.position or 0
    good = "from the start" if said.last is None else f"counted right to {said.last}, then"
    share = at / max(1, len(record.text)) * (record.output_tokens or 0)
    return replace(
        base,
        outcome=Outcome.FAILED,
        failed_class=FailedClass.CORRECTNESS,
        reason=f"the answer fades: {good} {why} (at about token {share:.0f} of {record.output_tokens})",
        lines=(
            *base.lines,
            ("start", f"{start.number}, request {record.name}"),
            ("before", quote(record.text[max(0, at - _SHOWN_BEFORE) : at])),
            ("got", quote(said.rest)),
        ),
        more={"value": f"{record.output_tokens} tokens"},
    )
