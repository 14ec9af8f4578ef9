"""Does the memory of a GPU come back after a server has ended, and how soon? With real engines, on a real GPU.

    PYTHONPATH=. python3 bench/vram_return.py --engine vllm --model FOLDER --how kill --rounds 20 [--parallel 4]

Each round reads the idle device, starts a server under the real supervisor, waits until it is up, notes who holds
memory, ends it, and waits for the idle reading. `term` orders the supervisor to stop it. `kill` sends SIGKILL to the
first process only, as the kernel or an operator would: whoever else of the tree holds memory then (vLLM's engine, for
one) is left to the supervisor. `--parallel N` does N rounds at once: all are ended together, then the device is waited
for. The program of llamacpp is `--program` or MOEGPU_LLAMA_SERVER, the model `--model` or MOEGPU_MODEL; vLLM and
SGLang run in this Python, with `--pythonpath` before everything else.
Prints a table and writes JSON; exit code 1 when a process or memory was left, and when a round had nothing to give
back: a server that was not up or held no memory, or whose processes are missing in the driver's list.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from pytest_moegpu.core.evidence import DeviceProcess
from pytest_moegpu.core.units import GIB, MIB
from pytest_moegpu.host.boundedlog import tail
from pytest_moegpu.host.control import Control, free_port
from pytest_moegpu.host.probe import Probe
from pytest_moegpu.host.process import ServerProcess
from pytest_moegpu.host.stopreport import StopReport
from pytest_moegpu.session.device import held, used, wait_idle

RETURN_SECONDS = 30.0
STEADY_SECONDS = 3.0
POLL_SECONDS = 0.02
# A CUDA context without a model takes more; a server that takes less was not on the device.
HELD_BYTES = 64 * MIB
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}

Command = Callable[[int], list[str]]
"""Port → command line of one server."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to start and how to end it. `steady`: memory that no longer grows counts as up, whatever health says."""

    name: str
    command: Command
    environment: dict[str, str]
    how: str
    health_path: str = "/health"
    steady: bool = False
    ready_seconds: float = 400.0
    grace: float = 30.0


@dataclass(kw_only=True)
class Batch:
    """Servers that were ended together; bytes of the device, seconds since the end was asked for.

    `listed` counts all that the driver listed while they were up, `holders` are those that it did not list before.
    """

    rounds: int
    idle_bytes: int | None
    up_bytes: int | None = None
    up_seconds: float | None = None
    listed: int = 0
    holders: list[DeviceProcess] = field(default_factory=list)
    outlived: list[DeviceProcess] = field(default_factory=list)
    outlived_seconds: float | None = None
    ended_seconds: float | None = None
    return_seconds: float | None = None
    above_idle_bytes: int | None = None
    left: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """The servers held memory, all of it came back, nobody was left, and everything was measured."""
        taken = self.held_bytes is not None and self.held_bytes > HELD_BYTES * self.rounds
        # A driver that lists nobody at all (MIG, containers) cannot name the holders; one that lists others can.
        named = bool(self.holders) or self.listed == 0
        back = self.above_idle_bytes is not None and not held(self.above_idle_bytes, 0)
        return taken and named and back and not self.left and not self.failed

    @property
    def held_bytes(self) -> int | None:
        """What the servers took; None when one of the two readings is not known."""
        return None if self.up_bytes is None or self.idle_bytes is None else self.up_bytes - self.idle_bytes


