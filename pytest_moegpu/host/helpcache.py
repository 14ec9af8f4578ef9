"""The help text of a server program, asked for once and kept: a Python engine needs up to 20 s to print it.

What is kept belongs to one program as it is now: to the contents of its file and to what it says about its version. A
Python engine needs as long for its version as for its help, so there the names and versions of the packages installed
beside it stand for it. One installed in editable mode keeps its name while its source changes: then remove the folder
`help` of the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_moegpu.errors import ProgramError
from pytest_moegpu.host.cache import cache_dir
from pytest_moegpu.host.command import run_command
from pytest_moegpu.host.files import write_atomic

__all__ = ["ProgramTexts", "program_texts"]

_SECONDS = 180.0
_SCRIPT = b"#!"
# No colours in what is read, few wrapped lines, and no look-up in a hub for a help text.
_ENVIRONMENT = {"NO_COLOR": "1", "PYTHON_COLORS": "0", "COLUMNS": "160", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True, kw_only=True)
class ProgramTexts:
    """What a program prints about itself. `version` is empty where it could not be asked."""

    version: str
    help: str


def program_texts(version_argv: Sequence[str], help_argv: Sequence[str]) -> ProgramTexts:
    """Return what a program prints for its version and its flags, the latter out of the cache where it is there.

    Raises:
        ProgramError: The program is not there, or its help cannot be had.
    """
    path = _path(help_argv[0])
    version = None if _is_python(path) else _version(version_argv)
    place = cache_dir() / "help" / f"{_key(path, version, version_argv, help_argv)}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(place.read_text(encoding="utf-8"))
        return ProgramTexts(version=str(kept["version"]), help=str(kept["help"]))
    version = _version(version_argv) if version is None else version
    texts = ProgramTexts(version=version, help=_output(help_argv))
    # A cache that cannot be written costs time, no more.
    with contextlib.suppress(OSError):
        write_atomic(place, json.dumps(asdict(texts), ensure_ascii=False).encode())
    return texts


def _path(program: str) -> Path:
    return Path(shutil.which(program) or program)


def _is_python(path: Path) -> bool:
    """Tell whether a program is Python, or a script that may be."""
    try:
        with path.open("rb") as file:
            return file.read(len(_SCRIPT)) == _SCRIPT or path.name.startswith("python")
    except OSError as error:
        raise ProgramError(f"server program {str(path)!r} cannot be read: {error}") from error


def _key(path: Path, version: str | None, version_argv: Sequence[str], help_argv: Sequence[str]) -> str:
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    state = _packages(path) if version is None else version
    return hashlib.sha256(json.dumps([checksum, state, version_argv, help_argv]).encode()).hexdigest()[:24]


def _packages(path: Path) -> list[str]:
    """Return the packages of the environment whose `bin` holds a program, which is a link in some."""
    prefixes = {path.absolute().parent.parent, path.resolve().parent.parent}
    return sorted({each.name for prefix in prefixes for each in _metadata(prefix)})


def _metadata(prefix: Path) -> Iterator[Path]:
    for pattern in ("lib*/python3*/site-packages", "lib/python3*/dist-packages", "Lib/site-packages"):
        for folder in prefix.glob(pattern):
            yield from folder.glob("*-info")


def _version(argv: Sequence[str]) -> str:
    try:
        return _output(argv)
    except ProgramError:
        return ""


def _output(argv: Sequence[str]) -> str:
    """Run a command and return all it printed.

    Raises:
        ProgramError: It cannot be run, takes too long, or fails.
    """
    try:
        done = run_command(argv, seconds=_SECONDS, environment=os.environ | _ENVIRONMENT)
    except OSError as error:
        raise ProgramError(f"cannot run {' '.join(argv)!r}: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise ProgramError(f"{' '.join(argv)!r} printed nothing whole in {_SECONDS:g} s") from error
    output = done.stdout + done.stderr
    if done.returncode != 0:
        tail = " / ".join(output.strip().splitlines()[-3:])
        raise ProgramError(f"{' '.join(argv)!r} ended with exit code {done.returncode}: {tail}")
    return output
