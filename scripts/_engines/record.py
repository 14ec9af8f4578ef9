"""Record what a real engine prints and answers, for tests that must not need the engine.

    .venv/bin/python scripts/_engines/record.py NAME [NAME ...]

Starts each installed engine with the folder that make_hf.py writes, asks it what the plugin asks, and writes the
answers under tests/data/engines/NAME. Paths of this machine are replaced. The faults are recorded by faults.py.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_moegpu.host.cache import cache_dir

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "engines"
HOST, PORT, MODEL = "127.0.0.1", 18000, "smollm2-135m-instruct"
HF = cache_dir() / "models" / f"{MODEL}-hf"
START_SECONDS = 240.0
ENGINES = cache_dir() / "engines"
MOST_LOG_LINES = 200
SAFE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How one engine is started and what it has."""

    program: str
    argv: tuple[str, ...]
    help: tuple[tuple[str, ...], ...]
    version: tuple[str, ...]
    health: str = "/health"
    env: Mapping[str, str] = field(default_factory=dict)
    get: Mapping[str, str] = field(default_factory=dict)
    """File to write → path to ask for."""
    model: str = MODEL
    stop_seconds: float = 15.0


TABLE = {
    "fastllm": Engine(
        program="ftllm",
        argv=(
            *("server", str(HF), "--device", "cpu", "-t", "1", "--host", HOST, "--port", str(PORT)),
            *("--model_name", MODEL, "--max_context_length", "2048"),
        ),
        help=(("server", "--help"),),
        version=("ftllm", "--version"),
        health="/v1/models",
        get={"props.json": "/v1/models"},
    ),
    "mlx": Engine(
        program="mlx_lm.server",
        argv=("--model", str(HF), "--host", HOST, "--port", str(PORT)),
        help=(("--help",),),
        version=("python", "-m", "pip", "show", "mlx-lm", "mlx"),
        env={"HF_HUB_CACHE": str(HF.parent)},
        get={"props.json": "/v1/models", "health.json": "/health"},
        model=str(HF),
    ),
    "vllm": Engine(
        program="vllm",
        argv=(
            *("serve", str(HF), "--served-model-name", MODEL, "--host", HOST, "--port", str(PORT)),
            *("--max-model-len", "2048", "--max-num-seqs", "4", "--enforce-eager"),
        ),
        help=(("serve", "--help=all"), ("serve", "--help")),
        version=("vllm", "--version"),
        env={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
        get={"props.json": "/v1/models", "metrics.txt": "/metrics", "version.json": "/version"},
    ),
    "sglang": Engine(
        program="sglang-server",
        argv=(
            *("--model-path", str(HF), "--served-model-name", MODEL, "--host", HOST, "--port", str(PORT)),
            *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
            *("--grammar-backend", "none", "--dtype", "bfloat16", "--disable-overlap-schedule"),
            *("--context-length", "2048", "--max-total-tokens", "8192", "--mem-fraction-static", "0.3"),
            *("--enable-metrics", "--enable-cache-report"),
        ),
        help=(("--help",),),
        version=("sglang", "version"),
        get={
            "props.json": "/server_info",
            "models.json": "/v1/models",
            "model_info.json": "/model_info",
            "metrics.txt": "/metrics",
        },
    ),
}


def clean(text: str, name: str) -> str:
    """Replace what belongs to this machine."""
    for old, new in {
        str(HF): "/models/hf",
        str(HF.parent): "/models",
        str(ENGINES / name): f"/engines/{name}",
        str(ENGINES): "/engines",
        os.path.realpath(ENGINES): "/engines",
        str(ROOT): "/project",
        sys.base_prefix: "/usr",
        str(Path.home()): "/home/user",
        platform.release(): "6.1.0",
    }.items():
        text = text.replace(old, new)
    text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "host", text)
    # Whatever address of its own the machine has, engines print it.
    return re.sub(r"\b(?:10|172|192|169)\.\d+\.\d+\.\d+\b", "192.0.2.1", text)


def save(name: str, file: str, text: str) -> None:
    """Write one recording."""
    path = DATA / name / file
    path.parent.mkdir(parents=True, exist_ok=True)
    # As bytes: a progress bar's carriage returns stay what they are.
    path.write_bytes((clean(text, name).rstrip("\n") + "\n").encode())
    print(f"{name}: {file} ({len(text)} characters)", flush=True)


def environment(engine: Engine) -> dict[str, str]:
    """Return the environment of a start; help texts are as wide as they are without a terminal."""
    base = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    return base | SAFE | dict(engine.env)


def program(name: str, executable: str) -> str:
    """Return the path of an executable of an installed engine."""
    return str(ENGINES / name / "bin" / executable)


def ask(
    path: str, body: Mapping[str, Any] | None = None, *, method: str | None = None, seconds: float = 120
) -> tuple[int, str]:
    """Send one request; return the status and the whole body as text."""
    connection = http.client.HTTPConnection(HOST, PORT, timeout=seconds)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(
            method or ("GET" if body is None else "POST"), path, text, {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    finally:
        connection.close()


def chat(engine: Engine, prompt: str, max_tokens: int, *, stream: bool = True, **more: Any) -> dict[str, Any]:
    """Write the chat request that the plugin sends; it streams."""
    body: dict[str, Any] = {
        "model": engine.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "seed": 1,
        "chat_template_kwargs": {"enable_thinking": False},
        **more,
    }
    return body | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})


