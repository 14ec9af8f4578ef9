"""Who listens on a port: the process that a connection to this very address reaches."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import psutil
import pytest

from pytest_moegpu.host.control import listener


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
