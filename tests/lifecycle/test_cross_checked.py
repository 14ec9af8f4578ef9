"""The cross-check with a stand-in for llama-cli: found, run, read, and not there."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_moegpu.checks.crosscheck import judge
from pytest_moegpu.core.evidence import Evidence, Phase, StartFailure
from pytest_moegpu.core.model import Container, LaunchSpec, Settings
from pytest_moegpu.core.oneshot import OneShot
from pytest_moegpu.core.verdict import Outcome
from pytest_moegpu.host.store import Bundle, RunStore
from pytest_moegpu.session.crosscheck import cross_checked, is_asked_for, left_behind
from pytest_moegpu.session.target import Target
from tests.unit.builders import evidence, profile, scenario, start

SPEC = LaunchSpec(
    program=("/opt/llama-server",),
    model_path="/models/m.gguf",
    model_name="m",
    settings=Settings(context=2048),
    host="127.0.0.1",
    port=18000,
    api_key="secret-key",
)
PROGRAM = """#!{python} -IS
import os, sys
prompt = sys.argv[sys.argv.index("--prompt") + 1]
assert "LLAMA_API_KEY" not in os.environ
print("banner\\n\\n>", prompt)
print({answer!r})
print("\\n[ Prompt: 1.0 t/s | Generation: 2.0 t/s ]\\n\\n\\nExiting...")
sys.exit({code})
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return RunStore(tmp_path / "runs").create("rtx3090", datetime.now(UTC))


def program(tmp_path: Path, answer: str = "The capital of France is Paris.", code: int = 0) -> str:
    path = tmp_path / "llama-cli"
    path.write_text(PROGRAM.format(python=sys.executable, answer=answer, code=code))
    path.chmod(0o755)
    return str(path)


def checked(bundle: Bundle, found: Evidence | None = None, **changes: Any) -> Evidence:
    target = cast("Target", SimpleNamespace(launch=lambda _scenario: replace(SPEC, **changes)))
    return cross_checked(found or evidence(start()), target, scenario(), bundle)


def said(found: Evidence) -> OneShot:
    assert found.oneshot is not None
    return found.oneshot


def test_the_program_of_the_variable_is_asked_and_read(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEGPU_LLAMA_CLI", program(tmp_path))
    found = checked(bundle)
    answer = said(found)
    assert (answer.problem, answer.text) == ("", "The capital of France is Paris.")
    assert answer.argv[:3] == (str(tmp_path / "llama-cli"), "--model", "/models/m.gguf")
    assert answer.seconds is not None
    assert Path(answer.log_path) == bundle.folder / "balanced-6k-llama-cli.log"
    assert "secret-key" not in repr(answer)
    (verdict,) = judge(found, scenario(), profile())
    assert (verdict.outcome, verdict.more) == (Outcome.PASS, {"value": "same text"})
    assert left_behind(found) == ""


def test_a_program_that_fails_is_an_error_with_its_last_words(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEGPU_LLAMA_CLI", program(tmp_path, answer="CUDA error", code=134))
    (verdict,) = judge(checked(bundle), scenario(), profile())
    assert verdict.outcome is Outcome.ERROR
    assert verdict.reason == f"nothing was measured: {tmp_path / 'llama-cli'} ended with code 134"
    assert "CUDA error" in verdict.log_tail


def test_a_missing_program_says_how_to_give_it(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOEGPU_LLAMA_CLI", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert said(checked(bundle)).problem.endswith("'llama-cli' is not on PATH: give it by MOEGPU_LLAMA_CLI")
    monkeypatch.setenv("MOEGPU_LLAMA_CLI", "/nowhere/llama-cli")
    assert said(checked(bundle)).problem.endswith("'/nowhere/llama-cli' (from MOEGPU_LLAMA_CLI) does not exist")


def test_other_engines_and_containers_are_not_cross_checked(bundle: Bundle) -> None:
    other = evidence(start(), backend="vllm")
    assert "llama.cpp's own server only, and this run has vllm" in said(checked(bundle, other)).problem
    inside = checked(bundle, container=Container(image="ghcr.io/ggml-org/llama.cpp:server"))
    assert said(inside).problem == "llama-cli is not run in the scenario's container"


def test_nothing_is_run_beside_a_broken_start_or_without_a_sure_question(bundle: Bundle) -> None:
    broken = evidence(start(failure=StartFailure(phase=Phase.LOAD, cause="x")))
    assert checked(bundle, broken).oneshot is None
    assert checked(bundle, evidence(start(requests=()))).oneshot is None


def test_what_it_left_behind_is_told() -> None:
    left = OneShot(argv=(), prompt="q", expect=("a",), left=(7, 9))
    assert left_behind(evidence(oneshot=left)) == "llama-cli left pids 7, 9 behind"
    assert left_behind(evidence()) == ""


def test_it_is_asked_for_by_its_name_or_by_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOEGPU_LLAMA_CLI", raising=False)
    assert not is_asked_for("")
    assert not is_asked_for("output")
    assert is_asked_for("output or crosscheck")
    monkeypatch.setenv("MOEGPU_LLAMA_CLI", "/opt/llama-cli")
    assert is_asked_for("")
