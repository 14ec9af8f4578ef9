"""Events, token times and rates from a recorded stream."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moegpu.core.evidence import RequestKind, RequestRecord, StreamEvent, TokenChoice
from pytest_moegpu.core.sse import parse_events
from pytest_moegpu.core.timing import (
    decode_rate,
    decode_seconds,
    prefill_rate,
    record,
    token_events,
    total_time,
    ttft,
)


@dataclass(frozen=True, kw_only=True)
class FakeUsage:
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    timings: dict[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class FakeDelta:
    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: FakeUsage | None = None
    error: str | None = field(default=None)
    choices: tuple[TokenChoice, ...] = ()


def read_event(data: str) -> FakeDelta:
    fields = json.loads(data)
    if "usage" in fields:
        fields["usage"] = FakeUsage(**fields["usage"])
    return FakeDelta(**fields)


def made(*events: tuple[float, dict[str, object] | str], sent: float = 10.0, **fields: object) -> RequestRecord:
    stream = [StreamEvent(time=t, data=d if isinstance(d, str) else json.dumps(d)) for t, d in events]
    status = fields.pop("status", 200)
    return record(RequestKind.THROUGHPUT, "r1", sent, status, stream, read_event, **fields)  # type: ignore[arg-type]


def data_of(body: bytes) -> list[str]:
    return [e.data for e in parse_events([(1.0, body)])]


# --- parse_events


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(b"", [], id="nothing"),
        pytest.param(b"data: a\n\ndata: b\n\n", ["a", "b"], id="two"),
        pytest.param(b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"], id="crlf"),
        pytest.param(b"data: a\r\rdata: b\r\r", ["a", "b"], id="cr"),
        pytest.param(b": ping\n\n:\n\ndata: a\n: inside\n\n", ["a"], id="comments"),
        pytest.param(b"data: a\ndata: b\n\n", ["a\nb"], id="multi-line"),
        pytest.param(b"data:a\n\ndata:  b\n\n", ["a", " b"], id="one-space-is-optional"),
        pytest.param(b"event: x\nid: 7\nretry: 5\ndata: a\n\n", ["a"], id="other-fields"),
        pytest.param(b"event: x\n\ndata:\n\n\n\n", [], id="no-data"),
        pytest.param(b"data: a\n\ndata: b", ["a", "b"], id="last-without-blank-line"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", ["a"], id="bom"),
        pytest.param("data: Größe 茶 🎉\u2028x\x85y\n\n".encode(), ["Größe 茶 🎉\u2028x\x85y"], id="utf-8"),
        pytest.param(b"data: \xff\n\n", ["\ufffd"], id="invalid-utf-8"),
        pytest.param(b'error: {"code": 500}\n\n', ['{"error": {"code": 500}}'], id="error-field"),
        pytest.param(b"data: [DONE]\n\n", ["[DONE]"], id="done"),
    ],
)
def test_bodies(body: bytes, expected: list[str]) -> None:
    assert data_of(body) == expected


def test_an_event_has_the_time_of_the_read_that_completed_it() -> None:
    chunks = [(1.0, b"data: a\n\ndata: "), (2.0, b"\xe8\x8c"), (3.0, b"\xb6\n"), (4.0, b"\ndata: c\n\ndata: d\n\n")]
    assert [(e.time, e.data) for e in parse_events(chunks)] == [(1.0, "a"), (4.0, "茶"), (4.0, "c"), (4.0, "d")]


def test_a_cut_crlf_does_not_delay_the_event() -> None:
    assert [e.time for e in parse_events([(1.0, b"data: a\r\n\r"), (2.0, b"\ndata: b\r\n\r\n")])] == [1.0, 2.0]


def test_last_event_without_blank_line_has_the_last_stamp() -> None:
    assert [e.time for e in parse_events([(1.0, b"data: a"), (2.0, b"b"), (3.0, b"")])] == [2.0]


PIECES = st.sampled_from(
    [b"data: ", b"data:", b"\n", b"\n\n", b"\r\n", b"\r", b": ping\n", b"event: x\n", "é茶🎉".encode(), b"{}", b"\xff"]
)


@given(st.lists(PIECES, max_size=30), st.lists(st.integers(0, 200), max_size=20))
def test_chunking_changes_neither_data_nor_order(pieces: list[bytes], cuts: list[int]) -> None:
    body = b"".join(pieces)
    at = [0, *sorted(min(c, len(body)) for c in cuts), len(body)]
    chunks = [(float(i), body[a:b]) for i, (a, b) in enumerate(pairwise(at))]
    events = parse_events(chunks)
    assert [e.data for e in events] == data_of(body)
    assert all(a.time <= b.time for a, b in pairwise(events))
    assert [e.data for e in parse_events([(0.0, body[i : i + 1]) for i in range(len(body))])] == data_of(body)


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1), max_size=10))
def test_what_was_sent_is_what_is_read(texts: list[str]) -> None:
    assert data_of(b"".join(f"data: {t}\r\n\r\n".encode() for t in texts)) == texts


def test_linear_on_long_and_hostile_bodies() -> None:
    one_byte = [(0.0, b"x")] * 300_000
    started = time.perf_counter()
    parse_events([(0.0, b"data: "), *one_byte])
    parse_events([(0.0, b"data: a\n\n" * 100_000)])
    parse_events([(0.0, b"\n" * 300_000)])
    assert time.perf_counter() - started < 4


# --- record


def test_role_delta_is_an_event_but_no_token() -> None:
    r = made(
        (10.1, {"text": ""}),
        (10.5, {"text": "a"}),
        (10.75, {"text": "b"}),
        (10.8, {"finish_reason": "stop"}),
        (10.9, {"usage": {"prompt_tokens": 100, "cached_tokens": 20, "output_tokens": 3, "timings": {"n": 1.5}}}),
        (11.0, "[DONE]"),
        finished=11.0,
        wanted_output_tokens=3,
        prompt="p",
        expect=("x",),
        fill=0.5,
        depth=0.1,
        client_lag=0.001,
    )
    assert (r.first_event, r.first_token, r.last_token, r.finished) == (10.1, 10.5, 10.75, 11.0)
    assert (r.prompt_tokens, r.cached_tokens, r.output_tokens, r.token_source) == (100, 20, 3, "usage")
    assert r.gaps == (0.25,)
    assert (r.text, r.finish_reason, r.status, r.error) == ("ab", "stop", 200, None)
    assert r.engine_timings == {"n": 1.5}
    assert (r.kind, r.name, r.sent) == (RequestKind.THROUGHPUT, "r1", 10.0)
    assert (r.prompt, r.expect, r.wanted_output_tokens) == ("p", ("x",), 3)
    assert (r.fill, r.depth, r.client_lag) == (0.5, 0.1, 0.001)
    assert ttft(r) == 0.5
    assert (decode_seconds(r), token_events(r)) == (0.25, 2)
    assert decode_rate(r) == pytest.approx(2 / 0.25)
    assert prefill_rate(r) == pytest.approx(80 / 0.5)
    assert total_time(r) == 1.0


def test_reasoning_is_tokens_kept_apart() -> None:
    r = made((11, {"reasoning": "hm "}), (12, {"reasoning": "so"}), (14, {"text": "42"}), (15, "[DONE]"))
    assert (r.text, r.reasoning) == ("42", "hm so")
    assert (r.first_token, r.last_token, r.gaps) == (11, 14, (1, 2))
    assert (r.output_tokens, r.token_source) == (3, "events")


def test_usage_wins_over_events_in_multi_token_chunks() -> None:
    r = made((11, {"text": "a b c"}), (12, {"text": "d e f"}), (12, {"usage": {"output_tokens": 6}}), (12, "[DONE]"))
    assert (r.output_tokens, r.token_source) == (6, "usage")
    assert decode_rate(r) == 5.0


def test_running_usage_the_last_count_stays() -> None:
    r = made(
        (11, {"text": "a", "usage": {"prompt_tokens": 5, "output_tokens": 1}}),
        (12, {"text": "b", "finish_reason": "stop", "usage": {"output_tokens": 2}}),
    )
    assert (r.prompt_tokens, r.output_tokens, r.error) == (5, 2, None)


def test_usage_of_zero_beside_text_is_not_believed() -> None:
    r = made((11, {"text": "a"}), (12, {"text": "b", "usage": {"output_tokens": 0}}), (12, "[DONE]"))
    assert (r.output_tokens, r.token_source) == (2, "events")


def test_nothing_measured_is_none() -> None:
    r = made((11, {"text": ""}), (12, {"finish_reason": "stop"}))
    assert (r.first_event, r.first_token, r.last_token, r.output_tokens, r.token_source) == (
        11,
        None,
        None,
        None,
        "none",
    )
    assert [f(r) for f in (ttft, decode_rate, decode_seconds, prefill_rate, total_time)] == [None] * 5
    assert token_events(r) == 0


@pytest.mark.parametrize(
    ("r", "error"),
    [
        pytest.param(made(), "HTTP 200 without a single event", id="no event"),
        pytest.param(made((11, "[DONE]")), "HTTP 200 without a single event", id="only done"),
        pytest.param(made(status=None), "no HTTP answer", id="no answer"),
        pytest.param(made(status=None, error="connection refused"), "connection refused", id="transport"),
        pytest.param(made(status=401), "HTTP 401", id="401"),
        pytest.param(made(status=500, body_text="out of\n memory"), "HTTP 500: out of memory", id="500"),
        pytest.param(made((11, {"text": "a"}), (12, {"error": "boom"})), "boom", id="error under 200"),
        pytest.param(made((11, {"error": "first"}), (12, {"error": "second"})), "first", id="first error"),
        pytest.param(
            made((11, {"error": "boom"}), error="connection closed after 9 bytes"),
            "boom; connection closed after 9 bytes",
            id="both",
        ),
        pytest.param(
            made((11, {"text": "a"})), "the stream ended early: neither a finish reason nor [DONE]", id="cut short"
        ),
    ],
)
def test_errors(r: RequestRecord, error: str) -> None:
    assert r.error == error


def test_unreadable_event_is_an_error_and_the_rest_is_kept() -> None:
    r = made((11, {"text": "a"}), (12, '{"text": "b'), (13, {"text": "c"}), (14, "[DONE]"))
    assert r.error is not None
    assert r.error.startswith('unreadable event \'{"text": "b\'')
    assert r.text == "ac"


# --- rates


def rated(**fields: object) -> RequestRecord:
    known: dict[str, object] = {"first_token": 2.0, "last_token": 4.0, "prompt_tokens": 100, "cached_tokens": 0}
    known |= {"output_tokens": 11, **fields}
    return RequestRecord(kind=RequestKind.THROUGHPUT, name="r", sent=1.0, **known)  # type: ignore[arg-type]


def test_rates() -> None:
    r = rated(finished=5.0)
    assert (ttft(r), decode_rate(r), prefill_rate(r), total_time(r)) == (1.0, 5.0, 100.0, 4.0)


@pytest.mark.parametrize("fields", [{"output_tokens": 1}, {"output_tokens": None}, {"last_token": 2.0}])
def test_no_decode_rate_without_two_tokens_and_time(fields: dict[str, object]) -> None:
    assert decode_rate(rated(**fields)) is None


@pytest.mark.parametrize(
    "fields", [{"prompt_tokens": None}, {"cached_tokens": None}, {"cached_tokens": 100}, {"first_token": None}]
)
def test_no_prefill_rate_without_known_counts(fields: dict[str, object]) -> None:
    assert prefill_rate(rated(**fields)) is None


def test_half_a_character_is_kept_as_a_mark_that_can_be_stored() -> None:
    r = made((11, {"text": "ok \ud83d"}), (12, {"text": "\ude00 \udc00!", "reasoning": "\ud83d"}), (13, "[DONE]"))
    assert (r.text, r.reasoning) == ("ok 😀 \ufffd!", "\ufffd")
