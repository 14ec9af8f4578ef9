"""The server of a scenario, started by this run or attached to, and what is different about the two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_moegpu.backends.base import ServedModel
from pytest_moegpu.core.evidence import DeviceProcess, Evidence, Phase
from pytest_moegpu.core.model import Scenario
from pytest_moegpu.core.verdict import Verdict
from pytest_moegpu.session.attached import AttachedServer
from pytest_moegpu.session.attachedfacts import attached_evidence
from pytest_moegpu.session.describe import describe
from pytest_moegpu.session.foretold import foretold
from pytest_moegpu.session.ruling import with_rules
from pytest_moegpu.session.server import Server
from pytest_moegpu.session.target import Target

__all__ = ["AnyServer", "ask_again", "described", "marked", "server_of", "strangers"]

AnyServer = Server | AttachedServer


def server_of(target: Target, scenario: Scenario, log_path: Path, scratch: str) -> AnyServer:
    """Build the server of a scenario, not started."""
    if target.attached is not None:
        return AttachedServer(target.backend, target.attached, scenario.settings, scenario.limits, log_path)
    return Server(target.backend, target.launch(scenario, scratch), scenario.limits, log_path)


def described(
    target: Target, scenario: Scenario, runs: Path | None = None, catalog: Sequence[Path] | None = None
) -> Evidence:
    """Return the evidence of a scenario without any start yet, as `session.describe`, with what memory is expected.

    `runs` are the stored ones, from which is learned what the device keeps for itself; None: that is assumed.
    `catalog` are the user's own folders, with whose rules the launch is judged; None: by no rules.
    """
    evidence = describe(target, scenario)
    if target.attached is not None:
        return attached_evidence(evidence, target.attached)
    evidence = replace(evidence, predicted=foretold(target, scenario, evidence.stack.engine_version, runs))
    return evidence if catalog is None else with_rules(evidence, target, scenario, catalog)


def marked(target: Target, verdict: Verdict) -> Verdict:
    """Say in a verdict that its server was there before, where it was."""
    if target.attached is None:
        return verdict
    line = ("attached", f"{target.attached.address}, not started by this run")
    return replace(verdict, lines=(*verdict.lines, line))


def strangers(seen: tuple[DeviceProcess, ...], server: AnyServer) -> tuple[DeviceProcess, ...]:
    """Return who of the processes on a device is not of a server that has not been started yet.

    Beside an attached server nobody is accused as long as it is not on the list itself: any of them may be it.
    """
    others = tuple(process for process in seen if process.pid not in server.tree)
    return () if isinstance(server, AttachedServer) and len(others) == len(seen) else others


def ask_again(server: AnyServer) -> None:
    """Ask for the model once more where the server did not tell: Ollama lists none before its first request.

    Raises:
        StartError: Another model is served.
    """
    if server.served == ServedModel() and (wrong := server.ask_model()):
        raise server.failure(Phase.READY, wrong)
