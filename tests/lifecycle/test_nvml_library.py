"""The real binding and the probe on top of a shared library that stands in for the driver's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.nvml_library import H200_UUID, RTX_UUID, FakeNvmlLibrary, driver, h200, instance, rtx3090

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in for libnvidia-ml is built for Linux")

MIG = ("MIG-aaaa1111-0000-5000-8000-000000000001", "MIG-bbbb2222-0000-5000-8000-000000000002")
GONE = 2**22 - 1
"""A pid that no process of this namespace has: the limit of 64-bit kernels is one more."""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> FakeNvmlLibrary:
    if shutil.which("cc") is None:
        pytest.fail("these tests need a C compiler: on Debian or Ubuntu `apt-get install gcc libc6-dev`")
    return FakeNvmlLibrary(folder=tmp_path_factory.mktemp("nvml")).build()


def lacking(folder: Path, *without: str) -> FakeNvmlLibrary:
    return FakeNvmlLibrary(folder=folder, without=without).build()


def one(said: dict[str, Any]) -> dict[str, Any]:
    ((sample,),) = said["readings"]
    assert isinstance(sample, dict)
    return sample


def known(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value is not None}


class TestFields:
    def test_every_field_of_an_h200(self, library: FakeNvmlLibrary) -> None:
        said = library.read(driver(1) + h200())
        assert said["devices"] == [
            {
                "index": 0,
                "name": "NVIDIA H200",
                "memory_bytes": 143_771 * 1024**2,
                "kind": "gpu",
                "uuid": H200_UUID,
                "compute_capability": "9.0",
                "power_limit_watts": 700.0,
                "power_default_watts": 700.0,
                "mig": False,
                "ecc": True,
                "persistence": True,
                "pci_bus_id": "00000000:0F:00.0",
                "pcie_generation_max": 5,
                "pcie_width_max": 16,
                "vbios": "96.00.A5.00.01",
                "cuda_name": "0",
                "emulated_on": None,
            }
        ]
        assert said["versions"] == {"driver": "580.159.04", "cuda_driver": "13.0"}
        assert known(one(said)) == {
            "time": 0.0,
            "phase": "decode",
            "device": 0,
            "used_bytes": 0,
            "reserved_bytes": 644_939_776,
            "free_bytes": 150_109_880_320,
            "sm_clock_mhz": 1980,
            "memory_clock_mhz": 3201,
            "event_reasons": 1,
            "utilisation": 0.37,
            "power_watts": 76.543,
            "energy_joules": 8_123_456.789,
            "temperature_c": 31,
            "pcie_generation": 5,
            "pcie_width": 16,
        }
        assert said["health"] == [
            {
                "device": 0,
                "ecc_corrected": 2,
                "ecc_uncorrected": 0,
                "rows_remapped_corrected": 0,
                "rows_remapped_uncorrected": 0,
                "remap_pending": False,
                "remap_failed": False,
                "pcie_replays": 3,
                "power_limit_watts": 700.0,
                "temperature_c": 31,
            }
        ]
        assert said["processes"] == []

    def test_a_card_without_ecc_says_not_known_and_never_zero(self, library: FakeNvmlLibrary) -> None:
        said = library.read(driver(1) + rtx3090())
        (gpu,) = said["devices"]
        assert (gpu["ecc"], gpu["mig"], gpu["power_limit_watts"], gpu["power_default_watts"]) == (None, None, 280, 350)
        assert [known(health) for health in said["health"]] == [
            {"device": 0, "pcie_replays": 0, "power_limit_watts": 280.0, "temperature_c": 71}
        ]

    def test_rows_waiting_to_be_remapped(self, library: FakeNvmlLibrary) -> None:
        rows = "nvmlDeviceGetRemappedRows 0 ok corrected=1 uncorrected=2 pending=1 failure=0\n"
        (health,) = library.read(driver(1) + h200() + rows)["health"]
        assert (health["rows_remapped_corrected"], health["rows_remapped_uncorrected"]) == (1, 2)
        assert (health["remap_pending"], health["remap_failed"]) == (True, False)

    def test_all_ones_are_not_known(self, library: FakeNvmlLibrary) -> None:
        rows = """
