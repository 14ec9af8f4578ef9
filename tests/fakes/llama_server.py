"""A fake llama-server: its flags, endpoints, stream format and log lines, with a behaviour from MOEGPU_FAKE.

Run as a script with the standard library only. The variable holds JSON with these keys, all optional:

    version          text after `version: `
    log              lines printed first             buffers          False: no buffer lines in the log
    answers          prompt -> text, over `ANSWERS`  wrong            known prompts get a wrong answer
    text             filler instead of plain English
    token_seconds    seconds a token; a list gives each start its own, counted in the file `counter`
    first_seconds    seconds to the first token      wrong_model      name that /props gives
    props            body of /props instead
    version_fails    --version ends like this: {"code": 1, "lines": [...]}
    exit_at_once     {"code": 1, "lines": [...]}     exit_after       seconds until it exits with code 7
    last_words       lines printed before exit_after
    never_bind       never listens                   never_ready      health stays 503
    hang_health      health gets no answer, and the connection is also held by a process in a session of its own
    textless         tokens without any text         ends_at_once     no token, and the end
    hang_generation  a chat request gets no event    die_mid_stream   exits with code 3 after so many tokens
    wrong_unstreamed known prompts get a wrong answer where it is not streamed
    oom_at           dies of memory at a prompt of so many tokens
    ignore_term      SIGTERM does nothing            setsid_worker    leaves its group with a worker process
    workers          list of: setsid, double-fork, cleared (its environment), renamed (argv and environment overwritten)
    fork_bomb        so many processes, each started by the one before it
    pids             file that gets the pid of each process, one a line
    flood            bytes of chatter in the log     noise            bytes in the log that are no text
    flood_for_ever   chatter without end, from a thread
    scores           how far (nat, at most) log-probabilities are from those of 0; "nan" gives none; else none are given
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import signal
import socketserver
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

VARIABLE = "MOEGPU_FAKE"
ANSWERS = {
    "What is the capital of Japan?": "The capital of Japan is Tokyo.",
    "What is the opposite of up?": "The opposite of up is down.",
    "What is the chemical symbol for water?": "The chemical symbol for water is H2O.",
}
FILLER = (
    "The lighthouse stood at the end of a narrow spit of land and every evening its keeper climbed the stairs to wind "
    "the clockwork that turned the lamp while ships far out at sea took their bearings from it and sailed on home "
)
CHATTER = b"slot update_slots: id  0 | task 1 | prompt processing progress\n"
# What a chat template adds to a prompt, in tokens.
TEMPLATE_TOKENS = 24
VOCABULARY = 128
_RECALL = re.compile(r"The number of the (\w+) train is (\d+)\.")
_ASKED = re.compile(r"What is the number of the (\w+) train\?")
_CODE = re.compile(r"The code of the locker is (\d+)")


def install(folder: Path) -> Path:
    """Write an executable program `llama-server` into a folder and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "llama-server"
    # -I -S: no site packages, which saves most of the start.
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{Path(__file__).resolve()}" "$@"\n')
    program.chmod(0o755)
    return program


def environment(**behaviour: Any) -> dict[str, str]:
    """Return the variables that give the fake a behaviour."""
    return {VARIABLE: json.dumps(behaviour)}


def say(*lines: str) -> None:
    """Print log lines."""
    for line in lines:
        print(line, flush=True)


def end(code: int, *lines: str) -> None:
    """Print last lines and leave at once, from any thread."""
    say(*lines)
    os._exit(code)


