"""The CUDA toolkits that are installed: what would compile kernels on this machine, not what runs them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_moegpu.core.machine import Toolkit, toolkit_release
from pytest_moegpu.host.command import run_command

__all__ = ["installed_toolkits"]

_ROOTS = (Path("/usr/local"), Path("/opt"))
_NVCC = re.compile(r"release [\d.]+, V(\d+\.\d+\.\d+)")
_TEXT = re.compile(r"CUDA Version (\d+\.\d+(?:\.\d+)?)")
_SECONDS = 5.0


def installed_toolkits(
    environment: Mapping[str, str], roots: tuple[Path, ...] = _ROOTS
) -> tuple[tuple[Toolkit, ...], tuple[str, ...]]:
    """Find toolkits: folders `cuda*` of `roots`, CUDA_HOME and CUDA_PATH, and the nvcc on PATH.

    A folder says its version in `version.json` (CUDA 11.1 and newer) or `version.txt`, else its nvcc is asked.

    Returns:
        The toolkits, each folder once, and why the version of one could not be read.
    """
    found: dict[Path, str] = {}
    problems = []
    for folder in dict.fromkeys(_folders(environment, roots)):
        version = _stated(folder)
        nvcc = folder / "bin" / "nvcc"
        if version is None and nvcc.is_file():
            version, problem = _asked(nvcc)
            problems += [problem] if problem else []
        if version is not None:
            found[folder] = version
    path = shutil.which("nvcc", path=environment.get("PATH", ""))
    if path is not None and Path(path).resolve().parent.parent not in found:
        version, problem = _asked(Path(path))
        problems += [problem] if problem else []
        # On PATH there may be a script that starts the one found already.
        if version is not None and version not in found.values():
            found[Path(path)] = version
    toolkits = tuple(Toolkit(version=version, place=str(place)) for place, version in found.items())
    return toolkits, tuple(problems)


def _folders(environment: Mapping[str, str], roots: tuple[Path, ...]) -> Iterator[Path]:
    named = [Path(environment[name]) for name in ("CUDA_HOME", "CUDA_PATH") if environment.get(name)]
    for folder in (*named, *(path for root in roots for path in sorted(root.glob("cuda*")))):
        if folder.is_dir():
            yield folder.resolve()


def _stated(folder: Path) -> str | None:
    try:
        told = json.loads((folder / "version.json").read_text(encoding="utf-8"))
        version = told["cuda"]["version"]
        return version if isinstance(version, str) else None
    except (OSError, ValueError, LookupError, TypeError):
        pass
    try:
        match = _TEXT.search((folder / "version.txt").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return match[1] if match else None


def _asked(nvcc: Path) -> tuple[str | None, str]:
    try:
        done = run_command((str(nvcc), "--version"), seconds=_SECONDS)
    except subprocess.TimeoutExpired:
        return None, f"{nvcc} --version did not answer within {_SECONDS:.0f} s"
    except OSError as error:
        return None, f"{nvcc} cannot be run: {error}"
    match = _NVCC.search(done.stdout)
    return (toolkit_release(match[1]), "") if match else (None, f"{nvcc} --version says no version")