nvmlDeviceGetMemoryInfo_v2              0 @3 ok total=150754820096 reserved=ones free=ones used=ones
nvmlDeviceGetClockInfo                  0 ok sm=ones mem=ones
nvmlDeviceGetCurrentClocksEventReasons  0 ok value=ones
nvmlDeviceGetUtilizationRates           0 ok gpu=ones memory=ones
nvmlDeviceGetPowerUsage                 0 ok value=ones
nvmlDeviceGetTotalEnergyConsumption     0 ok value=ones
nvmlDeviceGetTemperatureV               0 ok value=ones
nvmlDeviceGetCurrPcieLinkGeneration     0 ok value=ones
nvmlDeviceGetCurrPcieLinkWidth          0 ok value=0
nvmlDeviceGetEnforcedPowerLimit         0 ok value=ones
nvmlDeviceGetTotalEccErrors             0 ok corrected=ones uncorrected=ones
nvmlDeviceGetRemappedRows               0 ok corrected=ones uncorrected=ones pending=ones failure=ones
nvmlDeviceGetPcieReplayCounter          0 ok value=ones
nvmlDeviceGetComputeRunningProcesses_v3 0 ok pid=4194303 used=ones
"""
        said = library.read(driver(1) + h200() + rows)
        assert known(one(said)) == {"time": 0.0, "phase": "decode", "device": 0}
        assert [known(health) for health in said["health"]] == [{"device": 0}]
        assert said["devices"][0]["power_limit_watts"] is None
        assert said["processes"] == [{"pid": GONE, "device": 0, "name": "", "used_bytes": None}]

    def test_fields_are_read_in_steps_and_never_repeated(self, library: FakeNvmlLibrary) -> None:
        said = library.read(driver(1) + h200(), times=[n * 0.01 for n in range(52)])
        samples = [reading[0] for reading in said["readings"]]
        given = {name: [n for n, sample in enumerate(samples) if sample[name] is not None] for name in samples[0]}
        for name in ("used_bytes", "reserved_bytes", "free_bytes"):
            assert given[name] == list(range(52)), name
        assert given["event_reasons"] == list(range(0, 52, 4))
        assert given["sm_clock_mhz"] == list(range(0, 52, 8))
        for name in ("memory_clock_mhz", "utilisation", "power_watts", "temperature_c", "pcie_generation"):
            assert given[name] == [0, 50], name
        for name in ("energy_joules", "pcie_width"):
            assert given[name] == [0], name


class TestVersions:
    def test_memory_v1_counts_what_the_driver_keeps_and_is_named(self, tmp_path: Path) -> None:
        said = lacking(tmp_path, "nvmlDeviceGetMemoryInfo_v2").read(driver(1) + h200())
        assert said["memory_version"] == "nvml-v1"
        assert (one(said)["used_bytes"], one(said)["reserved_bytes"]) == (644_939_776, None)

    def test_memory_v2_does_not(self, library: FakeNvmlLibrary) -> None:
        said = library.read(driver(1) + h200())
        assert (said["memory_version"], one(said)["used_bytes"]) == ("nvml-v2", 0)

    def test_a_struct_the_driver_does_not_take_puts_all_devices_on_v1(self, library: FakeNvmlLibrary) -> None:
        rows = driver(2) + h200("0") + h200("1", uuid="GPU-other")
        said = library.read(rows + "nvmlDeviceGetMemoryInfo_v2 1 ARGUMENT_VERSION_MISMATCH\n")
        assert said["memory_version"] == "nvml-v1"
        assert [sample["used_bytes"] for sample in said["readings"][0]] == [644_939_776] * 2

    def test_the_library_checks_the_struct_as_the_real_one_does(self, library: FakeNvmlLibrary) -> None:
        code = (
            "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n"
            "try: n.nvmlDeviceGetMemoryInfo(h, version=0x02000020)\n"
            "except n.NVMLError as error: print(error.value)"
        )
        environment = library.environment(driver(1) + h200())
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == "25\n"

    def test_older_names_are_used_where_the_library_lacks_the_new_ones(self, tmp_path: Path) -> None:
        old = lacking(tmp_path, "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTemperatureV")
        rows = "nvmlDeviceGetCurrentClocksThrottleReasons 0 ok value=0x20\nnvmlDeviceGetTemperature 0 ok value=64\n"
        samples = [reading[0] for reading in old.read(driver(1) + h200() + rows, times=[0, 1])["readings"]]
        assert [(sample["event_reasons"], sample["temperature_c"]) for sample in samples] == [(0x20, 64)] * 2

    def test_a_library_that_lacks_much_still_gives_the_rest(self, tmp_path: Path) -> None:
        old = lacking(
            tmp_path,
            "nvmlDeviceGetTotalEnergyConsumption",
            "nvmlDeviceGetRemappedRows",
            "nvmlDeviceGetMigMode",
            "nvmlSystemGetCudaDriverVersion_v2",
        )
        said = old.read(driver(1) + h200())
        assert (said["devices"][0]["mig"], said["versions"]) == (None, {"driver": "580.159.04"})
        assert (one(said)["energy_joules"], one(said)["power_watts"]) == (None, 76.543)
        assert (said["health"][0]["remap_pending"], said["health"][0]["ecc_corrected"]) == (None, 2)


class TestErrors:
    @pytest.mark.parametrize(
        ("code", "kind", "words"),
        [
            ("NO_PERMISSION", "no-permission", "look at the owner and mode of /dev/nvidia*"),
            ("OPERATING_SYSTEM", "no-permission", "device rules (cgroup)"),
            ("DRIVER_NOT_LOADED", "no-device", "kernel driver is not loaded: try `modprobe nvidia`"),
            ("GPU_NOT_FOUND", "no-device", "the driver finds no GPU"),
            ("LIBRARY_NOT_FOUND", "no-library", "install the NVIDIA driver"),
            ("UNKNOWN", "other", "look in the kernel log"),
            ("TIMEOUT", "other", "NVML does not start: Timeout"),
        ],
    )
    def test_a_driver_that_does_not_start(self, library: FakeNvmlLibrary, code: str, kind: str, words: str) -> None:
        said = library.read(f"nvmlInitWithFlags - {code}\n")
        assert (said["type"], said["kind"]) == ("ProbeError", kind)
        assert words in said["error"]

    @pytest.mark.parametrize(
        "text",
        [
            "580.95.05\n",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@host)\n"
            "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n",
        ],
    )
    def test_a_mismatch_names_both_versions(self, library: FakeNvmlLibrary, tmp_path: Path, text: str) -> None:
        module = tmp_path / "version"
        module.write_text(text)
        said = library.read(driver(1) + "nvmlInitWithFlags - LIB_RM_VERSION_MISMATCH\n", module=module)
        assert said["kind"] == "mismatch"
        assert "reboot needed; loaded kernel driver 580.95.05, library 580.159.04 (" in said["error"]

    def test_a_mismatch_whose_versions_cannot_be_read(self, library: FakeNvmlLibrary) -> None:
        said = library.read("nvmlInitWithFlags - LIB_RM_VERSION_MISMATCH\n")
        assert "reboot needed (RM has detected" in said["error"]

    def test_no_device(self, library: FakeNvmlLibrary) -> None:
        said = library.read(driver(0))
        assert (said["kind"], "has no GPU" in said["error"]) == ("no-device", True)

    @pytest.mark.parametrize(
        ("code", "words"), [("GPU_IS_LOST", "the GPU is lost: look for an Xid"), ("RESET_REQUIRED", "must be reset")]
    )
    def test_a_gpu_lost_in_the_middle(self, library: FakeNvmlLibrary, code: str, words: str) -> None:
        # The first two calls are those of the start and of `devices`.
        said = library.read(driver(1) + h200() + f"nvmlDeviceGetMemoryInfo_v2 0 @5 {code}\n", times=[0, 1, 2, 3, 4])
        assert [type(reading).__name__ for reading in said["readings"]] == ["list", "list", "dict"]
        error = said["readings"][-1]
        assert (error["kind"], error["error"].startswith("GPU 0 NVIDIA H200, nvmlDeviceGetMemoryInfo: ")) == (
            "lost",
            True,
        )
        assert words in error["error"]

    def test_a_lost_gpu_stops_only_those_who_ask_for_it(self, library: FakeNvmlLibrary) -> None:
        rows = driver(2) + h200("0") + h200("1", uuid="GPU-other") + "nvmlDeviceGetHandleByIndex_v2 0 GPU_IS_LOST\n"
        assert [gpu["index"] for gpu in library.read(rows, devices=[1])["devices"]] == [1]
        assert library.read(rows)["kind"] == "lost"

    def test_forbidden_fields_are_not_known(self, library: FakeNvmlLibrary) -> None:
        sample = one(library.read(driver(1) + h200() + "nvmlDeviceGetPowerUsage 0 NO_PERMISSION\n"))
        assert [name for name in sample if sample[name] is None] == ["power_watts", "host_bytes", "host_free_bytes"]


class TestSelection:
    ROWS = driver(2) + h200("0") + rtx3090("1")

    @pytest.mark.parametrize(
        ("devices", "visible", "expected"),
        [
            ((), None, [0, 1]),
            ((1,), None, [1]),
            (("GPU-0a7e",), None, [1]),
            ((RTX_UUID, 0), "0", [1, 0]),
            ((), "1", [1]),
            ((), f"{RTX_UUID},0", [1, 0]),
        ],
    )
    def test_two_gpus(
        self, library: FakeNvmlLibrary, devices: tuple[int | str, ...], visible: str | None, expected: list[int]
    ) -> None:
        said = library.read(self.ROWS, devices=devices, visible=visible)
        assert [gpu["index"] for gpu in said["devices"]] == expected
        assert [sample["device"] for sample in said["readings"][0]] == expected

    def test_an_unknown_one_names_those_there_are(self, library: FakeNvmlLibrary) -> None:
        said = library.read(self.ROWS, devices=["GPU-ffff"])
        assert said["error"] == (
            f"no GPU 'GPU-ffff'; found: 0 NVIDIA H200 ({H200_UUID}), 1 NVIDIA GeForce RTX 3090 ({RTX_UUID})"
        )


class TestMig:
    TWO = driver(1) + h200() + instance("0/0", MIG[0]) + instance("0/3", MIG[1], "2g.35gb", 37_580_963_840)

    @pytest.mark.parametrize(
        ("devices", "visible"), [((MIG[1],), None), (("MIG-b",), None), ((), MIG[1]), ((), "MIG-bbbb"), ((2,), "0")]
    )
    def test_an_instance_is_chosen(
        self, library: FakeNvmlLibrary, devices: tuple[int | str, ...], visible: str | None
    ) -> None:
        said = library.read(self.TWO, devices=devices, visible=visible)
        (gpu,) = said["devices"]
        assert (gpu["index"], gpu["name"], gpu["uuid"]) == (2, "NVIDIA H200 MIG 2g.35gb", MIG[1])
        assert (gpu["memory_bytes"], gpu["mig"]) == (37_580_963_840, True)
        board = {name: gpu[name] for name in ("compute_capability", "power_limit_watts", "ecc", "pci_bus_id", "vbios")}
        assert board == {
            "compute_capability": "9.0",
            "power_limit_watts": 700.0,
            "ecc": True,
            "pci_bus_id": "00000000:0F:00.0",
            "vbios": "96.00.A5.00.01",
        }

    def test_what_nvml_does_not_give_for_an_instance_is_not_known(self, library: FakeNvmlLibrary) -> None:
        said = library.read(self.TWO, devices=["MIG-a"])
        assert known(one(said)) == {
            "time": 0.0,
            "phase": "decode",
            "device": 1,
            "used_bytes": 0,
            "reserved_bytes": 16_777_216,
            "free_bytes": 19_327_352_832 - 16_777_216,
        }
        # Faults of the board are not those of one instance; its power limit and temperature are everybody's.
        assert [known(health) for health in said["health"]] == [
            {"device": 1, "power_limit_watts": 700.0, "temperature_c": 31}
        ]
        assert said["processes"] == [{"pid": GONE, "device": 1, "name": "", "used_bytes": 1_484_783_616}]

    @pytest.mark.parametrize(("devices", "visible"), [((), None), ((0,), None), ((H200_UUID,), None), ((), "0")])
    def test_the_whole_gpu_is_refused_and_its_instances_are_named(
        self, library: FakeNvmlLibrary, devices: tuple[int | str, ...], visible: str | None
    ) -> None:
        said = library.read(self.TWO, devices=devices, visible=visible)
        assert said["type"] == "DeviceError"
        assert said["error"] == (
            f"GPU 0 NVIDIA H200 ({H200_UUID}) is in MIG mode and cannot be used whole; choose an instance by its UUID: "
            f"1 NVIDIA H200 MIG 1g.18gb ({MIG[0]}), 2 NVIDIA H200 MIG 2g.35gb ({MIG[1]})"
        )

    @pytest.mark.parametrize("visible", [None, "0"])
    def test_the_only_instance_is_taken(self, library: FakeNvmlLibrary, visible: str | None) -> None:
        said = library.read(driver(1) + h200() + instance("0/2", MIG[0]), visible=visible)
        assert [gpu["uuid"] for gpu in said["devices"]] == [MIG[0]]

    def test_the_only_instance_is_not_taken_for_the_gpu_asked_for(self, library: FakeNvmlLibrary) -> None:
        said = library.read(driver(1) + h200() + instance("0/2", MIG[0]), devices=[0])
        assert (said["type"], "cannot be used whole" in said["error"]) == ("DeviceError", True)

    def test_beside_a_whole_gpu_nothing_is_guessed(self, library: FakeNvmlLibrary) -> None:
        rows = driver(2) + h200() + instance("0/2", MIG[0]) + rtx3090("1")
        assert "choose an instance by its UUID: 2 NVIDIA H200 MIG 1g.18gb" in library.read(rows)["error"]
        assert [gpu["index"] for gpu in library.read(rows, devices=[1])["devices"]] == [1]

    def test_a_divided_gpu_without_instances(self, library: FakeNvmlLibrary) -> None:
        divided = "nvmlDeviceGetMigMode 0 ok current=1 pending=1\nnvmlDeviceGetMaxMigDeviceCount 0 ok value=7\n"
        assert "it has no instances: make some with" in library.read(driver(1) + h200() + divided)["error"]
        beside = library.read(driver(2) + h200() + divided + rtx3090("1"))
        assert [gpu["index"] for gpu in beside["devices"]] == [1]

    def test_a_whole_uuid_that_begins_another_one(self, library: FakeNvmlLibrary) -> None:
        # Drivers before 470 name instances by GPU, GPU instance and compute instance.
        old = [f"MIG-{H200_UUID}/{ids}" for ids in ("1/1", "1/10")]
        rows = driver(1) + h200() + instance("0/0", old[0]) + instance("0/1", old[1])
        assert [gpu["uuid"] for gpu in library.read(rows, devices=[old[0]])["devices"]] == [old[0]]

    def test_functions_that_refuse_the_handle_of_an_instance(self, library: FakeNvmlLibrary) -> None:
        said = library.read(self.TWO + "nvmlDeviceGetPowerUsage 0/0 INVALID_ARGUMENT\n", devices=["MIG-a"])
        assert one(said)["power_watts"] is None

    def test_an_instance_that_is_taken_away(self, library: FakeNvmlLibrary) -> None:
        rows = self.TWO + "nvmlDeviceGetMemoryInfo_v2 0/0 @4 INVALID_ARGUMENT\n"
        said = library.read(rows, devices=["MIG-a"], times=[0, 1, 2])
        assert [type(reading).__name__ for reading in said["readings"]] == ["list", "dict"]


class TestProcesses:
    def names(self, said: dict[str, Any]) -> list[tuple[int, str, int | None]]:
        return [(process["pid"], process["name"], process["used_bytes"]) for process in said["processes"]]

    def test_a_list_is_asked_for_twice_and_merged_by_pid(self, library: FakeNvmlLibrary) -> None:
        here = os.getpid()
        rows = f"""
