"""`moegpu doctor` on a stand-in for libnvidia-ml, read by the real binding in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.nvml_library import RTX_UUID, FakeNvmlLibrary, driver, h200, instance, rtx3090

ROOT = Path(__file__).parents[2]
RUN = (
    "import sys; from pytest_moegpu.core.doctorargs import DoctorOrder; from pytest_moegpu.session.doctor import run\n"
    "sys.exit(run(DoctorOrder(json=True, devices=tuple(sys.argv[1:])), sys.stdout, sys.stderr))"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> FakeNvmlLibrary:
    return FakeNvmlLibrary(folder=tmp_path_factory.mktemp("nvml")).build()


def said_of(library: FakeNvmlLibrary, rows: str, *devices: str, **variables: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", RUN, *devices],
        cwd=ROOT,
        env={**library.environment(rows), "PATH": "/usr/bin:/bin", "MOEGPU_CACHE": "/nonexistent", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_two_cards_of_which_one_is_chosen(library: FakeNvmlLibrary) -> None:
    rows = driver(2) + rtx3090("0") + h200("1")
    code, said = said_of(library, rows)
    assert [gpu["name"] for gpu in said["gpus"]] == ["NVIDIA GeForce RTX 3090", "NVIDIA H200"]
    assert code == 1
    for chosen in (said_of(library, rows, "1"), said_of(library, rows, CUDA_VISIBLE_DEVICES="1")):
        code, said = chosen
        assert [gpu["name"] for gpu in said["gpus"]] == ["NVIDIA H200"]
        assert (code, fired(said)) == (0, {})
    code, said = said_of(library, rows, RTX_UUID)
    assert fired(said)["power-limit-lowered"] == "note"
    assert said["facts"]["gpu.power_limited"] == ["0: 280 W of 350 W"]


def test_a_mismatch_asks_for_a_reboot(library: FakeNvmlLibrary) -> None:
    code, said = said_of(library, driver(1) + h200() + "nvmlInitWithFlags - LIB_RM_VERSION_MISMATCH\n")
    assert (code, fired(said)) == (2, {"driver-library-mismatch": "blocking"})
    assert (said["driver"]["mismatch"], said["driver"]["library"]) == (True, "580.159.04")


def test_a_mig_instance_is_read_as_the_device(library: FakeNvmlLibrary) -> None:
    _, said = said_of(library, driver(1) + h200() + instance("0/0", "MIG-1"))
    (gpu,) = said["gpus"]
    assert (gpu["name"], gpu["mig"], said["facts"]["gpu.mig"]) == ("NVIDIA H200 MIG 1g.18gb", True, True)
    assert said["facts"]["gpu.family"] == "datacenter"


def test_a_divided_gpu_without_an_instance_blocks(library: FakeNvmlLibrary) -> None:
    rows = driver(1) + h200() + "nvmlDeviceGetMigMode 0 ok current=1 pending=1\n"
    code, said = said_of(library, rows + "nvmlDeviceGetMaxMigDeviceCount 0 ok value=7\n")
    assert code == 2
    assert "it has no instances" in said["driver"]["problem"]


def fired(said: dict[str, Any]) -> dict[str, str]:
    return {finding["id"]: finding["severity"] for finding in said["findings"]}
