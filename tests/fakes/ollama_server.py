"""A stand-in for the program `ollama`, written from the documentation of its API: `serve`, `create`, `--version`.

Nobody has held it against the real program: no package index ships that. Behaviour is read as JSON from the variable
MOEGPU_FAKE, as that of `llama_server`, of which `answers`, `wrong`, `text`, `token_seconds`, `first_seconds` and `pids`
are known here too; and:

    version          what it says its version is     create_fails   `create` ends with this message
    on_gpu           share of the model on a GPU     loaded         name of another model that /api/ps gives
    cuts             cuts a long prompt in silence, as versions before 0.12.6 do
    context_length   what /api/ps gives instead of num_ctx
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fakes import llama_server as base

MODEL_BYTES = 100_000_000


def install(folder: Path) -> Path:
    """Write an executable program `ollama` into a folder and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "ollama"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{Path(__file__).resolve()}" "$@"\n')
    program.chmod(0o755)
    return program


def address() -> tuple[str, int]:
    """Return where to listen, or whom to ask."""
    host, _, port = os.environ.get("OLLAMA_HOST", "127.0.0.1:11434").rpartition(":")
    return host, int(port)


class Daemon(base.Fake):
    """What one `ollama serve` knows: the models made, and the one loaded with its options."""

    def __init__(self, behaviour: dict[str, Any]) -> None:
        host, port = address()
        super().__init__(behaviour, argparse.Namespace(host=host, port=port, ctx_size=0, parallel=1, alias=""))
        self.folder = Path(os.environ["OLLAMA_MODELS"])
        self.models: dict[str, str] = {}
        self.loaded = ""
        self.options: dict[str, Any] = {}

    def create(self, name: str, modelfile: str) -> str:
        """Copy the file that a Modelfile names; return what is wrong with it."""
        source = next((line[5:].strip() for line in modelfile.splitlines() if line.startswith("FROM ")), "")
        if not Path(source).is_file():
            return f"no such file: {source}"
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_bytes(Path(source).read_bytes())
        self.models[f"{name}:latest"] = modelfile
        return ""

    def load(self, name: str, options: dict[str, Any]) -> None:
        """Load a model as its Modelfile and a request say, with what the runner then prints."""
        made = dict(re.findall(r"^PARAMETER (\w+) (\S+)$", self.models[name], re.MULTILINE))
        self.options = {"num_ctx": os.environ.get("OLLAMA_CONTEXT_LENGTH", "4096")} | made | options
        self.loaded = name
        layers = 5 if int(self.options.get("num_gpu", 0)) else 0
        where = "CUDA0" if layers else "CPU"
        base.say(
            f"load_tensors: offloaded {layers}/5 layers to GPU",
            f"load_tensors:   {where} model buffer size =    12.00 MiB",
        )

    def running(self) -> list[dict[str, Any]]:
        """List what is loaded, as /api/ps gives it: without numbers that are 0."""
        name = self.behaviour.get("loaded") or self.loaded
        if not name:
            return []
        share = self.behaviour.get("on_gpu", 0.0)
        context = self.behaviour.get("context_length", int(self.options.get("num_ctx", 0)))
        entry = {"name": name, "model": name, "size": MODEL_BYTES, "context_length": context}
        return [entry | ({"size_vram": round(share * MODEL_BYTES)} if share else {})]


