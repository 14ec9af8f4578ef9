"""Work for other threads of a process while its sampler is measured: measured streams, or a thread that never rests."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from pytest_moegpu.host.client import StreamClient, StreamRequest

STREAMS = 16
TOKENS_PER_SECOND = 50
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
TOKENS = 100


@contextmanager
def idle() -> Iterator[None]:
    """Do nothing."""
    yield


@contextmanager
def busy() -> Iterator[None]:
    """Keep one thread in Python code all the time, so that it holds the GIL whenever nobody asks for it."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=work, name="busy", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def streams() -> Iterator[None]:
    """Receive 16 measured streams of 50 tokens a second each from another process, again and again."""
    stop = threading.Event()
    server = subprocess.Popen([sys.executable, "-m", "bench.load"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        client = StreamClient("127.0.0.1", int(server.stdout.readline()), "key")
        requests = [StreamRequest(path="/", body={}, timeout=30.0)] * STREAMS

        def work() -> None:
            while not stop.is_set():
                for result in client.stream_many(requests):
                    if result.error is not None and not stop.is_set():
                        raise RuntimeError(result.error)

        thread = threading.Thread(target=work, name="streams", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
    finally:
        server.kill()
        server.wait()


LOADS: dict[str, Callable[[], AbstractContextManager[None]]] = {"idle": idle, "streams": streams, "busy": busy}


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(TOKENS):
            writer.write(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
            await writer.drain()
            await asyncio.sleep(1 / TOKENS_PER_SECOND)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    writer.close()


async def _serve() -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    argparse.ArgumentParser(description="Serve streams of 50 tokens a second; prints its port.").parse_args()
    asyncio.run(_serve())
