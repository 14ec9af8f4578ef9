"""Record the faults that real engines gave, for tests that must not need the engine.

    .venv/bin/python scripts/_engines/faults.py [SLUG ...]

Each case starts an installed engine in a way that fails, or asks it what makes it fail, and writes under
tests/data/engines/NAME/faults what it was told, what came back, the exit code, and the server's log.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from record import (  # type: ignore[import-not-found]  # a script's neighbour, not a package
    HF,
    MODEL,
    TABLE,
    answer,
    ask,
    both_ends,
    chat,
    environment,
    running,
    save,
    wait_ready,
)

CHAT = "/v1/chat/completions"
HEAD_LINES = 40
Q4_1 = HF.parent / MODEL / "SmolLM2-135M-Instruct.Q4_1.gguf"
F16 = HF.parent / f"{MODEL}-f16.gguf"
NOPE = "/models/nope"
LOAD = tuple(
    f"vllm:{name}{{"
    for name in ("kv_cache_usage_perc", "num_preemptions_total", "num_requests_running", "num_requests_waiting")
)


@dataclass
class Case:
    """One fault: which engine, its command line, how long to wait for it, and what to ask once it answers."""

    name: str
    argv: tuple[str, ...]
    seconds: float = 60.0
    asked: Callable[[Case], None] | None = None
    env: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Keep one line or answer for the recording."""
        self.notes.append(text)

    def tell(self, what: str, path: str, body: dict[str, Any] | None = None) -> None:
        """Ask, and keep what came back, also when nothing did."""
        try:
            self.note(f"## {what}\n{answer(ask(path, body, seconds=60))}")
        except (OSError, http.client.HTTPException) as error:
            self.note(f"## {what}\n{type(error).__name__}: {error}")


