"""The real FastLLM on the processor through the whole plugin, and three faults that it gives."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import psutil
import pytest

from pytest_moegpu.core.evidence import Phase, RequestKind, StartFailure
from pytest_moegpu.core.record import RunRecord
from pytest_moegpu.core.verdict import FailedClass, Outcome
from pytest_moegpu.host.cache import cache_dir
from pytest_moegpu.host.store import RunStore, read_run

ONE_START = ("--moegpu=embedded-fastllm", "--moegpu-starts=1")
RUN_SECONDS = 400
BUSY = "client too slow"

SCENARIO = """
schema = 1
name = "{name}"
title = "A KV cache that FastLLM does not have on a processor"

[settings]
context = 2048
kv_cache = "f32"
extra_flags = ["--kv_cache_dtype", "{kind}"]
"""


@pytest.fixture(scope="session")
def cache() -> Path:
    """The cache folder with the engine in it. Without it these tests fail: nothing else proves the real program."""
    found = cache_dir()
    assert (found / "engines/fastllm/bin/ftllm").exists(), "FastLLM is not installed: run scripts/engines fastllm mlx"
    return found


@pytest.fixture
def project(cache: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with nothing in it; pytester has a home folder of its own, and the cache is in the user's."""
    for name in ("MOEGPU_PROFILE", "MOEGPU_MODEL", "MOEGPU_FTLLM", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MOEGPU_CACHE", str(cache))
    pytester.makeini("[pytest]\nmoegpu_catalog = catalog\n")
    (pytester.path / "catalog").mkdir()
    return pytester


@pytest.fixture(scope="session")
def f16(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model as a GGUF of 16 bits: FastLLM does not compute with its Q4_1 on a processor."""
    reader = gguf.GGUFReader(model)
    path = tmp_path_factory.mktemp("f16") / "smollm2-f16.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        kind = field.types[0]
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        of = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, of)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        # Norms stay what they are, as in every file of this kind.
        writer.add_tensor(tensor.name, values.astype(np.float16 if values.ndim > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def run(project: pytest.Pytester, *args: str) -> tuple[pytest.RunResult, RunRecord]:
    """Run the plugin's own suites once; return what was printed, and the bundle that was kept."""
    result = project.runpytest_subprocess(*ONE_START, *args, timeout=RUN_SECONDS)
    return result, read_run(RunStore(project.path / ".moegpu/runs").find("latest"))


def broken(record: RunRecord) -> StartFailure:
    """Return why the one start of a run broke; nothing of it is left."""
    (start,) = record.evidence[0].starts
    assert start.failure is not None
    assert start.left_over == ()
    assert [pid for pid in start.pids if psutil.pid_exists(pid)] == []
    return start.failure


def with_kv_cache(project: pytest.Pytester, kind: str) -> tuple[pytest.RunResult, RunRecord]:
    """Run with a type of KV cache given as a flag, past what the recipe refuses."""
    folder = project.path / "catalog/scenarios"
    folder.mkdir()
    (folder / "kv.toml").write_text(SCENARIO.format(name="kv", kind=kind))
    return run(project, "--moegpu-scenario=kv", "-k", "output")


def test_a_run_judges_text_speed_memory_and_leaves_nothing(project: pytest.Pytester) -> None:
    result, record = run(project)
    text = result.stdout.str()
    assert (record.status, record.profile) == ("finished", "embedded-fastllm"), text
    (evidence,) = record.evidence
    (start,) = evidence.starts
    assert start.failure is None, text
    assert (evidence.backend, evidence.stack.engine_version) == ("fastllm", "1.9.0")
    assert (start.served_model, start.served_context) == ("smollm2-135m-instruct", 2048)
    assert (start.log.context, start.log.slots, start.log.kv_type) == (2048, 1, "float32")
    assert start.kv_tokens is not None
    assert start.kv_tokens > 2048
    assert (start.log.oom_lines, start.log.fatal_lines) == ((), ())

    fresh = start.of_kind(RequestKind.THROUGHPUT)
    assert [(r.error, r.cached_tokens, r.token_source) for r in fresh] == [(None, 0, "usage")] * 3
    assert all(r.prompt_tokens is not None and 120 < r.prompt_tokens < 220 for r in fresh)
    # It cannot be kept from ending an answer, so nobody asks for a length.
    assert all(r.wanted_output_tokens is None and r.output_tokens is not None and r.output_tokens > 8 for r in fresh)
    recalled = start.of_kind(RequestKind.CONTEXT)
    assert [(r.error, r.expect[0] in r.text) for r in recalled] == [(None, True)] * 2

    outcomes: dict[str, set[Outcome]] = {}
    for verdict in record.verdicts:
        # A speed may be doubted on a busy machine, and then for that alone.
        if verdict.check not in ("throughput", "baseline") or BUSY not in verdict.reason:
            outcomes.setdefault(verdict.check, set()).add(verdict.outcome)
    assert outcomes.pop("baseline", {Outcome.NO_BASELINE}) == {Outcome.NO_BASELINE}, text
    assert outcomes.pop("throughput", {Outcome.PASS}) == {Outcome.PASS}, text
    judged = ("preflight", "offload", "output", "context", "memory", "stability")
    assert outcomes == {check: {Outcome.PASS} for check in judged}, text
    decode = next(v for v in record.verdicts if (v.check, v.metric) == ("throughput", "decode"))
    assert decode.value is not None
    assert decode.value > 1

    assert (start.exit_code, start.left_over) == (-15, ())
    assert [pid for pid in start.pids if psutil.pid_exists(pid)] == []


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
    result, record = run(project, "--moegpu-model=smollm2-135m-instruct", "-k", "output")
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
    result = project.runpytest_subprocess(*ONE_START, "--moegpu-scenario=kv", timeout=RUN_SECONDS)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = result.stderr.str()
    assert "settings.extra_flags: --kv_cache_dtype q8_0: fastllm has no KV cache of int8" in said
    assert not (project.path / ".moegpu/runs").exists() or not list((project.path / ".moegpu/runs").iterdir())


def test_a_gguf_of_an_architecture_that_it_does_not_know_fails_correctness(project: pytest.Pytester, f16: Path) -> None:
    result, record = run(project, f"--moegpu-model={f16}", "-k", "output")
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
