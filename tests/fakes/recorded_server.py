"""A server that replays what was recorded of a real one: its log, its answers, its exit code.

Run as a script with the standard library only. MOEGPU_RECORDED names a JSON file with these keys:

    version, help   what the program prints when it is asked
    log             what it prints first
    exit            ends with this code behind the log, without listening
    get             path -> [status, body]; a path that is not there is a 404
    refuse          [tokens, status, body]: prompts of more tokens are answered so
    fault           [chats, status, body]: from so many chats on, each is answered so ...
    get_then        ... and these paths like this
    last            [chats, status, body, code]: the chat of this number is answered so, and then the server ends

Other chats are answered as the stand-in of llama-server does.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "MOEGPU_RECORDED"

_SPEC = importlib.util.spec_from_file_location("llama_server", Path(__file__).with_name("llama_server.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
llama: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(llama)

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Recording:
    """One file of `tests/data/engines/*/faults`: texts under their headings, the last of each name."""

    parts: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Read a file of headings, each with its text below."""
        pieces = _HEADING.split(path.read_text(encoding="utf-8"))[1:]
        return cls(dict(zip(pieces[::2], (piece.strip("\n") for piece in pieces[1::2]), strict=True)))

    @property
    def log(self) -> str:
        """What the program printed."""
        return self.parts["log"]

    @property
    def exit_code(self) -> int:
        """How it ended."""
        return int(re.findall(r"-?\d+", self.parts["exit code"])[0])

    def answer(self, heading: str) -> tuple[int, str]:
        """Return status and body of an answer that was recorded under a heading."""
        status, _, body = self.parts[heading].partition("\n")
        return int(status.removeprefix("HTTP ")), body


def install(folder: Path, name: str) -> Path:
    """Write an executable program into a folder and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{Path(__file__).resolve()}" "$@"\n')
    program.chmod(0o755)
    return program


class Handler(llama.Handler):  # type: ignore[misc]
    """One request on one connection."""

    chats = 0
    lock = threading.Lock()

    def _handle(self) -> None:
        method, path, _ = self.rfile.readline().decode().split(" ", 2)
        length = 0
        while line := self.rfile.readline().decode().strip():
            name, _, value = line.partition(":")
            length = int(value) if name.lower() == "content-length" else length
        body = self.rfile.read(length)
        told = self.server.fake.behaviour
        if method == "POST" and path == "/v1/chat/completions":
            self._answer(json.loads(body), told)
            return
        broken = "fault" in told and Handler.chats > told["fault"][0]
        known = told.get("get", {}) | (told.get("get_then", {}) if broken else {})
        status, text = known.get(path, [404, '{"detail":"Not Found"}'])
        self._send(status, "application/json", text.encode())

    def _answer(self, request: dict[str, Any], told: dict[str, Any]) -> None:
        with Handler.lock:
            Handler.chats += 1
            number = Handler.chats
        if "last" in told and number >= told["last"][0]:
            self._send(told["last"][1], "application/json", told["last"][2].encode())
            os._exit(told["last"][3])
        elif "fault" in told and number > told["fault"][0]:
            self._send(told["fault"][1], "text/event-stream", told["fault"][2].encode())
        elif "refuse" in told and llama.prompt_tokens(request["messages"]) > told["refuse"][0]:
            self._send(told["refuse"][1], "application/json", told["refuse"][2].encode())
        else:
            self._chat(self.server.fake, request)


def main() -> int:
    """Answer a question about the program, or be the server until SIGTERM."""
    told = json.loads(Path(os.environ[VARIABLE]).read_text())
    if any(word.startswith("--help") for word in sys.argv):
        print(told["help"])
        return 0
    if "--port" not in sys.argv:
        print(told["version"])
        return 0
    print(told.get("log", ""), flush=True)
    if "exit" in told:
        # An exit code below 0 is a signal.
        if told["exit"] < 0:
            os.kill(os.getpid(), -told["exit"])
        return int(told["exit"])
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    args, _ = parser.parse_known_args()
    # What the stand-in of llama-server takes from its own command line.
    args.alias, args.model, args.parallel, args.ctx_size = "recorded", "", 1, 2**20
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    server = llama.Server(llama.Fake(told, args))
    server.RequestHandlerClass = Handler
    server.serve_forever(poll_interval=60)
    return 0


if __name__ == "__main__":
    sys.exit(main())
