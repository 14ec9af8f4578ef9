"""How far is a mixture of experts from the dense model that it was made of? Log-probabilities on a common greedy path.

    python -m bench.moe [--program LLAMA_SERVER] [--model FILE] [--gpu] [--json FILE]

Makes mixtures of the dense model (`moegpu model upcycle`), asks each the same questions at temperature 0, and compares
token by token until the answers part. `gap` is by how much the dense model preferred its token where they did.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from tabulate import tabulate

from pytest_moegpu.backends import get_backend
from pytest_moegpu.backends.base import ChatRequest
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, Limits, Settings
from pytest_moegpu.core.upcycle import How, Order
from pytest_moegpu.host.control import free_port
from pytest_moegpu.host.fetch import fetch_model
from pytest_moegpu.host.upcycle import upcycle
from pytest_moegpu.session.server import Server, new_key

__all__ = ["PROMPTS", "Distance", "Step", "chat", "distance", "steps"]

PROMPTS = (
    "Name three colours.",
    "Write one sentence about the sea.",
    "How do plants make food?",
    "Count from one to ten.",
    "What is a triangle?",
    "Tell me about the moon.",
)
TOKENS = 24
ORDERS = (
    Order(how=How.COPIES, experts=4, used=2, seed=1),
    Order(how=How.COPIES, experts=8, used=2, seed=1),
    Order(how=How.SLICES, experts=4, used=4),
    Order(how=How.SLICES, experts=8, used=8),
)


@dataclass(frozen=True)
class Step:
    """One token of a greedy answer: its log-probability and its lead over the second, both in nat."""

    token: str
    logprob: float
    gap: float


@dataclass(frozen=True)
class Distance:
    """Absolute differences (nat) over the `compared` tokens; `gaps` of the dense model where answers parted."""

    compared: int
    mean: float
    p99: float
    largest: float
    gaps: tuple[float, ...]


def chat(server: Server, prompt: str, tokens: int = TOKENS) -> dict[str, Any]:
    """Return the first choice of an answer, with the two likeliest tokens at each step."""
    request = ChatRequest(prompt=prompt, max_tokens=tokens, top_logprobs=2, cache_prompt=False)
    body = server.backend.request(server.spec, request) | {"stream": False}
    body.pop("stream_options", None)
    headers = {"Authorization": f"Bearer {server.spec.api_key}"}
    answer = httpx.post(server.url + server.backend.chat_path, json=body, headers=headers, timeout=120, trust_env=False)
    answer.raise_for_status()
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def steps(server: Server, prompt: str) -> list[Step]:
    """Return the greedy answer to a prompt."""
    found = []
    for token in chat(server, prompt)["logprobs"]["content"]:
        first, second = token["top_logprobs"][:2]
        found.append(Step(token["token"], first["logprob"], first["logprob"] - second["logprob"]))
    return found


def distance(dense: list[list[Step]], mixed: list[list[Step]]) -> Distance:
    """Compare answers to the same prompts.

    Raises:
        ValueError: Not one token is common to them.
    """
    differences, gaps = [], []
    for one, other in zip(dense, mixed, strict=True):
        for a, b in zip(one, other, strict=False):
            if a.token != b.token:
                gaps.append(round(a.gap, 4))
                break
            differences.append(abs(a.logprob - b.logprob))
    if not differences:
        raise ValueError("no common token")
    ordered = sorted(differences)
    return Distance(
        compared=len(ordered),
        mean=sum(ordered) / len(ordered),
        p99=ordered[int(0.99 * len(ordered))],
        largest=ordered[-1],
        gaps=tuple(gaps),
    )


@contextmanager
def serving(program: tuple[str, ...], model: Path, log: Path, kind: DeviceKind) -> Iterator[Server]:
    """Run a server for as long as the block lasts."""
    spec = LaunchSpec(
        program=program,
        model_path=str(model),
        model_name="model",
        settings=Settings(context=1024, gpu_layers=0 if kind is DeviceKind.CPU else None),
        host="127.0.0.1",
        port=free_port(),
        api_key=new_key(),
        device_kind=kind,
    )
    server = Server(get_backend("llamacpp"), spec, Limits(ready_seconds=120, request_seconds=120), log)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def main() -> None:
    """Make the mixtures, ask, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", help="server program, with its arguments (default: the embedded server)")
    parser.add_argument("--model", type=Path, help="dense GGUF file (default: the embedded model)")
    parser.add_argument("--gpu", action="store_true", help="all layers on the GPU")
    parser.add_argument("--json", type=Path, default=Path("moe.json"))
    args = parser.parse_args()
    embedded = (sys.executable, "-m", "pytest_moegpu.host.embedded_server")
    program = tuple(shlex.split(args.program)) if args.program else embedded
    kind = DeviceKind.GPU if args.gpu else DeviceKind.CPU
    model = args.model or fetch_model(Catalog.load().model("smollm2-135m-instruct"))
    rows = []
    with tempfile.TemporaryDirectory(prefix="moe-") as name:
        folder = Path(name)

        def answers(file: Path) -> list[list[Step]]:
            with serving(program, file, folder / "server.log", kind) as server:
                return [steps(server, prompt) for prompt in PROMPTS]

        dense = answers(model)
        for order in ORDERS:
            file = folder / "moe.gguf"
            made = upcycle(model, file, order, force=True)
            title = f"{order.experts} {order.how}, {order.used} used"
            found = distance(dense, answers(file))
            rows.append({"mixture": title, "bytes": made.size_bytes, "sha256": made.sha256} | asdict(found))
            args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    shown = ("mixture", "bytes", "compared", "mean", "p99", "largest", "gaps")
    print(tabulate([[row[key] for key in shown] for row in rows], headers=shown, tablefmt="github", floatfmt=".4f"))


if __name__ == "__main__":
    main()
