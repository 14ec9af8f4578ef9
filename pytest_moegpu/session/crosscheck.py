"""The one-shot cross-check of the text: the same model and settings, asked once more without a server."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

from pytest_moegpu.backends.llamacpp import LlamaCpp
from pytest_moegpu.backends.llamacpp_cli import CLI_PROGRAM, CLI_VARIABLE, cli_argv, cli_environment, read_answer
from pytest_moegpu.checks.crosscheck import question
from pytest_moegpu.core.evidence import Evidence
from pytest_moegpu.core.model import LaunchSpec, Limits, Scenario
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.core.oneshot import OneShot
from pytest_moegpu.errors import UserError
from pytest_moegpu.host.boundedlog import tail
from pytest_moegpu.host.oneshot import run_once
from pytest_moegpu.host.stack import find_program
from pytest_moegpu.host.store import Bundle
from pytest_moegpu.session.target import Target

__all__ = ["CROSSCHECK", "cross_checked", "is_asked_for", "left_behind"]

CROSSCHECK = "crosscheck"
"""Name of the check, and the word of `-k` that asks for it."""


def is_asked_for(keyword: str) -> bool:
    """Tell whether the cross-check is wanted: named by `-k`, or by the variable that gives the program."""
    return CROSSCHECK in keyword or bool(os.environ.get(CLI_VARIABLE))


def cross_checked(evidence: Evidence, target: Target, scenario: Scenario, bundle: Bundle) -> Evidence:
    """Ask `llama-cli` one known answer, and return the evidence with what it said. No server may live meanwhile.

    Nothing is asked beside a broken start, or where no question is sure enough.
    """
    asked = question(evidence)
    if asked is None or evidence.failure is not None:
        return evidence
    log_path = bundle.log_path(scenario.name, 0).with_name(f"{scenario.name}-{CLI_PROGRAM}.log")
    return replace(evidence, oneshot=_ask(asked, evidence.backend, target.launch(scenario), scenario.limits, log_path))


def left_behind(evidence: Evidence) -> str:
    """Say what the one-shot program left on the machine; empty when nothing."""
    left = evidence.oneshot.left if evidence.oneshot is not None else ()
    return f"{CLI_PROGRAM} left pids {', '.join(map(str, left))} behind" if left else ""


def _ask(asked: KnownAnswer, backend: str, spec: LaunchSpec, limits: Limits, log_path: Path) -> OneShot:
    try:
        if backend != LlamaCpp.name:
            raise UserError(f"{CLI_PROGRAM} cross-checks llama.cpp's own server only, and this run has {backend}")
        if spec.container is not None:
            raise UserError(f"{CLI_PROGRAM} is not run in the scenario's container")
        program = find_program(CLI_PROGRAM, ((CLI_VARIABLE, os.environ.get(CLI_VARIABLE)),), os.environ.get("PATH"))
        argv = cli_argv(spec, program, asked)
    except UserError as error:
        return OneShot(argv=(), prompt=asked.prompt, expect=asked.expect, rule=asked.rule, problem=str(error))
    seconds = limits.ready_seconds + limits.request_seconds
    ended = run_once(argv, os.environ | cli_environment(spec), log_path, seconds)
    problem = f"{shlex.join(program)} {ended.problem}" if ended.problem else ""
    return OneShot(
        argv=argv,
        prompt=asked.prompt,
        expect=asked.expect,
        rule=asked.rule,
        text="" if problem else read_answer(ended.output, asked.prompt),
        problem=problem,
        seconds=ended.seconds,
        exit_code=ended.exit_code,
        left=ended.left,
        log_path=str(log_path),
        log_tail=tail(log_path) if problem else (),
    )