class Fake:
    """What one server start knows."""

    def __init__(self, behaviour: dict[str, Any], args: argparse.Namespace) -> None:
        self.behaviour = behaviour
        self.args = args
        self.key = os.environ.get("LLAMA_API_KEY", "")
        self.slot_context = args.ctx_size // args.parallel
        self.token_seconds = self._token_seconds()

    def _token_seconds(self) -> float:
        given = self.behaviour.get("token_seconds", 0.004)
        if not isinstance(given, list):
            return float(given)
        counter = Path(self.behaviour["counter"])
        before = len(counter.read_bytes()) if counter.exists() else 0
        with counter.open("ab") as file:
            file.write(b"+")
        return float(given[min(before, len(given) - 1)])

    def words(self, messages: list[dict[str, str]], count: int, *, stream: bool = True) -> list[str]:
        """Return the answer as tokens."""
        prompt = next(m["content"] for m in reversed(messages) if m["role"] == "user")
        wrong = self.behaviour.get("wrong") or (not stream and self.behaviour.get("wrong_unstreamed"))
        if prompt.startswith("Count from 1"):
            return [f" {number}," for number in range(11, 11 + count)]
        if (code := _CODE.search(messages[0]["content"])) is not None:
            return ["The", " code", " is", f" {code[1]}."]
        if (asked := _ASKED.search(prompt)) is not None:
            number = next((m[2] for m in _RECALL.finditer(prompt) if m[1] == asked[1]), "unknown")
            words = [f" {number}", ".", *re.findall(r" \S+", FILLER)]
        elif (known := (ANSWERS | self.behaviour.get("answers", {})).get(prompt)) is not None:
            words = re.findall(r"\s*\S+", "I cannot tell." if wrong else known)
            return words[:count]
        else:
            words = re.findall(r"\S+\s*", self.behaviour.get("text", FILLER))
        return [words[n % len(words)] for n in range(count)]


def prompt_tokens(messages: list[dict[str, str]]) -> int:
    """Count tokens as a tokenizer of English would, roughly."""
    return TEMPLATE_TOKENS + round(1.3 * sum(len(m["content"].split()) for m in messages))


def completion(ids: list[int], scores: float | str) -> dict[str, Any]:
    """Answer with the whole vocabulary, likeliest first, by numbers that are the same for the same tokens."""
    noise = 0.0 if scores == "nan" else float(scores)

    def part(token: int, salt: int) -> float:
        return zlib.crc32(bytes([salt, *ids, token])) / 2**32

    logits = {t: 8 * part(t, 0) + noise * (2 * part(t, 1) - 1) for t in range(VOCABULARY)}
    total = math.log(math.fsum(math.exp(logit) for logit in logits.values()))
    ranked = sorted(logits, key=lambda t: -logits[t])
    top = [{"id": t, "logprob": None if scores == "nan" else logits[t] - total} for t in ranked]
    return {"completion_probabilities": [{"id": ranked[0], "logprob": top[0]["logprob"], "top_logprobs": top}]}