def run(job: Job, probe: Probe, parallel: int, folder: Path) -> Batch:
    """Start so many servers, end them, and wait for the device.

    Raises:
        ProbeError: The device cannot be read.
    """
    idle = used(probe.read(time.monotonic(), "idle"))
    before = {process.pid for process in probe.processes()}
    batch = Batch(rounds=parallel, idle_bytes=idle)
    folder.mkdir(parents=True)
    servers: list[tuple[ServerProcess, int]] = []
    began = time.monotonic()
    try:
        for number in range(parallel):
            port = _port()
            log = folder / f"server-{number}.log"
            servers.append((ServerProcess(job.command(port), os.environ | job.environment, log, folder), port))
        batch.failed = _await_up(job, probe, servers, idle or 0)
        batch.up_seconds = round(time.monotonic() - began, 2)
        batch.up_bytes = used(probe.read(time.monotonic(), "up"))
        there = probe.processes()
        batch.listed = len(there)
        batch.holders = [process for process in there if process.pid not in before]
        trees = {pid for server, _ in servers for pid in server.tree()}
        began = time.monotonic()
        if job.how == "kill":
            _kill(batch, probe, [server for server, _ in servers], before, began)
    finally:
        reports = _stop([server for server, _ in servers], job.grace)
    batch.ended_seconds = round(time.monotonic() - began, 3)
    after, waited = wait_idle(probe, idle, RETURN_SECONDS)
    batch.return_seconds = None if waited is None else round(time.monotonic() - began, 3)
    batch.above_idle_bytes = None if after is None or idle is None else max(0, after - idle)
    still = _on_device(probe, before)
    # The driver's list may lag behind the end of a process.
    while still and time.monotonic() - began < RETURN_SECONDS:
        time.sleep(POLL_SECONDS)
        still = _on_device(probe, before)
    batch.left = [report.describe() for report in reports if report.left]
    batch.left += [f"pid {pid} still runs" for pid in sorted(trees) if _runs(pid)]
    batch.left += [f"pid {p.pid} ({p.name}) is still on the device" for p in still]
    return batch


def _port() -> int:
    """Return a free port that leaves room above it: SGLang takes another one, 10,000 higher."""
    return next(port for port in iter(free_port, None) if port < 55_000)


def _on_device(probe: Probe, before: set[int]) -> list[DeviceProcess]:
    """List who holds memory and did not before."""
    return [process for process in probe.processes() if process.pid not in before]


def _await_up(job: Job, probe: Probe, servers: Sequence[tuple[ServerProcess, int]], idle: int) -> list[str]:
    """Wait until all are up; returns what is wrong with those that are not."""
    end = time.monotonic() + job.ready_seconds
    waiting = list(servers)
    failed: list[str] = []
    last, since = 0, time.monotonic()
    while waiting and time.monotonic() < end:
        for server, port in list(waiting):
            if not server.alive:
                failed.append(f"exit code {server.exit_code}: {' / '.join(tail(server.log_path, 3))}")
                waiting.remove((server, port))
                continue
            answer = Control("127.0.0.1", port, "none").get(job.health_path)
            if answer is not None and answer[0] == 200:
                waiting.remove((server, port))
        now = used(probe.read(time.monotonic(), "load")) or 0
        if now != last:
            last, since = now, time.monotonic()
        enough = now - idle > GIB * len(servers) and time.monotonic() - since > STEADY_SECONDS
        if job.steady and enough:
            return failed
        time.sleep(0.1)
    return failed + [f"not up: {' / '.join(tail(server.log_path, 3))}" for server, _ in waiting]


def _kill(batch: Batch, probe: Probe, servers: Sequence[ServerProcess], before: set[int], began: float) -> None:
    """Kill the first process of each, and watch how long others of the tree go on holding memory."""
    first = {server.pid for server in servers}
    for server in servers:
        if server.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server.pid, signal.SIGKILL)
    while any(_runs(pid) for pid in first if pid is not None):
        time.sleep(0.001)
    while True:
        others = [p for p in _on_device(probe, before) if p.pid not in first]
        if not batch.outlived:
            batch.outlived = others
        if not others or time.monotonic() - began > RETURN_SECONDS:
            break
        batch.outlived_seconds = round(time.monotonic() - began, 3)
        time.sleep(POLL_SECONDS)


