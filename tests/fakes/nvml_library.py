"""Builds the stand-in for libnvidia-ml, writes its answers, and lets the real binding and probe read them.

The binding keeps the library it has once loaded, so every reading is done by a process of its own: this module.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from pytest_moegpu.errors import MoegpuError, ProbeError
from pytest_moegpu.host import nvml
from pytest_moegpu.host.nvmlprobe import NvmlProbe
from pytest_moegpu.host.sampler import Sampler

__all__ = ["FakeNvmlLibrary", "driver", "h200", "instance", "rtx3090"]

_SOURCE = Path(__file__).with_suffix(".c")
_ROOT = Path(__file__).parents[2]

H200_UUID = "GPU-6f0c1a52-0000-4000-8000-000000000001"
RTX_UUID = "GPU-0a7e2f61-0000-4000-8000-000000000002"


@dataclass(frozen=True, kw_only=True)
class FakeNvmlLibrary:
    """The library in a folder. `without` are functions that it lacks, as an older driver's does."""

    folder: Path
    without: tuple[str, ...] = ()

    def build(self) -> FakeNvmlLibrary:
        """Compile the library into the folder."""
        exports = self.folder / "exports"
        exports.write_text(f"{{ global: nvml*; local: {''.join(f'{name}; ' for name in self.without)}*; }};\n")
        command = ["cc", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
        target = self.folder / "libnvidia-ml.so.1"
        subprocess.run([*command, f"-Wl,--version-script={exports}", "-o", target, _SOURCE], check=True)
        return self

    def environment(self, rows: str) -> dict[str, str]:
        """Write the answers, and return the variables for a process that shall get them."""
        script = self.folder / "script.txt"
        script.write_text(rows)
        return {**os.environ, "LD_LIBRARY_PATH": str(self.folder), "NVML_SCRIPT": str(script)}

    def read(
        self,
        rows: str,
        devices: Sequence[int | str] = (),
        visible: str | None = None,
        times: Sequence[float] = (0.0,),
        module: Path | None = None,
        phases: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return what the probe says: `devices`, `versions`, `memory_version`, `readings`, `health`, `processes`.

        An error takes the place of what it was raised by: its `type`, `kind` and `error`. `times` are those of the
        readings, which end with the first error, `phases` theirs; `module` is the file with the version of the kernel
        driver.
        """
        asked = {"devices": list(devices), "visible": visible, "times": list(times), "module": str(module or "")}
        return self._said(rows, {**asked, "phases": list(phases or ["decode"] * len(times))})

    def sample(
        self, rows: str, phases: Sequence[tuple[str, float]] = (("decode", 0.3),), native: bool = True, **asked: Any
    ) -> dict[str, Any]:
        """Return what a sampler of the probe has, which is in each phase for so many seconds.

        `samples`, `notes`, `error`, `rate`, `gap`, `native` (whether the loop in C was in use) and `stopping`, the
        seconds that the stop took. `asked` may have `samplings`, one after the other on one probe, of which the last
        one is returned, `energy_seconds`, `timeout` of the stop in seconds, and `hold`, for how many seconds Python
        does nothing but hold the GIL in the first phase.
        """
        asked = {"sampling": list(phases), "samplings": 1, "energy_seconds": 10.0, "timeout": 5.0, "hold": 0.0} | asked
        return self._said(rows, asked, {} if native else {"MOEGPU_NATIVE": "0"})

    def _said(self, rows: str, asked: dict[str, Any], variables: dict[str, str] | None = None) -> dict[str, Any]:
        command = [sys.executable, "-m", "tests.fakes.nvml_library", json.dumps(asked)]
        environment = self.environment(rows) | (variables or {})
        done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said: dict[str, Any] = json.loads(done.stdout)
        return said


def driver(count: int) -> str:
    """Return the rows of driver 580 with a number of GPUs, which need rows of their own."""
    return f"""
nvmlSystemGetDriverVersion        - ok text=580.159.04
nvmlSystemGetNVMLVersion          - ok text=13.580.159.04
nvmlSystemGetCudaDriverVersion_v2 - ok value=13000
nvmlDeviceGetCount_v2             - ok value={count}
{"".join(f"nvmlDeviceGetHandleByIndex_v2 {index} ok{chr(10)}" for index in range(count))}"""


def h200(device: str = "0", uuid: str = H200_UUID) -> str:
    """Return the rows of an idle H200; memory and remapped rows are those read on one with driver 580.159."""
    rows = f"""
nvmlDeviceGetName                          @ ok text=NVIDIA H200
nvmlDeviceGetUUID                          @ ok text={uuid}
nvmlDeviceGetMemoryInfo                    @ ok total=150754820096 free=150109880320 used=644939776
nvmlDeviceGetMemoryInfo_v2                 @ ok total=150754820096 reserved=644939776 free=150109880320 used=0
nvmlDeviceGetCudaComputeCapability         @ ok major=9 minor=0
nvmlDeviceGetEnforcedPowerLimit            @ ok value=700000
nvmlDeviceGetPowerManagementDefaultLimit   @ ok value=700000
nvmlDeviceGetMigMode                       @ ok current=0 pending=0
nvmlDeviceGetEccMode                       @ ok current=1 pending=1
nvmlDeviceGetPersistenceMode               @ ok value=1
nvmlDeviceGetPciInfo_v3                    @ ok text=00000000:0F:00.0
nvmlDeviceGetMaxPcieLinkGeneration         @ ok value=5
nvmlDeviceGetMaxPcieLinkWidth              @ ok value=16
nvmlDeviceGetVbiosVersion                  @ ok text=96.00.A5.00.01
nvmlDeviceGetCurrentClocksEventReasons     @ ok value=0x1
nvmlDeviceGetClockInfo                     @ ok sm=1980 mem=3201
nvmlDeviceGetUtilizationRates              @ ok gpu=37 memory=12
nvmlDeviceGetPowerUsage                    @ ok value=76543
nvmlDeviceGetTotalEnergyConsumption        @ ok value=8123456789
nvmlDeviceGetTemperatureV                  @ ok value=31
nvmlDeviceGetCurrPcieLinkGeneration        @ ok value=5
nvmlDeviceGetCurrPcieLinkWidth             @ ok value=16
nvmlDeviceGetTotalEccErrors                @ ok corrected=2 uncorrected=0 lifetime_corrected=9
nvmlDeviceGetRemappedRows                  @ ok corrected=0 uncorrected=0 pending=0 failure=0
nvmlDeviceGetPcieReplayCounter             @ ok value=3
nvmlDeviceGetComputeRunningProcesses_v3    @ ok
nvmlDeviceGetGraphicsRunningProcesses_v3   @ ok
"""
    return rows.replace(" @ ", f" {device} ")


def rtx3090(device: str = "0", uuid: str = RTX_UUID) -> str:
    """Return the rows of a consumer card: no ECC, no remapped rows, no MIG, and a desktop on it."""
    rows = f"""
nvmlDeviceGetName                          @ ok text=NVIDIA GeForce RTX 3090
nvmlDeviceGetUUID                          @ ok text={uuid}
nvmlDeviceGetMemoryInfo                    @ ok total=25769803776 free=25000000000 used=769803776
nvmlDeviceGetMemoryInfo_v2                 @ ok total=25769803776 reserved=320864256 free=25000000000 used=448939520
nvmlDeviceGetCudaComputeCapability         @ ok major=8 minor=6
nvmlDeviceGetEnforcedPowerLimit            @ ok value=280000
nvmlDeviceGetPowerManagementDefaultLimit   @ ok value=350000
nvmlDeviceGetPersistenceMode               @ ok value=0
nvmlDeviceGetPciInfo_v3                    @ ok text=00000000:01:00.0
nvmlDeviceGetMaxPcieLinkGeneration         @ ok value=4
nvmlDeviceGetMaxPcieLinkWidth              @ ok value=16
nvmlDeviceGetVbiosVersion                  @ ok text=94.02.42.00.A9
nvmlDeviceGetCurrentClocksEventReasons     @ ok value=0x4
nvmlDeviceGetClockInfo                     @ ok sm=1695 mem=9751
nvmlDeviceGetUtilizationRates              @ ok gpu=98 memory=71
nvmlDeviceGetPowerUsage                    @ ok value=279512
nvmlDeviceGetTotalEnergyConsumption        @ ok value=51234
nvmlDeviceGetTemperatureV                  @ ok value=71
nvmlDeviceGetCurrPcieLinkGeneration        @ ok value=4
nvmlDeviceGetCurrPcieLinkWidth             @ ok value=16
nvmlDeviceGetPcieReplayCounter             @ ok value=0
nvmlDeviceGetComputeRunningProcesses_v3    @ ok
nvmlDeviceGetGraphicsRunningProcesses_v3   @ ok pid=1402 used=52428800
"""
    return rows.replace(" @ ", f" {device} ")


def instance(device: str, uuid: str, profile: str = "1g.18gb", memory: int = 19_327_352_832) -> str:
    """Return the rows of a MIG instance at GPU/PLACE, whose GPU is put into MIG mode: memory and processes only."""
    gpu = device.partition("/")[0]
    reserved = 16_777_216
    sizes = f"total={memory} reserved={reserved} free={memory - reserved} used=0"
    return f"""
nvmlDeviceGetMigMode                       {gpu} ok current=1 pending=1
nvmlDeviceGetMaxMigDeviceCount             {gpu} ok value=7
nvmlDeviceGetUtilizationRates              {gpu} NOT_SUPPORTED
nvmlDeviceGetMigDeviceHandleByIndex        {device} ok
nvmlDeviceGetName                          {device} ok text=NVIDIA H200 MIG {profile}
nvmlDeviceGetUUID                          {device} ok text={uuid}
nvmlDeviceGetMemoryInfo_v2                 {device} ok {sizes}
nvmlDeviceGetComputeRunningProcesses_v3    {device} ok pid=4194303 used=1484783616 gi=9 ci=0
"""


def _or_error(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except MoegpuError as error:
        kind = error.kind if isinstance(error, ProbeError) else None
        return {"type": type(error).__name__, "kind": kind, "error": str(error)}


def _say(devices: list[int | str], visible: str | None, times: list[float], phases: list[str]) -> dict[str, Any]:
    opened = _or_error(lambda: NvmlProbe(devices, visible))
    if isinstance(opened, dict):
        return opened
    probe: NvmlProbe = opened
    said: dict[str, Any] = {
        "devices": _or_error(lambda: [asdict(gpu) for gpu in probe.devices()]),
        "versions": probe.versions(),
        "memory_version": probe.memory_version,
        "readings": [],
    }
    for at, phase in zip(times, phases, strict=True):
        reading = _or_error(partial(_reading, probe, at, phase))
        said["readings"].append(reading)
        if isinstance(reading, dict):
            break
    said["health"] = _or_error(lambda: [asdict(health) for health in probe.health()])
    said["processes"] = _or_error(lambda: [asdict(process) for process in probe.processes()])
    probe.close()
    return said


def _reading(probe: NvmlProbe, at: float, phase: str) -> list[dict[str, Any]]:
    return [structs.asdict(sample) for sample in probe.read(at, phase)]


def _sample(
    sampling: list[tuple[str, float]], samplings: int, energy_seconds: float, timeout: float, hold: float
) -> dict[str, Any]:
    probe = NvmlProbe(energy_seconds=energy_seconds)
    # As many calls before the first reading as `_say` makes.
    probe.devices()
    for _ in range(samplings):
        sampler = Sampler(probe)
        sampler.enter(sampling[0][0])
        sampler.start()
        native = any(thread.name == "moegpu-sampler-look" for thread in threading.enumerate())
        if hold:
            # Unlike other functions of ctypes, those of PyDLL keep the GIL.
            ctypes.PyDLL(None).usleep(int(hold * 1e6))
        for phase, seconds in sampling:
            sampler.enter(phase)
            time.sleep(seconds)
        before = time.monotonic()
        sampler.stop(timeout)
        stopping = time.monotonic() - before
    error = sampler.error
    said = {
        "samples": [structs.asdict(sample) for sample in sampler.samples],
        "notes": list(sampler.notes),
        "error": None if error is None else {"kind": error.kind, "error": str(error)},
        "rate": sampler.rate(),
        "gap": sampler.gap(),
        "native": native,
        "stopping": stopping,
        "threads": [thread.name for thread in threading.enumerate()],
    }
    probe.close()
    return said


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    if "sampling" in asked:
        print(json.dumps(_sample(**asked)))
        sys.exit()
    # Without a file of the test's own, none: this machine may have a kernel driver.
    nvml._MODULE_VERSIONS = (Path(asked["module"]),) if asked["module"] else ()
    print(json.dumps(_say(asked["devices"], asked["visible"], asked["times"], asked["phases"])))
