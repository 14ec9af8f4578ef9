"""The unmeasured conversation with a server: health, description, metrics, and who really listens on its port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import httpx
import psutil

from pytest_moegpu.errors import ProgramError

__all__ = ["Answer", "Asked", "Control", "Listener", "Poster", "free_port", "listener", "parsed"]

Answer = tuple[int, str]
"""Status and body."""

_BODY_BYTES = 4 * 2**20
_WAIT_SLICE = 0.2
_FIRST_PORT = 20_000
_TRIES = 200
_WILDCARDS = ("0.0.0.0", "::", "::ffff:0.0.0.0")


@dataclass(frozen=True, kw_only=True)
class Listener:
    """A process that listens on a port; the name is empty where it may not be read."""

    pid: int
    name: str = ""


def free_port(host: str = "127.0.0.1", last: int = 65_535) -> int:
    """Return a port nobody listens on now, up to `last`.

    It can be taken before the server binds; `listener` tells afterwards. The system's own choice comes first, as it
    does not give the same port again for a while; where it is too high, others are tried by chance.
    """
    others = range(min(_FIRST_PORT, last), last)
    for chosen in (0, *random.sample(others, min(_TRIES, len(others)))):
        with socket.socket() as s:
            try:
                s.bind((host, chosen))
            except OSError:
                continue
            if (port := int(s.getsockname()[1])) <= last:
                return port
    raise ProgramError(f"no port up to {last} is free on {host}")


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


def parsed(answer: Answer | None) -> Any:
    """Return the decoded JSON body of a 200 answer, else None."""
    if answer is None or answer[0] != 200:
        return None
    try:
        return json.loads(answer[1])
    except ValueError:
        return None


class Asked:
    """A GET under way in a thread of its own, so that whoever waits for it can watch something else meanwhile."""

    def __init__(self, work: Callable[[], Answer | None]) -> None:
        self._answer: Answer | None = None
        self._error: Exception | None = None
        self._done = threading.Event()

        def run() -> None:
            try:
                self._answer = work()
            except Exception as error:  # noqa: BLE001 - raised again for whoever asked
                self._error = error
            finally:
                self._done.set()

        threading.Thread(target=run, name="moegpu-control", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Wait for the end; True when there is an answer, or it is certain that there is none."""
        return self._done.wait(seconds)

    def answer(self) -> Answer | None:
        """Return status and body, or None when nobody answered in time; an error nobody foresaw is raised."""
        if self._error is not None:
            raise self._error
        return self._answer


class Control:
    """GET requests to one server, each on a connection of its own.

    `timeout` is for a whole answer in seconds, so that a server that sends a byte now and then cannot hold it up.
    """

    def __init__(self, host: str, port: int, api_key: str, timeout: float = 2.0) -> None:
        shown = f"[{host}]" if ":" in host else host
        self._url = f"http://{shown}:{port}"
        self._headers = {"Authorization": f"Bearer {api_key}"}
        self._timeout = timeout

    def ask(self, path: str) -> Asked:
        """Send a GET and return at once."""
        return Asked(lambda: asyncio.run(self._fetch(path)))

    def get(self, path: str) -> Answer | None:
        """Return status and body, or None while nobody answers."""
        asked = self.ask(path)
        # In slices, because an endless wait cannot be interrupted on Windows.
        while not asked.wait(_WAIT_SLICE):
            pass
        return asked.answer()

    async def _fetch(self, path: str) -> Answer | None:
        body = b""
        try:
            # trust_env off: a proxy in the environment must not stand between the test and a loopback server;
            # verify off: no certificate is read for plain HTTP.
            async with (
                asyncio.timeout(self._timeout),
                httpx.AsyncClient(headers=self._headers, timeout=None, trust_env=False, verify=False) as client,
                client.stream("GET", self._url + path) as answer,
            ):
                async for piece in answer.aiter_bytes():
                    body += piece
                    if len(body) > _BODY_BYTES:
                        return None
                return answer.status_code, body.decode("utf-8", "replace")
        except (httpx.HTTPError, TimeoutError):
            return None


class Poster:
    """POST requests to one server over one connection that is kept, for many small ones in a row. A context manager."""

    def __init__(self, host: str, port: int, api_key: str, timeout: float) -> None:
        shown = f"[{host}]" if ":" in host else host
        self._client = httpx.Client(
            base_url=f"http://{shown}:{port}",
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=timeout,
            trust_env=False,
            verify=False,
        )

    def __enter__(self) -> Self:
        """Open nothing yet: the first request connects."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self._client.close()

    def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Send JSON and return status and body.

        Raises:
            ProgramError: Nobody answers, or not in time.
        """
        try:
            answer = self._client.post(path, json=body)
        except httpx.HTTPError as error:
            raise ProgramError(f"{path}: {type(error).__name__}: {error}") from error
        return answer.status_code, answer.text
