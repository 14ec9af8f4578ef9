"""From a streamed answer to numbers: token times, TTFR, TTFT, decode and prefill rate.

All times are seconds on the clock that stamped the reads. What was not measured is None, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from pytest_moegpu.core.evidence import RequestKind, RequestRecord, StreamEvent, TokenChoice
from pytest_moegpu.core.margins import missing, tightest

__all__ = [
    "DeltaLike",
    "UsageLike",
    "decode_rate",
    "decode_seconds",
    "prefill_rate",
    "record",
    "token_events",
    "total_time",
    "ttft",
]

_DONE = "[DONE]"
_HTTP_OK = 200
_BODY_SHOWN = 300


class UsageLike(Protocol):
    """Token counts as an engine reports them; `backends.base.Usage` is one."""

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt, with cached ones."""

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens taken from the prefix cache."""

    @property
    def output_tokens(self) -> int | None:
        """Tokens generated, reasoning included."""

    @property
    def timings(self) -> Mapping[str, float] | None:
        """The engine's own timings, by its own names."""


class DeltaLike(Protocol):
    """What one event carries; `backends.base.Delta` is one."""

    @property
    def text(self) -> str:
        """Text of the answer; empty in a role delta."""

    @property
    def reasoning(self) -> str:
        """Text of the reasoning field."""

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended, in the event that ends it."""

    @property
    def usage(self) -> UsageLike | None:
        """Token counts, where the event has them."""

    @property
    def error(self) -> str | None:
        """An error object sent in place of an answer."""

    @property
    def choices(self) -> tuple[TokenChoice, ...]:
        """What the model chose from at each token, where that was asked for."""


@dataclass
class _Totals:
    """What the events of one answer add up to."""

    text: list[str]
    reasoning: list[str]
    token_times: list[float]
    timings: dict[str, float]
    choices: list[TokenChoice]
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    ended: bool = False

    def add(self, time: float, delta: DeltaLike) -> None:
        """Take in one event; later counts replace earlier ones, the first error stays."""
        if delta.text or delta.reasoning:
            self.token_times.append(time)
            self.text.append(delta.text)
            self.reasoning.append(delta.reasoning)
        self.choices += delta.choices
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.error = self.error or delta.error
        usage = delta.usage
        if usage is not None:
            self.prompt_tokens = _later(usage.prompt_tokens, self.prompt_tokens)
            self.cached_tokens = _later(usage.cached_tokens, self.cached_tokens)
            self.output_tokens = _later(usage.output_tokens, self.output_tokens)
            self.timings.update(usage.timings or {})

    def count(self) -> tuple[int | None, str]:
        """Number of output tokens and where it comes from; a usage of 0 beside real text is not believed."""
        events = len(self.token_times)
        if self.output_tokens is not None and (self.output_tokens > 0 or not events):
            return self.output_tokens, "usage"
        return (events, "events") if events else (None, "none")


def _later(new: int | None, old: int | None) -> int | None:
    return old if new is None else new


def record(
    kind: RequestKind,
    name: str,
    sent: float,
    status: int | None,
    events: Iterable[StreamEvent],
    read_event: Callable[[str], DeltaLike],
    *,
    finished: float | None = None,
    error: str | None = None,
    body_text: str = "",
    prompt: str = "",
    expect: tuple[str, ...] = (),
    wanted_output_tokens: int | None = None,
    fill: float | None = None,
    depth: float | None = None,
    client_lag: float | None = None,
) -> RequestRecord:
    """Build the record of one request from its measured stream.

    `first_event` is the first event of any kind but `[DONE]`; tokens are the events with text or reasoning. The record
    has an error if the transport failed, the status is not 200, the stream held an error object or an unreadable event,
    it held no event at all, or it ended with neither a finish reason nor `[DONE]`.

    Args:
        kind: Why the request was sent.
        name: Name of the request in reports.
        sent: When it was sent, in seconds.
        status: HTTP status; None when no answer came.
        events: What `core.sse` or `core.ndjson` made of the answer.
        read_event: `Backend.read_event`; a ValueError it raises becomes the record's error.
        finished: When the answer was complete, in seconds; None when it never was.
        error: What the transport says went wrong.
        body_text: Body of an answer that is not 200; its start is shown in the error.
        prompt: Passed through, like the rest.
        expect: What a right answer holds.
        wanted_output_tokens: How many tokens were asked for, where fewer would be a fault.
        fill: Share of the context taken.
        depth: Where in it the fact stands; 0 start, 1 end.
        client_lag: Seconds.
    """
    totals = _Totals(text=[], reasoning=[], token_times=[], timings={}, choices=[])
    first_event: float | None = None
    for event in events:
        data = event.data.strip()
        if data == _DONE:
            totals.ended = True
            continue
        first_event = event.time if first_event is None else first_event
        try:
            totals.add(event.time, read_event(data))
        except ValueError as problem:
            totals.error = totals.error or f"unreadable event {data[:80]!r}: {problem}"
    output_tokens, token_source = totals.count()
    times = totals.token_times
    return RequestRecord(
        kind=kind,
        name=name,
        sent=sent,
        first_event=first_event,
        first_token=times[0] if times else None,
        last_token=times[-1] if times else None,
        finished=finished,
        prompt_tokens=totals.prompt_tokens,
        cached_tokens=totals.cached_tokens,
        output_tokens=output_tokens,
        token_source=token_source,
        gaps=tuple(later - earlier for earlier, later in pairwise(times)),
        text=_storable("".join(totals.text)),
        reasoning=_storable("".join(totals.reasoning)),
        finish_reason=totals.finish_reason,
        status=status,
        error=_error(totals, status, error, body_text, heard=first_event is not None),
        wanted_output_tokens=wanted_output_tokens,
        expect=expect,
        prompt=prompt,
        fill=fill,
        depth=depth,
        client_lag=client_lag,
        engine_timings=totals.timings,
        tightest=tightest(totals.choices),
        logprobs_missing=missing(totals.choices),
    )


def _storable(text: str) -> str:
    """Join the halves of a character that came in two events; a half without its other becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _error(totals: _Totals, status: int | None, transport: str | None, body_text: str, *, heard: bool) -> str | None:
    """Say what went wrong, the server's own words first; None when nothing did."""
    reasons = []
    if status is not None and status != _HTTP_OK:
        shown = " ".join(body_text.split())[:_BODY_SHOWN]
        reasons.append(f"HTTP {status}: {shown}" if shown else f"HTTP {status}")
    if totals.error:
        reasons.append(totals.error)
    if transport:
        reasons.append(transport)
    if reasons:
        return "; ".join(reasons)
    if status is None:
        return "no HTTP answer"
    if not heard:
        return "HTTP 200 without a single event"
    if totals.finish_reason is None and not totals.ended:
        return "the stream ended early: neither a finish reason nor [DONE]"
    return None


