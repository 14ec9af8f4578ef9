"""A stand-in for docker: the client with the calls that are made of it, and the daemon whose children containers are.

A container is a process of this machine, started by the daemon, so that it outlives a client that is killed. It sees
the variables given by `--env` and no others. Run as a script with the standard library only; FAKE_DOCKER names the
folder that holds the socket, `calls.jsonl` (argv of each call) and `behaviour.json`, all of whose keys are optional:

    images        name -> [id, digests...]           down        the daemon cannot be reached
    denied        the socket may not be used         hang        list of commands that never answer
    no_gpu        no runtime that hands over GPUs    stubborn    list of commands that do nothing and succeed
    port_taken    the port is somebody else's
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VARIABLE = "FAKE_DOCKER"
IMAGE = "example/server:1"
DIGEST = "example/server@sha256:" + "ab" * 32


def install(folder: Path, name: str = "docker") -> Path:
    """Write an executable client into a folder and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{Path(__file__).resolve()}" "$@"\n')
    program.chmod(0o755)
    return program


class Docker:
    """A running stand-in, as a test sees it."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.behave()

    def behave(self, **behaviour: Any) -> None:
        """Behave like this from now on."""
        images = {IMAGE: ["sha256:" + "cd" * 32, DIGEST]}
        written = self.state / "behaviour.new"
        written.write_text(json.dumps({"images": images} | behaviour))
        written.rename(self.state / "behaviour.json")

    def calls(self, verb: str) -> list[list[str]]:
        """Return the calls so far that begin with this word."""
        log = self.state / "calls.jsonl"
        calls = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [call for call in calls if call[0] == verb]

    def containers(self) -> list[str]:
        """Return the ids of all containers, as the daemon has them."""
        return list(request(self.state, {"do": "ps", "label": ""})["out"].split())


@contextlib.contextmanager
def running(state: Path) -> Iterator[Docker]:
    """Run a daemon for the length of the block; what it still runs is killed at the end."""
    state.mkdir(parents=True, exist_ok=True)
    made = Docker(state)
    argv = [sys.executable, "-I", "-S", __file__, "daemon", str(state)]
    with subprocess.Popen(argv, start_new_session=True) as daemon:
        try:
            end = time.monotonic() + 20
            while not (state / "socket").exists():
                assert daemon.poll() is None, "the daemon of the stand-in ended"
                assert time.monotonic() < end, "the daemon of the stand-in does not come up"
                time.sleep(0.01)
            yield made
        finally:
            daemon.terminate()
            daemon.wait()


def request(state: Path, message: dict[str, Any]) -> dict[str, Any]:
    """Ask the daemon something, and return its answer."""
    with connected(state) as link:
        link.sendall(json.dumps(message).encode() + b"\n")
        with link.makefile("rb") as answer:
            return dict(json.loads(answer.readline()))


def connected(state: Path) -> socket.socket:
    """Connect to the daemon; by a short name, because the path of a socket may not be long."""
    link = socket.socket(socket.AF_UNIX)
    folder = os.open(state, os.O_RDONLY)
    try:
        link.connect(f"/proc/self/fd/{folder}/socket")
    finally:
        os.close(folder)
    return link


class Container:
    """One container of the daemon."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.id = secrets.token_hex(32)
        self.name, self.labels, self.ports = order["name"], order["label"], order["publish"]
        self.process = subprocess.Popen(
            order["argv"],
            env=order["env"],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def end(self, number: int, seconds: float) -> None:
        """Send a signal to all its processes, wait, and kill what is left."""
        for each, wait in ((number, seconds), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, each)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(wait)


class Daemon(socketserver.ThreadingUnixStreamServer):
    """Holds the containers."""

    daemon_threads = True

    def __init__(self, path: str) -> None:
        self.containers: dict[str, Container] = {}
        super().__init__(path, Handler)


class Handler(socketserver.StreamRequestHandler):
    """One client."""

    server: Daemon

    def handle(self) -> None:
        """Serve one order."""
        order = json.loads(self.rfile.readline())
        known = self.server.containers
        match order["do"]:
            case "run":
                self._run(order)
                return
            case "ps":
                out = [c.id for c in list(known.values()) if order["label"] in ("", *c.labels)]
            case "pid":
                found = next((c for c in list(known.values()) if c.name == order["name"]), None)
                out = [] if found is None else [str(found.process.pid if found.process.poll() is None else 0)]
            case "port":
                out = [p.rpartition(":")[0] for c in list(known.values()) if c.name == order["name"] for p in c.ports]
            case _:
                for each in order["ids"]:
                    if (container := known.get(each)) is not None:
                        container.end(signal.SIGTERM if order["do"] == "stop" else signal.SIGKILL, order["seconds"])
                        known.pop(each, None)
                out = order["ids"]
        self._say(out="\n".join(out))

    def _say(self, **answer: Any) -> None:
        with contextlib.suppress(OSError):
            self.wfile.write(json.dumps(answer).encode() + b"\n")

    def _run(self, order: dict[str, Any]) -> None:
        try:
            container = Container(order)
        except OSError as error:
            self._say(error=f'exec: "{order["argv"][0]}": executable file not found in $PATH: {error}', code=127)
            return
        self.server.containers[container.id] = container
        threading.Thread(target=self._obey, args=(container,), daemon=True).start()
        assert container.process.stdout is not None
        while chunk := os.read(container.process.stdout.fileno(), 65536):
            self._say(log=chunk.decode("latin-1"))
        code = container.process.wait()
        container.end(signal.SIGKILL, 0.0)
        self.server.containers.pop(container.id, None)
        self._say(code=code if code >= 0 else 128 - code)

    def _obey(self, container: Container) -> None:
        """Pass on signals; a client that goes away changes nothing."""
        with contextlib.suppress(OSError, ValueError):
            for line in self.rfile:
                container.process.send_signal(json.loads(line)["signal"])


def serve(state: Path) -> None:
    """Be the daemon until SIGTERM."""
    os.chdir(state)
    with Daemon("starting") as daemon:
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=daemon.shutdown).start())
        Path("starting").rename("socket")
        daemon.serve_forever(poll_interval=0.05)
        for container in list(daemon.containers.values()):
            container.end(signal.SIGKILL, 0.0)


