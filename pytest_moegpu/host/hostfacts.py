"""The system beside its GPUs: memory, disk, what container this is, and which NVIDIA kernel module is loaded."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import psutil

from pytest_moegpu.core.machine import Host
from pytest_moegpu.host.stack import host_facts, os_class

__all__ = ["container_runner", "loaded_module", "nvidia_signs", "read_host"]

_MARKS = (("docker", "/.dockerenv"), ("podman", "/run/.containerenv"), ("apptainer", "/.singularity.d"))
_VARIABLES = (
    ("kubernetes", "KUBERNETES_SERVICE_HOST"),
    ("apptainer", "APPTAINER_CONTAINER"),
    ("apptainer", "SINGULARITY_CONTAINER"),
)
_NVIDIA_VENDOR = "0x10de"
_CGROUP = Path("sys/fs/cgroup")


def read_host(folder: Path, environment: Mapping[str, str], root: Path = Path("/")) -> Host:
    """Describe the system; `folder` is where runs are kept, or will be, and whose disk is looked at."""
    total, free = _memory(root)
    there = next((path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()), None)
    facts = host_facts()
    return Host(
        os_class=os_class(),
        kernel=facts["kernel"],
        title=facts["os"],
        processor=f"{facts['processor']}, {os.cpu_count() or '?'} threads",
        runner=container_runner(environment, root),
        ram_total_bytes=total,
        ram_free_bytes=free,
        disk_free_bytes=_disk_free(there),
        disk_folder=str(there or folder),
    )


def _disk_free(folder: Path | None) -> int | None:
    try:
        return shutil.disk_usage(folder).free if folder is not None else None
    except OSError:
        return None


def container_runner(environment: Mapping[str, str], root: Path = Path("/")) -> str | None:
    """Return what made the container that this process is in, such as docker; None where nothing says so."""
    named = [runner for runner, name in _VARIABLES if environment.get(name)]
    marked = [runner for runner, mark in _MARKS if (root / mark.lstrip("/")).exists()]
    # systemd's own name for it; podman and nspawn set it.
    told = environment.get("container", "")
    return next(iter((*named, *marked)), told or None)


def _memory(root: Path) -> tuple[int | None, int | None]:
    """Return total and available bytes; a container's limit counts where it is lower (cgroup v2, else v1)."""
    memory = psutil.virtual_memory()
    total, free = int(memory.total), int(memory.available)
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit, used = _number(root / _CGROUP / limit_file), _number(root / _CGROUP / used_file)
        if limit is not None and limit < total:
            return limit, min(free, limit - used) if used is not None else free
    return total, free


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    # "max" where there is no limit.
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def loaded_module(root: Path = Path("/")) -> tuple[str | None, bool | None]:
    """Return version of the loaded NVIDIA kernel module, and whether it is the open one; None: not loaded or hidden."""
    line = _text(root / "proc/driver/nvidia/version").partition("\n")[0]
    version = re.search(r"\b\d{3,}(?:\.\d+)+", line) or re.search(
        r"\d{3,}(?:\.\d+)+", _text(root / "sys/module/nvidia/version")
    )
    return (version[0] if version else None), ("Open Kernel Module" in line if line else None)


def nvidia_signs(root: Path = Path("/")) -> tuple[str, ...]:
    """Return what says that there is an NVIDIA GPU, whatever its driver: kernel module, device files, PCI devices."""
    if platform.system() == "Windows":
        return ()
    signs = [] if loaded_module(root)[0] is None else ["its kernel module is loaded"]
    if (root / "dev/nvidiactl").exists() or any((root / "dev").glob("nvidia[0-9]*")):
        signs.append("/dev/nvidia* is there")
    if (root / "dev/dxg").exists():
        signs.append("/dev/dxg of WSL2 is there")
    # Classes 0x03….: displays and 3D controllers, not the sound or USB parts of a card.
    cards = [
        device
        for device in (root / "sys/bus/pci/devices").glob("*")
        if _text(device / "vendor").strip() == _NVIDIA_VENDOR and _text(device / "class").startswith("0x03")
    ]
    return (*signs, *(f"PCI device {card.name}" for card in cards))