@contextlib.contextmanager
def running(name: str, argv: tuple[str, ...], log: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in a process group of its own; the whole group is gone afterwards."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            (program(name, TABLE[name].program), *argv),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
            cwd=log.parent,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TABLE[name].stop_seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_ready(engine: Engine, process: subprocess.Popen[bytes], seconds: float = START_SECONDS) -> float | None:
    """Wait for a 200 of the health path; return the seconds it took, None when the process ended or time ran out."""
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        if process.poll() is not None:
            return None
        with contextlib.suppress(OSError, http.client.HTTPException):
            if ask(engine.health, seconds=5)[0] == 200:
                return time.monotonic() - start
        time.sleep(0.25)
    return None


def answer(found: tuple[int, str]) -> str:
    """Write a status and a body as one text."""
    return f"HTTP {found[0]}\n{found[1]}"


def record_texts(name: str, engine: Engine) -> None:
    """Record help and version."""
    for number, arguments in enumerate(engine.help):
        done = subprocess.run(
            (program(name, engine.program), *arguments),
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=environment(engine),
        )
        if done.returncode == 0:
            save(name, "help.txt" if number == 0 else "help-short.txt", done.stdout)
    command, *arguments_ = engine.version
    # Not here: SGLang says the revision of whatever repository it is called in.
    done = subprocess.run(
        (program(name, command), *arguments_),
        check=False,
        capture_output=True,
        text=True,
        env=environment(engine),
        cwd=ENGINES,
    )
    save(name, "version.txt", done.stdout)


def record_chats(name: str, engine: Engine) -> None:
    """Record the chats: plain, with log-probabilities, without an end, too long, with a begun answer."""
    path = "/v1/chat/completions"
    japan = "What is the capital of Japan?"
    save(name, "chat.txt", answer(ask(path, chat(engine, "What is the capital of France?", 16, stream=False))))
    save(name, "stream.txt", ask(path, chat(engine, japan, 16))[1])
    save(name, "stream-logprobs.txt", ask(path, chat(engine, japan, 16, logprobs=True, top_logprobs=5))[1])
    whole = chat(engine, japan, 4, stream=False, logprobs=True, top_logprobs=2)
    save(name, "chat-logprobs.txt", answer(ask(path, whole)))
    save(name, "stream-ignore-eos.txt", ask(path, chat(engine, japan, 24, ignore_eos=True))[1])
    begun = chat(engine, japan, 8)
    begun["messages"].append({"role": "assistant", "content": "Sure! The capital city of the country Japan"})
    save(name, "stream-prefill-plain.txt", ask(path, begun)[1])
    begun |= {"continue_final_message": True, "add_generation_prompt": False}
    save(name, "stream-prefill.txt", ask(path, begun)[1])
    save(name, "wrong-model.txt", answer(ask(path, chat(engine, japan, 4, model="other", stream=False))))
    save(name, "no-messages.txt", answer(ask(path, {"model": engine.model, "max_tokens": 4})))
    if name != "mlx":  # It has no limit of its own.
        long = "one two three " * 800
        save(name, "too-long.txt", answer(ask(path, chat(engine, long, 4, stream=False))))
        save(name, "too-long-stream.txt", answer(ask(path, chat(engine, long, 4))))


def record(name: str) -> None:
    """Record one engine."""
    engine = TABLE[name]
    record_texts(name, engine)
    log = Path(os.environ.get("TMPDIR", "/tmp")) / f"record-{name}.log"
    with running(name, engine.argv, log, environment(engine)) as process:
        ready = wait_ready(engine, process)
        print(f"{name}: ready after {ready} s", flush=True)
        if ready is None:
            raise SystemExit(f"{name} did not start: {log}")
        # The first request loads or compiles; its numbers would not be those of the others.
        ask("/v1/chat/completions", chat(engine, "Hello", 2))
        record_chats(name, engine)
        for file, path in engine.get.items():
            status, text = ask(path)
            if file.endswith(".json") and status == 200:
                text = json.dumps(trim(json.loads(text)), indent=1, ensure_ascii=False)
            save(name, file, text if status == 200 else answer((status, text)))
        for path in ("/version", "/metrics", "/health", "/load", "/v1/completions"):
            print(f"{name}: {path} {ask(path)[0]}", flush=True)
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        print(f"{name}: exit code {process.returncode} {time.monotonic() - start:.1f} s after SIGTERM", flush=True)
    lines = log.read_bytes().decode("utf-8", "replace").split("\n")
    save(name, "log-good.txt", "\n".join(lines[:MOST_LOG_LINES]))


def both_ends(lines: list[str]) -> list[str]:
    """Leave out the middle of a long log: its end says why a program ended, whatever it printed before."""
    if len(lines) <= MOST_LOG_LINES:
        return lines
    half = MOST_LOG_LINES // 2
    return [*lines[:half], f"[{len(lines) - 2 * half} lines left out]", *lines[-half:]]


def trim(value: Any) -> Any:
    """Leave out of SGLang's description what is unset, secret, or not a plain value; it has over 500 keys."""
    if not isinstance(value, dict) or "internal_states" not in value:
        return value
    states = [_plain(state) for state in value["internal_states"]]
    return _plain(value) | {"internal_states": states}


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    return {
        key: found
        for key, found in value.items()
        if found not in (None, False, "")
        and not isinstance(found, (list, dict))
        and not re.search(r"api_key|password|token_file|seed", key)
    }


if __name__ == "__main__":
    for chosen in sys.argv[1:]:
        record(chosen)
