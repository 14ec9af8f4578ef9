"""The SHA-256 of a file, computed once for each path, size and time of change."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from pathlib import Path

from pytest_moegpu.core.units import GIB
from pytest_moegpu.errors import ModelFileError
from pytest_moegpu.host.cache import cache_dir
from pytest_moegpu.host.files import write_atomic

__all__ = ["remember_sha256", "sha256_of"]

_CHUNK = 2**22


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, computed once per path, size and time of change.

    Raises:
        ModelFileError: The file cannot be read.
    """
    note = _note_of(path)
    try:
        stored = json.loads(note.read_bytes())
        if isinstance(stored, dict) and _stamp(path).items() <= stored.items():
            return str(stored["sha256"])
    except (OSError, ValueError, KeyError):
        pass
    try:
        digest = _hash(path)
    except OSError as error:
        raise ModelFileError(f"model file {path}: cannot be read: {error.strerror}") from error
    remember_sha256(path, digest)
    return digest


def remember_sha256(path: Path, digest: str) -> None:
    """Note a checksum that was just computed. A cache folder that cannot be written only costs time later."""
    with contextlib.suppress(OSError):
        write_atomic(_note_of(path), json.dumps(_stamp(path) | {"sha256": digest}, indent=1).encode())


def _stamp(path: Path) -> dict[str, object]:
    stat = path.stat()
    return {"path": str(path.resolve()), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _note_of(path: Path) -> Path:
    return cache_dir() / "checksums" / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]}.json"


def _hash(path: Path) -> str:
    from tqdm import tqdm

    size = path.stat().st_size
    digest = hashlib.sha256()
    quiet = size <= GIB or not sys.stderr.isatty()
    with (
        path.open("rb") as file,
        tqdm(total=size, desc=f"checksum of {path.name}", unit="B", unit_scale=True, disable=quiet, leave=False) as bar,
    ):
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            bar.update(len(chunk))
    return digest.hexdigest()
