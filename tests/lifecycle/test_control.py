"""Short questions to a server, and who really listens on its port."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import psutil
import pytest

from pytest_moegpu.host import control as control_module
from pytest_moegpu.host.control import Asked, Control, free_port, listener, parsed


@contextmanager
def listening(host: str) -> Iterator[int]:
    with socket.create_server((host, 0)) as server:
        yield server.getsockname()[1]


def test_the_same_port_of_another_address_is_another_listener() -> None:
    with listening("127.0.0.2") as port:
        assert listener("127.0.0.1", port) is None
        found = listener("127.0.0.2", port)
        assert found is not None
        assert found.pid == os.getpid()


def test_a_listener_of_all_addresses_is_one_of_each() -> None:
    with listening("0.0.0.0") as port:
        found = listener("127.0.0.1", port)
    assert found is not None
    assert found.pid == os.getpid()


@pytest.mark.parametrize("ip", ["0.0.0.0", "::", "::ffff:127.0.0.1"])
def test_forms_of_an_address(monkeypatch: pytest.MonkeyPatch, ip: str) -> None:
    def sockets(kind: str) -> list[object]:
        return [
            SimpleNamespace(laddr=SimpleNamespace(ip=at, port=7000), status=psutil.CONN_LISTEN, pid=os.getpid() + n)
            for n, at in enumerate(("127.0.0.2", ip))
        ]

    monkeypatch.setattr(psutil, "net_connections", sockets)
    found = listener("127.0.0.1", 7000)
    assert found is not None
    assert found.pid == os.getpid() + 1
    assert listener("127.0.0.1", 7001) is None


@contextmanager
def answering(answer: Callable[[socket.socket, threading.Event], None]) -> Iterator[int]:
    """Give every connection to a function, with an event that tells it to end."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    def one(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.recv(4096)
            answer(connection, over)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while not over.is_set():
                threads.append(threading.Thread(target=one, args=(server.accept()[0],)))
                threads[-1].start()

    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    threads.append(threading.Thread(target=serve))
    threads[0].start()
    try:
        yield port
    finally:
        over.set()
        # Closing alone does not wake a thread that waits in accept.
        socket.create_connection(("127.0.0.1", port)).close()
        for thread in threads:
            thread.join(10)
        server.close()


def head(status: int, length: int) -> bytes:
    return f"HTTP/1.1 {status} -\r\nContent-Length: {length}\r\n\r\n".encode()


def test_status_and_body_of_an_answer() -> None:
    with answering(lambda c, _: c.sendall(head(503, 3) + b"\xffno")) as port:
        assert Control("127.0.0.1", port, "key").get("/health") == (503, "\ufffdno")


def test_nobody_answers() -> None:
    assert Control("127.0.0.1", free_port(), "key").get("/health") is None


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 -\r\nX: ", head(200, 10**6)], ids=["status", "header", "body"])
def test_a_server_that_sends_a_byte_now_and_then_cannot_hold_up_an_answer(start: bytes) -> None:
    def drip(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(start)
        for _ in itertools.count():
            connection.sendall(b"H")
            if over.wait(0.05):
                return

    with answering(drip) as port:
        began = time.monotonic()
        assert Control("127.0.0.1", port, "key", timeout=0.4).get("/health") is None
        # Never, if the deadline counted from the last byte.
        assert time.monotonic() - began < 10


def test_whoever_asks_may_do_something_else_meanwhile() -> None:
    release = threading.Event()

    def late(connection: socket.socket, _: threading.Event) -> None:
        release.wait(10)
        connection.sendall(head(200, 2) + b"{}")

    with answering(late) as port:
        asked = Control("127.0.0.1", port, "key", timeout=10.0).ask("/props")
        assert not asked.wait(0.05)
        release.set()
        assert asked.wait(10)
        assert asked.answer() == (200, "{}")


def test_an_answer_without_end_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "_BODY_BYTES", 1000)
    with answering(lambda c, _: c.sendall(head(200, 2000) + b"x" * 2000)) as port:
        assert Control("127.0.0.1", port, "key").get("/metrics") is None


def test_what_nobody_foresaw_is_raised_for_whoever_asked() -> None:
    def broken() -> None:
        raise RuntimeError("as a test wants it")

    asked = Asked(broken)
    assert asked.wait(10)
    with pytest.raises(RuntimeError, match="as a test wants it"):
        asked.answer()


def test_only_a_good_answer_is_decoded() -> None:
    assert parsed((200, '{"a": 1}')) == {"a": 1}
    assert [parsed(None), parsed((500, "{}")), parsed((200, "<html>"))] == [None, None, None]
