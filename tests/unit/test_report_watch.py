"""The text of `moegpu watch`: every value in its unit, unknown ones as a dash."""

from __future__ import annotations

from pytest_moegpu.core.evidence import DeviceProcess
from pytest_moegpu.core.model import DeviceKind
from pytest_moegpu.core.units import GIB, MIB
from pytest_moegpu.report.watch import DeviceView, TreeView, View, summary, table
from tests.unit.builders import gpu

FULL = DeviceView(
    gpu=gpu(index=1),
    used_bytes=21 * GIB,
    peak_bytes=22 * GIB,
    utilisation=0.97,
    sm_clock_mhz=1695,
    memory_clock_mhz=9501,
    power_watts=349.6,
    energy_joules=1234.4,
    temperature_c=67,
    temperature_max_c=71,
    pcie_generation=4,
    pcie_width=16,
    reasons=("sw_power_cap", "sw_thermal"),
    reasons_ever=("idle", "sw_power_cap"),
)
TREE = TreeView(
    pid=4242,
    name="llama-server",
    processes=1,
    host_bytes=700 * MIB,
    host_peak_bytes=2 * GIB,
    device_bytes=20 * GIB,
    device_peak_bytes=21 * GIB,
)
VIEW = View(
    source="nvml (nvml-v2), driver 580.159.04",
    seconds=12.3,
    readings=1230,
    devices=(FULL,),
    processes=(
        DeviceProcess(pid=9, device=1, name="", used_bytes=None),
        DeviceProcess(pid=4242, device=1, name="llama-server", used_bytes=20 * GIB),
    ),
    tree=TREE,
    hz=99.96,
    gap=0.0123,
    notes=("pids are not known",),
)


def cells(text: str, first: str) -> list[str]:
    """Return the cells of the table row that begins so."""
    line = next(line for line in text.splitlines() if line.startswith(first))
    return [cell for cell in line.split("  ") if cell]


def test_a_full_table() -> None:
    text = table(VIEW)
    lines = text.splitlines()
    assert lines[0] == "12 s   nvml (nvml-v2), driver 580.159.04   100.0 readings/s, longest gap 12.3 ms"
    assert [cell.strip() for cell in cells(text, "1  ")] == [
        "1",
        "NVIDIA GeForce RTX 3090",
        "21.00 GiB",
        "24.00 GiB",
        "22.00 GiB",
        "97 %",
        "1695 MHz",
        "9501 MHz",
        "350 W",
        "67 C",
        "gen 4 x16",
        "sw power cap, sw thermal",
    ]
    assert [cell.strip() for cell in cells(text, "4242")] == ["4242", "llama-server", "1", "20.00 GiB"]
    assert [cell.strip() for cell in cells(text, "9  ")] == ["9", "-", "1", "-"]
    assert lines.index(next(x for x in lines if x.startswith("4242"))) < lines.index(
        next(x for x in lines if x.startswith("9  "))
    )
    assert lines[-2:] == [
        "pid 4242 (llama-server), 1 process: host memory 700 MiB, peak 2.00 GiB; on the device 20.00 GiB, "
        "peak 21.00 GiB",
        "note: pids are not known",
    ]


def test_what_is_not_known_is_a_dash_and_a_zero_is_a_zero() -> None:
    bare = View(source="nvml (nvml-v1)", seconds=0.2, readings=1, devices=(DeviceView(gpu=gpu()),))
    text = table(bare)
    assert text.splitlines()[0] == "0 s   nvml (nvml-v1)   not yet two readings"
    assert [cell.strip() for cell in cells(text, "0  ")] == [
        "0",
        "NVIDIA GeForce RTX 3090",
        "-",
        "24.00 GiB",
        *["-"] * 8,
    ]
    idle = DeviceView(gpu=gpu(), used_bytes=0, utilisation=0.0, power_watts=0.0, reasons=(), pcie_generation=1)
    found = [cell.strip() for cell in cells(table(View(source="", seconds=0, readings=2, devices=(idle,))), "0  ")]
    assert found == [
        "0",
        "NVIDIA GeForce RTX 3090",
        *("0 MiB", "24.00 GiB", "-", "0 %", "-", "-", "0 W", "-", "gen 1 x?", "nothing"),
    ]


def test_a_summary_says_what_was_highest() -> None:
    assert summary(VIEW).splitlines() == [
        "watched 12.3 s, 1230 readings, 100.0 readings/s, longest gap 12.3 ms",
        "GPU 1 NVIDIA GeForce RTX 3090: at most 22.00 GiB used, at most 71 C, 1234 J, "
        "clocks held by idle, sw power cap",
        "pid 4242 (llama-server): host memory at most 2.00 GiB, on the device at most 21.00 GiB",
    ]


def test_a_summary_of_a_processor_leaves_out_what_it_has_not() -> None:
    host = DeviceView(gpu=gpu(name="Some CPU", kind=DeviceKind.CPU), peak_bytes=3 * GIB)
    tree = TreeView(pid=7, name="", processes=3, host_peak_bytes=None)
    view = View(source="host", seconds=1.0, readings=0, devices=(host,), tree=tree)
    assert summary(view).splitlines() == [
        "watched 1.0 s, 0 readings, not yet two readings",
        "Some CPU: at most 3.00 GiB used",
        "pid 7: host memory at most -",
    ]
    assert "pid 7, 3 processes: host memory -, peak -" in table(view)
