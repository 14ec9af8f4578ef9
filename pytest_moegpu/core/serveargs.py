"""What `moegpu serve` is asked: its arguments, and the order that they make."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from pytest_moegpu.core.argtypes import port

__all__ = ["ServeOrder", "add_serve"]


@dataclass(frozen=True, kw_only=True)
class ServeOrder:
    """One scenario to be served. None and empty: as the profile says.

    `settings` are texts such as `settings.context=8192`; `port` None is one that is free; `api_key` None is a new one.
    """

    profile: str
    scenario: str | None = None
    backend: str | None = None
    server: str | None = None
    model: str | None = None
    devices: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int | None = None
    api_key: str | None = None
    catalog: tuple[Path, ...] = ()
    runs: Path = Path(".moegpu/runs")
    logs: Path = Path(".moegpu/served")

    @classmethod
    def of(cls, args: argparse.Namespace) -> ServeOrder:
        """Take the order from what was parsed."""
        return cls(
            profile=args.profile,
            scenario=args.scenario,
            backend=args.backend,
            server=args.server,
            model=args.model,
            devices=tuple(args.device),
            settings=tuple(args.set),
            host=args.host,
            port=args.port,
            api_key=args.api_key,
            catalog=tuple(args.catalog),
            runs=args.runs,
            logs=args.logs,
        )


def add_serve(verb: argparse.ArgumentParser) -> None:
    """Describe the arguments of the verb."""
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    verb.description = (
        "Starts the server of a scenario as a run does, says how to reach it, and ends it cleanly on Ctrl-C or TERM.\n"
        "Exit code 0: ended when asked, 1: it died, or left something behind, 2: it did not come up, 3: wrong usage."
    )
    verb.epilog = (
        "examples:\n  moegpu serve rtx3090 --port 8080\n"
        "  moegpu serve rtx3090 --scenario long-8k --set settings.context=16384"
    )
    verb.add_argument("profile", metavar="PROFILE", help="profile whose server is started")
    verb.add_argument("--scenario", metavar="NAME", help="scenario to serve (default the profile's first)")
    verb.add_argument("--backend", metavar="NAME", help="engine, if not the profile's own")
    verb.add_argument("--server", metavar="PROGRAM", help="server program")
    verb.add_argument("--model", metavar="FILE", help="model file, or the name of a model")
    verb.add_argument(
        "--device", action="append", default=[], metavar="GPU", help="GPU by index or UUID; may be repeated"
    )
    verb.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SETTING",
        help="a launch setting, such as settings.context=8192; may be repeated",
    )
    verb.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (default 127.0.0.1)")
    verb.add_argument("--port", type=port, metavar="N", help="port to listen on (default one that is free)")
    verb.add_argument("--api-key", metavar="KEY", help="key that clients must send (default a new one, printed)")
    verb.add_argument(
        "--catalog", type=Path, action="append", default=[], metavar="FOLDER", help="folder with profiles of your own"
    )
    verb.add_argument(
        "--logs", type=Path, default=Path(".moegpu/served"), metavar="FOLDER", help="where the server's log is kept"
    )
