"""Telemetry files: one line that says what was read and how, then one line a sample. They can be replayed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from pytest_moegpu.core.model import Gpu
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.errors import RecordError
from pytest_moegpu.host.files import write_atomic

__all__ = ["TELEMETRY_SCHEMA", "Origin", "Recording", "read_recording", "write_recording"]

TELEMETRY_SCHEMA = 2
"""1 was the same with the column names alone, as an array, in the first line; it can still be read."""

_COLUMNS = Sample.__struct_fields__
_NEEDED = ("time", "phase", "device")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a recording is of. A file of schema 1 says none of it: no devices, empty texts, no interval."""

    probe: str = ""
    memory_version: str = ""
    interval_seconds: float | None = None
    gpus: tuple[Gpu, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The samples of one start, in the order of their times, and what they are of."""

    samples: tuple[Sample, ...]
    origin: Origin = Origin()


@dataclass(frozen=True, kw_only=True)
class _Head(Origin):
    schema: int
    columns: tuple[str, ...]


def write_recording(path: Path, recording: Recording) -> None:
    """Write a telemetry file in one step.

    Raises:
        OSError: It cannot be written; an older file stays as it was.
    """
    head = _Head(schema=TELEMETRY_SCHEMA, columns=_COLUMNS, **_fields(recording.origin))
    lines = [msgspec.json.encode(head)]
    lines += [msgspec.json.encode([getattr(sample, column) for column in _COLUMNS]) for sample in recording.samples]
    write_atomic(path, b"\n".join(lines) + b"\n")


def read_recording(path: Path) -> Recording:
    """Read a telemetry file of schema 1 or 2; a column that an older version did not have is None.

    Raises:
        RecordError: Missing, damaged or of another schema; names the file and the line.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        raise RecordError(f"{path}: there is no such recording") from None
    except OSError as error:
        raise RecordError(f"{path}: damaged recording: {error}") from error
    if not lines:
        raise RecordError(f"{path}, line 1: damaged recording: the file is empty")
    head = _head(path, lines[0])
    return Recording(samples=tuple(_samples(path, head, lines[1:])), origin=Origin(**_fields(head)))


def _fields(origin: Origin) -> dict[str, Any]:
    return {name: getattr(origin, name) for name in Origin.__dataclass_fields__}


def _damaged(path: Path, line: int, why: object) -> RecordError:
    return RecordError(f"{path}, line {line}: damaged recording: {why}")


def _decode(path: Path, number: int, line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, number, error) from error


def _head(path: Path, line: bytes) -> _Head:
    raw = _decode(path, 1, line)
    if isinstance(raw, list):
        raw = {"schema": TELEMETRY_SCHEMA, "columns": raw}
    found = raw.get("schema") if isinstance(raw, dict) else None
    if found != TELEMETRY_SCHEMA:
        raise RecordError(
            f"{path}, line 1: recording of schema {found!r}; this version reads schemas 1 and {TELEMETRY_SCHEMA}"
        )
    try:
        head = msgspec.convert(raw, _Head)
    except msgspec.ValidationError as error:
        raise _damaged(path, 1, error) from error
    unknown = [column for column in head.columns if column not in _COLUMNS]
    missing = [column for column in _NEEDED if column not in head.columns]
    if unknown or missing or len(set(head.columns)) != len(head.columns):
        what = [f"unknown column {name!r}" for name in unknown] + [f"no column {name!r}" for name in missing]
        raise _damaged(path, 1, (what or ["a column twice"])[0])
    return head


def _samples(path: Path, head: _Head, lines: list[bytes]) -> Iterator[Sample]:
    known = {gpu.index for gpu in head.gpus}
    before = float("-inf")
    for number, line in enumerate(lines, 2):
        row = _decode(path, number, line)
        if not isinstance(row, list) or len(row) != len(head.columns):
            raise _damaged(path, number, f"wants an array of {len(head.columns)} values")
        try:
            sample = msgspec.convert(dict(zip(head.columns, row, strict=True)), Sample)
        except msgspec.ValidationError as error:
            raise _damaged(path, number, error) from error
        if sample.time < before:
            raise _damaged(path, number, f"time {sample.time} is before that of the line above")
        if known and sample.device not in known:
            raise _damaged(path, number, f"device {sample.device} is not one of {sorted(known)}")
        before = sample.time
        yield sample
