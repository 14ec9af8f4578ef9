"""What the sampler costs, and whether it keeps its schedule, while other threads of the process work.

    python bench/sampler_cost.py [--seconds 8] [--hz 100] [--json sampler_cost.json]

Probes: `nvml` where there is a GPU, read by the loop in C and by the one in Python, with its one question for memory
alone beside it. Else the host probe, and `like nvml`, which makes the calls of one NVML reading (each leaves the GIL
and returns after a few microseconds) without a device. `nothing` reads no device: what the loop itself takes.
Loads: idle; 16 measured streams of 50 tokens a second; a thread that never leaves Python code.
Memory stands still in all of them but `memory moving`, so after a second the loop in Python reads 1.3 times less often;
the loop in C does not look at what it reads, and costs the same either way.
Cost is CPU time of the sampler's own threads as a share of one core; `floor` is what a thread takes on this machine
that only sleeps and wakes as often. Exit code 1 when the device probe (`nvml` in C, where that cannot be had in Python;
else `like nvml`) costs 1 % or more, or misses its rate by 2 % or more, while idle or streaming.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msgspec import structs
from tabulate import tabulate

from bench.load import LOADS
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.errors import MoegpuError
from pytest_moegpu.host.hostmem import HostProbe
from pytest_moegpu.host.nativeplan import Asked, Group, Plan, Way
from pytest_moegpu.host.nvml import Nvml
from pytest_moegpu.host.nvmlprobe import NvmlProbe
from pytest_moegpu.host.sampler import Sampler
from pytest_moegpu.host.treemem import TreeMemory

MOST_SHARE = 0.01
LEAST_OF_RATE = 0.98
# How much less often a sampler in Python reads once memory has stood still for a second.
STRETCH = 1.3
SPIKE_SECONDS = 0.02


class Nothing:
    """Reads no device."""

    name = "nothing"

    def read(self, time: float, phase: str) -> tuple[Sample, ...]:
        """Return an empty sample."""
        return (Sample(time=time, phase=phase, device=0),)

    def native_plan(self) -> Plan:
        """Ask a function of the C library that does nothing: the absolute value of 0, which is no error."""
        way = Way(function=ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value or 0)
        asked = Asked(ways=(way,), device=0, place=0, group=0, value=0, absent=frozenset())
        return Plan(
            devices=1,
            groups=(Group(every_seconds=0.0),),
            questions=(asked,),
            sample=lambda record, phase: Sample(time=record[0], phase=phase, device=0),
        )


class LikeNvml:
    """Calls foreign code as often and as long as NVML readings were measured to: 6 µs for memory, 2 µs for the rest.

    Memory at every reading, one value at every fourth and at every eighth, five at every fiftieth.
    """

    name = "like nvml"

    def __init__(self) -> None:
        self._call = ctypes.CDLL(None).memset
        self._call.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
        self._buffer = ctypes.create_string_buffer(2**20)
        self._long, self._short = self._size(6e-6), self._size(2e-6)
        self._reads = 0

    def read(self, time: float, phase: str) -> tuple[Sample, ...]:
        """Make the calls and return a sample."""
        self._reads += 1
        self._call(self._buffer, 0, self._long)
        for _ in range(sum(count for every, count in ((4, 1), (8, 1), (50, 5)) if self._reads % every == 0)):
            self._call(self._buffer, 0, self._short)
        return (Sample(time=time, phase=phase, device=0, used_bytes=1, reserved_bytes=2, free_bytes=3),)

    def _size(self, seconds: float) -> int:
        """Find how many bytes take so long to write."""
        for size in range(4096, len(self._buffer), 4096):
            took = []
            for _ in range(20):
                began = time.perf_counter()
                self._call(self._buffer, 0, size)
                took.append(time.perf_counter() - began)
            if statistics.median(took) >= seconds:
                return size
        return len(self._buffer)


class MemoryOnly:
    """Asks the driver for the memory in use and nothing else: what no sampler of this rate can do without."""

    name = "memory only"

    def __init__(self, probe: NvmlProbe) -> None:
        self._nvml = Nvml()
        found = self._nvml.devices()[0]
        self._memory = self._nvml.memory_reader(found, v2=probe.memory_version == "nvml-v2")

    def read(self, time: float, phase: str) -> tuple[Sample, ...]:
        """Return one sample with nothing but memory."""
        used, free, reserved = self._memory()
        return (Sample(time=time, phase=phase, device=0, used_bytes=used, reserved_bytes=reserved, free_bytes=free),)


class Moving:
    """Passes a probe's readings on as if memory moved at each, so that the sampler never reads less often."""

    def __init__(self, inner: Any) -> None:
        self.name = f"{inner.name}, memory moving"
        self._read = inner.read
        self._count = 0

    def read(self, time: float, phase: str) -> tuple[Sample, ...]:
        """Return the reading with another size."""
        self._count += 1
        return tuple(structs.replace(sample, used_bytes=self._count) for sample in self._read(time, phase))


class At:
    """Passes a probe's readings on, at the rate asked for."""

    def __init__(self, inner: Any, hz: float) -> None:
        self.name = str(inner.name)
        self.interval_seconds = 1 / hz
        self.read = inner.read


