"""The device around a start: refused while somebody uses it, waited for until it is idle again."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pytest_moegpu.checks.memory import RETURN_SLACK_BYTES
from pytest_moegpu.core.evidence import DeviceProcess, Phase, StartFailure
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.core.units import format_bytes
from pytest_moegpu.errors import ProbeError, StartError
from pytest_moegpu.host.probe import Probe

__all__ = ["Idle", "held", "named", "not_given_back", "on_device", "refuse_busy", "used", "wait_idle"]

_POLL_SECONDS = 0.1

Idle = tuple[int | None, float | None]
"""The last reading in bytes and the seconds it took to get there; None for what could not be read."""


def used(samples: Sequence[Sample]) -> int | None:
    """Add up one reading of all devices in bytes; None when one of them could not be read."""
    known = [sample.used_bytes for sample in samples if sample.used_bytes is not None]
    return sum(known) if samples and len(known) == len(samples) else None


def named(processes: Sequence[DeviceProcess]) -> str:
    """Name processes for a message: pid, program, memory."""
    return ", ".join(
        f"pid {p.pid} ({p.name or 'unknown'}, "
        f"{'size not known' if p.used_bytes is None else format_bytes(p.used_bytes)})"
        for p in processes
    )


def on_device(probe: Probe, notes: list[str]) -> tuple[DeviceProcess, ...]:
    """List the processes on the device; where the driver does not say (MIG, WSL2), note that and accuse nobody.

    Raises:
        ProbeError: The device cannot be read at all.
    """
    try:
        return probe.processes()
    except ProbeError as error:
        if error.kind != "no-permission":
            raise
        note = f"processes on the device are not known: {error}"
        if note not in notes:
            notes.append(note)
        return ()


def refuse_busy(busy: Sequence[DeviceProcess], unusable: str) -> None:
    """Refuse a device in use: its numbers would not be ours, and its owner would suffer.

    Raises:
        StartError: Somebody is on it, or an earlier start left it in a state that cannot be trusted.
    """
    cause = ""
    if unusable:
        cause = f"no further start: {unusable}"
    elif busy:
        cause = f"the device is in use by {named(busy)}; end these first, this run touches nothing it did not start"
    if cause:
        raise StartError(StartFailure(phase=Phase.PREFLIGHT, cause=cause))


def held(after: int | None, idle: int | None) -> int:
    """Return the bytes above the idle reading that count as not given back; 0 within the slack, or when not known."""
    if after is None or idle is None or after - idle <= RETURN_SLACK_BYTES:
        return 0
    return after - idle


def not_given_back(
    rest: int, seconds: float | None, still: Sequence[DeviceProcess], tree: frozenset[int], notes: Sequence[str] = ()
) -> str:
    """Say how much memory did not come back after a stop, and who holds it: pids and sizes, ours and others' apart.

    Args:
        rest: Bytes above the idle reading.
        seconds: How long was waited.
        still: Processes on the device now.
        tree: Pids of the server and of all that it ever started.
        notes: Why the list of processes may not be known.
    """
    ours = named([p for p in still if p.pid in tree])
    others = named([p for p in still if p.pid not in tree])
    holders = [text for text in (ours and f"held by {ours} of the server", others and f"in use by {others}") if text]
    unknown = next((note for note in notes if note.startswith("processes")), "no process is listed that holds it")
    waited = "" if seconds is None else f" after {seconds:.0f} s"
    return f"memory did not come back: {format_bytes(rest)} above idle{waited}; {'; '.join(holders) or unknown}"


def wait_idle(probe: Probe, idle: int | None, seconds: float) -> Idle:
    """Poll until the device reads as before the start, or the time is over.

    The host probe still follows the server's tree here: whatever of it lives on is counted.
    """
    began = time.monotonic()
    while True:
        try:
            now = used(probe.read(time.monotonic(), "after"))
        except ProbeError:
            return None, None
        waited = time.monotonic() - began
        if not held(now, idle) or waited >= seconds:
            return now, waited
        time.sleep(_POLL_SECONDS)
