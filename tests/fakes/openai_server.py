"""A server that speaks OpenAI's API, or half of it, in a thread of the test."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.llama_server import ANSWERS, FILLER, prompt_tokens

__all__ = ["Behaviour", "serving"]

# What OpenAI's API does not know.
_EXTENSIONS = {"chat_template_kwargs", "ignore_eos", "cache_prompt"}


@dataclass
class Behaviour:
    """What the server does; it may be changed while it runs.

    `models` None is 404 at /v1/models; `health` is the status of /health; `key` is asked for where it is not empty;
    `usage`, `stream`, `cached` are whether an answer has these; `strict` refuses fields that OpenAI does not know;
    `echoes` repeats a key that it refuses; `version` is that of /version; `broken` is an SSE error object instead of
    an answer. `first_seconds` and `token_seconds` are how fast it answers; `asked` collects the bodies of the chat
    requests.
    """

    models: tuple[str, ...] | None = ("tiny",)
    health: int = 200
    key: str = ""
    usage: bool = True
    stream: bool = True
    cached: bool = True
    strict: bool = False
    echoes: bool = False
    chat: bool = True
    version: str = ""
    broken: str = ""
    first_seconds: float = 0.1
    token_seconds: float = 0.004
    asked: list[dict[str, Any]] = field(default_factory=list)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behaviour: Behaviour

    def log_message(self, *_: Any) -> None:
        pass

    def _json(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _refused(self) -> bool:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not self.behaviour.key or given == self.behaviour.key:
            return False
        said = f"Incorrect API key provided: {given}" if self.behaviour.echoes else "Invalid API Key"
        self._json(401, {"error": {"message": said}})
        return True

    def do_GET(self) -> None:
        it = self.behaviour
        if self.path == "/health":
            self._json(it.health, {"status": "ok"} if it.health == 200 else {"error": "no"})
        elif self._refused():
            return
        elif self.path == "/v1/models" and it.models is not None:
            self._json(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in it.models]})
        elif self.path == "/version" and it.version:
            self._json(200, {"version": it.version})
        else:
            self._json(404, {"error": "not found"})

    def do_POST(self) -> None:
        it = self.behaviour
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refused():
            return
        if not it.chat:
            self._json(404, {"error": "not found"})
            return
        if it.strict and (unknown := _EXTENSIONS & body.keys()):
            self._json(400, {"error": {"message": f"Unrecognized request argument supplied: {sorted(unknown)[0]}"}})
            return
        it.asked.append(body)
        prompt = body["messages"][-1]["content"]
        known = ANSWERS.get(prompt)
        words = known.split() if known else [FILLER.split()[n % 30] for n in range(int(body["max_tokens"]))]
        usage = {"prompt_tokens": prompt_tokens(body["messages"]), "completion_tokens": len(words)}
        if it.cached:
            usage |= {"prompt_tokens_details": {"cached_tokens": 0}}  # type: ignore[dict-item]
        if not it.stream or body.get("stream") is False:
            message = {"role": "assistant", "content": " ".join(words)}
            choice = {"message": message, "finish_reason": "stop" if known else "length"}
            self._json(200, {"choices": [choice], "usage": usage})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        if it.broken:
            self._event({"error": {"message": it.broken, "code": 500}})
            return
        time.sleep(it.first_seconds)
        due = time.monotonic()
        for word in words:
            time.sleep(max(0.0, due - time.monotonic()))
            due += it.token_seconds
            self._event({"choices": [{"index": 0, "delta": {"content": f"{word} "}}]})
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop" if known else "length"}]})
        if it.usage:
            self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[str]:
    """Run a server for the length of the block; gives its address."""
    handler = type("Handler", (_Handler,), {"behaviour": behaviour})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
