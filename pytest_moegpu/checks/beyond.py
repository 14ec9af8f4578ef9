"""What does the server do with a prompt longer than its context: refuse it in words, cut it, or die?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_moegpu.checks.common import quote, with_log
from pytest_moegpu.core.evidence import Evidence, Phase, RequestKind, RequestRecord, StartEvidence
from pytest_moegpu.core.model import Scenario
from pytest_moegpu.core.units import format_percent
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict

__all__ = ["died_of_it", "judge_beyond"]


def judge_beyond(evidence: Evidence, scenario: Scenario) -> Iterator[Verdict]:
    """Judge each prompt that was longer than the context: FAILED (stability) when the server did not live or answer.

    A refusal in words is right; another refusal, and an answer, are findings: what was asked is not what was read.
    """
    for start in evidence.starts:
        for record in start.of_kind(RequestKind.BEYOND):
            yield _judge(start, record, scenario)


def died_of_it(start: StartEvidence) -> str:
    """Say how a server or its engine died of a prompt longer than the context; empty when it did not."""
    failure = start.failure
    if failure is not None:
        return failure.cause if failure.phase is Phase.BEYOND and failure.exit_code is not None else ""
    before = any(r.error is not None for r in start.requests if r.kind is not RequestKind.BEYOND)
    return start.health_at_end if start.of_kind(RequestKind.BEYOND) and not before else ""


def _judge(start: StartEvidence, record: RequestRecord, scenario: Scenario) -> Verdict:
    context = scenario.settings.context
    fill = record.fill or 0.0
    verdict = Verdict(
        outcome=Outcome.PASS,
        check="context",
        scenario=scenario.name,
        subject=f"prompt of {round(fill * context)} tokens ({format_percent(fill, signed=False)})",
        phase=Phase.BEYOND,
        reason="longer than the context, and refused in words",
        more={"value": "refused", "tokens": "beyond"},
    )
    lines = (("start", f"{start.number}, request {record.name}"), ("error", quote(record.error or "none")))
    failed = replace(
        verdict,
        outcome=Outcome.FAILED,
        failed_class=FailedClass.STABILITY,
        lines=lines,
        more=verdict.more | {"value": "no answer"},
    )
    if died := died_of_it(start):
        reason = f"the server did not survive a prompt longer than its context: {died}"
        return with_log(replace(failed, reason=reason, more=verdict.more | {"value": "died"}), start)
    if record.error is None:
        said = _answered(record, context)
        return replace(verdict, reason=said, findings=(said,), more=verdict.more | {"value": "answered"})
    if record.too_long:
        return verdict
    if record.status is None or record.first_token is not None:
        reason = "a prompt longer than the context got neither a whole answer nor a refusal"
        return with_log(replace(failed, reason=reason), start)
    said = f"refused, but not in words that speak of the length: {quote(record.error)}"
    return replace(verdict, reason=said, findings=(said,))


def _answered(record: RequestRecord, context: int) -> str:
    read = record.prompt_tokens
    if read is None:
        return f"answered, with a context of {context}; how much of the prompt it read is not told: cut in silence?"
    if read > context:
        return f"answered, and {read} tokens read: more than the context of {context} that was asked for"
    return f"answered, with a context of {context}; it counts {read} tokens of the prompt: cut in silence?"
