"""Run bundles and baselines on disk. Writes are atomic; what cannot be read is named and never overwritten."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pytest_moegpu.core.baseline import BASELINE_SCHEMA, Baseline
from pytest_moegpu.core.record import RUN_SCHEMA, RunRecord
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.errors import RecordError, UserError, nearest
from pytest_moegpu.host.files import write_atomic
from pytest_moegpu.host.recording import Origin, Recording, write_recording

__all__ = ["Bundle", "RunStore", "baseline_path", "read_baseline", "read_run", "write_baseline"]

_T = TypeVar("_T")
_TIME_LENGTH = len("20261130-100000")


def _read(path: Path, kind: type[_T], what: str, schema: int) -> _T:
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RecordError(f"{path}: there is no such {what}") from None
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: damaged {what}: {error}") from error
    found = raw.get("schema") if isinstance(raw, dict) else None
    if found != schema:
        raise RecordError(f"{path}: {what} of schema {found!r}; this version reads schema {schema}")
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise RecordError(f"{path}: damaged {what}: {error}") from error


def _encode(record: Any) -> bytes:
    # Sorted keys and one value per line: two versions can be reviewed as a diff.
    return msgspec.json.format(msgspec.json.encode(record, order="sorted"), indent=2) + b"\n"


def read_run(path: Path) -> RunRecord:
    """Read a bundle, given its folder or its run.json.

    Raises:
        RecordError: Missing, damaged, or of another schema.
    """
    return _read(path / "run.json" if path.is_dir() else path, RunRecord, "run", RUN_SCHEMA)


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file.

    Raises:
        RecordError: Missing, damaged, or of another schema.
    """
    return _read(path, Baseline, "baseline", BASELINE_SCHEMA)


def baseline_path(root: Path, profile: str, scenario: str, backend: str) -> Path:
    """Where a baseline lives. Nothing that an upgrade changes is part of the path."""
    return root / profile / scenario / f"{backend}.json"


def write_baseline(root: Path, baseline: Baseline) -> Path:
    """Write a baseline to its place and return the path."""
    path = baseline_path(root, baseline.profile, baseline.scenario, baseline.backend)
    write_atomic(path, _encode(baseline))
    return path


class Bundle:
    """The folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = folder.name

    def write(self, record: RunRecord) -> None:
        """Write run.json."""
        write_atomic(self.folder / "run.json", _encode(record))

    def log_path(self, scenario: str, number: int) -> Path:
        """Where the server log of one start goes."""
        return self.folder / f"server-{scenario}-{number}.log"

    def scratch(self, scenario: str, number: int) -> str:
        """Where one start may keep files as long as it lasts; not made here."""
        return str(self.folder / f"work-{scenario}-{number}")

    def write_telemetry(
        self, scenario: str, number: int, samples: Iterable[Sample], origin: Origin | None = None
    ) -> Path:
        """Write the samples of one start, with what they are of, so that they can be replayed; see `host.recording`."""
        path = self.folder / f"telemetry-{scenario}-{number}.jsonl"
        write_recording(path, Recording(samples=tuple(samples), origin=origin or Origin()))
        return path


class RunStore:
    """All bundles under one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def check(self) -> None:
        """Make sure, without leaving a trace, that bundles can be made here.

        Raises:
            UserError: A file is in the way, or the folder may not be written.
        """
        # os.path: whatever cannot be looked at counts as not there, and the folder that hides it is then refused.
        place = next((p for p in (self.root, *self.root.parents) if os.path.lexists(p)), self.root)
        wrong = "is not a folder" if not place.is_dir() else ""
        if not wrong and not os.access(place, os.W_OK | os.X_OK):
            wrong = "may not be written"
        if wrong:
            raise UserError(f"--moegpu-runs: no run can be kept in {self.root}: {place} {wrong}")

    def create(self, profile: str, now: datetime) -> Bundle:
        """Make an empty bundle with an id that sorts by time."""
        self.root.mkdir(parents=True, exist_ok=True)
        while True:
            folder = self.root / f"{now:%Y%m%d-%H%M%S}-{profile}-{secrets.token_hex(2)}"
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return Bundle(folder)

    def ids(self) -> tuple[str, ...]:
        """Return the ids of all bundles, oldest first; runs of one second in the order they were last written."""
        if not self.root.is_dir():
            return ()
        written: dict[str, int] = {}
        for path in self.root.iterdir():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                written[path.name] = (path / "run.json").stat().st_mtime_ns
        return tuple(sorted(written, key=lambda name: (name[:_TIME_LENGTH], written[name], name)))

    def find(self, name: str) -> Path:
        """Return the folder of a run named by path, id, unique start of an id, or `latest`.

        Raises:
            RecordError: There is none, or several.
        """
        if (path := Path(name)).exists():
            return path.parent if path.name == "run.json" else path
        ids = self.ids()
        if name == "latest" and ids:
            return self.root / ids[-1]
        matches = [run for run in ids if run.startswith(name)]
        if len(matches) == 1:
            return self.root / matches[0]
        if matches:
            raise RecordError(f"{name!r} fits {len(matches)} runs: {', '.join(matches)}")
        raise RecordError(f"no run {name!r} in {self.root}{nearest(name, ids)}; there are {len(ids)}")
