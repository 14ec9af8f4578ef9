"""How far back does a model recall a fact? Margins (nat) of the recall prompts over prompt length and depth.

    python bench/recall.py --server /path/to/llama-server --model FILE [--context 8192] [--seeds 4] [--layers N]

Prints a table and writes JSON. `recall_reach` of a model file is the largest distance (tokens between the fact and the
end of the prompt) up to which every prompt was answered right with a margin of at least 1 nat at each token; the noise
of a healthy change of kernels was measured at 0.4 nat at most.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import httpx
from tabulate import tabulate

from pytest_moegpu.backends import get_backend
from pytest_moegpu.backends.base import ChatRequest
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, Limits, Settings
from pytest_moegpu.core.prompts import recall
from pytest_moegpu.host.control import free_port
from pytest_moegpu.session.server import Server, new_key

TOKENS_PER_SENTENCE = 12.0
LEAST_MARGIN = 1.0
DEPTHS = (0.9, 0.7, 0.5, 0.3, 0.1)


@dataclass(frozen=True)
class Cell:
    """One prompt: its length, the distance of the fact from its end, and the smallest margin on the way."""

    tokens: int
    distance: int
    margin: float | None


def ask(server: Server, tokens: int, depth: float, seed: int) -> Cell:
    """Send one recall prompt with log-probabilities; the margin is None for a wrong answer."""
    fact = recall(tokens, TOKENS_PER_SENTENCE, depth, seed)
    chat = ChatRequest(prompt=fact.prompt, prefill=fact.prefill, max_tokens=8, top_logprobs=2)
    body = server.backend.request(server.spec, chat) | {"stream": False}
    body.pop("stream_options")
    headers = {"Authorization": f"Bearer {server.spec.api_key}"}
    url = server.url + server.backend.chat_path
    answer = httpx.post(url, json=body, headers=headers, timeout=600, trust_env=False).json()
    text, least = "", float("inf")
    for token in answer["choices"][0]["logprobs"]["content"]:
        first, second = token["top_logprobs"][:2]
        least = min(least, first["logprob"] - second["logprob"])
        text += token["token"]
        if fact.answer in text:
            break
    length = answer["usage"]["prompt_tokens"]
    return Cell(length, round(length * (1 - depth)), round(least, 2) if fact.answer in text else None)


def main() -> None:
    """Start one server, ask over lengths, depths and seeds, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--kv", default="q8_0")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--json", type=Path, default=Path("recall.json"))
    args = parser.parse_args()
    spec = LaunchSpec(
        program=(args.server,),
        model_path=args.model,
        model_name="model",
        settings=Settings(context=args.context, kv_cache=args.kv),
        host="127.0.0.1",
        port=free_port(),
        api_key=new_key(),
        device_kind=DeviceKind.GPU,
    )
    server = Server(get_backend("llamacpp"), spec, Limits(), Path("recall-server.log").absolute())
    try:
        server.start()
        lengths = [round(args.context * share) for share in (0.06, 0.12, 0.25, 0.37, 0.5, 0.62, 0.75, 0.93)]
        cells = [
            ask(server, tokens, depth, 7000 + seed)
            for tokens in lengths
            for depth in DEPTHS
            for seed in range(args.seeds)
        ]
    finally:
        server.stop()
    rows = []
    for low in range(0, args.context, 512):
        inside = [c for c in cells if low <= c.distance < low + 512]
        if inside:
            right = [c.margin for c in inside if c.margin is not None]
            rows.append((f"{low}-{low + 511}", len(inside), len(right), min(right, default=None)))
    print(tabulate(rows, headers=("distance (tokens)", "prompts", "right", "least margin (nat)")))
    wrong = [c.distance for c in cells if c.margin is None or c.margin < LEAST_MARGIN]
    reach = max((c.distance for c in cells if c.distance < min(wrong, default=args.context + 1)), default=0)
    print(f"recall_reach = {reach // 100 * 100}")
    args.json.write_text(json.dumps([c.__dict__ for c in cells], indent=1))


if __name__ == "__main__":
    main()
