"""From a test's markers to what the session is asked: which check, with which limits, which of its verdicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_moegpu.checks import get_check
from pytest_moegpu.checks.output import judge_asked
from pytest_moegpu.core.model import Limits, Scenario
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.errors import UserError
from pytest_moegpu.session.question import Question, same_limits
from pytest_moegpu.specs import Spec, ThroughputSpec

if TYPE_CHECKING:
    from pytest_moegpu.session import Session

__all__ = ["add_needs", "questions"]

_ANSWER_ROOM = 32
_LIMIT_OF = {"decode": "decode_min", "prefill": "prefill_min", "ttft": "ttft_max"}


def add_needs(session: Session, name: str, spec: Spec) -> None:
    """Note what a test will ask of a scenario, so that one measurement holds all of it.

    Raises:
        UserError: The scenario is not part of the run, or its context is too short for what is asked.
    """
    scenario = session.target.scenario(name)
    needs = session.needs(name)
    for check in spec.checks:
        needs.parts |= get_check(check).needs
    for prompt, expect, tokens in spec.answers:
        needs.answers[KnownAnswer(prompt=prompt, expect=expect, max_tokens=tokens)] = None
    for tokens in spec.context_tokens:
        most = scenario.settings.context - _ANSWER_ROOM
        if tokens > most:
            raise UserError(
                f"moegpu_context(tokens={tokens}): scenario {name} has a context of {scenario.settings.context} "
                f"tokens, so a prompt may have {most} and leave room for an answer"
            )
        needs.context_tokens.add(tokens)


def questions(spec: Spec) -> tuple[Question, ...]:
    """Return what the markers of one test ask, correctness first."""
    found = [Question(check=spec.check)] if spec.check is not None else []
    if spec.known_answers:
        found.append(Question(check="output"))
    if spec.answers:
        asked = frozenset((prompt, expect) for prompt, expect, _ in spec.answers)
        found.append(Question(check="output", judge=judge_asked, asked=asked))
    found += [_context(tokens) for tokens in spec.context_tokens]
    if spec.budget_bytes is not None:
        found.append(Question(check="memory", change=_limited(memory_budget_bytes=spec.budget_bytes)))
    found += [_speed(asked) for asked in spec.throughput]
    return tuple(found)


def _limited(**limits: object) -> Callable[[Scenario], Scenario]:
    def change(scenario: Scenario) -> Scenario:
        tightened: Limits = replace(scenario.limits, **limits)  # type: ignore[arg-type]
        return replace(scenario, limits=tightened)

    return change


def _context(tokens: int) -> Question:
    return Question(check="context", only=lambda v: v.more.get("tokens") in (None, str(tokens)))


def _speed(asked: ThroughputSpec) -> Question:
    change = same_limits if asked.limit is None else _limited(**{_LIMIT_OF[asked.metric]: asked.limit})
    return Question(
        check="throughput", change=change, only=lambda v: v.metric in (None, asked.metric), keyword=asked.metric
    )
