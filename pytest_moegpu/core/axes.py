"""Conditions under which known answers are asked again: each is one that a public report of a broken text needed.

`Workload.axes` are the words of those wanted, None all that fit. How much each asks is in `axis_output_tokens`,
`axis_prompt_tokens` (lengths in tokens), `axis_requests` (in a row) and `axis_idle_seconds`; None: as `amounts` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pytest_moegpu.core.channels import answered
from pytest_moegpu.core.evidence import RequestRecord
from pytest_moegpu.core.margins import GAP_FLOOR, NEAR_TIE
from pytest_moegpu.core.model import DeviceKind, Scenario
from pytest_moegpu.core.modelfacts import KnownAnswer

__all__ = ["AXES", "PROMPT_ROOM", "Amounts", "Axis", "amounts", "is_sure", "left_out", "planned"]


class Axis(StrEnum):
    """One condition; docs/how-to/conditions.md names the report behind each."""

    LONG_OUTPUT = "long-output"
    """An answer of many hundred tokens."""
    PROMPT_LENGTHS = "prompt-lengths"
    """Prompts around the ubatch, about 1,000 and 4,096 tokens, and one that is no multiple of 128."""
    SECOND_TURN = "second-turn"
    """After a question and its answer, in the same conversation."""
    CACHED = "cached"
    """The same prompt again, out of the prefix cache."""
    CONCURRENT = "concurrent"
    """Several different prompts at once."""
    AFTER_REQUESTS = "after-requests"
    """During and after many requests."""
    AFTER_IDLE = "after-idle"
    """After a time without any request."""
    NOT_STREAMED = "not-streamed"
    """As one answer in place of a stream."""
    THINKING = "thinking"
    """With the thinking switch as it is set, and off."""


AXES = tuple(axis.value for axis in Axis)
"""All words, in the order in which they are asked: the idle time comes last, as it costs the most."""

PROMPT_ROOM = 24
"""Tokens of the context that a prompt of a given length leaves for the answer."""
_COUNTING_ROOM = 120
_LEAST_OUTPUT = 64


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """How much is asked: tokens, requests, seconds."""

    output_tokens: int
    prompt_tokens: tuple[int, ...]
    concurrent: int
    requests: int
    idle_seconds: float


def amounts(scenario: Scenario, kind: DeviceKind) -> Amounts:
    """Return how much is asked: what the workload says, else an amount for the kind of device, cut to the context.

    A processor is asked less, as it takes tens of times as long: 160 tokens, the lengths around the ubatch, 20
    requests and 2 s, in place of 1,000 tokens, six lengths, 200 requests and 60 s.
    """
    load, settings = scenario.workload, scenario.settings
    gpu = kind is DeviceKind.GPU
    chunk = settings.prefill_chunk or settings.ubatch
    near = (chunk - 1, chunk, chunk + 1)
    # 1,067: not a multiple of 128, and the length at which a public report begins.
    lengths = load.axis_prompt_tokens or ((*near, 1024, 1067, 4096) if gpu else near)
    output = load.axis_output_tokens or (1000 if gpu else 160)
    most = settings.context - PROMPT_ROOM
    return Amounts(
        output_tokens=min(output, settings.context - _COUNTING_ROOM),
        prompt_tokens=tuple(sorted({tokens for tokens in lengths if _COUNTING_ROOM < tokens <= most})),
        concurrent=max(4, settings.slots),
        requests=load.axis_requests or (200 if gpu else 20),
        idle_seconds=load.axis_idle_seconds or (60.0 if gpu else 2.0),
    )


def left_out(axis: Axis, scenario: Scenario, kind: DeviceKind) -> str:
    """Say why a condition is not asked in this scenario; empty when it is."""
    if scenario.workload.axes is not None and axis not in scenario.workload.axes:
        return "the scenario does not ask it"
    asked = amounts(scenario, kind)
    if axis is Axis.LONG_OUTPUT and asked.output_tokens < _LEAST_OUTPUT:
        return f"the context of {scenario.settings.context} tokens has no room for it"
    if axis is Axis.PROMPT_LENGTHS and not asked.prompt_tokens:
        return f"no length fits the context of {scenario.settings.context} tokens"
    if axis is Axis.CACHED and not scenario.settings.prefix_cache:
        return "the prefix cache is off"
    return ""


def planned(scenario: Scenario, kind: DeviceKind) -> tuple[Axis, ...]:
    """Return the conditions asked in this scenario, in their order."""
    return tuple(axis for axis in Axis if not left_out(axis, scenario, kind))


def is_sure(answer: KnownAnswer, plain: RequestRecord) -> bool:
    """Tell whether a known answer may judge a condition: right when asked plainly, by more than sound kernels differ.

    The margin of the healthy model counts, which ends at the answer; that of this very one, which goes on to the last
    token, must be no near-tie. Where the first was never measured, the second must be as large. A witness never judges.
    """
    here = None if plain.tightest is None else plain.tightest.nat
    if plain.error is not None or not answered(plain) or (here is not None and here < NEAR_TIE):
        return False
    margin = here if answer.margin is None else answer.margin
    return margin is not None and margin >= GAP_FLOOR
