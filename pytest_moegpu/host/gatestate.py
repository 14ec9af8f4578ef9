"""The state of an upgrade on disk. It is written in one step, so that it survives a reboot at any moment."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from pytest_moegpu.core.gatestate import GATE_SCHEMA, GateState
from pytest_moegpu.errors import RecordError
from pytest_moegpu.host.files import write_atomic

__all__ = ["GATE_FILE", "boot_id", "forget_gate", "read_gate", "write_gate"]

GATE_FILE = Path(".moegpu/gate/state.json")
"""Where the state lies, from the current folder."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str | None:
    """Return the id that the kernel gave this boot; None on a system without one."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def read_gate(path: Path = GATE_FILE) -> GateState | None:
    """Return the state; None when nothing is under way.

    Raises:
        RecordError: The file is damaged or of another schema; it is left as it is.
    """
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: damaged state of a gate: {error}; moegpu gate --step forget ends it") from error
    found = raw.get("schema") if isinstance(raw, dict) else None
    if found != GATE_SCHEMA:
        raise RecordError(f"{path}: state of a gate of schema {found!r}; this version reads schema {GATE_SCHEMA}")
    try:
        return msgspec.convert(raw, GateState)
    except msgspec.ValidationError as error:
        raise RecordError(f"{path}: damaged state of a gate: {error}; moegpu gate --step forget ends it") from error


def write_gate(state: GateState, path: Path = GATE_FILE) -> None:
    """Write the state in one step."""
    write_atomic(path, msgspec.json.format(msgspec.json.encode(state, order="sorted"), indent=2) + b"\n")


def forget_gate(path: Path = GATE_FILE) -> bool:
    """Remove the state, damaged or not; False when there was none."""
    there = path.exists()
    path.unlink(missing_ok=True)
    return there
