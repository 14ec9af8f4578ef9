"""A stand-in for the module `pynvml`: its names, errors, structures and signatures are the real binding's."""

from __future__ import annotations

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pynvml
import pytest

__all__ = ["ONES_32", "ONES_64", "FakeNvml", "h200", "install", "nvml_error", "process"]

ONES_32 = 0xFFFF_FFFF
ONES_64 = 0xFFFF_FFFF_FFFF_FFFF


def nvml_error(name: str) -> Exception:
    """Return the binding's exception for an error name such as `NOT_SUPPORTED`."""
    error: Exception = pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{name}"))
    return error


def install(monkeypatch: pytest.MonkeyPatch, *devices: dict[str, Any], **named: Any) -> FakeNvml:
    """Make `import pynvml` give a scripted driver with these devices; `named` goes to `FakeNvml`."""
    fake = FakeNvml(devices, **named)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def process(pid: int, used: int | None) -> SimpleNamespace:
    """Return a process as the binding's list functions give it."""
    return SimpleNamespace(pid=pid, usedGpuMemory=used, gpuInstanceId=ONES_32, computeInstanceId=ONES_32)


def h200(**changes: Any) -> dict[str, Any]:
    """Return what an idle H200 with driver 580 answers, by function name; an entry of None is not supported.

    `nvmlDeviceGetMemoryInfo` is memory v1 and `nvmlDeviceGetMemoryInfo_v2` memory v2; clocks are keyed by clock type
    and memory errors by error type.
    """
    total, reserved = 143_771 * 1024**2, 644_939_776
    answers: dict[str, Any] = {
        "nvmlDeviceGetUUID": "GPU-6f0c1a52-0000-4000-8000-000000000001",
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetMemoryInfo": pynvml.c_nvmlMemory_t(total=total, free=total - reserved, used=reserved),
        "nvmlDeviceGetMemoryInfo_v2": pynvml.c_nvmlMemory_v2_t(
            version=pynvml.nvmlMemory_v2, total=total, reserved=reserved, free=total - reserved, used=0
        ),
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
        "nvmlDeviceGetMigMode": [0, 0],
        "nvmlDeviceGetEccMode": [1, 1],
        "nvmlDeviceGetPersistenceMode": 1,
        "nvmlDeviceGetPciInfo": pynvml.nvmlPciInfo_t(busId=b"00000000:0F:00.0"),
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetVbiosVersion": "96.00.A5.00.01",
        "nvmlDeviceGetCurrentClocksEventReasons": 0x1,
        "nvmlDeviceGetClockInfo": {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201},
        "nvmlDeviceGetUtilizationRates": pynvml.c_nvmlUtilization_t(gpu=37, memory=12),
        "nvmlDeviceGetPowerUsage": 76_543,
        "nvmlDeviceGetTotalEnergyConsumption": 8_123_456_789,
        "nvmlDeviceGetTotalEccErrors": {
            pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED: 2,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED: 0,
        },
        "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
        "nvmlDeviceGetPcieReplayCounter": 3,
        "nvmlDeviceGetTemperatureV": 31,
        "nvmlDeviceGetCurrPcieLinkGeneration": 5,
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetComputeRunningProcesses_v3": [],
        "nvmlDeviceGetGraphicsRunningProcesses_v3": [],
    }
    return answers | changes


class FakeNvml(ModuleType):
    """Put it into `sys.modules["pynvml"]`. An answer is an exception to raise, None for "not supported", or a value.

    `devices` may be changed between calls; `device["handle"]` may be an exception that opening the device raises.
    """

    def __init__(
        self,
        devices: Sequence[dict[str, Any]] = (),
        system: dict[str, Any] | None = None,
        init: Exception | None = None,
    ) -> None:
        super().__init__("pynvml")
        self.devices = list(devices)
        self.system = {
            "nvmlSystemGetDriverVersion": "580.159.04",
            "nvmlSystemGetCudaDriverVersion_v2": 13000,
            "nvmlDeviceGetCount": len(self.devices),
        } | (system or {})
        self.init = init
        self.calls: Counter[str] = Counter()

    @property
    def running(self) -> int:
        """Starts without a matching shutdown."""
        return self.calls["nvmlInit"] - self.calls["nvmlShutdown"]

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)
        return functools.partial(self._call, name, real) if inspect.isfunction(real) else real

    def _call(self, name: str, real: Any, *arguments: Any, **named: Any) -> Any:
        inspect.signature(real).bind(*arguments, **named)
        if name == "nvmlInit":
            return self._start()
        if self.running < 1:
            raise nvml_error("UNINITIALIZED")
        self.calls[name] += 1
        if name == "nvmlShutdown":
            return None
        if name == "nvmlDeviceGetHandleByIndex":
            return self._open(arguments[0])
        if name == "nvmlDeviceGetMemoryInfo" and named.get("version"):
            name = "nvmlDeviceGetMemoryInfo_v2"
        answer = self.system.get(name) if name in self.system else self.devices[arguments[0]].get(name)
        if isinstance(answer, dict):
            answer = answer.get(arguments[1])
        if answer is None:
            raise nvml_error("NOT_SUPPORTED")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _start(self) -> None:
        if self.init is not None:
            raise self.init
        self.calls["nvmlInit"] += 1

    def _open(self, index: int) -> int:
        error = self.devices[index].get("handle")
        if isinstance(error, Exception):
            raise error
        return index
