"""A machine and an engine as they were found, before anything is started on the one or with the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_moegpu.core.evidence import DeviceProcess
from pytest_moegpu.core.model import Gpu

__all__ = ["Built", "Driver", "FoundEngine", "Host", "Machine", "Toolkit", "toolkit_release"]

# nvcc says its own build, the release notes and rules say the toolkit's number. Only of these is it told which is which
# (https://github.com/unslothai/unsloth/issues/4849); any other build is larger than every number of an update.
_RELEASES = {"13.2.51": "13.2.0", "13.2.78": "13.2.1", "13.2.86": "13.2.2"}


def toolkit_release(build: str) -> str:
    """Return the release of a toolkit for the build its compiler names (13.2.51: 13.2.0), or that build itself."""
    return _RELEASES.get(build, build)


@dataclass(frozen=True, kw_only=True)
class Toolkit:
    """A CUDA toolkit that is installed: its version, as `version.json` or `nvcc --version` has it, and where."""

    version: str
    place: str


@dataclass(frozen=True, kw_only=True)
class Host:
    """The system beside its GPUs; sizes in bytes, of the container where that has a limit.

    `disk_free_bytes` is of the folder where runs are kept. `runner` is what made the container that this is.
    """

    os_class: str
    kernel: str
    title: str = ""
    processor: str = ""
    runner: str | None = None
    ram_total_bytes: int | None = None
    ram_free_bytes: int | None = None
    disk_free_bytes: int | None = None
    disk_folder: str = ""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The NVIDIA driver.

    Args:
        version: As NVML tells it.
        cuda: The newest CUDA it serves, such as 13.0.
        loaded: Version of the kernel module that is loaded.
        library: Version of the library, where it is told because it differs.
        open_module: Whether the open kernel module is loaded.
        problem: Why NVML cannot be used; empty when it can, or when there is no NVIDIA GPU at all.
        mismatch: Module and library differ; only a reboot, or loading the module anew, helps.
        absent: Why there is nothing to read: no driver and no sign of an NVIDIA GPU; empty otherwise.
    """

    version: str | None = None
    cuda: str | None = None
    loaded: str | None = None
    library: str | None = None
    open_module: bool | None = None
    problem: str = ""
    mismatch: bool = False
    absent: str = ""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What was found. `gpus` are those chosen, `displays` the indexes of those with a display; None: not known.

    `environment` holds the variables that engines act on, None where it is that of something else, as in a container.
    `unknown` says what could not be read and why.
    """

    host: Host
    driver: Driver = Driver()
    gpus: tuple[Gpu, ...] = ()
    processes: tuple[DeviceProcess, ...] | None = None
    displays: tuple[int, ...] | None = None
    toolkits: tuple[Toolkit, ...] | None = None
    environment: Mapping[str, str] | None = None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Built:
    """What the files of a program say of how it was built.

    Args:
        toolkits: Releases of the CUDA compilers that its kernels name, mostly one.
        cuda_runtime: The CUDA it brings or asks for: a full version, or only the first number.
        architectures: Compute capabilities there are kernels for: `9.0`, `9.0a` for this one only, `12.0+ptx` for what
            the driver compiles for newer ones; None where that is not known, empty where it has no kernels.
        libraries: CUDA libraries and Python packages beside it, by short name.
        package: Version of its Python package.
        unknown: What could not be read, and why.
    """

    toolkits: tuple[str, ...] = ()
    cuda_runtime: str | None = None
    architectures: tuple[str, ...] | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)
    package: str | None = None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FoundEngine:
    """A server program. `source` says where it was given; `problem` what keeps it from running, `hint` what helps."""

    backend: str
    program: tuple[str, ...] = ()
    source: str = ""
    version: str | None = None
    build: str | None = None
    toolkit: str | None = None
    image: str | None = None
    built: Built = Built()
    problem: str = ""
    hint: str = ""
