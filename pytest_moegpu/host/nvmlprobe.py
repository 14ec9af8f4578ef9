"""The `nvml` probe: NVIDIA GPUs and MIG instances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_moegpu.core.evidence import DeviceProcess
from pytest_moegpu.core.health import DeviceHealth
from pytest_moegpu.core.model import Gpu
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.errors import ProbeError
from pytest_moegpu.host.nativeplan import Plan
from pytest_moegpu.host.nvml import Nvml
from pytest_moegpu.host.nvmlplan import EverySeconds
from pytest_moegpu.host.nvmlreaders import Memory
from pytest_moegpu.host.selection import Found, select

__all__ = ["ENERGY_SECONDS", "NvmlProbe"]

# A little less than four, eight and fifty intervals, so that a reading that comes early does not cost a whole turn.
_OFTEN_SECONDS = 0.035
_CLOCK_SECONDS = 0.075
_SELDOM_SECONDS = 0.495
ENERGY_SECONDS = 10.0
"""The energy counter takes 2 to 13 ms a reading on an H200, a thousand times what the others take."""
_ONES_32 = 0xFFFF_FFFF


class NvmlProbe:
    """Reads NVIDIA devices. A field the driver does not give, or gives as all ones, is None.

    Made to be read every 10 ms. Memory is in every reading. Event reasons are read again when 35 ms have passed, so in
    every fourth reading, the SM clock in every eighth, and memory clock, utilisation, power, temperature and PCIe
    generation, which change slowly or cost more, in every fiftieth. The energy counter and the width of the link are
    read when the phase changes that the caller gives, and when `energy_seconds` have passed: prefill and decode, which
    take turns and are told apart afterwards, have the driver's own readings of power. In between a field is None, never
    an older value. Readings that lie further apart have every field.

    `memory_version` is `nvml-v2` when every device has it; with `nvml-v1` `used_bytes` contains what the driver keeps
    for itself. A GPU in MIG mode is read by its instances; what NVML does not give for an instance is None in readings,
    and the parent's for what does not differ between them: power limits, temperature before and after a start, ECC
    mode, PCI address, VBIOS.

    Args:
        devices: The devices to read, as index or as UUID or its beginning; digits in a string are an index. GPUs are
            numbered in PCI bus order, and MIG instances on from the last of them. They are taken as they are, whatever
            `visible` says. None given: all visible ones.
        visible: The value of CUDA_VISIBLE_DEVICES, None where it is not set: UUIDs or their beginnings, or indexes.
            Indexes count the devices that can be opened, in PCI bus order; CUDA counts so with
            CUDA_DEVICE_ORDER=PCI_BUS_ID, or when all GPUs are alike. As in CUDA, -1 ends the list.
        energy_seconds: How long to do without the energy counter within one phase.

    Raises:
        ProbeError: The library, the driver or a device asked for cannot be used; see `kind`.
        DeviceError: A device asked for does not exist, or is a GPU in MIG mode; the message lists what there is.
    """

    name = "nvml"
    interval_seconds = 0.01

    def __init__(
        self, devices: Sequence[int | str] = (), visible: str | None = None, energy_seconds: float = ENERGY_SECONDS
    ) -> None:
        self._followed: int | None = None
        self._energy_seconds = energy_seconds
        self._often_at = self._clock_at = self._seldom_at = self._energy_at = -math.inf
        self._plain_until = -math.inf
        self._phase = ""
        self._nvml = Nvml()
        try:
            found = self._nvml.devices()
            self._devices = select(found, devices, visible)
            # CUDA numbers only the GPUs it may open, so beside a closed one an index means another GPU there.
            self._by_uuid = any(device.error is not None for device in found)
            self._memory_v2 = all(self._nvml.memory(device, v2=True) is not None for device in self._devices)
            self._readers = [_Readers(self._nvml, device, v2=self._memory_v2) for device in self._devices]
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
        driver = self._nvml.ask(None, "nvmlSystemGetDriverVersion")
        cuda = self._nvml.ask(None, "nvmlSystemGetCudaDriverVersion_v2")
        found = {"driver": driver, "cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None}
        return {name: str(value) for name, value in found.items() if value}

    def follow(self, pid: int | None) -> None:
        """Remember the server's process; NVML counts whole devices, so readings do not change."""
        self._followed = pid

    def read(self, time: float, phase: str) -> tuple[Sample, ...]:
        """Read every device once: bytes, MHz, watts, joules, degrees Celsius, utilisation as a share of one.

        Raises:
            ProbeError: A device is lost, or NVML fails in a way that is not about a single field.
        """
        if self._often_at <= time < self._plain_until and phase == self._phase:
            # Nothing but memory is due: the way of three readings in four, which must be short.
            return tuple([readers.plain(time, phase) for readers in self._readers])
        # Either way round: callers' clocks may start anywhere.
        often = abs(time - self._often_at) >= _OFTEN_SECONDS
        seldom = abs(time - self._seldom_at) >= _SELDOM_SECONDS
        energy = phase != self._phase or abs(time - self._energy_at) >= self._energy_seconds
        clock = abs(time - self._clock_at) >= _CLOCK_SECONDS
        if often:
            self._often_at = time
        if clock:
            self._clock_at = time
        if seldom:
            self._seldom_at = time
        if energy:
            self._energy_at, self._phase = time, phase
        self._plain_until = min(
            self._often_at + _OFTEN_SECONDS,
            self._clock_at + _CLOCK_SECONDS,
            self._seldom_at + _SELDOM_SECONDS,
            self._energy_at + self._energy_seconds,
        )
        # Memory of all first: the others take milliseconds now and then, and one stamp stands for all devices.
        memory = [readers.memory() for readers in self._readers]
        due = _Due(often, clock, seldom, energy)
        return tuple(
            self._read(device, readers, sizes, time, phase, due)
            for device, readers, sizes in zip(self._devices, self._readers, memory, strict=True)
        )

    def native_plan(self) -> Plan | None:
        """Return what `read` asks, for a loop outside Python; None where the library's functions cannot be had."""
        every = EverySeconds(_OFTEN_SECONDS, _CLOCK_SECONDS, _SELDOM_SECONDS, self._energy_seconds)
        return self._nvml.native_plan(self._devices, every, v2=self._memory_v2)

    def health(self) -> tuple[DeviceHealth, ...]:
        """Read fault counters, power limit (watts) and temperature (degrees Celsius) of every device.

        Raises:
            ProbeError: A device is lost.
        """
        return tuple(self._health(device) for device in self._devices)

    def processes(self) -> tuple[DeviceProcess, ...]:
        """List the processes with a compute or graphics context; `used_bytes` is None where the driver does not say.

        Pids are the driver's: one without a process in this pid namespace is listed without a name, and so is 0, of
        which there may be several, for processes of which the driver does not tell the pid.

        Raises:
            ProbeError: A device is lost or does not list its processes: an empty list would say that it is free.
        """
        return tuple(process for device in self._devices for process in self._processes(device))

    def close(self) -> None:
        """Let go of NVML. Safe to call twice; never raises."""
        self._nvml.close()

    def _identify(self, device: Found) -> Gpu:
        nvml = self._nvml
        total = (nvml.memory(device, v2=self._memory_v2) or {}).get("total")
        if not total:
            raise ProbeError(f"GPU {device.title} does not say how much memory it has (unified memory?)")
        board = device.parent or device
        capability = nvml.ask(board, "nvmlDeviceGetCudaComputeCapability")
        pci = nvml.ask(board, "nvmlDeviceGetPciInfo")
        return Gpu(
            index=device.index,
            name=device.name,
            memory_bytes=total,
            uuid=device.uuid,
            compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
            power_limit_watts=nvml.thousandths(board, "nvmlDeviceGetEnforcedPowerLimit"),
            power_default_watts=nvml.thousandths(board, "nvmlDeviceGetPowerManagementDefaultLimit"),
            mig=True if device.parent else nvml.flag(device, "nvmlDeviceGetMigMode"),
            ecc=nvml.flag(board, "nvmlDeviceGetEccMode"),
            persistence=nvml.flag(board, "nvmlDeviceGetPersistenceMode"),
            pci_bus_id=None if pci is None else pci.busId,
            pcie_generation_max=nvml.number(board, "nvmlDeviceGetMaxPcieLinkGeneration"),
            pcie_width_max=nvml.number(board, "nvmlDeviceGetMaxPcieLinkWidth"),
            vbios=nvml.ask(board, "nvmlDeviceGetVbiosVersion") or None,
            cuda_name=device.uuid if self._by_uuid or device.parent else str(device.index),
        )

    def _read(self, device: Found, readers: _Readers, sizes: Memory, time: float, phase: str, due: _Due) -> Sample:
        nvml = self._nvml
        used, free, reserved = sizes
        load = nvml.ask(device, "nvmlDeviceGetUtilizationRates") if due.seldom else None
        return Sample(
            time=time,
            phase=phase,
            device=device.index,
            used_bytes=used,
            reserved_bytes=reserved,
            free_bytes=free,
            sm_clock_mhz=readers.sm_clock() if due.clock else None,
            memory_clock_mhz=readers.memory_clock() if due.seldom else None,
            event_reasons=readers.event_reasons() if due.often else None,
            utilisation=None if load is None or load.gpu > 100 else load.gpu / 100,
            power_watts=_thousandths(readers.power()) if due.seldom else None,
            energy_joules=nvml.energy(device) if due.energy else None,
            temperature_c=nvml.temperature(device) if due.seldom else None,
            # No link has generation or width 0: where a virtual machine shows that, it is not known.
            pcie_generation=(readers.pcie_generation() or None) if due.seldom else None,
            # Never changes between two looks, and the driver takes five times as long for it as for the others.
            pcie_width=(readers.pcie_width() or None) if due.energy else None,
        )

    def _health(self, device: Found) -> DeviceHealth:
        nvml = self._nvml
        board = device.parent or device
        rows = nvml.ask(device, "nvmlDeviceGetRemappedRows") or (None,) * 4
        corrected, uncorrected, pending, failed = (None if value == _ONES_32 else value for value in rows)
        return DeviceHealth(
            device=device.index,
            ecc_corrected=nvml.ecc_errors(device, corrected=True),
            ecc_uncorrected=nvml.ecc_errors(device, corrected=False),
            rows_remapped_corrected=corrected,
            rows_remapped_uncorrected=uncorrected,
            remap_pending=None if pending is None else bool(pending),
            remap_failed=None if failed is None else bool(failed),
            pcie_replays=nvml.number(device, "nvmlDeviceGetPcieReplayCounter"),
            power_limit_watts=nvml.thousandths(board, "nvmlDeviceGetEnforcedPowerLimit"),
            temperature_c=nvml.temperature(board),
        )

    def _processes(self, device: Found) -> list[DeviceProcess]:
        """Merge both lists by pid; each counts all of a process's memory, so the larger one is right, not the sum."""
        compute = self._nvml.processes(device, "Compute")
        if compute is None:
            raise ProbeError(f"GPU {device.title} does not list its processes", kind="no-permission")
        graphics = self._nvml.processes(device, "Graphics") or []
        used: dict[int, int | None] = {}
        for pid, size in (*compute, *graphics):
            if pid:
                known = [value for value in (used.get(pid), size) if value is not None]
                used[pid] = max(known, default=None)
        # Processes without a pid cannot be told apart, so those of one list are not taken for those of the other.
        nameless = [size for pid, size in compute if not pid] or [size for pid, size in graphics if not pid]
        return [
            DeviceProcess(pid=pid, device=device.index, name=_comm(pid), used_bytes=size)
            for pid, size in (*used.items(), *((0, size) for size in nameless))
        ]


class _Due(NamedTuple):
    """What a reading shall have beside memory."""

    often: bool
    clock: bool
    seldom: bool
    energy: bool


class _Readers:
    """The quick questions to one device."""

    def __init__(self, nvml: Nvml, device: Found, *, v2: bool) -> None:
        self._index = device.index
        self.memory = nvml.memory_reader(device, v2=v2)
        self.sm_clock = nvml.clock_reader(device, "SM")
        self.memory_clock = nvml.clock_reader(device, "MEM")
        self.event_reasons = nvml.event_reasons_reader(device)
        self.power = nvml.number_reader(device, "nvmlDeviceGetPowerUsage")
        self.pcie_generation = nvml.number_reader(device, "nvmlDeviceGetCurrPcieLinkGeneration")
        self.pcie_width = nvml.number_reader(device, "nvmlDeviceGetCurrPcieLinkWidth")

    def plain(self, time: float, phase: str) -> Sample:
        """Return a sample with nothing but memory."""
        used, free, reserved = self.memory()
        return Sample(
            time=time, phase=phase, device=self._index, used_bytes=used, reserved_bytes=reserved, free_bytes=free
        )


def _thousandths(value: int | None) -> float | None:
    return None if value is None else value / 1000


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