def ttft(r: RequestRecord) -> float | None:
    """Time to first token: from sending to the first event with text or reasoning, in seconds."""
    return None if r.first_token is None else r.first_token - r.sent


def decode_seconds(r: RequestRecord) -> float | None:
    """From the first to the last event with text or reasoning, in seconds; None without any."""
    return None if r.first_token is None or r.last_token is None else r.last_token - r.first_token


def token_events(r: RequestRecord) -> int:
    """How many events brought text or reasoning."""
    return 0 if r.first_token is None else len(r.gaps) + 1


def decode_rate(r: RequestRecord) -> float | None:
    """Steady decode speed in tokens/s: (output tokens - 1) / (last token - first token).

    None with fewer than two tokens or no time between them. The count is that of the record's `token_source`; where a
    server sends several tokens an event, those of the first event count as decoded after it, so the rate errs upwards
    by at most (tokens in the first event - 1) / (output tokens - 1).
    """
    seconds = decode_seconds(r)
    if r.output_tokens is None or r.output_tokens < 2 or seconds is None:
        return None
    return (r.output_tokens - 1) / seconds if seconds > 0 else None


def prefill_rate(r: RequestRecord) -> float | None:
    """Prompt speed in tokens/s: (prompt tokens - cached tokens) / TTFT.

    None when either count is unknown, when the whole prompt was cached, or without a first token.
    """
    seconds = ttft(r)
    if r.prompt_tokens is None or r.cached_tokens is None or seconds is None or seconds <= 0:
        return None
    computed = r.prompt_tokens - r.cached_tokens
    return computed / seconds if computed > 0 else None


def total_time(r: RequestRecord) -> float | None:
    """From sending to the complete answer, in seconds; None when the answer never was complete."""
    return None if r.finished is None else r.finished - r.sent