class Handler(socketserver.StreamRequestHandler):
    """One request on one connection."""

    server: Server

    def handle(self) -> None:
        """Read one request and answer it."""
        with contextlib.suppress(ConnectionError):
            self._handle()

    def _handle(self) -> None:
        method, path, _ = self.rfile.readline().decode().split(" ", 2)
        headers: dict[str, str] = {}
        while line := self.rfile.readline().decode().strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = self.rfile.read(int(headers.get("content-length", 0)))
        fake = self.server.fake
        if path == "/health":
            if fake.behaviour.get("hang_health"):
                fork_worker(fake.behaviour, "setsid")
                threading.Event().wait()
            if fake.behaviour.get("never_ready"):
                self._json(503, {"error": {"message": "Loading model"}})
            else:
                self._json(200, {"status": "ok"})
        elif fake.key and headers.get("authorization") != f"Bearer {fake.key}":
            self._json(401, {"error": {"message": "Invalid API Key", "code": 401}})
        elif path == "/props":
            self._json(200, self._props(fake))
        elif path == "/metrics":
            self._send(200, "text/plain", b"# TYPE x counter\nllamacpp:prompt_tokens_total 12\n")
        elif method == "POST" and path == "/v1/chat/completions":
            self._chat(fake, json.loads(body))
        elif path == "/tokenize" and "scores" in fake.behaviour:
            self._json(200, {"tokens": [byte % VOCABULARY for byte in json.loads(body)["content"].encode()]})
        elif path == "/completion" and "scores" in fake.behaviour:
            self._json(200, completion(json.loads(body)["prompt"], fake.behaviour["scores"]))
        else:
            self._json(404, {"error": {"message": "File Not Found"}})

    def _props(self, fake: Fake) -> Any:
        if "props" in fake.behaviour:
            return fake.behaviour["props"]
        return {
            "model_alias": fake.behaviour.get("wrong_model") or fake.args.alias,
            "model_path": fake.args.model,
            "total_slots": fake.args.parallel,
            "default_generation_settings": {"n_ctx": fake.slot_context},
        }

    def _head(self, status: str, kind: str, framing: str) -> None:
        lines = (f"HTTP/1.1 {status}", f"Content-Type: {kind}", framing, "Connection: close", "", "")
        self.wfile.write("\r\n".join(lines).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self._head(f"{status} -", kind, f"Content-Length: {len(body)}")
        self.wfile.write(body)

    def _json(self, status: int, body: Any) -> None:
        self._send(status, "application/json", json.dumps(body).encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _event(self, fake: Fake, delta: dict[str, Any], finish: str | None = None, **more: Any) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        event = {"choices": [choice], "id": "chatcmpl-1", "model": fake.args.alias, "object": "chat.completion.chunk"}
        self._chunk(b"data: " + json.dumps(event | more).encode() + b"\n\n")

    def _chat(self, fake: Fake, request: dict[str, Any]) -> None:
        behaviour, messages, wanted = fake.behaviour, request["messages"], int(request["max_tokens"])
        count = prompt_tokens(messages)
        if count >= behaviour.get("oom_at", sys.maxsize):
            end(1, "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 99.00 MiB: cudaMalloc failed: out of memory")
        if count + 1 > fake.slot_context:
            self._json(400, {"error": {"message": f"request ({count} tokens) exceeds the available context size"}})
            return
        if not request.get("stream"):
            self._json(200, _whole(fake.words(messages, wanted, stream=False), count, wanted))
            return
        self._head("200 OK", "text/event-stream", "Transfer-Encoding: chunked")
        if behaviour.get("hang_generation"):
            threading.Event().wait()
        words = [] if behaviour.get("ends_at_once") else fake.words(messages, wanted)
        self._event(fake, {"role": "assistant", "content": None})
        due = time.monotonic() + float(behaviour.get("first_seconds", 0.1))
        for number, word in enumerate(words, 1):
            # Against a schedule, so that a late wake-up does not add up.
            time.sleep(max(0.0, due - time.monotonic()))
            due += fake.token_seconds
            if not behaviour.get("textless"):
                self._event(fake, {"content": word})
            if number >= behaviour.get("die_mid_stream", sys.maxsize):
                end(3, "llama-server: terminate called without an active exception")
        usage = {"completion_tokens": len(words), "prompt_tokens": count, "total_tokens": count + len(words)}
        timings = {"prompt_n": count, "predicted_n": len(words), "predicted_per_second": 1 / fake.token_seconds}
        self._event(fake, {}, "length" if len(words) >= wanted else "stop")
        self._event(fake, {}, usage=usage | {"prompt_tokens_details": {"cached_tokens": 0}}, timings=timings)
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")


def _whole(words: list[str], count: int, wanted: int) -> dict[str, Any]:
    """Return an answer that is not streamed."""
    message = {"role": "assistant", "content": "".join(words)}
    choice = {"index": 0, "message": message, "finish_reason": "length" if len(words) >= wanted else "stop"}
    return {"choices": [choice], "usage": {"completion_tokens": len(words), "prompt_tokens": count}}


class Server(socketserver.ThreadingTCPServer):
    """Listens as llama-server does."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, fake: Fake) -> None:
        self.fake = fake
        super().__init__((fake.args.host, fake.args.port), Handler)


def note_pid(behaviour: dict[str, Any]) -> None:
    """Write down this process, for the test that will look for it."""
    if "pids" in behaviour:
        with Path(behaviour["pids"]).open("a") as file:
            file.write(f"{os.getpid()}\n")


# Needs site packages, which the fake itself goes without.
RENAMED = """
import signal, sys, setproctitle
setproctitle.setproctitle("VLLM::EngineCore")
sys.stdout.write("renamed\\n"); sys.stdout.flush()
signal.pause()
"""


def fork_worker(behaviour: dict[str, Any], kind: str) -> None:
    """Start a worker that leaves session and group, as the workers of some engines do, or hides further."""
    if os.fork() != 0:
        return
    os.setsid()
    if kind == "double-fork" and os.fork() != 0:
        os._exit(0)
    note_pid(behaviour)
    if kind == "cleared":
        os.execve("/bin/sleep", ["sleep", "600"], {})
    if kind == "renamed":
        os.execv(sys.executable, [sys.executable, "-I", "-c", RENAMED])
    while True:
        signal.pause()


def fork_bomb(behaviour: dict[str, Any], count: int) -> None:
    """Start so many processes, each from the one before it and in a session of its own."""
    for number in range(count):
        if os.fork() != 0:
            if number == 0:
                return
            break
        os.setsid()
        note_pid(behaviour)
    while True:
        signal.pause()


def chatter(behaviour: dict[str, Any], args: argparse.Namespace) -> None:
    """Print what a real server prints while it loads."""
    say(*behaviour.get("log", []))
    if behaviour.get("noise"):
        sys.stdout.buffer.write(bytes(range(256)) * 16 + b"\n\xff\xfe\xc3(\n")
    if "flood" in behaviour:
        for _ in range(int(behaviour["flood"]) // (len(CHATTER) * 1000) + 1):
            sys.stdout.buffer.write(CHATTER * 1000)
    sys.stdout.flush()
    if behaviour.get("buffers", True):
        say(
            "load_tensors:   CPU_Mapped model buffer size =    12.00 MiB",
            "llama_kv_cache:        CPU KV buffer size =     3.00 MiB",
            "sched_reserve:        CPU compute buffer size =     2.00 MiB",
        )
    say(f"srv    load_model: initializing, n_slots = {args.parallel}, n_ctx_slot = {args.ctx_size // args.parallel}")


def flood_for_ever() -> None:
    """Fill the log as fast as it is taken."""
    while True:
        os.write(1, CHATTER * 1000)


def parser() -> argparse.ArgumentParser:
    """Know the flags that matter here; all others are ignored."""
    p = argparse.ArgumentParser(allow_abbrev=False)
    p.add_argument("--version", action="store_true")
    p.add_argument("--model", default="")
    p.add_argument("--alias", default="")
    p.add_argument("--ctx-size", type=int, default=4096)
    p.add_argument("--parallel", type=int, default=1)
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=8080)
    return p


def main() -> int:
    """Serve until SIGTERM."""
    args, _ = parser().parse_known_args()
    behaviour: dict[str, Any] = json.loads(os.environ.get(VARIABLE, "{}"))
    if args.version:
        if failed := behaviour.get("version_fails"):
            end(failed["code"], *failed["lines"])
        say(f"version: {behaviour.get('version', '4242 (fake)')}", "built with FakeCC 1.0 for tests")
        return 0
    note_pid(behaviour)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour.get("ignore_term") else lambda *_: os._exit(0))
    for kind in behaviour.get("workers", ["setsid"] if behaviour.get("setsid_worker") else []):
        fork_worker(behaviour, kind)
    if "fork_bomb" in behaviour:
        fork_bomb(behaviour, behaviour["fork_bomb"])
    if failed := behaviour.get("exit_at_once"):
        end(failed["code"], *failed["lines"])
    chatter(behaviour, args)
    if "exit_after" in behaviour:
        words = behaviour.get("last_words", ["fake: leaving as told"])
        threading.Timer(behaviour["exit_after"], end, (7, *words)).start()
    if behaviour.get("flood_for_ever"):
        threading.Thread(target=flood_for_ever, daemon=True).start()
    if behaviour.get("never_bind"):
        threading.Event().wait()
    try:
        server = Server(Fake(behaviour, args))
    except OSError:
        end(1, f"start: couldn't bind HTTP server socket, hostname: {args.host}, port: {args.port}")
    say(f"main: server is listening on http://{args.host}:{args.port}")
    server.serve_forever(poll_interval=60)
    return 0


if __name__ == "__main__":
    sys.exit(main())
