"""Measured streams: send chat requests and stamp every read on arrival.

An asyncio Protocol with httptools on an event loop of its own in a worker thread, so that it also works where a loop
already runs. Nothing is decoded while the stream runs; `core.timing` reads the chunks afterwards.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import httptools
import msgspec

__all__ = ["StreamClient", "StreamRequest", "StreamResult"]

_TICK = 0.01
_HTTP_OK = 200
_JOIN_SLICE = 0.2

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class StreamRequest:
    """One POST: path, JSON body, and seconds for the whole request, connecting included."""

    path: str
    body: dict[str, Any]
    timeout: float


@dataclass(frozen=True, kw_only=True)
class StreamResult:
    """What came back. Times are seconds on the client's clock.

    `sent` is just before the request was written (of connecting, when that failed). `chunks` are body bytes with
    the arrival time of their read; a connection lost midway keeps those it got. `finished` is None unless the answer
    was complete. `client_lag` is the largest lateness of a 10 ms ticker in the same loop while the request ran.
    """

    sent: float
    status: int | None
    chunks: tuple[tuple[float, bytes], ...]
    finished: float | None
    client_lag: float
    error: str | None

    @property
    def body_text(self) -> str:
        """Body of an answer whose status is not 200; empty for 200."""
        if self.status == _HTTP_OK:
            return ""
        return b"".join(data for _, data in self.chunks).decode("utf-8", "replace")


class StreamClient:
    """Sends streamed requests to one server.

    Args:
        host: Address of the server.
        port: TCP port.
        api_key: Sent as a bearer token.
        clock: Source of all stamps, in seconds; must be monotonic.
    """

    def __init__(self, host: str, port: int, api_key: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.host = host
        self.port = port
        self.clock = clock
        shown = f"[{host}]" if ":" in host else host
        self._headers = (
            f"Host: {shown}:{port}\r\n"
            f"Authorization: Bearer {api_key}\r\n"
            "Content-Type: application/json\r\n"
            "Accept: text/event-stream\r\n"
            "Connection: close\r\n"
        )

    def stream(self, path: str, body: dict[str, Any], timeout: float) -> StreamResult:
        """Send one request and wait for the end of its answer.

        Args:
            path: Path on the server.
            body: Sent as JSON.
            timeout: Seconds for the whole request.

        Raises:
            TypeError: The body holds something that JSON cannot express.
        """
        return self.stream_many([StreamRequest(path=path, body=body, timeout=timeout)])[0]

    def stream_many(self, requests: Sequence[StreamRequest]) -> tuple[StreamResult, ...]:
        """Send all requests at once, each on its own connection; results are in the order of the requests.

        What goes wrong on the wire is in `error` of the result, never raised. An exception in the waiting thread
        (KeyboardInterrupt) closes all connections before it goes on.

        Raises:
            TypeError: A body holds something that JSON cannot express.
        """
        payloads = [(self._payload(r), r.timeout) for r in requests]
        return _in_thread(self._run(payloads))

    def _payload(self, request: StreamRequest) -> bytes:
        body = msgspec.json.encode(request.body)
        head = f"POST {request.path} HTTP/1.1\r\n{self._headers}Content-Length: {len(body)}\r\n\r\n"
        return head.encode("latin-1") + body

    async def _run(self, payloads: Sequence[tuple[bytes, float]]) -> tuple[StreamResult, ...]:
        ticker = _Ticker(self.clock)
        ticking = asyncio.ensure_future(ticker.run())
        try:
            return tuple(await asyncio.gather(*(self._one(ticker, *p) for p in payloads)))
        finally:
            ticking.cancel()

    async def _one(self, ticker: _Ticker, payload: bytes, timeout: float) -> StreamResult:
        loop = asyncio.get_running_loop()
        exchange = _Exchange(payload, self.clock, loop)
        error: str | None
        ticker.watch(exchange)
        try:
            async with asyncio.timeout(timeout):
                await loop.create_connection(lambda: exchange, self.host, self.port)
                error = await exchange.outcome
        except TimeoutError:
            error = f"no byte within {timeout:.1f} s"
            if exchange.received:
                error = f"not finished within {timeout:.1f} s, {exchange.received} bytes received"
        except ConnectionRefusedError:
            error = "connection refused"
        except OSError as problem:
            error = f"cannot connect: {problem}"
        finally:
            ticker.unwatch(exchange)
            await exchange.close()
        return StreamResult(
            sent=exchange.sent,
            status=exchange.status,
            chunks=tuple(exchange.chunks),
            finished=exchange.finished,
            client_lag=exchange.lag,
            error=error,
        )


class _Exchange(asyncio.Protocol):
    """One request and its answer on one connection. `outcome` resolves to an error, or None for a complete answer."""

    def __init__(self, payload: bytes, clock: Callable[[], float], loop: asyncio.AbstractEventLoop) -> None:
        self.payload = payload
        self.clock = clock
        self.outcome: asyncio.Future[str | None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.transport: asyncio.Transport | None = None
        self.parser = httptools.HttpResponseParser(self)
        self.sent = self.now = clock()
        self.status: int | None = None
        self.framed = False
        self.received = 0
        self.chunks: list[tuple[float, bytes]] = []
        self.finished: float | None = None
        self.lag = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent = self.clock()
        self.transport.write(self.payload)

    def data_received(self, data: bytes) -> None:
        self.now = self.clock()
        self.received += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as problem:
            self._settle(f"not a HTTP answer: {problem}")

    def on_header(self, name: bytes, _value: bytes) -> None:
        self.framed = self.framed or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self.chunks.append((self.now, data))

    def on_message_complete(self) -> None:
        if self.status is not None and self.status >= _HTTP_OK:
            self.finished = self.finished or self.now
            self._settle(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)
        if self.outcome.done():
            return
        if exc is None and self.status is not None and not self.framed:
            # A body with neither length nor chunks ends with the connection (RFC 9112, 6.3, item 8).
            self.finished = self.clock()
            self._settle(None)
        else:
            self._settle(f"connection closed after {self.received} bytes" + (f" ({exc})" if exc else ""))

    def _settle(self, error: str | None) -> None:
        if not self.outcome.done():
            self.outcome.set_result(error)

    async def close(self) -> None:
        """Drop the connection and wait until its socket is closed."""
        self.outcome.cancel()
        if self.transport is not None:
            self.transport.abort()
            await self.closed


class _Ticker:
    """Wakes every 10 ms and notes how late it was: what the loop could have added to a stamp."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.due = clock() + _TICK
        self.watched: set[_Exchange] = set()

    def watch(self, exchange: _Exchange) -> None:
        self.watched.add(exchange)

    def unwatch(self, exchange: _Exchange) -> None:
        self._note()
        self.watched.discard(exchange)

    def _note(self) -> None:
        late = self.clock() - self.due
        for exchange in self.watched:
            exchange.lag = max(exchange.lag, late)

    async def run(self) -> None:
        while True:
            self.due = self.clock() + _TICK
            await asyncio.sleep(_TICK)
            self._note()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _in_thread(work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work` on a new loop in a thread; an exception while waiting cancels it and waits for its clean-up."""
    loop = _new_loop()
    task = loop.create_task(work)

    def serve() -> None:
        try:
            with suppress(BaseException):
                loop.run_until_complete(task)
            loop.run_until_complete(asyncio.sleep(0))
        finally:
            loop.close()

    thread = threading.Thread(target=serve, name="moegpu-client", daemon=True)
    try:
        thread.start()
        _wait(thread)
    except BaseException:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(task.cancel)
        _wait(thread)
        raise
    return task.result()


def _wait(thread: threading.Thread) -> None:
    # In slices, because an endless join cannot be interrupted on Windows.
    while thread.is_alive():
        thread.join(_JOIN_SLICE)
