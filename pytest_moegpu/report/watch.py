"""The live table of `moegpu watch`, and the summary at its end: text of what was read, unknown values as `-`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tabulate import tabulate

from pytest_moegpu.core.evidence import DeviceProcess
from pytest_moegpu.core.model import DeviceKind, Gpu
from pytest_moegpu.core.units import format_bytes

__all__ = ["DeviceView", "TreeView", "View", "summary", "table"]

_HEADERS = ("device", "name", "used", "total", "peak", "load", "SM", "memory clock", "power", "temp", "PCIe", "held by")


@dataclass(frozen=True, kw_only=True)
class DeviceView:
    """One device as it was last read. `peak_bytes` and `temperature_max_c` are since the start.

    `reasons` are words of `core.reasons` seen since the last table, `reasons_ever` since the start; None: not known.
    """

    gpu: Gpu
    used_bytes: int | None = None
    peak_bytes: int | None = None
    utilisation: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    temperature_c: float | None = None
    temperature_max_c: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    reasons: tuple[str, ...] | None = None
    reasons_ever: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class TreeView:
    """The process asked for and all it started; bytes, peaks since the start. Device memory as the driver says it."""

    pid: int
    name: str
    processes: int
    host_bytes: int | None = None
    host_peak_bytes: int | None = None
    device_bytes: int | None = None
    device_peak_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class View:
    """Everything of one table. `source` says what is read; `seconds` since the start; `gap` the longest in seconds."""

    source: str
    seconds: float
    readings: int
    devices: tuple[DeviceView, ...]
    processes: tuple[DeviceProcess, ...] = ()
    tree: TreeView | None = None
    hz: float | None = None
    gap: float | None = None
    notes: tuple[str, ...] = ()


def table(view: View) -> str:
    """Print the devices, the processes on them, and the tree asked for."""
    parts = [f"{view.seconds:.0f} s   {view.source}   {_rate(view)}", _devices(view.devices)]
    if view.processes:
        parts.append(_processes(view.processes))
    if view.tree is not None:
        parts.append(_tree(view.tree))
    parts += [f"note: {note}" for note in view.notes]
    return "\n".join(parts)


def summary(view: View) -> str:
    """Print what was highest, over all the time watched."""
    lines = [f"watched {view.seconds:.1f} s, {view.readings} readings, {_rate(view)}"]
    lines += [f"{_title(device.gpu)}: {', '.join(_device_summary(device))}" for device in view.devices]
    if view.tree is not None:
        tree = view.tree
        lines.append(
            f"pid {tree.pid}{f' ({tree.name})' if tree.name else ''}: host memory at most {_size(tree.host_peak_bytes)}"
            f"{'' if tree.device_peak_bytes is None else f', on the device at most {_size(tree.device_peak_bytes)}'}"
        )
    return "\n".join(lines)


def _device_summary(device: DeviceView) -> Iterator[str]:
    yield f"at most {_size(device.peak_bytes)} used"
    if device.temperature_max_c is not None:
        yield f"at most {device.temperature_max_c:.0f} C"
    if device.energy_joules is not None:
        yield f"{device.energy_joules:.0f} J"
    if device.reasons_ever is not None:
        yield f"clocks held by {_words(device.reasons_ever)}"


def _rate(view: View) -> str:
    if view.hz is None or view.gap is None:
        return "not yet two readings"
    return f"{view.hz:.1f} readings/s, longest gap {view.gap * 1000:.1f} ms"


def _devices(devices: Sequence[DeviceView]) -> str:
    rows = [
        (
            d.gpu.index,
            d.gpu.name,
            _size(d.used_bytes),
            _size(d.gpu.memory_bytes),
            _size(d.peak_bytes),
            "-" if d.utilisation is None else f"{d.utilisation * 100:.0f} %",
            _number(d.sm_clock_mhz, "MHz"),
            _number(d.memory_clock_mhz, "MHz"),
            _number(d.power_watts, "W"),
            _number(d.temperature_c, "C"),
            "-" if d.pcie_generation is None else f"gen {d.pcie_generation} x{d.pcie_width or '?'}",
            "-" if d.reasons is None else _words(d.reasons),
        )
        for d in devices
    ]
    return tabulate(rows, headers=_HEADERS, tablefmt="simple", disable_numparse=True)


def _processes(processes: Sequence[DeviceProcess]) -> str:
    largest_first = sorted(processes, key=lambda p: (p.device, -(p.used_bytes or 0), p.pid))
    rows = [(p.pid, p.name or "-", p.device, _size(p.used_bytes)) for p in largest_first]
    return tabulate(rows, headers=("pid", "process", "device", "memory"), tablefmt="simple", disable_numparse=True)


def _tree(tree: TreeView) -> str:
    counted = f"{tree.processes} process{'' if tree.processes == 1 else 'es'}"
    text = f"pid {tree.pid}{f' ({tree.name})' if tree.name else ''}, {counted}: "
    text += f"host memory {_size(tree.host_bytes)}, peak {_size(tree.host_peak_bytes)}"
    if tree.device_bytes is not None or tree.device_peak_bytes is not None:
        text += f"; on the device {_size(tree.device_bytes)}, peak {_size(tree.device_peak_bytes)}"
    return text


def _title(gpu: Gpu) -> str:
    return f"GPU {gpu.index} {gpu.name}" if gpu.kind is DeviceKind.GPU else gpu.name


def _size(count: int | None) -> str:
    return "-" if count is None else format_bytes(count)


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f} {unit}"


def _words(reasons: Sequence[str]) -> str:
    return ", ".join(reason.replace("_", " ") for reason in reasons) or "nothing"
