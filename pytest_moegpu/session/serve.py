"""`moegpu serve`: the server of a scenario for people, started and ended with the care of a measured start."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from pytest_moegpu.core.model import Scenario
from pytest_moegpu.core.serveargs import ServeOrder
from pytest_moegpu.errors import StartError, UserError
from pytest_moegpu.host.control import listener
from pytest_moegpu.options import Options
from pytest_moegpu.session.abside import with_settings
from pytest_moegpu.session.calibrate import Told
from pytest_moegpu.session.live import Live
from pytest_moegpu.session.server import Server
from pytest_moegpu.session.serving import described
from pytest_moegpu.session.target import Target, resolve
from pytest_moegpu.session.validated import validated

__all__ = ["run"]

_DIED, _DID_NOT_COME_UP, _USAGE = 1, 2, 3
_EVERYWHERE = ("0.0.0.0", "::")


def run(order: ServeOrder, out: TextIO, err: TextIO) -> int:
    """Serve until Ctrl-C, TERM or the server's own end; how to reach it goes to `out`, progress to `err`.

    Returns 0 when it was ended and nothing is left of it, 1 when it died or left something behind, 2 when it did not
    come up, 3 when something asked for is not there; nothing has been started then.
    """
    progress = Told(err)
    options = Options(
        profile=order.profile,
        scenarios=(order.scenario,) if order.scenario else (),
        backend=order.backend,
        server=order.server,
        model=order.model,
        devices=order.devices,
        starts=1,
        catalog=order.catalog,
        runs=order.runs,
    )
    try:
        target = resolve(options, progress)
    except UserError as error:
        print(f"moegpu serve: {error}", file=err)
        return _USAGE
    live = Live(target.probe)
    try:
        with _ended_by_term():
            return _serve(order, target, live, progress, out)
    except UserError as error:
        print(f"moegpu serve: {error}", file=err)
        return _USAGE
    except StartError as error:
        left = f"\nLEFT BEHIND: {live.unusable}" if live.unusable else ""
        print(f"moegpu serve: {error}\nlog: {error.failure.log_path}{left}", file=err)
        return _DID_NOT_COME_UP
    finally:
        target.probe.close()


def _serve(order: ServeOrder, target: Target, live: Live, progress: Told, out: TextIO) -> int:
    server, scenario = _built(order, target)
    died = False
    try:
        try:
            live.start(server, scenario.name, "")
            print("\n".join(_told(server, target, scenario, order)), file=out, flush=True)
            while server.alive:
                server.settle()
            died = True
            print(f"the server died: {server.death()}", file=out, flush=True)
        except KeyboardInterrupt:
            progress.line("ending the server")
    finally:
        live.stop()
    print(f"LEFT BEHIND: {live.unusable}" if live.unusable else "ended, nothing is left of it", file=out, flush=True)
    return _DIED if died or live.unusable else 0


def _built(order: ServeOrder, target: Target) -> tuple[Server, Scenario]:
    """Build the server, not started.

    Raises:
        UserError: A setting that is wrong, or an address that is taken.
    """
    scenario = with_settings(target.scenarios[0], order.settings, "--set")
    folder = order.logs / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{target.profile.name}"
    spec = target.launch(scenario, str(folder / "scratch"))
    spec = replace(spec, host=order.host, port=order.port or spec.port, api_key=order.api_key or spec.api_key)
    if order.port is not None and (owner := listener(order.host, order.port)) is not None:
        raise UserError(
            f"--port {order.port} is taken by pid {owner.pid} ({owner.name or 'unknown'}): "
            "choose another, or leave it out"
        )
    if scenario.container is None:
        # Before anything is started: a setting that the engine does not have.
        target.backend.argv(spec)
    folder.mkdir(parents=True, exist_ok=True)
    return Server(target.backend, spec, scenario.limits, (folder / "server.log").absolute()), scenario


def _told(server: Server, target: Target, scenario: Scenario, order: ServeOrder) -> list[str]:
    """Say what is served, what is known of it, and how a client reaches it."""
    spec, settings = server.spec, scenario.settings
    host = "127.0.0.1" if spec.host in _EVERYWHERE else spec.host
    address = f"http://{host}:{spec.port}/v1"
    body = {"model": spec.model_name, "messages": [{"role": "user", "content": "Hello"}]}
    facts = [
        ("serving", f"{target.model.title}, {target.file.quantisation}, by {target.backend.name}"),
        ("scenario", f"{scenario.name}: context {settings.context}, slots {settings.slots}, KV {settings.kv_cache}"),
        ("judged", validated(described(target, scenario), order.runs)),
        ("address", address + (f", and this machine's other addresses ({spec.host})" if host != spec.host else "")),
        ("key", spec.api_key),
        ("model", spec.model_name),
        ("log", _shown(server.log_path)),
    ]
    return [
        *(f"{label:<10}{text}" for label, text in facts),
        "",
        "Any client of the OpenAI API takes address, key and model. By hand:",
        f"  curl {address}/chat/completions -H 'Authorization: Bearer {spec.api_key}' \\",
        f"    -H 'Content-Type: application/json' -d '{json.dumps(body)}'",
        "",
        "Ctrl-C ends it.",
    ]


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


@contextmanager
def _ended_by_term() -> Iterator[None]:
    """Have TERM end the server as Ctrl-C does, in place of ending this process at once."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
