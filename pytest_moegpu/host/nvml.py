"""The binding to libnvidia-ml through nvidia-ml-py. Alone imports `pynvml`, and only when NVML is opened."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pytest_moegpu.errors import ProbeError
from pytest_moegpu.host.nativeplan import Plan
from pytest_moegpu.host.nvmlplan import EverySeconds, plan
from pytest_moegpu.host.nvmlreaders import Memory, memory_reader, number_reader
from pytest_moegpu.host.selection import Found

__all__ = ["Nvml"]

_ONES_32 = 0xFFFF_FFFF
_ONES_64 = 0xFFFF_FFFF_FFFF_FFFF

_NOT_GIVEN = (
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "NOT_FOUND",
    "FUNCTION_NOT_FOUND",
    "ARGUMENT_VERSION_MISMATCH",
    "DEPRECATED",
    "NO_DATA",
    "LIBRARY_NOT_FOUND",
    "CORRUPTED_INFOROM",
)
"""Answers that mean "this field is not to be had here"; the CUDA version comes from libcuda, which may be missing."""

_XID = "look for an Xid in the kernel log"
_KINDS = {
    "LIBRARY_NOT_FOUND": (
        "no-library",
        "libnvidia-ml is not installed: install the NVIDIA driver, or give the container its utilities "
        "(NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
    ),
    "LIB_RM_VERSION_MISMATCH": ("mismatch", "driver and library versions differ: reboot needed"),
    "NO_PERMISSION": (
        "no-permission",
        "no permission to use the NVIDIA device files: look at the owner and mode of /dev/nvidia*",
    ),
    "OPERATING_SYSTEM": (
        "no-permission",
        "the system keeps the NVIDIA device files from this process: look at the container's device rules (cgroup)",
    ),
    "DRIVER_NOT_LOADED": (
        "no-device",
        "the NVIDIA kernel driver is not loaded: try `modprobe nvidia`, else the kernel log says why",
    ),
    "GPU_NOT_FOUND": ("no-device", "the driver finds no GPU: does `lspci` show one?"),
    "GPU_IS_LOST": ("lost", f"the GPU is lost: {_XID}, then reset it or reboot"),
    "RESET_REQUIRED": ("lost", f"the GPU must be reset before it can be used again: {_XID}"),
    "INSUFFICIENT_POWER": ("other", "the GPU has not enough power: are its power cables in place?"),
    "IRQ_ISSUE": ("other", "the kernel has trouble with the GPU's interrupts: look in the kernel log"),
    "UNKNOWN": (
        "other",
        "the driver gives no reason: look in the kernel log; a container whose devices were taken away must be started "
        "again",
    ),
}
"""What an error that stops the probe means: kind of `ProbeError`, and words for a person with what to do next."""

_MODULE_VERSIONS: tuple[Path, ...] = (Path("/sys/module/nvidia/version"), Path("/proc/driver/nvidia/version"))
"""Where the kernel module says its version; a line of several words in the second."""


class Nvml:
    """NVML, started. Answers by function name; what is not to be had for one device or driver is None.

    Raises:
        ProbeError: The library or the driver cannot be used; `kind` says which way.
    """

    def __init__(self) -> None:
        import pynvml

        self._lib: Any = pynvml
        self._not_given = {getattr(pynvml, f"NVML_ERROR_{name}") for name in _NOT_GIVEN}
        self._kinds = {getattr(pynvml, f"NVML_ERROR_{name}"): words for name, words in _KINDS.items()}
        self._missing: set[str] = set()
        self._closed = False
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise self._stopped("NVML does not start", error) from error

    def close(self) -> None:
        """Let go of NVML. Safe to call twice; never raises."""
        if self._closed:
            return
        self._closed = True
        try:
            self._lib.nvmlShutdown()
        except self._lib.NVMLError:
            return

    def devices(self) -> list[Found]:
        """List the GPUs in PCI bus order, each with its MIG instances; these are numbered on after the last GPU.

        Raises:
            ProbeError: The driver does not count its devices, or has none.
        """
        try:
            count = self._lib.nvmlDeviceGetCount()
        except self._lib.NVMLError as error:
            raise self._stopped("NVML does not count its devices", error) from error
        if not count:
            raise ProbeError(
                "the NVIDIA driver is loaded but has no GPU: does `lspci` show one, and may this container use it?",
                kind="no-device",
            )
        numbers = itertools.count(count)
        return [self._divided(self._open(index), numbers) for index in range(count)]

    def ask(self, device: Found | None, function: str, *arguments: Any, **named: Any) -> Any:
        """Call one NVML function; None when this driver or device does not give the answer.

        Raises:
            ProbeError: The device is lost, or NVML fails in a way that is not about a single field.
        """
        if function in self._missing:
            return None
        before = () if device is None else (device.handle,)
        try:
            return getattr(self._lib, function)(*before, *arguments, **named)
        except self._lib.NVMLError as error:
            if error.value == self._lib.NVML_ERROR_FUNCTION_NOT_FOUND and not named:
                # A symbol the library lacks stays missing, and looking for it again costs more than most answers.
                self._missing.add(function)
            if error.value in self._not_given or self._is_for_whole_gpus(device, function, error):
                return None
            what = function if device is None else f"GPU {device.index} {device.name}, {function}"
            raise self._stopped(what, error) from error

    def number(self, device: Found, function: str, *arguments: Any, ones: int = _ONES_32) -> int | None:
        """Like `ask`, for one number; all ones stand for "not available"."""
        value = self.ask(device, function, *arguments)
        return None if value is None or value == ones else int(value)

    def long(self, device: Found, function: str, *arguments: Any) -> int | None:
        """Like `number`, for one of 64 bits."""
        return self.number(device, function, *arguments, ones=_ONES_64)

    def thousandths(self, device: Found, function: str, ones: int = _ONES_32) -> float | None:
        """Like `number`, turning milliwatts into watts, or millijoules (64 bits) into joules."""
        value = self.number(device, function, ones=ones)
        return None if value is None else value / 1000

    def flag(self, device: Found, function: str) -> bool | None:
        """Read an on/off mode; where NVML gives current and pending, the current one."""
        value = self.ask(device, function)
        current = value[0] if isinstance(value, list | tuple) else value
        return None if current is None else current == self._lib.NVML_FEATURE_ENABLED

    def clock(self, device: Found, domain: str) -> int | None:
        """Read the clock of a domain (`SM` or `MEM`) in MHz."""
        return self.number(device, "nvmlDeviceGetClockInfo", getattr(self._lib, f"NVML_CLOCK_{domain}"))

    def energy(self, device: Found) -> float | None:
        """Read the energy used since the driver was loaded, in joules."""
        return self.thousandths(device, "nvmlDeviceGetTotalEnergyConsumption", _ONES_64)

    def event_reasons(self, device: Found) -> int | None:
        """Read the bit mask of why clocks are as they are; older drivers call it throttle reasons."""
        reasons = self.long(device, "nvmlDeviceGetCurrentClocksEventReasons")
        return self.long(device, "nvmlDeviceGetCurrentClocksThrottleReasons") if reasons is None else reasons

    def temperature(self, device: Found) -> int | None:
        """Read the GPU sensor in degrees Celsius; NVIDIA removes the older of the two functions with CUDA 14."""
        sensor = self._lib.NVML_TEMPERATURE_GPU
        # The newer one is a signed number, in which all ones are -1.
        value = self.number(device, "nvmlDeviceGetTemperatureV", sensor, ones=-1)
        value = self.number(device, "nvmlDeviceGetTemperature", sensor) if value is None else value
        return None if value == _ONES_32 else value

    def ecc_errors(self, device: Found, *, corrected: bool) -> int | None:
        """Count the memory errors since the driver was loaded."""
        kind = "CORRECTED" if corrected else "UNCORRECTED"
        return self.long(
            device,
            "nvmlDeviceGetTotalEccErrors",
            getattr(self._lib, f"NVML_MEMORY_ERROR_TYPE_{kind}"),
            self._lib.NVML_VOLATILE_ECC,
        )

    def memory(self, device: Found, *, v2: bool) -> dict[str, int] | None:
        """Return those of total, used, free and, with v2, reserved (bytes) that are given; None: not this version.

        `used` of v1 contains what the driver keeps for itself, that of v2 does not.
        """
        version = {"version": self._lib.nvmlMemory_v2} if v2 else {}
        info = self.ask(device, "nvmlDeviceGetMemoryInfo", **version)
        if info is None:
            return None
        sizes = {"total": info.total, "used": info.used, "free": info.free}
        if v2:
            sizes["reserved"] = info.reserved
        return {name: size for name, size in sizes.items() if size != _ONES_64}

    def memory_reader(self, device: Found, *, v2: bool) -> Callable[[], Memory]:
        """Return a function that reads used, free and, with v2, reserved bytes of a device, and raises as `memory`."""

        def slow() -> Memory:
            sizes = self.memory(device, v2=v2) or {}
            return sizes.get("used"), sizes.get("free"), sizes.get("reserved")

        return memory_reader(self._lib, device.handle, slow, v2=v2)

    def clock_reader(self, device: Found, domain: str) -> Callable[[], int | None]:
        """Return a function that does what `clock` does."""
        kind, slow = getattr(self._lib, f"NVML_CLOCK_{domain}"), partial(self.clock, device, domain)
        return number_reader(self._lib, device.handle, "nvmlDeviceGetClockInfo", slow, kind)

    def event_reasons_reader(self, device: Found) -> Callable[[], int | None]:
        """Return a function that does what `event_reasons` does."""
        read: Callable[[], int | None] = partial(self.event_reasons, device)
        for words in ("Throttle", "Event"):
            symbol = f"nvmlDeviceGetCurrentClocks{words}Reasons"
            read = number_reader(self._lib, device.handle, symbol, read, bits=64)
        return read

    def number_reader(self, device: Found, function: str) -> Callable[[], int | None]:
        """Return a function that does what `number` does for a function without arguments."""
        return number_reader(self._lib, device.handle, function, partial(self.number, device, function))

    def native_plan(self, devices: Sequence[Found], every_seconds: EverySeconds, *, v2: bool) -> Plan | None:
        """Return what a loop outside Python asks of these devices; None: the library's functions cannot be had."""
        return plan(self._lib, devices, every_seconds, self._not_given, v2=v2)

    def processes(self, device: Found, context: str) -> list[tuple[int, int | None]] | None:
        """List pid and bytes of the processes with a `Compute` or `Graphics` context; None: not listed here.

        Raises:
            ProbeError: The driver fills its list in another layout than the binding reads, as early 535 ones do.
        """
        misread = False
        for version in ("_v3", "_v2"):
            entries = self.ask(device, f"nvmlDeviceGet{context}RunningProcesses{version}")
            if entries is None:
                continue
            # One GPU or one instance is asked, so entries of several instances are entries read at wrong places.
            if len({(entry.gpuInstanceId, entry.computeInstanceId) for entry in entries}) <= 1:
                return [(entry.pid, _size(entry.usedGpuMemory)) for entry in entries]
            misread = True
        if misread:
            raise ProbeError(
                f"GPU {device.title} lists its processes in a layout that this nvidia-ml-py misreads: "
                "update the driver or nvidia-ml-py",
                kind="no-permission",
            )
        return None

    def _open(self, index: int) -> Found:
        try:
            handle = self._lib.nvmlDeviceGetHandleByIndex(index)
            uuid, name = self._lib.nvmlDeviceGetUUID(handle), self._lib.nvmlDeviceGetName(handle)
        except self._lib.NVMLError as error:
            return Found(index=index, error=self._stopped(f"GPU {index}", error))
        return Found(index=index, handle=handle, uuid=uuid, name=name)

    def _divided(self, gpu: Found, numbers: Iterator[int]) -> Found:
        """Add the MIG instances that this process may use; places without one are skipped."""
        if gpu.error is not None:
            return gpu
        try:
            if not self.flag(gpu, "nvmlDeviceGetMigMode"):
                return gpu
            places = range(self.number(gpu, "nvmlDeviceGetMaxMigDeviceCount") or 0)
            handles = [self.ask(gpu, "nvmlDeviceGetMigDeviceHandleByIndex", place) for place in places]
            instances = [Found(index=-1, handle=handle, parent=gpu) for handle in handles if handle is not None]
            named = [
                replace(
                    instance,
                    uuid=self.ask(instance, "nvmlDeviceGetUUID"),
                    name=self.ask(instance, "nvmlDeviceGetName") or f"{gpu.name} MIG",
                )
                for instance in instances
            ]
        except ProbeError as error:
            return replace(gpu, error=error)
        # Numbered only now: one that cannot be read must not use up the number of another.
        return replace(gpu, mig=True, instances=tuple(replace(instance, index=next(numbers)) for instance in named))

    def _is_for_whole_gpus(self, device: Found | None, function: str, error: Any) -> bool:
        """Whether a function refuses an instance's handle; from the memory's, that means that the instance is gone."""
        refused = error.value == self._lib.NVML_ERROR_INVALID_ARGUMENT
        return refused and device is not None and device.parent is not None and function != "nvmlDeviceGetMemoryInfo"

    def _stopped(self, what: str, error: Any) -> ProbeError:
        kind, words = self._kinds.get(error.value, ("other", ""))
        if kind == "mismatch":
            words += self._both_versions()
        return ProbeError(f"{what}: {words} ({error})" if words else f"{what}: {error}", kind=kind)

    def _both_versions(self) -> str:
        """Say which versions differ, as far as they can be read without a started NVML."""
        try:
            # With the CUDA version in front: 13.580.159.04.
            library = str(self._lib.nvmlSystemGetNVMLVersion()).partition(".")[2]
        except self._lib.NVMLError:
            library = ""
        texts = (path.read_text(encoding="utf-8", errors="replace") for path in _MODULE_VERSIONS if path.is_file())
        module = next((match[0] for text in texts if (match := re.search(r"\b\d{3,}(\.\d+)+", text))), "")
        found = {"loaded kernel driver": module, "library": library}
        return (
            "; " + ", ".join(f"{name} {version}" for name, version in found.items() if version)
            if any(found.values())
            else ""
        )


def _size(used: int | None) -> int | None:
    """Read a process's memory: all ones, and 0 as drivers say it in containers, mean that it is not known."""
    return None if not used or used == _ONES_64 else int(used)