def _stop(servers: Sequence[ServerProcess], grace: float) -> list[StopReport]:
    """Stop all at once; the first exception is raised when every one has been tried."""
    with ThreadPoolExecutor(max_workers=max(1, len(servers))) as pool:
        return list(pool.map(lambda server: server.stop(grace), servers))


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def summary(job: Job, batches: Sequence[Batch]) -> dict[str, Any]:
    """Reduce the batches of one engine and way to one row."""
    back = [b.return_seconds for b in batches if b.return_seconds is not None]
    above = [b.above_idle_bytes for b in batches if b.above_idle_bytes is not None]
    outlived = [b.outlived_seconds for b in batches if b.outlived_seconds is not None]
    return {
        "engine": job.name,
        "how": job.how,
        "rounds": sum(b.rounds for b in batches),
        "failed": sum(len(b.failed) for b in batches),
        "held_bytes": max((b.held_bytes for b in batches if b.held_bytes is not None), default=None),
        "holders": ", ".join(sorted({p.name for b in batches for p in b.holders})),
        "outlived": sum(len(b.outlived) for b in batches),
        "outlived_max_seconds": max(outlived, default=None),
        "back_median_seconds": median(back) if back else None,
        "back_max_seconds": max(back, default=None),
        "above_idle_max_bytes": max(above, default=None),
        "left": sum(len(b.left) for b in batches),
    }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("llamacpp", "vllm", "sglang"), required=True)
    parser.add_argument("--how", choices=("term", "kill"), required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--program", default=os.environ.get("MOEGPU_LLAMA_SERVER", "llama-server"))
    parser.add_argument("--model", default=os.environ.get("MOEGPU_MODEL"))
    parser.add_argument("--pythonpath", default="", help="folders with the engine's packages")
    parser.add_argument(
        "--share", type=float, default=0.05, help="of the device's memory that vLLM wants free at its start"
    )
    parser.add_argument("--ready", type=float, default=400.0, help="seconds until a server must be up")
    parser.add_argument("--json", type=Path, default=Path("vram_return.json"))
    args = parser.parse_args()
    if not args.model:
        parser.error("--model or MOEGPU_MODEL is needed")
    return args


def job_of(args: argparse.Namespace) -> Job:
    """Write the command lines of the engines."""
    python, share, model = sys.executable, str(args.share), str(args.model)

    def llamacpp(port: int) -> list[str]:
        flags = ["-m", model, "-c", "8192", "-np", "1", "-ngl", "999", "--host", "127.0.0.1", "--port", str(port)]
        return [args.program, *flags]

    def vllm(port: int) -> list[str]:
        flags = ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "4096", "--enforce-eager"]
        # A fixed KV cache: what is free changes under an engine that starts beside others.
        flags += ["--gpu-memory-utilization", share, "--kv-cache-memory-bytes", str(GIB)]
        return [python, "-m", "vllm.entrypoints.cli.main", "serve", model, *flags]

    def sglang(port: int) -> list[str]:
        flags = ["--model-path", model, "--host", "127.0.0.1", "--port", str(port)]
        # As for vLLM: a share of what is free goes wrong beside others, so it is large and the tokens are bounded.
        flags += ["--mem-fraction-static", "0.9", "--max-total-tokens", "32768"]
        flags += ["--context-length", "4096", "--disable-cuda-graph"]
        flags += ["--attention-backend", "triton", "--sampling-backend", "pytorch"]
        return [python, "-m", "sglang.launch_server", *flags]

    environment = dict(OFFLINE)
    if args.pythonpath:
        environment["PYTHONPATH"] = args.pythonpath
    return Job(
        name=args.engine,
        command={"llamacpp": llamacpp, "vllm": vllm, "sglang": sglang}[args.engine],
        environment=environment,
        how=args.how,
        # SGLang's health is 503 until its kernels are compiled, long after its memory is taken.
        steady=args.engine == "sglang",
        ready_seconds=args.ready,
    )


def nvml() -> Probe:
    from pytest_moegpu.host.nvmlprobe import NvmlProbe

    return NvmlProbe((), os.environ.get("CUDA_VISIBLE_DEVICES"))


def main() -> int:
    args = options()
    job, probe = job_of(args), nvml()
    batches: list[Batch] = []
    with tempfile.TemporaryDirectory(prefix="vram-return-") as name:
        done = 0
        while done < args.rounds:
            parallel = min(args.parallel, args.rounds - done)
            batch = run(job, probe, parallel, Path(name) / str(done))
            batches.append(batch)
            done += parallel
            shown = {k: v for k, v in asdict(batch).items() if k not in ("holders", "outlived")}
            print(f"{done}/{args.rounds}", json.dumps(shown), flush=True)
            # Written after each batch: what was measured is not lost when the time of the machine is over.
            result = {"summary": summary(job, batches), "batches": [asdict(b) for b in batches]}
            args.json.write_text(json.dumps(result, indent=1))
            if batch.left:
                break
    probe.close()
    for key, value in summary(job, batches).items():
        print(f"{key:22} {value}")
    return 0 if batches and all(batch.good for batch in batches) else 1


if __name__ == "__main__":
    sys.exit(main())
