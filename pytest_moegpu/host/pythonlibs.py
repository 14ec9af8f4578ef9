"""The packages of the Python that a program runs in, by the names of their metadata folders: nothing is imported."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["is_python_program", "library_versions", "package_folders", "packages", "torch_cuda"]

_METADATA = re.compile(r"(?P<name>[A-Za-z0-9._]+?)-(?P<version>[0-9][^-]*)\.dist-info")
_SITES = ("lib/python3*/site-packages", "lib64/python3*/site-packages", "lib/python3*/dist-packages")
_INTERPRETER = re.compile(r"python(3(\.\d+)?)?(\.exe)?")
_TORCH_CUDA = re.compile(r"^cuda\b[^=]*= *['\"](\d+\.\d+)['\"]", re.MULTILINE)
_MOST_BYTES = 65_536
_LIBRARIES = {
    "torch": ("torch",),
    "flashinfer": ("flashinfer-python",),
    "triton": ("triton",),
    "cudnn": ("nvidia-cudnn", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "cublas": ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"),
    "nccl": ("nvidia-nccl", "nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    "cudart": ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12"),
}


def is_python_program(program: Sequence[str]) -> bool:
    """Tell whether a program is an interpreter, or a script of one or of a shell, rather than machine code."""
    return _INTERPRETER.fullmatch(Path(program[0]).name) is not None or _shebang(Path(program[0])) is not None


def package_folders(program: Sequence[str], environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return where a program's Python has packages: PYTHONPATH, its own folders, and those that `.pth` files add."""
    own = [Path(part) for part in environment.get("PYTHONPATH", "").split(":") if part]
    first = Path(program[0])
    interpreter = first if _INTERPRETER.fullmatch(first.name) else _interpreter(first, environment)
    # An environment's interpreter is a link to another Python, so it is taken where it stands.
    bins = dict.fromkeys(path.parent for path in (interpreter, first) if path is not None)
    own += [site for bin_ in bins for pattern in _SITES for site in sorted(bin_.parent.glob(pattern))]
    added = [path for folder in own for path in _added(folder)]
    return tuple(dict.fromkeys(folder for folder in (*own, *added) if folder.is_dir()))


def _shebang(program: Path) -> list[str] | None:
    try:
        with program.open("rb") as file:
            line = file.readline(1024)
    except OSError:
        return None
    try:
        return shlex.split(line[2:].decode(errors="replace")) if line.startswith(b"#!") else None
    except ValueError:
        return None


def _interpreter(program: Path, environment: Mapping[str, str]) -> Path | None:
    words = _shebang(program) or []
    if words[1:] and Path(words[0]).name == "env":
        found = shutil.which(words[-1], path=environment.get("PATH", ""))
        words = [found] if found else []
    return Path(words[0]) if words and _INTERPRETER.fullmatch(Path(words[0]).name) else None


def _added(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.glob("*.pth")) if folder.is_dir() else ():
        try:
            lines = file.read_text(encoding="utf-8", errors="replace")[:_MOST_BYTES].splitlines()
        except OSError:
            continue
        # Lines of code and comments add nothing that is known without running them.
        yield from (folder / line for line in lines if line and not line.startswith(("#", "import ", "import\t")))


def packages(folders: Sequence[Path]) -> dict[str, str]:
    """Return version by normalised name (PEP 503) of every installed package; the first folder that has one wins."""
    found: dict[str, str] = {}
    for folder in folders:
        for entry in sorted(folder.glob("*.dist-info")):
            if match := _METADATA.fullmatch(entry.name):
                found.setdefault(re.sub(r"[-_.]+", "-", match["name"]).lower(), match["version"])
    return found


def library_versions(installed: Mapping[str, str]) -> dict[str, str]:
    """Return version by short name of the libraries that decide what an engine computes with."""
    pairs = ((short, name) for short, names in _LIBRARIES.items() for name in names if name in installed)
    return {short: installed[name] for short, name in reversed(list(pairs))}


def torch_cuda(folders: Sequence[Path]) -> str | None:
    """Return the CUDA that the installed torch was built for, such as 13.0; None: for a processor, or no torch."""
    for folder in folders:
        try:
            text = (folder / "torch" / "version.py").read_text(encoding="utf-8", errors="replace")[:_MOST_BYTES]
        except OSError:
            continue
        match = _TORCH_CUDA.search(text)
        return match[1] if match else None
    return None
