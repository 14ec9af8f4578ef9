"""The measuring client against a real scripted server."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

from pytest_moegpu.core.sse import parse_events
from pytest_moegpu.host.client import StreamClient, StreamRequest, StreamResult
from tests.fakes.sse_server import Script, Server, event, serving

DONE = b"data: [DONE]\n\n"


@pytest.fixture(params=["asyncio", "uvloop"], autouse=True)
def loop_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    else:
        pytest.importorskip("uvloop")
    yield request.param
    assert not [t for t in threading.enumerate() if t.name == "moegpu-client"]


def send(server: Server, timeout: float = 5.0) -> StreamResult:
    return StreamClient("127.0.0.1", server.port, "secret").stream("/v1/chat", {"n": 1, "t": "é"}, timeout)


def body(result: StreamResult) -> bytes:
    return b"".join(data for _, data in result.chunks)


def assert_closed(server: Server) -> None:
    deadline = time.monotonic() + 3
    while server.open and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.open == 0


def test_stamps_follow_the_script() -> None:
    with serving(Script(parts=[(0.05, event("a")), (0.1, event("b")), (0.05, DONE)])) as server:
        before = time.monotonic()
        result = send(server)
    assert result.error is None
    assert result.status == 200
    assert result.body_text == ""
    assert before <= result.sent <= result.chunks[0][0]
    first, second, done = parse_events(result.chunks)
    assert done.data == "[DONE]"
    assert 0.04 < first.time - result.sent < 0.5
    assert 0.09 < second.time - first.time < 0.5
    assert result.finished is not None
    assert result.finished >= done.time
    assert 0 <= result.client_lag < 0.5


def test_request_carries_key_json_and_closes() -> None:
    with serving(Script(parts=[(0, DONE)])) as server:
        send(server)
        assert_closed(server)
        head, sent = server.requests[0]
    assert head.startswith("POST /v1/chat HTTP/1.1\r\n")
    assert f"Host: 127.0.0.1:{server.port}\r\n" in head
    assert "Authorization: Bearer secret\r\n" in head
    assert "Connection: close\r\n" in head
    assert msgspec.json.decode(sent) == {"n": 1, "t": "é"}


def test_split_bytes_and_coalesced_events_give_the_same_events() -> None:
    stream = event("Größe 茶") + event("🎉") + DONE
    coalesced = Script(parts=[(0, stream)])
    split = Script(parts=[(0.001, stream[i : i + 7]) for i in range(0, len(stream), 7)])
    seen = []
    for script in (coalesced, split):
        with serving(script) as server:
            seen.append(tuple(e.data for e in parse_events(send(server).chunks)))
    assert seen[0] == seen[1]
    assert len(seen[0]) == 3
    assert "茶" in seen[0][0]


def test_body_without_framing_ends_with_the_connection() -> None:
    with serving(Script(parts=[(0, event("a")), (0.01, DONE)], chunked=False)) as server:
        result = send(server)
    assert result.error is None
    assert body(result).endswith(DONE)
    assert result.finished is not None


def test_connection_lost_midway_keeps_what_came() -> None:
    with serving(Script(parts=[(0, event("a")), (0.02, event("b"))], cut=True)) as server:
        result = send(server)
    assert result.finished is None
    assert result.error is not None
    assert result.error.startswith("connection closed after ")
    assert int(result.error.split()[3]) > len(body(result))
    assert len(parse_events(result.chunks)) == 2


def test_connection_closed_without_an_answer() -> None:
    with serving(Script(head=False)) as server:
        result = send(server)
    assert (result.status, result.error) == (None, "connection closed after 0 bytes")


@pytest.mark.parametrize("status", ["500 Internal Server Error", "401 Unauthorized"])
def test_bad_status_keeps_its_body(status: str) -> None:
    with serving(Script(status=status, parts=[(0, b'{"error": "no"}')])) as server:
        result = send(server)
    assert result.status == int(status[:3])
    assert result.body_text == '{"error": "no"}'
    assert result.error is None


def test_error_object_under_200_is_left_to_the_reader() -> None:
    with serving(Script(parts=[(0, b'data: {"error": {"message": "boom"}}\n\n')])) as server:
        result = send(server)
    assert (result.status, result.error) == (200, None)
    assert "boom" in parse_events(result.chunks)[0].data


def test_interim_answer_is_not_the_answer() -> None:
    raw = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    with serving(Script(raw=raw, chunked=False)) as server:
        result = send(server)
    assert (result.status, result.error, body(result)) == (200, None, b"ok")


def test_not_http() -> None:
    with serving(Script(raw=b"hello there\r\n\r\n", chunked=False)) as server:
        result = send(server)
    assert result.error is not None
    assert result.error.startswith("not a HTTP answer")


@pytest.mark.parametrize("head", [True, False])
def test_deadline_says_whether_anything_came(head: bool) -> None:
    with serving(Script(head=head, hang=True)) as server:
        started = time.monotonic()
        result = send(server, timeout=0.2)
        assert time.monotonic() - started < 3
        assert_closed(server)
    assert result.error is not None
    assert result.error.startswith("not finished within 0.2 s, " if head else "no byte within 0.2 s")
    assert result.finished is None


def test_deadline_holds_while_bytes_keep_coming() -> None:
    with serving(Script(parts=[(0.02, event("a"))] * 100)) as server:
        result = send(server, timeout=0.3)
    assert result.error is not None
    assert result.error.startswith("not finished within 0.3 s")
    assert 3 <= len(parse_events(result.chunks)) <= 15


def test_connection_refused() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    result = StreamClient("127.0.0.1", port, "k").stream("/", {}, 5)
    assert (result.error, result.status, result.chunks) == ("connection refused", None, ())


def test_many_run_at_the_same_time_and_keep_their_order() -> None:
    with serving(Script(parts=[(0.2, event("a")), (0, DONE)])) as server:
        client = StreamClient("127.0.0.1", server.port, "k")
        started = time.monotonic()
        results = client.stream_many([StreamRequest(path=f"/{i}", body={}, timeout=5) for i in range(16)])
        assert time.monotonic() - started < 3
    assert [r.error for r in results] == [None] * 16
    assert client.stream_many([]) == ()


def test_works_under_a_running_loop() -> None:
    async def inside(server: Server) -> StreamResult:
        return send(server)

    with serving(Script(parts=[(0, DONE)])) as server:
        assert asyncio.run(inside(server)).error is None


def test_lag_of_the_loop_is_reported() -> None:
    def clock() -> float:
        if threading.current_thread().name == "moegpu-client" and next(calls) == 12:
            time.sleep(0.15)
        return time.monotonic()

    calls = iter(range(10**6))
    with serving(Script(parts=[(0.02, event("a"))] * 10 + [(0, DONE)])) as server:
        result = StreamClient("127.0.0.1", server.port, "k", clock=clock).stream("/", {}, 5)
    assert result.error is None
    assert 0.1 < result.client_lag < 1


def test_interrupt_closes_the_connection_promptly() -> None:
    with serving(Script(parts=[(0, event("a"))], hang=True)) as server:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            send(server, timeout=30)
        assert time.monotonic() - started < 3
        timer.join()
        assert_closed(server)


def test_body_that_is_no_json_is_the_callers_error() -> None:
    with pytest.raises(TypeError):
        StreamClient("127.0.0.1", 1, "k").stream("/", {"x": object()}, 1)
