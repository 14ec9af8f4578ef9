"""The unmeasured conversation with a server: health, description, metrics, and who really listens on its port."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from typing import Any

import httpx
import psutil

__all__ = ["Control", "Listener", "free_port", "listener"]

_WILDCARDS = ("0.0.0.0", "::", "::ffff:0.0.0.0")


@dataclass(frozen=True, kw_only=True)
class Listener:
    """A process that listens on a port; the name is empty where it may not be read."""

    pid: int
    name: str = ""


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port nobody listens on now. It can be taken before the server binds; `listener` tells afterwards."""
    with socket.socket() as s:
        s.bind((host, 0))
        return int(s.getsockname()[1])


def listener(host: str, port: int) -> Listener | None:
    """Return the process that a connection to a local address reaches; None when nobody listens or it is not seen.

    The same port of another address is another listener. One of exactly this address goes before one of all addresses.
    """
    exact = (host, f"::ffff:{host}")
    found: dict[bool, int] = {}
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections(kind="tcp"):
            address = connection.laddr
            if connection.status != psutil.CONN_LISTEN or not connection.pid or not address or address.port != port:
                continue
            if address.ip in exact or address.ip in _WILDCARDS:
                found[address.ip in exact] = connection.pid
    pid = found.get(True, found.get(False))
    if pid is None:
        return None
    with contextlib.suppress(psutil.Error):
        return Listener(pid=pid, name=psutil.Process(pid).name())
    return Listener(pid=pid)


class Control:
    """GET requests to one server, each with a short deadline."""

    def __init__(self, host: str, port: int, api_key: str, timeout: float = 2.0) -> None:
        # trust_env off: a proxy in the environment must not stand between the test and a loopback server.
        self._client = httpx.Client(
            base_url=f"http://{host}:{port}",
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=timeout,
            trust_env=False,
        )

    def get(self, path: str) -> tuple[int, str] | None:
        """Return status and body, or None while nobody answers."""
        try:
            answer = self._client.get(path)
        except httpx.HTTPError:
            return None
        return answer.status_code, answer.text

    def get_json(self, path: str) -> Any:
        """Return the decoded body of a 200 answer, else None."""
        try:
            answer = self._client.get(path)
            return answer.json() if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
