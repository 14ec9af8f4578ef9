"""Collects what this machine is: host, driver, GPUs, toolkits, variables. Starts nothing but `nvcc --version`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_moegpu.core.evidence import DeviceProcess
from pytest_moegpu.core.facts import acts_on_engines
from pytest_moegpu.core.machine import Driver, Machine, Toolkit
from pytest_moegpu.core.model import Gpu
from pytest_moegpu.errors import DeviceError, MoegpuError, ProbeError
from pytest_moegpu.host.hostfacts import loaded_module, nvidia_signs, read_host
from pytest_moegpu.host.nvmldisplay import displays
from pytest_moegpu.host.nvmlprobe import NvmlProbe
from pytest_moegpu.host.toolkits import installed_toolkits

__all__ = ["FoundGpus", "examine_machine", "read_gpus", "toolkits_here", "variables"]

# As the probe says it where both are known.
_LIBRARY = re.compile(r"\blibrary (\d{3,}(?:\.\d+)+)")


def examine_machine(
    runs: Path, devices: Sequence[str] = (), environment: Mapping[str, str] | None = None, root: Path = Path("/")
) -> Machine:
    """Describe the machine with the GPUs that a run would use.

    Args:
        runs: Folder where runs are kept.
        devices: GPUs by index or UUID; none: those that CUDA_VISIBLE_DEVICES lets through, else all.
        environment: Variables; None: those of this process.
        root: Where the system's files are.

    Raises:
        DeviceError: A device asked for does not exist.
    """
    environment = os.environ if environment is None else environment
    found = read_gpus(devices, environment.get("CUDA_VISIBLE_DEVICES"), root)
    toolkits, unknown = toolkits_here(environment)
    return Machine(
        host=read_host(runs, environment, root),
        driver=found.driver,
        gpus=found.gpus,
        processes=found.processes,
        displays=displays([gpu.index for gpu in found.gpus]) if found.gpus else None,
        toolkits=toolkits,
        environment=variables(environment),
        unknown=(*found.unknown, *unknown),
    )


def toolkits_here(environment: Mapping[str, str]) -> tuple[tuple[Toolkit, ...], tuple[str, ...]]:
    """Find the installed toolkits, and say what of them is not known."""
    toolkits, problems = installed_toolkits(environment)
    return toolkits, tuple(f"version of a toolkit: {problem}" for problem in problems)


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that engines act on, without secrets."""
    return {name: value for name, value in sorted(environment.items()) if acts_on_engines(name)}


@dataclass(frozen=True, kw_only=True)
class FoundGpus:
    """What NVML said, or why it said nothing."""

    driver: Driver
    gpus: tuple[Gpu, ...] = ()
    processes: tuple[DeviceProcess, ...] | None = None
    unknown: tuple[str, ...] = ()


def read_gpus(devices: Sequence[str], visible: str | None, root: Path = Path("/")) -> FoundGpus:
    """Read the driver and the GPUs chosen; a driver that cannot be used is an answer too.

    Raises:
        DeviceError: A device asked for does not exist.
    """
    loaded, is_open = loaded_module(root)
    driver = Driver(loaded=loaded, open_module=is_open)
    try:
        probe = NvmlProbe(devices, visible)
    except DeviceError as error:
        if devices:
            raise
        # CUDA_VISIBLE_DEVICES may hide all, or a divided GPU have no instance: the driver itself is well.
        return FoundGpus(driver=replace(driver, problem=str(error)))
    except ProbeError as error:
        return FoundGpus(driver=_unusable(driver, error, root, asked=bool(devices)))
    try:
        return _read(probe, driver)
    except MoegpuError as error:
        return FoundGpus(driver=replace(driver, problem=str(error)))
    finally:
        probe.close()


def _read(probe: NvmlProbe, driver: Driver) -> FoundGpus:
    versions = probe.versions()
    driver = replace(driver, version=versions.get("driver"), cuda=versions.get("cuda_driver"))
    gpus = probe.devices()
    unknown = []
    processes: tuple[DeviceProcess, ...] | None = None
    try:
        processes = probe.processes()
    except ProbeError as error:
        if error.kind != "no-permission":
            raise
        unknown.append(f"who uses the GPU: {error}")
    if driver.cuda is None:
        unknown.append("the newest CUDA of the driver: libcuda cannot be asked")
    return FoundGpus(driver=driver, gpus=gpus, processes=processes, unknown=tuple(unknown))


def _unusable(driver: Driver, error: ProbeError, root: Path, *, asked: bool) -> Driver:
    signs = nvidia_signs(root)
    if error.kind in ("no-library", "no-device") and not signs and not asked:
        return replace(driver, absent=f"{error}")
    library = _LIBRARY.search(str(error))
    words = f"{error} (there is an NVIDIA GPU: {'; '.join(signs)})" if error.kind == "no-library" else str(error)
    return replace(
        driver, problem=words, mismatch=error.kind == "mismatch", library=library[1] if library is not None else None
    )
