"""Does the sampler slow the server down? Decode speed with the sampler on and off, request by request.

    MOEGPU_LLAMA_SERVER=… MOEGPU_MODEL=… python bench/sampler_effect.py [--requests 200] [--json sampler_effect.json]

One llama-server, one slot, context 4096, all layers on the GPU where there is one. Without the variables: the embedded
server with its model. Requests come in pairs, one with the sampler (device and host memory) and one without, in random
order; each is greedy, streamed, of 256 tokens. The ratio is the median over pairs of on / off, its 95 % interval the
exact one of the sign test (order statistics of a binomial). Exit code 1 unless the whole interval is above 1 - the
largest loss allowed: a run that is too noisy or too short to show it has not shown it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tabulate import tabulate

from pytest_moegpu.backends import get_backend
from pytest_moegpu.backends.base import ChatRequest
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.evidence import RequestKind
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, Limits, Settings
from pytest_moegpu.core.timing import decode_rate
from pytest_moegpu.errors import ProbeError
from pytest_moegpu.host.control import free_port
from pytest_moegpu.host.fetch import fetch_model
from pytest_moegpu.host.hostmem import HostProbe
from pytest_moegpu.host.nvmlprobe import NvmlProbe
from pytest_moegpu.host.probe import Probe
from pytest_moegpu.host.sampler import Sampler
from pytest_moegpu.host.treemem import TreeMemory
from pytest_moegpu.session.server import Server, new_key

EMBEDDED = (sys.executable, "-m", "pytest_moegpu.host.embedded_server")
CONFIDENCE = 0.95
PROMPT = "Write a long story about a lighthouse keeper and the ships that pass by at night."


@dataclass(frozen=True, kw_only=True)
class Result:
    """Median tok/s with and without the sampler, the median ratio of a pair, and its interval."""

    probe: str
    pairs: int
    on: float
    off: float
    ratio: float
    low: float
    high: float
    confidence: float
    sampler_hz: float
    longest_gap: float


def sign_interval(values: Sequence[float], confidence: float) -> tuple[float, float, float]:
    """Return low, high and true level of the exact interval of a median: the narrowest pair of order statistics.

    With too few values for the level it is the whole range, and the true level says what that is worth.
    """
    ordered, n = sorted(values), len(values)
    # Values below the rank'th and above its mirror: each tail holds the median with this probability.
    tails = {rank: sum(math.comb(n, k) for k in range(rank)) / 2**n for rank in range(1, n // 2 + 1)}
    rank = max((rank for rank, tail in tails.items() if 2 * tail <= 1 - confidence), default=1)
    return ordered[rank - 1], ordered[n - rank], 1 - 2 * tails.get(rank, 0.5)


def open_probe() -> Probe:
    """Return the nvml probe, or the host probe where there is no GPU."""
    try:
        return NvmlProbe((), os.environ.get("CUDA_VISIBLE_DEVICES"))
    except ProbeError as error:
        print(f"no GPU, so this is about the host probe: {error}", file=sys.stderr)
        return HostProbe()


def make_server(kind: DeviceKind, log: Path) -> Server:
    """Describe the server: from the environment, else the embedded one."""
    program = os.environ.get("MOEGPU_LLAMA_SERVER")
    path = os.environ.get("MOEGPU_MODEL") or str(fetch_model(Catalog.load().model("smollm2-135m-instruct")))
    spec = LaunchSpec(
        program=(program,) if program else EMBEDDED,
        model_path=path,
        model_name="model",
        settings=Settings(context=4096, gpu_layers=None if kind is DeviceKind.GPU else 0),
        host="127.0.0.1",
        port=free_port(),
        api_key=new_key(),
        device_kind=kind,
    )
    return Server(get_backend("llamacpp"), spec, Limits(), log)


def rate(server: Server, tokens: int) -> float:
    """Send one request and return its tok/s."""
    chat = ChatRequest(prompt=PROMPT, max_tokens=tokens, ignore_eos=True, cache_prompt=False)
    answer = server.chat(chat, RequestKind.THROUGHPUT, "effect")
    found = decode_rate(answer)
    if answer.error is not None or found is None or answer.output_tokens != tokens:
        raise SystemExit(f"a request went wrong: {answer.error or f'{answer.output_tokens} tokens'}")
    return found


def measure(server: Server, probe: Probe, pairs: int, tokens: int, seed: int) -> Result:
    """Send all pairs to a server that is ready."""
    chance = random.Random(seed)
    host = TreeMemory()
    host.follow(server.pid)
    probe.follow(server.pid)
    for _ in range(3):
        rate(server, tokens)
    rates: dict[bool, list[float]] = {True: [], False: []}
    hz, gaps = [], []
    for _ in range(pairs):
        order = [True, False]
        chance.shuffle(order)
        for sampled in order:
            if not sampled:
                rates[False].append(rate(server, tokens))
                continue
            sampler = Sampler(probe, host=host)
            sampler.start()
            rates[True].append(rate(server, tokens))
            sampler.stop()
            if sampler.error is not None:
                raise sampler.error
            hz.append(sampler.rate() or 0.0)
            gaps.append(sampler.gap() or 0.0)
    ratios = [on / off for on, off in zip(rates[True], rates[False], strict=True)]
    low, high, confidence = sign_interval(ratios, CONFIDENCE)
    return Result(
        probe=probe.name,
        pairs=pairs,
        on=statistics.median(rates[True]),
        off=statistics.median(rates[False]),
        ratio=statistics.median(ratios),
        low=low,
        high=high,
        confidence=confidence,
        sampler_hz=statistics.median(hz),
        longest_gap=max(gaps),
    )


def main() -> int:
    """Start one server, measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200, help="in all, half of them sampled (default 200)")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--most-loss", type=float, default=0.01, help="largest loss allowed, a share (default 0.01)")
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--json", type=Path, default=Path("sampler_effect.json"))
    args = parser.parse_args()
    if args.requests < 2:
        parser.error("--requests: at least 2, for one pair")
    probe = open_probe()
    kind = DeviceKind.GPU if probe.name == "nvml" else DeviceKind.CPU
    with tempfile.TemporaryDirectory() as folder:
        server = make_server(kind, Path(folder) / "server.log")
        try:
            server.start()
            result = measure(server, probe, args.requests // 2, args.tokens, args.seed)
        finally:
            server.stop()
            probe.close()
    r = result
    row = (
        r.probe,
        r.pairs,
        f"{r.on:.1f}",
        f"{r.off:.1f}",
        f"{r.ratio:.4f}",
        f"{r.low:.4f} … {r.high:.4f}",
        f"{r.sampler_hz:.1f}",
        f"{r.longest_gap * 1000:.1f}",
    )
    headers = (
        "probe",
        "pairs",
        "on tok/s",
        "off tok/s",
        "ratio",
        f"{r.confidence:.1%} interval",
        "Hz",
        "longest gap ms",
    )
    print(tabulate([row], headers=headers, disable_numparse=True))
    args.json.write_text(json.dumps(asdict(result), indent=1))
    shown = r.low > 1 - args.most_loss
    print(f"loss below {args.most_loss:.1%}: {'shown' if shown else 'NOT shown'}")
    return 0 if shown else 1


if __name__ == "__main__":
    sys.exit(main())
