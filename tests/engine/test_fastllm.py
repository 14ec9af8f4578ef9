"""The real FastLLM on the processor through the whole plugin, and three faults that it gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_moegpu.core.evidence import Phase, RequestKind, StartFailure
from pytest_moegpu.core.record import RunRecord
from pytest_moegpu.core.verdict import FailedClass, Outcome
from tests.engine.running import RUN_SECONDS, installed, judged_good, nothing_left, prepare, run

FASTLLM = "--moegpu=embedded-fastllm"
MAKE_F16 = Path(__file__).parents[2] / "scripts/_engines/make_f16.py"

SCENARIO = """
schema = 1
name = "{name}"
title = "A KV cache that FastLLM does not have on a processor"

[settings]
context = 2048
kv_cache = "f32"
extra_flags = ["--kv_cache_dtype", "{kind}"]
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    installed("fastllm/bin/ftllm", "FastLLM")
    return prepare(pytester, monkeypatch, "MOEGPU_FTLLM")


@pytest.fixture(scope="session")
def f16(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model as a GGUF of 16 bits: FastLLM does not compute with its Q4_1 on a processor."""
    path = tmp_path_factory.mktemp("f16") / "smollm2-f16.gguf"
    subprocess.run([sys.executable, MAKE_F16, path], check=True)
    return path


def broken(record: RunRecord) -> StartFailure:
    """Return why the one start of a run broke; nothing of it is left."""
    (start,) = record.evidence[0].starts
    assert start.failure is not None
    nothing_left(start)
    return start.failure


def with_kv_cache(project: pytest.Pytester, kind: str) -> tuple[pytest.RunResult, RunRecord]:
    """Run with a type of KV cache given as a flag, past what the recipe refuses."""
    folder = project.path / "catalog/scenarios"
    folder.mkdir()
    (folder / "kv.toml").write_text(SCENARIO.format(name="kv", kind=kind))
    return run(project, FASTLLM, "--moegpu-scenario=kv", "-k", "output")


def test_a_run_judges_text_speed_memory_and_leaves_nothing(project: pytest.Pytester) -> None:
    result, record = run(project, FASTLLM)
    start = judged_good(record, "embedded-fastllm", result.stdout.str())
    (evidence,) = record.evidence
    assert (evidence.backend, evidence.stack.engine_version) == ("fastllm", "1.9.0")
    assert (start.served_model, start.served_context) == ("smollm2-135m-instruct", 2048)
    assert (start.log.context, start.log.slots, start.log.kv_type) == (2048, 1, "float32")
    assert start.kv_tokens is not None
    assert start.kv_tokens > 2048

    fresh = start.of_kind(RequestKind.THROUGHPUT)
    assert [(r.error, r.cached_tokens, r.token_source) for r in fresh] == [(None, 0, "usage")] * 3
    assert all(r.prompt_tokens is not None and 120 < r.prompt_tokens < 220 for r in fresh)
    # It cannot be kept from ending an answer, so nobody asks for a length.
    assert all(r.wanted_output_tokens is None and r.output_tokens is not None and r.output_tokens > 8 for r in fresh)
    recalled = start.of_kind(RequestKind.CONTEXT)
    assert [(r.error, r.expect[0] in r.text) for r in recalled] == [(None, True)] * 2

    assert start.exit_code == -15
    nothing_left(start)


def test_a_server_that_aborts_at_the_first_chat_was_healthy_before(project: pytest.Pytester) -> None:
    result, record = with_kv_cache(project, "float16")
    failure = broken(record)
    assert (failure.phase, failure.exit_code) == (Phase.READY, -6)
    cause = (
        "fatal error (signal 6 (SIGABRT)): FastLLM Error: CatDirect's inputs should have the same float or int8 type."
    )
    assert failure.cause == cause
    assert result.ret == 1
    assert cause in result.stdout.str()


def test_an_exit_code_of_0_before_it_is_ready_is_a_failure(project: pytest.Pytester) -> None:
    """A type of weights that it cannot read: a GGUF of Q4_1, which is the embedded model's own file."""
    result, record = run(project, FASTLLM, "--moegpu-model=smollm2-135m-instruct", "-k", "output")
    failure = broken(record)
    assert (failure.phase, failure.exit_code) == (Phase.LAUNCH, 0)
    cause = "fatal error (exit code 0): "
    assert failure.cause.startswith(cause)
    assert "error with type q4_1" in failure.cause
    assert result.ret == 1
    assert cause in result.stdout.str()


def test_a_kv_cache_that_it_does_not_have_is_refused_before_it_is_started(project: pytest.Pytester) -> None:
    """Started, it would end with exit code 0: tests/data/engines/fastllm/faults."""
    folder = project.path / "catalog/scenarios"
    folder.mkdir()
    (folder / "kv.toml").write_text(SCENARIO.format(name="kv", kind="q8_0"))
    result = project.runpytest_subprocess(FASTLLM, "--moegpu-scenario=kv", timeout=RUN_SECONDS)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = result.stderr.str()
    assert "settings.extra_flags: --kv_cache_dtype q8_0: fastllm has no KV cache of int8" in said
    assert not (project.path / ".moegpu/runs").exists() or not list((project.path / ".moegpu/runs").iterdir())


def test_a_gguf_of_an_architecture_that_it_does_not_know_fails_correctness(project: pytest.Pytester, f16: Path) -> None:
    result, record = run(project, FASTLLM, f"--moegpu-model={f16}", "-k", "output")
    text = result.stdout.str()
    assert result.ret == 1, text
    (start,) = record.evidence[0].starts
    assert start.failure is None, text
    answers = [r for r in start.of_kind(RequestKind.ANSWER) if r.margin is not None]
    assert len(answers) > 8
    assert {r.error for r in answers} == {None}
    failed = [v for v in record.verdicts if v.outcome is Outcome.FAILED]
    assert {(v.check, v.failed_class) for v in failed} == {("output", FailedClass.CORRECTNESS)}, text
    assert "known answers" in {v.subject for v in failed}
    log = Path(start.log_path).read_text("utf-8", "replace")
    assert "Warning: gguf arch llama not found, use default arch." in log
    assert (start.exit_code, start.left_over) == (-15, ())