def _argv(name: str, *more: str, without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the good command line of an engine with arguments added, and without some flags and their values."""
    kept: list[str] = []
    skip = False
    for argument in TABLE[name].argv:
        if skip:
            skip = False
        elif argument in without:
            skip = True
        else:
            kept.append(argument)
    return (*kept, *more)


def _model(name: str, path: str) -> tuple[str, ...]:
    """Return the good command line of an engine with another model."""
    return tuple(path if argument == str(HF) else argument for argument in TABLE[name].argv)


def _one_chat(case: Case) -> None:
    case.tell("streamed chat", CHAT, chat(TABLE[case.name], "What is the capital of Japan?", 16))
    time.sleep(3)


def _health_and_chat(case: Case) -> None:
    engine = TABLE[case.name]
    case.tell(f"GET {engine.health}", engine.health)
    case.tell("streamed chat", CHAT, chat(engine, "What is the capital of Japan?", 16))


def _dead_engine(case: Case) -> None:
    engine = TABLE[case.name]
    for turn in ("first", "second"):
        case.tell(f"{turn} streamed chat", CHAT, chat(engine, "What is the capital of Japan?", 16))
        time.sleep(2)
        for path in ("/health", "/v1/models"):
            case.tell(f"GET {path} after the {turn} chat", path)


def _pool(case: Case) -> None:
    status, body = ask("/server_info")
    info = json.loads(body)
    kept = {key: info.get(key) for key in ("context_length", "max_total_num_tokens", "max_total_tokens")}
    case.note(f"## GET /server_info, three of its keys\nHTTP {status}\n{json.dumps(kept)}")
    case.tell("GET /v1/models", "/v1/models")
    case.tell("chat of about 400 tokens", CHAT, chat(TABLE[case.name], "one two three " * 120, 4, stream=False))


def _preempt(case: Case) -> None:
    results: list[str] = []

    def send(number: int) -> None:
        body = chat(TABLE[case.name], f"Tell me story number {number}.", 500, stream=False, ignore_eos=True)
        status, text = ask(CHAT, body, seconds=200)
        results.append(f"HTTP {status} {json.dumps(json.loads(text).get('usage'))}")

    threads = [threading.Thread(target=send, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(2)
        wanted = ("kv_cache_usage_perc{", "num_preemptions_total{", "num_requests_running{", "num_requests_waiting{")
        lines = [
            line for line in ask("/metrics")[1].splitlines() if line.startswith(tuple(f"vllm:{w}" for w in wanted))
        ]
        case.note("## some of GET /metrics\n" + "\n".join(lines))
    case.note("## the three answers\n" + "\n".join(results))


def _gibberish(case: Case) -> None:
    for prompt in ("What is the capital of Japan?", "What is the opposite of up?", "Write a sentence about the sea."):
        case.tell(prompt, CHAT, chat(TABLE[case.name], prompt, 24))


SMALL_POOL = ("--max-total-tokens", "256", "--context-length", "4096")
FEW_BLOCKS = ("--num-gpu-blocks-override", "8", "--max-model-len", "640")
LONG = ("--max-model-len", "999999")
# Unset, the cache is a share of the memory.
NO_SPACE = {"VLLM_CPU_KVCACHE_SPACE": ""}
CASES = {
    # A plug-in that is no part of the installation: pip install --no-deps vllm-gguf-plugin==0.0.5
    "1-gguf-kills-the-engine": Case("vllm", (*_model("vllm", str(Q4_1)), "--tokenizer", str(HF)), 240, _dead_engine),
    "2-abort-on-the-first-chat": Case("fastllm", _argv("fastllm", "--kv_cache_dtype", "float16"), asked=_one_chat),
    "3-bad-kv-type": Case("fastllm", _argv("fastllm", "--kv_cache_dtype", "q8_0")),
    "3-q4-1-gguf": Case("fastllm", _model("fastllm", str(Q4_1))),
    "3-cuda-without-a-gpu": Case("fastllm", _argv("fastllm", "--device", "cuda", without=("--device",))),
    "4-model-never-loads": Case("mlx", _model("mlx", NOPE), 8, _health_and_chat),
    "5-pool-smaller-than-context": Case(
        "sglang",
        _argv("sglang", *SMALL_POOL, without=("--max-total-tokens", "--context-length")),
        240,
        _pool,
    ),
    "6-preemptions": Case("vllm", _argv("vllm", *FEW_BLOCKS, without=("--max-model-len",)), 240, _preempt),
    "7-gibberish-from-gguf": Case("fastllm", _model("fastllm", str(F16)), asked=_gibberish),
    "8-missing-fastllm": Case("fastllm", _model("fastllm", NOPE)),
    "8-missing-vllm": Case("vllm", _model("vllm", NOPE), 120),
    "8-missing-sglang": Case("sglang", _model("sglang", NOPE), 120),
    "9-unknown-flag-fastllm": Case("fastllm", _argv("fastllm", "--flash-attn", "on", "--ctx-size", "6144")),
    "9-unknown-flag-mlx": Case("mlx", _argv("mlx", "--ctx-size", "6144")),
    "9-unknown-flag-vllm": Case("vllm", _argv("vllm", "--swap-space", "4"), 120),
    "9-bad-kv-type-vllm": Case("vllm", _argv("vllm", "--kv-cache-dtype", "int8"), 120),
    "9-too-much-context-vllm": Case("vllm", _argv("vllm", *LONG, without=("--max-model-len",)), 120),
    "9-too-much-memory-vllm": Case("vllm", _argv("vllm", "--gpu-memory-utilization", "0.999"), 240, env=NO_SPACE),
    "9-unknown-flag-sglang": Case("sglang", _argv("sglang", "--enable-radix-cache"), 120),
    "9-bad-kv-type-sglang": Case("sglang", _argv("sglang", "--kv-cache-dtype", "int8"), 120),
    "9-too-much-context-sglang": Case(
        "sglang", _argv("sglang", "--context-length", "999999", without=("--context-length",)), 120
    ),
    "9-too-much-context-fastllm": Case(
        "fastllm", _argv("fastllm", "--max_context_length", "999999", without=("--max_context_length",))
    ),
}


def record(slug: str, case: Case) -> None:
    """Run one case and write it down."""
    engine = TABLE[case.name]
    log = Path(os.environ.get("TMPDIR", "/tmp")) / f"fault-{slug}.log"
    start = time.monotonic()
    with running(case.name, case.argv, log, environment(engine) | case.env) as process:
        ready = wait_ready(engine, process, case.seconds)
        if process.poll() is None:
            case.note(f"## healthy\n{f'not within {case.seconds:.0f} s' if ready is None else f'after {ready:.1f} s'}")
            if case.asked is not None:
                case.asked(case)
        code = process.poll()
        if code is None:
            process.send_signal(signal.SIGTERM)
            try:
                ended = f"{process.wait(30)}, on SIGTERM"
            except subprocess.TimeoutExpired:
                ended = "none within 30 s of SIGTERM"
        else:
            ended = f"{code}, by itself, after {time.monotonic() - start:.1f} s"
    lines = log.read_bytes().decode("utf-8", "replace").split("\n")
    command = " ".join((engine.program, *case.argv))
    variables = "".join(f"{key}={value} " for key, value in (dict(engine.env) | case.env).items())
    parts = [
        f"## command\n{variables}{command}",
        f"## exit code\n{ended}",
        *case.notes,
        "## log",
        *both_ends(lines),
    ]
    save(case.name, f"faults/{slug}.txt", "\n".join(parts))


if __name__ == "__main__":
    for chosen in sys.argv[1:] or CASES:
        record(chosen, CASES[chosen])
