"""The loop in C on top of the stand-in for the driver's library: the same samples as Python's, and its ends."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.nvml_library import FakeNvmlLibrary, driver, h200, instance, rtx3090

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in for libnvidia-ml is built for Linux")

TWO_PHASES = (("load", 0.3), ("decode", 0.4))
ONES = """
nvmlDeviceGetMemoryInfo_v2              0 @3 ok total=150754820096 reserved=ones free=ones used=ones
nvmlDeviceGetMemoryInfo_v2              0 @9 ok total=150754820096 reserved=7 free=8 used=9
nvmlDeviceGetClockInfo                  0 ok sm=ones mem=ones
nvmlDeviceGetCurrentClocksEventReasons  0 ok value=ones
nvmlDeviceGetUtilizationRates           0 ok gpu=ones memory=ones
nvmlDeviceGetPowerUsage                 0 ok value=ones
nvmlDeviceGetTotalEnergyConsumption     0 ok value=ones
nvmlDeviceGetTemperatureV               0 ok value=ones
nvmlDeviceGetCurrPcieLinkGeneration     0 ok value=ones
nvmlDeviceGetCurrPcieLinkWidth          0 ok value=0
"""
MOVING = "".join(
    f"nvmlDeviceGetMemoryInfo_v2 0 @{call} ok total=150754820096 reserved=1 free=2 used={call * 4096}\n"
    f"nvmlDeviceGetCurrentClocksEventReasons 0 @{call} ok value={call}\n"
    f"nvmlDeviceGetTotalEnergyConsumption 0 @{call} ok value={call * 1000}\n"
    for call in range(1, 60)
)
MIG = driver(1) + h200() + instance("0/0", "MIG-aaaa1111-0000-5000-8000-000000000001")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> FakeNvmlLibrary:
    if shutil.which("cc") is None:
        pytest.fail("these tests need a C compiler: on Debian or Ubuntu `apt-get install gcc libc6-dev`")
    return FakeNvmlLibrary(folder=tmp_path_factory.mktemp("nvml")).build()


def in_python(library: FakeNvmlLibrary, rows: str, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the probe reads at the times and in the phases of these samples."""
    moments = {sample["time"]: sample["phase"] for sample in samples}
    readings = library.read(rows, times=list(moments), phases=list(moments.values()))["readings"]
    return [sample for reading in readings for sample in reading]


class TestSameAsPython:
    @pytest.mark.parametrize(
        "rows",
        [
            driver(1) + h200(),
            driver(2) + h200("0") + rtx3090("1"),
            driver(1) + h200() + ONES,
            driver(1) + h200() + MOVING,
        ],
        ids=["one", "two", "ones", "moving"],
    )
    def test_every_sample(self, library: FakeNvmlLibrary, rows: str) -> None:
        said = library.sample(rows, TWO_PHASES)
        assert (said["native"], said["notes"], said["error"]) == (True, [], None)
        assert len(said["samples"]) >= 30
        assert {sample["phase"] for sample in said["samples"]} == {"load", "decode"}
        assert said["samples"] == in_python(library, rows, said["samples"])

    @pytest.mark.parametrize(
        "without",
        [
            ("nvmlDeviceGetMemoryInfo_v2",),
            ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTemperatureV"),
            ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetUtilizationRates"),
        ],
    )
    def test_every_sample_of_a_library_that_lacks_functions(self, tmp_path: Path, without: tuple[str, ...]) -> None:
        old = FakeNvmlLibrary(folder=tmp_path, without=without).build()
        rows = driver(1) + h200()
        rows += "nvmlDeviceGetCurrentClocksThrottleReasons 0 ok value=0x20\nnvmlDeviceGetTemperature 0 ok value=64\n"
        said = old.sample(rows, TWO_PHASES)
        assert (said["native"], said["error"]) == (True, None)
        assert said["samples"] == in_python(old, rows, said["samples"])

    def test_what_a_device_does_not_give_is_not_known_and_does_not_stop_it(self, library: FakeNvmlLibrary) -> None:
        rows = driver(1) + h200()
        rows += "nvmlDeviceGetPowerUsage 0 NOT_SUPPORTED\nnvmlDeviceGetCurrPcieLinkWidth 0 NO_PERMISSION\n"
        rows += "nvmlDeviceGetCurrentClocksEventReasons 0 NOT_SUPPORTED\n"
        rows += "nvmlDeviceGetCurrentClocksThrottleReasons 0 ok value=0x20\n"
        said = library.sample(rows, TWO_PHASES)
        assert said["error"] is None
        known: dict[str, set[Any]] = {}
        for sample in said["samples"]:
            for name, value in sample.items():
                known.setdefault(name, set()).update({value} - {None})
        assert (known["power_watts"], known["pcie_width"]) == (set(), set())
        assert (known["event_reasons"], known["sm_clock_mhz"], known["temperature_c"]) == ({0x20}, {1980}, {31})
        reasons = [sample for sample in said["samples"] if sample["event_reasons"] is not None]
        assert len(reasons) > len(said["samples"]) / 8

    def test_an_instance_of_a_gpu(self, library: FakeNvmlLibrary) -> None:
        said = library.sample(MIG + "nvmlDeviceGetPowerUsage 0/0 INVALID_ARGUMENT\n")
        assert (said["native"], said["error"]) == (True, None)
        assert said["samples"] == in_python(library, MIG, said["samples"])
        assert {sample["reserved_bytes"] for sample in said["samples"]} == {16_777_216}