class Handler(base.Handler):
    """One request on one connection."""

    def _handle(self) -> None:
        method, path, _ = self.rfile.readline().decode().split(" ", 2)
        length = 0
        while line := self.rfile.readline().decode().strip():
            name, _, value = line.partition(":")
            if name.lower() == "content-length":
                length = int(value)
        body = self.rfile.read(length)
        daemon = self.server.fake
        assert isinstance(daemon, Daemon)
        if method == "GET":
            self._get(daemon, path)
        elif path == "/api/create":
            asked = json.loads(body)
            wrong = daemon.behaviour.get("create_fails") or daemon.create(asked["model"], asked["modelfile"])
            self._json(400 if wrong else 200, {"error": wrong} if wrong else {"status": "success"})
        elif path == "/api/chat":
            self._answer(daemon, json.loads(body))
        else:
            self._json(404, {"error": "not found"})

    def _get(self, daemon: Daemon, path: str) -> None:
        answers: dict[str, Any] = {
            "/api/version": {"version": daemon.behaviour.get("version", "0.40.2")},
            "/api/ps": {"models": daemon.running()},
            "/api/tags": {"models": [{"name": name, "model": name} for name in daemon.models]},
            "/v1/models": {"object": "list", "data": [{"id": name, "object": "model"} for name in daemon.models]},
        }
        if path == "/":
            self._send(200, "text/plain", b"Ollama is running")
        else:
            self._json(200 if path in answers else 404, answers.get(path, {"error": "not found"}))

    def _answer(self, daemon: Daemon, request: dict[str, Any]) -> None:
        name = request["model"] if ":" in request["model"] else f"{request['model']}:latest"
        if name not in daemon.models:
            self._json(404, {"error": f"model '{request['model']}' not found"})
            return
        options = request.get("options", {})
        runner = {key: value for key, value in options.items() if key in ("num_ctx", "num_gpu", "num_batch")}
        if daemon.loaded != name or any(str(daemon.options.get(key)) != str(value) for key, value in runner.items()):
            daemon.load(name, runner)
        context, count = int(daemon.options["num_ctx"]), base.prompt_tokens(request["messages"])
        if count + 1 > context:
            if not daemon.behaviour.get("cuts"):
                self._json(400, {"error": "the input length exceeds the context length"})
                return
            count = context
        words = daemon.words(request["messages"], int(options["num_predict"]))
        self._head("200 OK", "application/x-ndjson", "Transfer-Encoding: chunked")
        began = time.monotonic_ns()
        due = time.monotonic() + float(daemon.behaviour.get("first_seconds", 0.1))
        for word in words:
            time.sleep(max(0.0, due - time.monotonic()))
            due += daemon.token_seconds
            self._line(name, {"message": {"role": "assistant", "content": word}, "done": False})
        last = {
            "message": {"role": "assistant", "content": ""},
            "done": True,
            "done_reason": "length" if len(words) >= int(options["num_predict"]) else "stop",
            "total_duration": time.monotonic_ns() - began,
            "load_duration": 1_000_000,
            "prompt_eval_count": count,
            "prompt_eval_duration": 100_000_000,
            "eval_count": len(words),
            "eval_duration": round(1e9 * daemon.token_seconds * len(words)),
        }
        self._line(name, last)
        self.wfile.write(b"0\r\n\r\n")

    def _line(self, name: str, fields: dict[str, Any]) -> None:
        stamped = {"model": name, "created_at": "2026-11-30T12:00:00.000000000Z"} | fields
        self._chunk(json.dumps(stamped).encode() + b"\n")


def serve(behaviour: dict[str, Any]) -> int:
    """Listen until SIGTERM."""
    base.note_pid(behaviour)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    daemon = Daemon(behaviour)
    try:
        base.Server.allow_reuse_address = True
        server = base.Server(daemon)
        server.RequestHandlerClass = Handler
    except OSError as error:
        base.end(1, f"Error: listen tcp {daemon.args.host}:{daemon.args.port}: bind: {error.strerror}")
    base.say(f"Listening on {daemon.args.host}:{daemon.args.port}")
    server.serve_forever(poll_interval=60)
    return 0


def create(name: str, modelfile: Path) -> int:
    """Ask the server for a model."""
    host, port = address()
    body = json.dumps({"model": name, "modelfile": modelfile.read_text()}).encode()
    request = urllib.request.Request(f"http://{host}:{port}/api/create", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            print(json.load(answer)["status"])
    except urllib.error.HTTPError as error:
        print(f"Error: {json.load(error)['error']}", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    """Do what the first word says."""
    behaviour: dict[str, Any] = json.loads(os.environ.get(base.VARIABLE, "{}"))
    words = sys.argv[1:]
    if words == ["--version"]:
        print("Warning: could not connect to a running Ollama instance")
        print(f"Warning: client version is {behaviour.get('version', '0.40.2')}")
        return 0
    if words == ["serve"]:
        return serve(behaviour)
    if len(words) == 4 and words[0] == "create" and words[2] == "-f":
        return create(words[1], Path(words[3]))
    print(f'Error: unknown command {" ".join(words)!r} for "ollama"', file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
