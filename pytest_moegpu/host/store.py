"""Run bundles and baselines on disk. Writes are atomic; what cannot be read is named and never overwritten.

A record of an older schema is migrated as it is read, in memory: its file stays as it is until something else is
written in its place, and is then kept beside as `<name>.v<schema>.json`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pytest_moegpu.core.baseline import Baseline
from pytest_moegpu.core.migrate import BASELINES, RUNS, Chain
from pytest_moegpu.core.record import RunRecord
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.core.trials import Attribution
from pytest_moegpu.errors import RecordError, UserError, nearest
from pytest_moegpu.host.files import write_atomic
from pytest_moegpu.host.recording import Origin, Recording, write_recording

__all__ = [
    "Bundle",
    "RunStore",
    "baseline_files",
    "baseline_path",
    "read_attribution",
    "read_baseline",
    "read_run",
    "write_baseline",
]

_T = TypeVar("_T")
_TIME_LENGTH = len("20261130-100000")
_KEPT = re.compile(r"\.v\d+\.json$")


def _load(path: Path, what: str) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RecordError(f"{path}: there is no such {what}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{path}: damaged {what}: {error}") from error


def _convert(path: Path, raw: Any, kind: type[_T], what: str) -> _T:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise RecordError(f"{path}: damaged {what}: {error}") from error


def _read(path: Path, kind: type[_T], chain: Chain) -> _T:
    raw = _load(path, chain.what)
    try:
        migrated = chain.migrate(raw)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error
    return _convert(path, migrated.raw, kind, chain.what)


def _encode(record: Any) -> bytes:
    # Sorted keys and one value per line: two versions can be reviewed as a diff.
    return msgspec.json.format(msgspec.json.encode(record, order="sorted"), indent=2) + b"\n"


def read_run(path: Path) -> RunRecord:
    """Read a bundle, given its folder or its run.json.

    Raises:
        RecordError: Missing, damaged, or of a schema that cannot be migrated.
    """
    return _read(path / "run.json" if path.is_dir() else path, RunRecord, RUNS)


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file.

    Raises:
        RecordError: Missing, damaged, or of a schema that cannot be migrated.
    """
    baseline = _read(path, Baseline, BASELINES)
    try:
        for score in baseline.golden.texts if baseline.golden is not None else ():
            _ = score.tokens
    except ValueError as error:
        raise RecordError(f"{path}: damaged baseline: golden: {error}") from error
    return baseline


def baseline_path(root: Path, profile: str, scenario: str, backend: str) -> Path:
    """Where a baseline lives. Nothing that an upgrade changes is part of the path."""
    return root / profile / scenario / f"{backend}.json"


def baseline_files(root: Path) -> tuple[Path, ...]:
    """Return every baseline below a folder, sorted; files of older schemas that were kept beside are none."""
    return tuple(sorted(path for path in root.rglob("*.json") if not _KEPT.search(path.name)))


def write_baseline(root: Path, baseline: Baseline) -> Path:
    """Write a baseline to its place and return the path; a file there of an older schema is kept beside it.

    Raises:
        RecordError: Such a file cannot be kept, because another one of that schema was kept before; or the file there
            is of a newer schema.
        OSError: The folder cannot be written.
    """
    path = baseline_path(root, baseline.profile, baseline.scenario, baseline.backend)
    _keep_older(path, BASELINES)
    write_atomic(path, _encode(baseline))
    return path


def _keep_older(path: Path, chain: Chain) -> None:
    """Copy a file of an older schema to its name with the schema in it, before something is written in its place.

    Raises:
        RecordError: Another file has that name, or the file here is of a newer schema.
    """
    try:
        old = path.read_bytes()
        schema = json.loads(old)["schema"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        # Not there, or not a record: nothing that an older version could still read.
        return
    if not isinstance(schema, int) or isinstance(schema, bool) or schema == chain.current:
        return
    if schema > chain.current:
        raise RecordError(f"{path}: of schema {schema}, from a newer pytest-moegpu: not replaced; move it away first")
    kept = path.with_name(f"{path.stem}.v{schema}{path.suffix}")
    if kept.exists() and kept.read_bytes() != old:
        raise RecordError(f"{path}: of schema {schema}, to be kept as {kept}, where another file is: move that away")
    write_atomic(kept, old)


def read_attribution(folder: Path, scenario: str) -> Attribution:
    """Read what `--moegpu-attribute` tried in a run.

    Raises:
        RecordError: Nothing was tried for this scenario, or the file is damaged.
    """
    path = folder / f"attribution-{scenario}.json"
    return _convert(path, _load(path, "attribution"), Attribution, "attribution")


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

    def trial_log_path(self, scenario: str, trial: str) -> Path:
        """Where the server log of a start goes that looks for the cause of wrong text."""
        return self.folder / f"server-{scenario}-{trial}.log"

    def write_attribution(self, attribution: Attribution) -> Path:
        """Write what was tried to find the cause of wrong text in one scenario."""
        path = self.folder / f"attribution-{attribution.scenario}.json"
        write_atomic(path, _encode(attribution))
        return path

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