class TestErrors:
    @pytest.mark.parametrize("code", ["GPU_IS_LOST", "RESET_REQUIRED", "UNKNOWN", "TIMEOUT"])
    def test_a_gpu_that_fails_in_the_middle(self, library: FakeNvmlLibrary, code: str) -> None:
        # The first two calls are those of the start and of `devices`.
        rows = driver(1) + h200() + f"nvmlDeviceGetMemoryInfo_v2 0 @12 {code}\n"
        said = library.sample(rows)
        assert (said["native"], len(said["samples"])) == (True, 9)
        (python,) = library.read(driver(1) + h200() + f"nvmlDeviceGetMemoryInfo_v2 0 @3 {code}\n")["readings"]
        assert said["error"] == {"kind": python["kind"], "error": python["error"]}

    def test_an_instance_that_is_taken_away(self, library: FakeNvmlLibrary) -> None:
        said = library.sample(MIG + "nvmlDeviceGetMemoryInfo_v2 0/0 @30 INVALID_ARGUMENT\n", (("decode", 0.6),))
        assert said["native"]
        assert "nvmlDeviceGetMemoryInfo: " in said["error"]["error"]

    def test_a_field_that_is_lost_is_an_error_too(self, library: FakeNvmlLibrary) -> None:
        said = library.sample(driver(1) + h200() + "nvmlDeviceGetClockInfo 0 @4 GPU_IS_LOST\n", (("decode", 0.5),))
        assert said["error"]["kind"] == "lost"
        assert "nvmlDeviceGetClockInfo" in said["error"]["error"]

    def test_a_single_failure_costs_no_reading(self, library: FakeNvmlLibrary) -> None:
        once = "nvmlDeviceGetMemoryInfo_v2 0 @12 UNKNOWN\n"
        once += "nvmlDeviceGetMemoryInfo_v2 0 @13 ok total=150754820096 reserved=1 free=2 used=13\n"
        said = library.sample(driver(1) + h200() + once)
        assert said["error"] is None
        assert [sample["used_bytes"] for sample in said["samples"]][8:11] == [0, 13, 13]

    def test_a_driver_that_does_not_answer(self, library: FakeNvmlLibrary) -> None:
        rows = driver(1) + h200()
        rows += "nvmlDeviceGetMemoryInfo_v2 0 @6 ok total=150754820096 reserved=1 free=2 used=3 sleep=2500\n"
        said = library.sample(rows, timeout=0.1)
        assert said["error"]["error"] == "the nvml probe has not answered for 0.1 s"
        assert len(said["samples"]) == 3
        assert said["gap"] >= 0.2


class TestLife:
    def test_samplings_one_after_the_other(self, library: FakeNvmlLibrary) -> None:
        said = library.sample(driver(1) + h200(), samplings=3)
        assert (said["native"], said["error"], said["threads"]) == (True, None, ["MainThread"])
        # Every sampling begins with a reading of all there is.
        assert {name for name, value in said["samples"][0].items() if value is None} == {
            "host_bytes",
            "host_free_bytes",
        }

    def test_it_reads_on_while_python_does_nothing_else(self, library: FakeNvmlLibrary) -> None:
        said = library.sample(driver(1) + h200(), (("decode", 0.1),), hold=0.6)
        slow = library.sample(driver(1) + h200(), (("decode", 0.1),), hold=0.6, native=False)
        assert (said["native"], slow["native"]) == (True, False)
        assert slow["gap"] >= 0.5
        assert said["gap"] < 0.3
        assert slow["notes"] == ["the sampler runs in Python: MOEGPU_NATIVE=0; it takes about 1.3 % of a core"]

    def run(self, library: FakeNvmlLibrary, script: str) -> str:
        code = (
            "import os, subprocess, sys, time\n"
            "from pytest_moegpu.host.nvmlprobe import NvmlProbe\n"
            "from pytest_moegpu.host.sampler import Sampler\n"
            "probe = NvmlProbe()\n"
            "sampler = Sampler(probe)\n"
            "sampler.start()\n"
            f"{script}"
        )
        environment = library.environment(driver(1) + h200())
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.strip()

    def test_a_process_ends_whose_sampler_was_never_stopped(self, library: FakeNvmlLibrary) -> None:
        assert self.run(library, "time.sleep(0.1); print(len(sampler.samples) > 3)") == "True"

    def test_children_do_not_disturb_it(self, library: FakeNvmlLibrary) -> None:
        script = (
            "before = len(sampler.samples)\n"
            "for _ in range(3): subprocess.run(['/bin/sleep', '0.05'], check=True)\n"
            "sampler.stop()\n"
            "print(len(sampler.samples) - before > 5, sampler.error)\n"
        )
        assert self.run(library, script) == "True None"

    def test_a_forked_child_ends_by_itself_and_the_parent_reads_on(self, library: FakeNvmlLibrary) -> None:
        script = (
            "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n"
            "time.sleep(0.05)\n"
            "if not (pid := os.fork()): sys.exit(3)\n"
            "code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
            "before = len(sampler.samples); time.sleep(0.1)\n"
            "sampler.stop()\n"
            "print(code, len(sampler.samples) > before, sampler.error)\n"
        )
        assert self.run(library, script) == "3 True None"
