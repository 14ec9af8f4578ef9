"""Whether an address answers, and whether it is one of this machine."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

import psutil

from pytest_moegpu.errors import UserError

__all__ = ["Reached", "reach"]

_CONNECT_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The address a connection came to; `own` when it is one of this machine."""

    ip: str
    own: bool


def reach(host: str, port: int, seconds: float = _CONNECT_SECONDS) -> Reached:
    """Connect once and hang up.

    Raises:
        UserError: The name is not known, nobody listens, or nobody answers in time; says which.
    """
    try:
        with socket.create_connection((host, port), timeout=seconds) as connection:
            ip = str(connection.getpeername()[0])
    except socket.gaierror as error:
        raise UserError(f"the name {host!r} cannot be resolved: {error.strerror or error}") from error
    except ConnectionRefusedError as error:
        raise UserError(f"nobody listens on port {port} of {host}: is the server up, and is this its port?") from error
    except TimeoutError as error:
        raise UserError(f"port {port} of {host} did not answer within {seconds:g} s: is a firewall between?") from error
    except OSError as error:
        raise UserError(f"port {port} of {host} cannot be reached: {error.strerror or error}") from error
    return Reached(ip=ip, own=_is_own(ip))


def _is_own(ip: str) -> bool:
    if ipaddress.ip_address(ip.partition("%")[0]).is_loopback:
        return True
    return any(address.address.partition("%")[0] == ip for found in psutil.net_if_addrs().values() for address in found)
