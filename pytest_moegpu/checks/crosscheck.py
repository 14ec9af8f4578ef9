"""Is it the model and its kernels, or the server around them? The same question without a server says which."""

from __future__ import annotations

from dataclasses import replace

from pytest_moegpu.checks.common import broken, nothing, quote
from pytest_moegpu.core.answers import is_right
from pytest_moegpu.core.evidence import Evidence, Phase, RequestKind, RequestRecord
from pytest_moegpu.core.margins import GAP_FLOOR
from pytest_moegpu.core.model import Profile, Scenario
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.core.oneshot import OneShot
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict

__all__ = ["judge", "question"]


def question(evidence: Evidence) -> KnownAnswer | None:
    """Choose the question to ask once more: one that the server got wrong, else the surest; None without a sure one.

    Only questions of one line that the healthy model decides by more than sound engines differ.
    """
    found = [r for start in evidence.starts for r in start.of_kind(RequestKind.ANSWER) if _sure(r)]
    if not found:
        return None
    record = max(found, key=lambda r: (not is_right(r.rule, r.expect, r.text), r.margin or 0.0))
    tokens = record.output_tokens or KnownAnswer.max_tokens
    return KnownAnswer(
        prompt=record.prompt, expect=record.expect, margin=record.margin, max_tokens=tokens, rule=record.rule
    )


def judge(evidence: Evidence, scenario: Scenario, _profile: Profile) -> tuple[Verdict, ...]:
    """Compare the server's answer with that of the one-shot program.

    PASS when both are right; FAILED (correctness) when the server is wrong, naming the server and its flags when the
    one-shot program is right, and model or kernels when both are wrong; INCONCLUSIVE when only the one-shot program is
    wrong. ERROR when it gave no answer, or there is no question that a healthy model surely answers.
    """
    fault = broken(evidence, scenario, "crosscheck")
    if fault is not None:
        return (fault,)
    said, asked = evidence.oneshot, question(evidence)
    if asked is None:
        what = f"no known answer of this model has a margin of more than {GAP_FLOOR:.2f} nat"
        return (nothing(scenario, "crosscheck", what),)
    if said is None:
        return (nothing(scenario, "crosscheck", "llama-cli was not run"),)
    verdict = Verdict(
        outcome=Outcome.PASS,
        check="crosscheck",
        scenario=scenario.name,
        subject="llama-cli",
        phase=Phase.OUTPUT,
        lines=(("prompt", quote(said.prompt)), ("expected", " or ".join(quote(word) for word in said.expect))),
        log_path=said.log_path,
        log_tail=said.log_tail,
    )
    if said.problem:
        return (replace(verdict, outcome=Outcome.ERROR, reason=f"nothing was measured: {said.problem}"),)
    return (_compared(verdict, said, _answers(evidence, said)),)


def _sure(record: RequestRecord) -> bool:
    whole = record.error is None and "\n" not in record.prompt and bool(record.expect)
    return whole and record.margin is not None and record.margin > GAP_FLOOR


def _answers(evidence: Evidence, said: OneShot) -> list[RequestRecord]:
    answers = (r for start in evidence.starts for r in start.of_kind(RequestKind.ANSWER))
    return [r for r in answers if (r.prompt, r.expect) == (said.prompt, said.expect) and r.error is None]


def _compared(verdict: Verdict, said: OneShot, answers: list[RequestRecord]) -> Verdict:
    wrong = [r for r in answers if not is_right(said.rule, said.expect, r.text)]
    shown = (wrong or answers)[0].text
    texts = (*verdict.lines, ("server", quote(shown)), ("llama-cli", quote(said.text)))
    verdict = replace(verdict, lines=texts)
    alone = is_right(said.rule, said.expect, said.text)
    if wrong and alone:
        reason = "the server is wrong and llama-cli is right: the server around the model, or its flags"
    elif wrong:
        reason = "the server and llama-cli are both wrong: the model file, or the kernels"
    elif not alone:
        reason = "the server is right and llama-cli is wrong: is it of another build?"
        return replace(verdict, outcome=Outcome.INCONCLUSIVE, reason=reason, more={"value": "differ"})
    else:
        same = all(r.text.strip() == said.text.strip() for r in answers)
        value = "same text" if same else "same answer in other words"
        return replace(verdict, reason="the server and llama-cli agree", more={"value": value}, log_path="")
    return replace(
        verdict,
        outcome=Outcome.FAILED,
        failed_class=FailedClass.CORRECTNESS,
        reason=reason,
        more={"value": "differ" if alone else "both wrong"},
    )
