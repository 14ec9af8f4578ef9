"""The `nvml` probe: NVIDIA devices through nvidia-ml-py. Alone imports `pynvml`, and only when a probe is made."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_moegpu.core.evidence import DeviceProcess, Sample
from pytest_moegpu.core.health import DeviceHealth
from pytest_moegpu.core.model import Gpu
from pytest_moegpu.errors import ProbeError
from pytest_moegpu.host.selection import Found, select

__all__ = ["NvmlProbe"]

_SLOW_EVERY = 10
_ONES_32 = 0xFFFF_FFFF
_ONES_64 = 0xFFFF_FFFF_FFFF_FFFF

_NOT_GIVEN = (
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "FUNCTION_NOT_FOUND",
    "ARGUMENT_VERSION_MISMATCH",
    "DEPRECATED",
    "NO_DATA",
    "LIBRARY_NOT_FOUND",
)
"""Answers that mean "this field is not to be had here"; the CUDA version comes from libcuda, which may be missing."""

_KINDS = {
    "LIBRARY_NOT_FOUND": (
        "no-library",
        "libnvidia-ml is not installed: no NVIDIA driver, or a container without its utilities",
    ),
    "LIB_RM_VERSION_MISMATCH": ("mismatch", "driver and library versions differ: reboot needed"),
    "NO_PERMISSION": ("no-permission", "no permission to use the NVIDIA device files"),
    "DRIVER_NOT_LOADED": ("no-device", "the NVIDIA kernel driver is not loaded"),
    "GPU_NOT_FOUND": ("no-device", "the driver finds no GPU"),
    "GPU_IS_LOST": ("lost", "the GPU is lost: look for an Xid in the kernel log, then reset it or reboot"),
    "RESET_REQUIRED": ("lost", "the GPU must be reset before it can be used again: look for an Xid in the kernel log"),
}
"""What an error that stops the probe means: kind of `ProbeError` and words for a person."""


class NvmlProbe:
    """Reads NVIDIA devices. A field the driver does not give, or gives as all ones, is None.

    Utilisation, temperature and PCIe link change slowly or cost more than the rest: they are read at every 10th
    reading and are None in between, never an older value. `memory_version` is `nvml-v2` when every device has it;
    with `nvml-v1` `used_bytes` contains what the driver keeps for itself.

    Args:
        devices: The devices to read, as NVML index (PCI bus order) or as UUID or its beginning; digits in a string are
            an index. They are taken as they are, whatever `visible` says. None given: all visible ones.
        visible: The value of CUDA_VISIBLE_DEVICES, None where it is not set: UUIDs or their beginnings, or indexes.
            Indexes count the devices that can be opened, in PCI bus order; CUDA counts so with
            CUDA_DEVICE_ORDER=PCI_BUS_ID, or when all GPUs are alike. As in CUDA, -1 ends the list.

    Raises:
        ProbeError: The library, the driver or a device asked for cannot be used; see `kind`.
        DeviceError: A device asked for does not exist; the message lists those that do.
    """

    name = "nvml"
    interval_seconds = 0.02

    def __init__(self, devices: Sequence[int | str] = (), visible: str | None = None) -> None:
        import pynvml

        self._nvml: Any = pynvml
        self._not_given = {getattr(pynvml, f"NVML_ERROR_{name}") for name in _NOT_GIVEN}
        self._kinds = {getattr(pynvml, f"NVML_ERROR_{name}"): words for name, words in _KINDS.items()}
        self._count = itertools.count()
        self._closed = False
        self._followed: int | None = None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise self._stopped("NVML does not start", error) from error
        try:
            self._devices = select(self._list(), devices, visible)
            self._memory_v2 = all(self._ask_v2(device) is not None for device in self._devices)
        except BaseException:
            self.close()
            raise

    @property
    def memory_version(self) -> str:
        """`nvml-v2` (used without the driver's reserve) or `nvml-v1` (used with it)."""
        return "nvml-v2" if self._memory_v2 else "nvml-v1"

    def devices(self) -> tuple[Gpu, ...]:
        """Identify the devices: memory in bytes, power limits in watts.

        Raises:
            ProbeError: A device is lost, or does not say how much memory it has (unified memory).
        """
        return tuple(self._identify(device) for device in self._devices)

    def versions(self) -> dict[str, str]:
        """Return `driver` and `cuda_driver` (newest CUDA it serves, e.g. "13.0"); the unknown is absent."""
        driver = self._ask(None, "nvmlSystemGetDriverVersion")
        cuda = self._ask(None, "nvmlSystemGetCudaDriverVersion_v2")
        found = {"driver": driver, "cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None}
        return {name: str(value) for name, value in found.items() if value}

    def follow(self, pid: int | None) -> None:
        """Remember the server's process; NVML counts whole devices, so readings do not change."""
        self._followed = pid

    def read(self, time: float, phase: str) -> tuple[Sample, ...]:
        """Read every device once: bytes, MHz, watts, degrees Celsius, utilisation as a share of one.

        Raises:
            ProbeError: A device is lost, or NVML fails in a way that is not about a single field.
        """
        slow = next(self._count) % _SLOW_EVERY == 0
        return tuple(self._read(device, time, phase, slow) for device in self._devices)

    def health(self) -> tuple[DeviceHealth, ...]:
        """Read power limit (watts) and temperature (degrees Celsius) of every device.

        Raises:
            ProbeError: A device is lost.
        """
        return tuple(
            DeviceHealth(
                device=device.index,
                power_limit_watts=self._watts(device, "nvmlDeviceGetEnforcedPowerLimit"),
                temperature_c=self._temperature(device),
            )
            for device in self._devices
        )

    def processes(self) -> tuple[DeviceProcess, ...]:
        """List the processes with a compute or graphics context; `used_bytes` is None where the driver does not say.

        A pid without a process in this pid namespace is listed without a name.

        Raises:
            ProbeError: A device is lost or does not list its processes: an empty list would say that it is free.
        """
        return tuple(process for device in self._devices for process in self._processes(device))

    def close(self) -> None:
        """Let go of NVML. Safe to call twice; never raises."""
        if self._closed:
            return
        self._closed = True
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return

    def _list(self) -> list[Found]:
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            raise self._stopped("NVML does not count its devices", error) from error
        if not count:
            raise ProbeError("the NVIDIA driver is loaded but has no GPU", kind="no-device")
        return [self._open(index) for index in range(count)]

    def _open(self, index: int) -> Found:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            uuid, name = self._nvml.nvmlDeviceGetUUID(handle), self._nvml.nvmlDeviceGetName(handle)
        except self._nvml.NVMLError as error:
            return Found(index=index, error=self._stopped(f"GPU {index}", error))
        return Found(index=index, handle=handle, uuid=uuid, name=name)

    def _stopped(self, what: str, error: Any) -> ProbeError:
        kind, words = self._kinds.get(error.value, ("other", ""))
        return ProbeError(f"{what}: {words} ({error})" if words else f"{what}: {error}", kind=kind)

    def _ask(self, device: Found | None, function: str, *arguments: Any, **named: Any) -> Any:
        """Call one NVML function; None when this driver or device does not give the answer."""
        before = () if device is None else (device.handle,)
        try:
            return getattr(self._nvml, function)(*before, *arguments, **named)
        except self._nvml.NVMLError as error:
            if error.value in self._not_given:
                return None
            what = function if device is None else f"GPU {device.index} {device.name}, {function}"
            raise self._stopped(what, error) from error

    def _number(self, device: Found, function: str, *arguments: Any, ones: int = _ONES_32) -> int | None:
        value = self._ask(device, function, *arguments)
        return None if value is None or value == ones else int(value)

    def _flag(self, device: Found, function: str) -> bool | None:
        """Read an on/off mode; where NVML gives current and pending, the current one."""
        value = self._ask(device, function)
        current = value[0] if isinstance(value, list | tuple) else value
        return None if current is None else current == self._nvml.NVML_FEATURE_ENABLED

    def _watts(self, device: Found, function: str) -> float | None:
        milliwatts = self._number(device, function)
        return None if milliwatts is None else milliwatts / 1000

    def _temperature(self, device: Found) -> int | None:
        """Read the GPU sensor; NVIDIA removes the older of the two functions with CUDA 14."""
        sensor = self._nvml.NVML_TEMPERATURE_GPU
        value = self._number(device, "nvmlDeviceGetTemperatureV", sensor)
        return value if value is not None else self._number(device, "nvmlDeviceGetTemperature", sensor)

    def _ask_v2(self, device: Found) -> Any:
        return self._ask(device, "nvmlDeviceGetMemoryInfo", version=self._nvml.nvmlMemory_v2)

    def _memory(self, device: Found) -> dict[str, int]:
        """Return those of total, used, free and reserved (bytes) that the device gives."""
        info = self._ask_v2(device) if self._memory_v2 else self._ask(device, "nvmlDeviceGetMemoryInfo")
        names = ("total", "used", "free", "reserved") if self._memory_v2 else ("total", "used", "free")
        sizes = {} if info is None else {name: int(getattr(info, name)) for name in names}
        return {name: size for name, size in sizes.items() if size != _ONES_64}

    def _identify(self, device: Found) -> Gpu:
        total = self._memory(device).get("total")
        if not total:
            raise ProbeError(f"GPU {device.title} does not say how much memory it has (unified memory?)")
        capability = self._ask(device, "nvmlDeviceGetCudaComputeCapability")
        pci = self._ask(device, "nvmlDeviceGetPciInfo")
        return Gpu(
            index=device.index,
            name=device.name,
            memory_bytes=total,
            uuid=device.uuid,
            compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
            power_limit_watts=self._watts(device, "nvmlDeviceGetEnforcedPowerLimit"),
            power_default_watts=self._watts(device, "nvmlDeviceGetPowerManagementDefaultLimit"),
            mig=self._flag(device, "nvmlDeviceGetMigMode"),
            ecc=self._flag(device, "nvmlDeviceGetEccMode"),
            persistence=self._flag(device, "nvmlDeviceGetPersistenceMode"),
            pci_bus_id=None if pci is None else pci.busId,
            pcie_generation_max=self._number(device, "nvmlDeviceGetMaxPcieLinkGeneration"),
            pcie_width_max=self._number(device, "nvmlDeviceGetMaxPcieLinkWidth"),
            vbios=self._ask(device, "nvmlDeviceGetVbiosVersion") or None,
        )

    def _read(self, device: Found, time: float, phase: str, slow: bool) -> Sample:
        nvml = self._nvml
        memory = self._memory(device)
        reasons = self._number(device, "nvmlDeviceGetCurrentClocksEventReasons", ones=_ONES_64)
        if reasons is None:
            reasons = self._number(device, "nvmlDeviceGetCurrentClocksThrottleReasons", ones=_ONES_64)
        load = self._ask(device, "nvmlDeviceGetUtilizationRates") if slow else None
        return Sample(
            time=time,
            phase=phase,
            device=device.index,
            used_bytes=memory.get("used"),
            reserved_bytes=memory.get("reserved"),
            free_bytes=memory.get("free"),
            sm_clock_mhz=self._number(device, "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._number(device, "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            event_reasons=reasons,
            utilisation=None if load is None or load.gpu > 100 else load.gpu / 100,
            power_watts=self._watts(device, "nvmlDeviceGetPowerUsage"),
            temperature_c=self._temperature(device) if slow else None,
            pcie_generation=self._number(device, "nvmlDeviceGetCurrPcieLinkGeneration") if slow else None,
            pcie_width=self._number(device, "nvmlDeviceGetCurrPcieLinkWidth") if slow else None,
        )

    def _processes(self, device: Found) -> list[DeviceProcess]:
        """Merge both lists by pid; each counts all of a process's memory, so the larger one is right, not the sum."""
        compute = self._ask(device, "nvmlDeviceGetComputeRunningProcesses_v3")
        if compute is None:
            raise ProbeError(f"GPU {device.title} does not list its processes", kind="no-permission")
        graphics = self._ask(device, "nvmlDeviceGetGraphicsRunningProcesses_v3") or []
        used: dict[int, int | None] = {}
        for process in (*compute, *graphics):
            size = process.usedGpuMemory
            known = None if size is None or size == _ONES_64 else int(size)
            before = used.get(process.pid)
            used[process.pid] = known if before is None else max(before, known or 0)
        return [
            DeviceProcess(pid=pid, device=device.index, name=_comm(pid), used_bytes=size) for pid, size in used.items()
        ]


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
