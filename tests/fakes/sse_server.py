"""A small real HTTP server whose answer is a script: body parts, delayed, split, coalesced, cut off or refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec


def event(text: str = "", **fields: object) -> bytes:
    """One chat chunk as a server-sent event."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": fields.pop("finish_reason", None)}
    return b"data: " + msgspec.json.encode({"choices": [choice], **fields}) + b"\n\n"


@dataclass(frozen=True, kw_only=True)
class Script:
    """What the server does with every request.

    `parts` are (seconds to wait, body bytes) and each is one write; `chunked` False sends no framing and ends with the
    connection. `cut` drops the connection without the end of the body; `hang` keeps it open after the last part.
    """

    parts: Sequence[tuple[float, bytes]] = ()
    status: str = "200 OK"
    chunked: bool = True
    cut: bool = False
    hang: bool = False
    head: bool = True
    raw: bytes | None = None


@dataclass
class Server:
    """A running server; `requests` are head and body of what it got, `open` the connections it has now."""

    port: int = 0
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    open: int = 0
    loop: asyncio.AbstractEventLoop | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)


async def _answer(script: Script, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length"))
    server.requests.append((head, await reader.readexactly(length)))
    if script.raw is not None:
        writer.write(script.raw)
    elif script.head:
        framing = "Transfer-Encoding: chunked\r\n" if script.chunked else ""
        writer.write(f"HTTP/1.1 {script.status}\r\nContent-Type: text/event-stream\r\n{framing}\r\n".encode())
    for delay, data in script.parts:
        await asyncio.sleep(delay)
        writer.write(b"%x\r\n%b\r\n" % (len(data), data) if script.chunked else data)
        await writer.drain()
    if script.hang:
        await reader.read()
    if script.chunked and script.head and not script.cut:
        writer.write(b"0\r\n\r\n")


async def _serve(script: Script, server: Server, ready: threading.Event) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.open += 1
        try:
            await _answer(script, server, reader, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            server.open -= 1
            writer.close()

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    server.loop = asyncio.get_running_loop()
    server.port = listener.sockets[0].getsockname()[1]
    ready.set()
    async with listener:
        await server.stop.wait()


@contextmanager
def serving(script: Script) -> Iterator[Server]:
    """Run a server in a thread for the length of the block."""
    server = Server()
    ready = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(script, server, ready)))
    thread.start()
    assert ready.wait(5)
    try:
        yield server
    finally:
        assert server.loop is not None
        server.loop.call_soon_threadsafe(server.stop.set)
        thread.join(5)
        assert not thread.is_alive()