class AtInC(At):
    """The same, with the questions of the probe, so that the sampler may read it in C."""

    def __init__(self, inner: Any, hz: float) -> None:
        super().__init__(inner, hz)
        self.native_plan = inner.native_plan


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is to be measured: a probe, in C or in Python, under these loads."""

    probe: Any
    loads: tuple[str, ...] = tuple(LOADS)
    in_c: bool = False


def cpu_seconds(thread: str) -> float:
    """Return the CPU time of a running thread of this process."""
    ident = next(t.ident for t in threading.enumerate() if t.name == thread)
    assert ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(ident))


def floor(hz: float, seconds: float) -> float:
    """Return the share of a core that a thread takes here which only sleeps and wakes at this rate."""
    stop = threading.Event()

    def work() -> None:
        began, tick = time.monotonic(), 0
        while not stop.is_set():
            tick += 1
            time.sleep(max(0.0, began + tick / hz - time.monotonic()))

    thread = threading.Thread(target=work, name="floor", daemon=True)
    thread.start()
    before, began = cpu_seconds("floor"), time.monotonic()
    time.sleep(seconds)
    share = (cpu_seconds("floor") - before) / (time.monotonic() - began)
    stop.set()
    thread.join()
    return share


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement: shares of one core, readings per second, seconds."""

    probe: str
    loop: str
    load: str
    seconds: float
    share: float
    hz: float
    longest_gap: float
    over_spike: int
    readings: int


def measure(case: Case, load: str, hz: float, seconds: float, host: TreeMemory | None) -> Row:
    """Sample for so long under a load."""
    sampler = Sampler((AtInC if case.in_c else At)(case.probe, hz), host=host)  # type: ignore[arg-type]
    with LOADS[load]():
        time.sleep(0.5)
        sampler.start()
        threads = [t.name for t in threading.enumerate() if t.name.startswith("moegpu-sampler")]
        before, began = sum(map(cpu_seconds, threads)), time.monotonic()
        time.sleep(seconds)
        share = (sum(map(cpu_seconds, threads)) - before) / (time.monotonic() - began)
        sampler.stop()
    if sampler.error is not None:
        raise sampler.error
    for note in sampler.notes:
        print(f"{case.probe.name}, {load}: {note}", file=sys.stderr)
    times = sorted({sample.time for sample in sampler.samples})
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return Row(
        probe=case.probe.name,
        loop="C" if case.in_c and not sampler.notes else "Python",
        load=load,
        seconds=seconds,
        share=share,
        hz=sampler.rate() or 0.0,
        longest_gap=sampler.gap() or 0.0,
        over_spike=sum(gap > SPIKE_SECONDS for gap in gaps),
        readings=len(times),
    )


def cases() -> list[Case]:
    """Return what there is to measure on this machine."""
    two = ("idle", "streams")
    nothing = Case(probe=Nothing(), loads=("idle",), in_c=True)
    try:
        nvml = NvmlProbe()
    except MoegpuError as error:
        print(f"no GPU: {error}", file=sys.stderr)
        host = HostProbe()
        host.follow(os.getpid())
        return [nothing, Case(probe=Nothing()), Case(probe=LikeNvml()), Case(probe=host)]
    return [
        nothing,
        Case(probe=MemoryOnly(nvml), loads=("idle",)),
        Case(probe=Moving(nvml), loads=two),
        Case(probe=nvml, loads=two),
        Case(probe=nvml, in_c=True),
    ]


def table(rows: Iterable[Row]) -> str:
    """Print percent of a core, rate and gaps."""
    return tabulate(
        [
            (
                r.probe,
                r.loop,
                r.load,
                f"{r.share:.2%}",
                f"{r.hz:.2f}",
                f"{r.longest_gap * 1000:.1f}",
                f"{r.over_spike}/{r.readings}",
            )
            for r in rows
        ],
        headers=("probe", "loop", "load", "core", "Hz", "longest gap ms", "gaps over 20 ms"),
        disable_numparse=True,
    )


def main() -> int:
    """Measure each probe under each load, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--hz", type=float, default=100.0)
    parser.add_argument("--host", action="store_true", help="read host memory of this process's tree as well")
    parser.add_argument("--json", type=Path, default=Path("sampler_cost.json"))
    args = parser.parse_args()
    host = None
    if args.host:
        host = TreeMemory()
        host.follow(os.getpid())
    least = floor(args.hz, args.seconds)
    rows = [measure(case, load, args.hz, args.seconds, host) for case in cases() for load in case.loads]
    print(table(rows))
    print(f"floor: {least:.2%} of a core for a thread that only sleeps and wakes {args.hz:g} times a second")
    args.json.write_text(json.dumps({"floor_share": least, "rows": [asdict(row) for row in rows]}, indent=1))
    device = "nvml" if any(row.probe == "nvml" for row in rows) else "like nvml"
    measured = [row for row in rows if row.probe == device and row.load != "busy"]
    judged = [row for row in measured if row.loop == "C"] or measured
    loop = judged[0].loop
    least_hz = LEAST_OF_RATE * args.hz / (1 if loop == "C" else STRETCH)
    good = all(row.share < MOST_SHARE and row.hz >= least_hz for row in judged)
    answer = "yes" if good else "NO"
    print(f"{device} in {loop} below {MOST_SHARE:.0%} of a core and at the rate, idle and streaming: {answer}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