def parser() -> argparse.ArgumentParser:
    """Know what docker knows of the calls made; anything else is refused, as docker refuses an unknown flag."""
    p = argparse.ArgumentParser(prog="docker", allow_abbrev=False)
    verbs = p.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", allow_abbrev=False)
    for flag in ("--rm", "--init"):
        run.add_argument(flag, action="store_true")
    for flag in ("--name", "--entrypoint", "--gpus", "--shm-size", "--pull"):
        run.add_argument(flag)
    for flag in ("--label", "--publish", "--mount", "--env"):
        run.add_argument(flag, action="append", default=[])
    run.add_argument("image")
    run.add_argument("args", nargs=argparse.REMAINDER)
    for verb in ("image", "container"):
        inspect = verbs.add_parser(verb)
        inspect.add_argument("inspect", choices=("inspect",))
        inspect.add_argument("--format", required=True)
        inspect.add_argument("name")
    ps = verbs.add_parser("ps")
    for flag in ("--all", "--quiet", "--no-trunc"):
        ps.add_argument(flag, action="store_true", required=True)
    ps.add_argument("--filter", required=True)
    port = verbs.add_parser("port")
    port.add_argument("name")
    port.add_argument("port")
    stop = verbs.add_parser("stop")
    stop.add_argument("-t", type=int, default=10)
    stop.add_argument("ids", nargs="+")
    remove = verbs.add_parser("rm")
    remove.add_argument("--force", action="store_true", required=True)
    remove.add_argument("ids", nargs="+")
    return p


def fail(code: int, message: str) -> int:
    """Print an error as docker does."""
    print(message, file=sys.stderr, flush=True)
    return code


def client(state: Path, argv: list[str]) -> int:
    """Be the command `docker`."""
    with (state / "calls.jsonl").open("a") as log:
        log.write(json.dumps(argv) + "\n")
    behaviour = json.loads((state / "behaviour.json").read_text())
    args = parser().parse_args(argv)
    if args.verb in behaviour.get("hang", ()):
        threading.Event().wait()
    if args.verb in behaviour.get("stubborn", ()):
        return 0
    place = "unix:///var/run/docker.sock"
    if behaviour.get("down"):
        return fail(1, f"Cannot connect to the Docker daemon at {place}. Is the docker daemon running?")
    if behaviour.get("denied"):
        return fail(1, f"permission denied while trying to connect to the Docker daemon socket at {place}")
    if args.verb == "image":
        if args.name not in behaviour["images"]:
            return fail(1, f"Error response from daemon: No such image: {args.name}")
        print(*behaviour["images"][args.name])
        return 0
    if args.verb == "run":
        return run(state, args, behaviour)
    asked = {
        "container": lambda: {"do": "pid", "name": args.name},
        "ps": lambda: {"do": "ps", "label": args.filter.removeprefix("label=")},
        "port": lambda: {"do": "port", "name": args.name},
        "stop": lambda: {"do": "stop", "ids": args.ids, "seconds": args.t},
        "rm": lambda: {"do": "rm", "ids": args.ids, "seconds": 0},
    }[args.verb]()
    out = request(state, asked)["out"]
    if args.verb in ("container", "port") and not out:
        return fail(1, f"Error response from daemon: No such container: {args.name}")
    print(out)
    return 0


def run(state: Path, args: argparse.Namespace, behaviour: dict[str, Any]) -> int:
    """Start a container, print what it prints, and end with its exit code."""
    daemon = "docker: Error response from daemon:"
    if args.image not in behaviour["images"]:
        return fail(125, f"{daemon} No such image: {args.image}")
    if args.gpus and behaviour.get("no_gpu"):
        return fail(125, f'{daemon} could not select device driver "" with capabilities: [[gpu]]')
    if args.publish and behaviour.get("port_taken"):
        return fail(125, f"{daemon} Bind for {args.publish[0].rpartition(':')[0]} failed: port is already allocated")
    for mount in args.mount:
        source = next(part.removeprefix("source=") for part in mount.split(",") if part.startswith("source="))
        if not Path(source).exists():
            return fail(125, f"{daemon} invalid mount config for type bind: bind source path does not exist: {source}")
    order = {
        "do": "run",
        "name": args.name,
        "label": args.label,
        "publish": args.publish,
        "argv": [args.entrypoint, *args.args],
        "env": {"PATH": "/usr/bin:/bin"} | {name: os.environ[name] for name in args.env if name in os.environ},
    }
    with connected(state) as link, link.makefile("rb") as answers:
        link.sendall(json.dumps(order).encode() + b"\n")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda given, _: link.sendall(json.dumps({"signal": given}).encode() + b"\n"))
        for line in answers:
            answer = json.loads(line)
            if "error" in answer:
                return fail(answer["code"], f"{daemon} failed to create task for container: {answer['error']}")
            if "code" in answer:
                return int(answer["code"])
            sys.stdout.buffer.write(answer["log"].encode("latin-1"))
            sys.stdout.flush()
    return fail(125, f"{daemon} the connection was lost")


def main() -> int:
    """Be the daemon or the client."""
    if sys.argv[1:2] == ["daemon"]:
        serve(Path(sys.argv[2]))
        return 0
    return client(Path(os.environ[VARIABLE]), sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