nvmlDeviceGetComputeRunningProcesses_v3  0 ok pid={here} used=1484783616 pid={GONE} used=ones
nvmlDeviceGetGraphicsRunningProcesses_v3 0 ok pid={GONE} used=4096 pid={here} used=8192
"""
        comm = Path(f"/proc/{here}/comm").read_text().strip()
        found = self.names(library.read(driver(1) + h200() + rows))
        assert found == [(here, comm, 1_484_783_616), (GONE, "", 4096)]

    def test_many_processes(self, library: FakeNvmlLibrary) -> None:
        pids = range(GONE - 40, GONE)
        listed = " ".join(f"pid={pid} used={pid * 4096}" for pid in pids)
        said = library.read(driver(1) + h200() + f"nvmlDeviceGetComputeRunningProcesses_v3 0 ok {listed}\n")
        assert self.names(said) == [(pid, "", pid * 4096) for pid in pids]

    def test_no_memory_is_not_known_as_no_context_is_that_small(self, library: FakeNvmlLibrary) -> None:
        rows = f"nvmlDeviceGetComputeRunningProcesses_v3 0 ok pid={GONE} used=0\n"
        assert self.names(library.read(driver(1) + h200() + rows)) == [(GONE, "", None)]

    def test_processes_without_a_pid_are_kept_apart(self, library: FakeNvmlLibrary) -> None:
        rows = """
