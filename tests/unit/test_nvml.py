"""The NVML probe against a scripted driver with the real binding's names, errors and structures."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pynvml
import pytest
from msgspec import structs

from pytest_moegpu.core.evidence import DeviceProcess
from pytest_moegpu.core.health import DeviceHealth
from pytest_moegpu.core.model import DeviceKind
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.errors import ProbeError
from pytest_moegpu.host.nvmlprobe import NvmlProbe
from tests.fakes.pynvml_fake import ONES_32, ONES_64, h200, install, nvml_error, process

NOT_FIELDS = {"time", "phase", "device", "host_bytes", "host_free_bytes"}


def fields(sample: Sample) -> dict[str, Any]:
    return {name: value for name, value in structs.asdict(sample).items() if name not in NOT_FIELDS}


class TestIdentity:
    def test_every_field_of_a_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, h200())
        (gpu,) = NvmlProbe().devices()
        assert asdict(gpu) == {
            "index": 0,
            "name": "NVIDIA H200",
            "memory_bytes": 143_771 * 1024**2,
            "kind": DeviceKind.GPU,
            "uuid": "GPU-6f0c1a52-0000-4000-8000-000000000001",
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

    def test_beside_a_gpu_that_may_not_be_opened_cuda_counts_otherwise_so_uuids_name_them(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed = {"handle": nvml_error("NO_PERMISSION")}
        install(monkeypatch, h200() | closed, h200(nvmlDeviceGetUUID="GPU-aaaa"), h200(nvmlDeviceGetUUID="GPU-bbbb"))
        found = NvmlProbe(visible="0").devices()
        assert [(gpu.index, gpu.cuda_name) for gpu in found] == [(1, "GPU-aaaa")]

    def test_what_a_consumer_card_does_not_say_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        silent = {name: None for name in h200() if not name.endswith(("UUID", "Name", "MemoryInfo_v2", "MemoryInfo"))}
        install(monkeypatch, h200(**silent))
        (gpu,) = NvmlProbe().devices()
        left = {name for name, value in asdict(gpu).items() if value is not None}
        assert left == {"index", "name", "memory_bytes", "kind", "uuid", "cuda_name"}

    def test_device_without_memory_total_is_an_error_not_zero(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, h200(nvmlDeviceGetMemoryInfo=None, nvmlDeviceGetMemoryInfo_v2=None))
        with pytest.raises(ProbeError, match="does not say how much memory"):
            NvmlProbe().devices()

    @pytest.mark.parametrize(("number", "text"), [(13000, "13.0"), (12080, "12.8"), (12020, "12.2")])
    def test_versions(self, monkeypatch: pytest.MonkeyPatch, number: int, text: str) -> None:
        install(monkeypatch, h200(), system={"nvmlSystemGetCudaDriverVersion_v2": number})
        assert NvmlProbe().versions() == {"driver": "580.159.04", "cuda_driver": text}

    def test_cuda_version_without_libcuda_is_absent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, h200(), system={"nvmlSystemGetCudaDriverVersion_v2": nvml_error("LIBRARY_NOT_FOUND")})
        assert NvmlProbe().versions() == {"driver": "580.159.04"}


class TestReading:
    def test_every_field(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, h200())
        assert NvmlProbe().read(12.5, "decode") == (
            Sample(
                time=12.5,
                phase="decode",
                device=0,
                used_bytes=0,
                reserved_bytes=644_939_776,
                free_bytes=143_771 * 1024**2 - 644_939_776,
                sm_clock_mhz=1980,
                memory_clock_mhz=3201,
                event_reasons=1,
                utilisation=0.37,
                power_watts=76.543,
                energy_joules=8_123_456.789,
                temperature_c=31,
                pcie_generation=5,
                pcie_width=16,
            ),
        )

    def test_at_100_hz_slow_fields_come_seldom_and_are_never_repeated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fake = install(monkeypatch, h200())
        probe = NvmlProbe()
        # Readings are a little early and late in turn.
        samples = [probe.read(0.01 * n + (-1) ** n * 0.001, "decode")[0] for n in range(52)]
        for name in ("memory_clock_mhz", "utilisation", "power_watts", "temperature_c", "pcie_generation"):
            assert [n for n, sample in enumerate(samples) if getattr(sample, name) is not None] == [0, 50], name
        for name, every in (("event_reasons", 4), ("sm_clock_mhz", 8)):
            given = [n for n, sample in enumerate(samples) if getattr(sample, name) is not None]
            assert given == list(range(0, 52, every)), name
        assert all(sample.used_bytes == 0 for sample in samples)
        assert fake.calls["nvmlDeviceGetCurrPcieLinkWidth"] == 1
        assert fake.calls["nvmlDeviceGetTotalEnergyConsumption"] == 1

    def test_the_energy_counter_is_read_as_a_phase_begins_and_after_its_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install(monkeypatch, h200())
        probe = NvmlProbe(energy_seconds=5.0)
        moments = ((0, "load"), (1, "load"), (2, "prefill"), (2.5, "prefill"), (6.9, "prefill"), (7, "prefill"))
        given = [time for time, phase in moments if probe.read(time, phase)[0].energy_joules is not None]
        assert given == [0, 2, 7]

    def test_readings_far_apart_have_every_field_whatever_clock_they_go_by(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install(monkeypatch, h200())
        probe = NvmlProbe()
        for time in (5000.0, 0.0, 10.0, 22.0):
            assert None not in fields(probe.read(time, "after")[0]).values()

    @pytest.mark.parametrize("error", ["NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND"])
    def test_what_is_not_given_is_none_never_zero(self, monkeypatch: pytest.MonkeyPatch, error: str) -> None:
        fake = install(monkeypatch, h200())
        probe = NvmlProbe()
        fake.devices[0] = {name: nvml_error(error) for name in h200()}
        assert set(fields(probe.read(0, "load")[0]).values()) == {None}

    def test_each_field_is_missing_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, h200(nvmlDeviceGetPowerUsage=nvml_error("NO_PERMISSION")))
        sample = fields(NvmlProbe().read(0, "load")[0])
        assert [name for name, value in sample.items() if value is None] == ["power_watts"]

    def test_sentinels_are_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fake = install(monkeypatch, h200())
        probe = NvmlProbe()
        fake.devices[0] = {
            "nvmlDeviceGetMemoryInfo_v2": pynvml.c_nvmlMemory_v2_t(used=ONES_64, reserved=ONES_64, free=ONES_64),
            "nvmlDeviceGetCurrentClocksEventReasons": ONES_64,
            "nvmlDeviceGetClockInfo": {pynvml.NVML_CLOCK_SM: ONES_32, pynvml.NVML_CLOCK_MEM: ONES_32},
            "nvmlDeviceGetUtilizationRates": pynvml.c_nvmlUtilization_t(gpu=ONES_32, memory=ONES_32),
            "nvmlDeviceGetPowerUsage": ONES_32,
            "nvmlDeviceGetTotalEnergyConsumption": ONES_64,
            "nvmlDeviceGetTemperatureV": -1,
            "nvmlDeviceGetCurrPcieLinkGeneration": ONES_32,
            "nvmlDeviceGetCurrPcieLinkWidth": ONES_32,
        }
        assert set(fields(probe.read(0, "load")[0]).values()) == {None}

    def test_memory_v1_is_reported_as_such(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, h200(nvmlDeviceGetMemoryInfo_v2=nvml_error("FUNCTION_NOT_FOUND")))
        probe = NvmlProbe()
        (sample,) = probe.read(0, "load")
        assert (probe.memory_version, sample.used_bytes, sample.reserved_bytes) == ("nvml-v1", 644_939_776, None)

    def test_one_device_without_v2_puts_all_on_v1(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, h200(), h200(nvmlDeviceGetMemoryInfo_v2=None))
        probe = NvmlProbe()
        assert probe.memory_version == "nvml-v1"
        assert [sample.used_bytes for sample in probe.read(0, "load")] == [644_939_776] * 2

    def test_memory_v2_is_the_rule(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, h200())
        assert NvmlProbe().memory_version == "nvml-v2"

    def test_older_names_are_used_where_the_new_ones_are_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        missing = nvml_error("FUNCTION_NOT_FOUND")
        old = h200(
            nvmlDeviceGetCurrentClocksEventReasons=missing,
            nvmlDeviceGetCurrentClocksThrottleReasons=0x20,
            nvmlDeviceGetTemperatureV=missing,
            nvmlDeviceGetTemperature=64,
        )
        install(monkeypatch, old)
        (sample,) = NvmlProbe().read(0, "load")
        assert (sample.event_reasons, sample.temperature_c) == (0x20, 64)

    @pytest.mark.parametrize(
        ("error", "kind"), [("GPU_IS_LOST", "lost"), ("RESET_REQUIRED", "lost"), ("UNKNOWN", "other")]
    )
    @pytest.mark.parametrize("function", ["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetPowerUsage"])
    def test_gpu_lost_in_the_middle(
        self, monkeypatch: pytest.MonkeyPatch, function: str, error: str, kind: str
    ) -> None:
        fake = install(monkeypatch, h200())
        probe = NvmlProbe()
        probe.read(0, "load")
        fake.devices[0][function] = nvml_error(error)
        with pytest.raises(ProbeError, match="GPU 0 NVIDIA H200") as caught:
            probe.read(1, "decode")
        assert caught.value.kind == kind


class TestHealth:
    def test_every_counter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, h200())
        assert NvmlProbe().health() == (
            DeviceHealth(
                device=0,
                ecc_corrected=2,
                ecc_uncorrected=0,
                rows_remapped_corrected=0,
                rows_remapped_uncorrected=0,
                remap_pending=False,
                remap_failed=False,
                pcie_replays=3,
                power_limit_watts=700.0,
                temperature_c=31,
            ),
        )

    @pytest.mark.parametrize("error", ["NOT_SUPPORTED", "NO_PERMISSION", "CORRUPTED_INFOROM"])
    def test_what_is_not_given_is_none_never_zero(self, monkeypatch: pytest.MonkeyPatch, error: str) -> None:
        fake = install(monkeypatch, h200())
        probe = NvmlProbe()
        fake.devices[0] = {name: nvml_error(error) for name in h200()}
        assert probe.health() == (DeviceHealth(device=0),)

    def test_a_lost_gpu_has_no_health(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, h200(nvmlDeviceGetPcieReplayCounter=nvml_error("GPU_IS_LOST")))
        with pytest.raises(ProbeError, match="nvmlDeviceGetPcieReplayCounter: the GPU is lost") as caught:
            NvmlProbe().health()
        assert caught.value.kind == "lost"


class TestProcesses:
    def test_both_lists_are_merged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gone = 2**22 + 1
        first = h200(
            nvmlDeviceGetComputeRunningProcesses_v3=[process(os.getpid(), 500), process(gone, ONES_64)],
            nvmlDeviceGetGraphicsRunningProcesses_v3=[process(gone, None), process(os.getpid(), 700)],
        )
        second = h200(
            nvmlDeviceGetComputeRunningProcesses_v3=[process(gone, ONES_64)],
            nvmlDeviceGetGraphicsRunningProcesses_v3=[process(gone, 30)],
        )
        install(monkeypatch, first, second)
        comm = Path("/proc/self/comm").read_text().strip()
        assert NvmlProbe().processes() == (
            DeviceProcess(pid=os.getpid(), device=0, name=comm, used_bytes=700),
            DeviceProcess(pid=gone, device=0, name="", used_bytes=None),
            DeviceProcess(pid=gone, device=1, name="", used_bytes=30),
        )

    def test_compute_only_card_has_no_graphics_list(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, h200(nvmlDeviceGetGraphicsRunningProcesses_v3=None))
        assert NvmlProbe().processes() == ()

    def test_a_list_that_may_not_be_seen_is_not_an_empty_list(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, h200(nvmlDeviceGetComputeRunningProcesses_v3=nvml_error("NO_PERMISSION")))
        with pytest.raises(ProbeError, match="does not list its processes") as caught:
            NvmlProbe().processes()
        assert caught.value.kind == "no-permission"
