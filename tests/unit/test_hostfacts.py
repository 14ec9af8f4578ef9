"""The system beside its GPUs."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from pytest_moegpu.host.hostfacts import container_runner, loaded_module, nvidia_signs, read_host

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@host)\nGCC version: 13\n"
)
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 16 2026\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(("text", "expected"), [(OPEN, ("580.95.05", True)), (CLOSED, ("570.86.15", False))])
def test_the_loaded_module_says_its_version_and_kind(tmp_path: Path, text: str, expected: tuple[str, bool]) -> None:
    write(tmp_path / "proc/driver/nvidia/version", text)
    assert loaded_module(tmp_path) == expected


def test_a_module_that_only_sysfs_shows_is_of_unknown_kind(tmp_path: Path) -> None:
    write(tmp_path / "sys/module/nvidia/version", "580.95.05\n")
    assert loaded_module(tmp_path) == ("580.95.05", None)
    assert loaded_module(tmp_path / "elsewhere") == (None, None)


def test_a_card_without_a_driver_is_seen_on_the_bus(tmp_path: Path) -> None:
    assert nvidia_signs(tmp_path) == ()
    for address, vendor, kind in (
        ("0000:01:00.0", "0x10de", "0x030000"),
        # The card's sound, another maker's card.
        ("0000:01:00.1", "0x10de", "0x040300"),
        ("0000:02:00.0", "0x8086", "0x030000"),
    ):
        write(tmp_path / "sys/bus/pci/devices" / address / "vendor", f"{vendor}\n")
        write(tmp_path / "sys/bus/pci/devices" / address / "class", f"{kind}\n")
    assert nvidia_signs(tmp_path) == ("PCI device 0000:01:00.0",)
    write(tmp_path / "dev/nvidiactl", "")
    write(tmp_path / "proc/driver/nvidia/version", OPEN)
    assert nvidia_signs(tmp_path)[:2] == ("its kernel module is loaded", "/dev/nvidia* is there")


@pytest.mark.parametrize(
    ("mark", "environment", "runner"),
    [
        ("", {}, None),
        (".dockerenv", {}, "docker"),
        ("run/.containerenv", {"container": "podman"}, "podman"),
        (".dockerenv", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ("", {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
        ("", {"container": "systemd-nspawn"}, "systemd-nspawn"),
    ],
)
def test_what_made_the_container(tmp_path: Path, mark: str, environment: dict[str, str], runner: str | None) -> None:
    if mark:
        write(tmp_path / mark, "")
    assert container_runner(environment, tmp_path) == runner


def test_the_limit_of_a_container_is_its_memory(tmp_path: Path) -> None:
    write(tmp_path / "sys/fs/cgroup/memory.max", "1073741824\n")
    write(tmp_path / "sys/fs/cgroup/memory.current", "1000000000\n")
    host = read_host(tmp_path, {}, tmp_path)
    assert (host.ram_total_bytes, host.ram_free_bytes) == (2**30, 73_741_824)


def test_without_a_limit_it_is_the_machines_memory(tmp_path: Path) -> None:
    write(tmp_path / "sys/fs/cgroup/memory.max", "max\n")
    host = read_host(tmp_path, {}, tmp_path)
    assert host.ram_total_bytes == psutil.virtual_memory().total
    assert host.ram_free_bytes is not None
    assert 0 < host.ram_free_bytes <= host.ram_total_bytes


def test_the_disk_is_that_of_the_nearest_folder_that_is_there(tmp_path: Path) -> None:
    host = read_host(tmp_path / "not" / "yet", {}, tmp_path)
    assert host.disk_folder == str(tmp_path)
    assert host.disk_free_bytes is not None
    assert host.disk_free_bytes > 0