nvmlDeviceGetComputeRunningProcesses_v3  0 ok pid=0 used=4096 pid=0 used=8192
nvmlDeviceGetGraphicsRunningProcesses_v3 0 ok pid=0 used=4096
"""
        assert self.names(library.read(driver(1) + h200() + rows)) == [(0, "", 4096), (0, "", 8192)]

    def test_a_graphics_process_without_a_pid_is_not_dropped(self, library: FakeNvmlLibrary) -> None:
        rows = f"""
nvmlDeviceGetComputeRunningProcesses_v3  0 ok pid={GONE} used=4096
nvmlDeviceGetGraphicsRunningProcesses_v3 0 ok pid=0 used=8192
"""
        assert self.names(library.read(driver(1) + h200() + rows)) == [(GONE, "", 4096), (0, "", 8192)]

    def test_a_pid_listed_twice_is_one_process(self, library: FakeNvmlLibrary) -> None:
        rows = f"nvmlDeviceGetComputeRunningProcesses_v3 0 ok pid={GONE} used=4096 pid={GONE} used=8192\n"
        assert self.names(library.read(driver(1) + h200() + rows)) == [(GONE, "", 8192)]

    V3 = "nvmlDeviceGetComputeRunningProcesses_v3 0 ok size={} pid=4000001 used=1073745920 pid=4000002 used=8192\n"
    V2 = V3.replace("_v3", "_v2")

    @pytest.mark.parametrize("size", [16, 32])
    def test_a_list_of_another_layout_is_read_with_the_older_function(
        self, library: FakeNvmlLibrary, size: int
    ) -> None:
        said = library.read(driver(1) + h200() + self.V3.format(size) + self.V2.format(24))
        assert self.names(said) == [(4_000_001, "", 1_073_745_920), (4_000_002, "", 8192)]

    @pytest.mark.parametrize("size", [16, 32])
    def test_where_that_is_misread_too_no_process_is_named(self, library: FakeNvmlLibrary, size: int) -> None:
        said = library.read(driver(1) + h200() + self.V3.format(size) + self.V2.format(size))
        assert said["processes"]["kind"] == "no-permission"
        assert "in a layout that this nvidia-ml-py misreads" in said["processes"]["error"]

    def test_a_misread_list_without_an_older_function_names_nobody(self, library: FakeNvmlLibrary) -> None:
        for rows in (self.V3, self.V3.replace("Compute", "Graphics")):
            said = library.read(driver(1) + h200() + rows.format(32))
            assert said["processes"]["kind"] == "no-permission"
            assert "in a layout that this nvidia-ml-py misreads" in said["processes"]["error"]

    def test_an_old_driver_has_the_older_function_only(self, tmp_path: Path) -> None:
        old = lacking(tmp_path, "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3")
        assert self.names(old.read(driver(1) + h200() + self.V2.format(24))) == [
            (4_000_001, "", 1_073_745_920),
            (4_000_002, "", 8192),
        ]

    def test_a_list_that_may_not_be_seen_is_not_an_empty_one(self, library: FakeNvmlLibrary) -> None:
        said = library.read(driver(1) + h200() + "nvmlDeviceGetComputeRunningProcesses_v3 0 NO_PERMISSION\n")
        assert said["processes"]["kind"] == "no-permission"
        assert "does not list its processes" in said["processes"]["error"]
