"""How short may a peak of GPU memory be, and the sampler still sees it?

    PYTHONPATH=. python bench/spikes.py [--spikes 100] [--loads streams busy] [--device 0] [--json spikes.json]

A child process takes 512 MiB with cuMemAlloc, holds it for 5 to 100 ms, and gives it back with cuMemFree, at random
offsets and with the hold times mixed; it sees no other device than the one that is read. Meanwhile the sampler reads
the nvml probe at the probe's own interval in this process, which also receives 16 measured streams (`streams`) or keeps
a thread in Python code (`busy`); see `load.py`.
`held` is what was measured in the child, from the return of cuMemAlloc to the call of cuMemFree. A spike is seen when
a reading between it and the next is above the idle one by 256 MiB. Exit code 1 when one of 20 ms or more was missed or
none was made, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tabulate import tabulate

from bench.load import LOADS
from pytest_moegpu.core.model import Gpu
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.errors import MoegpuError
from pytest_moegpu.host.nvmlprobe import NvmlProbe
from pytest_moegpu.host.sampler import Sampler

SIZE = 512 * 2**20
HOLDS = (0.005, 0.010, 0.015, 0.020, 0.030, 0.050, 0.100)
SURE_SECONDS = 0.020
PAUSES = (0.03, 0.07)
# A stamp is taken just before its reading, so it may be a little older than the spike that the reading saw.
STAMP_SLACK = 0.005


@dataclass(frozen=True, kw_only=True)
class Spike:
    """One allocation: seconds on the monotonic clock, which all processes of a machine share."""

    hold: float
    before: float
    taken: float
    given: float
    after: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of the spikes of one hold time under one load."""

    load: str
    hold: float
    held_median: float
    held_min: float
    spikes: int
    seen: int
    longest_gap: float
    hz: float


class Cuda:
    """Plain allocations on the first device CUDA sees, through the driver's library; a failed call raises OSError."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(handle), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self._call("cuCtxSetCurrent", context)

    def take(self, size: int) -> ctypes.c_uint64:
        """Allocate device memory."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def give(self, address: ctypes.c_uint64) -> None:
        """Free it."""
        self._call("cuMemFree_v2", address)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise OSError(f"{name} failed with CUDA error {code}")


def child_environment(gpu: Gpu) -> dict[str, str]:
    """Return the variables with which CUDA sees this one device only: its ordinals are not NVML's indexes."""
    name = gpu.cuda_name or gpu.uuid
    if name is None:
        raise SystemExit(f"the driver does not say by which name CUDA knows GPU {gpu.index}")
    return os.environ | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": name}


def child(holds: Sequence[float], seed: int) -> None:
    """Make the spikes: `ready` first, then wait for a line, then one JSON line for all of them."""
    cuda = Cuda()
    cuda.give(cuda.take(SIZE))
    print("ready", flush=True)
    sys.stdin.readline()
    chance = random.Random(seed)
    done = []
    for hold in holds:
        time.sleep(chance.uniform(*PAUSES))
        before = time.monotonic()
        address = cuda.take(SIZE)
        taken = time.monotonic()
        time.sleep(hold)
        given = time.monotonic()
        cuda.give(address)
        done.append(Spike(hold=hold, before=before, taken=taken, given=given, after=time.monotonic()))
    time.sleep(PAUSES[1])
    print(json.dumps([asdict(spike) for spike in done]), flush=True)


def measure(device: int, load: str, holds: Sequence[float], seed: int) -> list[Row]:
    """Make all spikes under one load and look each of them up in the samples."""
    probe = NvmlProbe((device,))
    argv = [sys.executable, __file__, "--child", json.dumps({"holds": list(holds), "seed": seed})]
    variables = child_environment(probe.devices()[0])
    with subprocess.Popen(argv, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise SystemExit("the child process cannot allocate; see its message above")
            # Its context lives until it ends: what is on the device now is what a spike comes on top of.
            (idle,) = probe.read(time.monotonic(), "idle")
            if idle.used_bytes is None:
                raise SystemExit("the driver does not say how much memory is used")
            sampler = Sampler(probe)
            with LOADS[load]():
                sampler.start()
                try:
                    process.stdin.write("go\n")
                    process.stdin.flush()
                    spikes = [Spike(**fields) for fields in json.loads(process.stdout.readline())]
                finally:
                    sampler.stop()
        finally:
            process.kill()
            probe.close()
    if sampler.error is not None:
        raise sampler.error
    seen = found(spikes, sampler.samples, idle.used_bytes + SIZE // 2)
    rows = []
    for hold in sorted(set(holds)):
        mine = [number for number, spike in enumerate(spikes) if spike.hold == hold]
        held = [spikes[number].given - spikes[number].taken for number in mine]
        rows.append(
            Row(
                load=load,
                hold=hold,
                held_median=statistics.median(held),
                held_min=min(held),
                spikes=len(mine),
                seen=sum(number in seen for number in mine),
                longest_gap=sampler.gap() or 0.0,
                hz=sampler.rate() or 0.0,
            )
        )
    return rows


def found(spikes: Sequence[Spike], samples: Sequence[Sample], above: int) -> set[int]:
    """Return the numbers of the spikes that have a reading above the limit before the next spike begins."""
    high = [s.time for s in samples if s.used_bytes is not None and s.used_bytes >= above]
    ends = [spike.before - STAMP_SLACK for spike in spikes[1:]] + [float("inf")]
    return {
        number
        for number, (spike, end) in enumerate(zip(spikes, ends, strict=True))
        if any(spike.before - STAMP_SLACK <= moment < end for moment in high)
    }


def table(rows: Sequence[Row]) -> str:
    """Print spikes seen and missed by hold time."""
    return tabulate(
        [
            (
                r.load,
                f"{r.hold * 1000:.0f}",
                f"{r.held_median * 1000:.2f}",
                f"{r.held_min * 1000:.2f}",
                r.spikes,
                r.seen,
                r.spikes - r.seen,
                f"{r.longest_gap * 1000:.1f}",
                f"{r.hz:.1f}",
            )
            for r in rows
        ],
        headers=("load", "hold ms", "held ms", "least held", "spikes", "seen", "missed", "longest gap ms", "Hz"),
        disable_numparse=True,
    )


def main() -> int:
    """Run every load, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spikes", type=int, default=100, help="of each hold time (default 100)")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=["streams", "busy"])
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--json", type=Path, default=Path("spikes.json"))
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(**args.child)
        return 0
    holds = list(HOLDS) * args.spikes
    random.Random(args.seed).shuffle(holds)
    try:
        rows = [row for load in args.loads for row in measure(args.device, load, holds, args.seed)]
    except MoegpuError as error:
        print(error, file=sys.stderr)
        return 2
    print(table(rows))
    args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    sure = [row for row in rows if row.hold >= SURE_SECONDS]
    missed = sum(row.spikes - row.seen for row in sure)
    print(f"spikes of {SURE_SECONDS * 1000:.0f} ms or more that were missed: {missed}")
    return 1 if missed or not sure else 0


if __name__ == "__main__":
    sys.exit(main())
