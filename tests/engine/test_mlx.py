"""The real MLX server on the processor through the whole plugin, and a model that it never loads."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from pytest_moegpu.core.evidence import Phase, RequestKind
from pytest_moegpu.core.record import RunRecord
from pytest_moegpu.core.verdict import Outcome
from pytest_moegpu.host.cache import cache_dir
from pytest_moegpu.host.store import RunStore, read_run

RUN_SECONDS = 400
BUSY = "client too slow"

SHORT_PATIENCE = """
schema = 1
name = "mlx-10s"
title = "The embedded profile of MLX with little patience"
probe = "host"
backend = "mlx"
program = "{cache}/engines/mlx/bin/mlx_lm.server"
model = "smollm2-135m-instruct"
scenarios = ["embedded-mlx-512"]

[gpu]
names = []
kind = "cpu"
memory = "2 GiB"

[limits]
ready = "10 s"
"""


@pytest.fixture(scope="session")
def cache() -> Path:
    """The cache folder with the engine in it. Without it these tests fail: nothing else proves the real program."""
    found = cache_dir()
    assert (found / "engines/mlx/bin/mlx_lm.server").exists(), "MLX is not installed: run scripts/engines fastllm mlx"
    return found


@pytest.fixture
def project(cache: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with nothing in it; pytester has a home folder of its own, and the cache is in the user's."""
    for name in ("MOEGPU_PROFILE", "MOEGPU_MODEL", "MOEGPU_MLX_SERVER", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MOEGPU_CACHE", str(cache))
    pytester.makeini("[pytest]\nmoegpu_catalog = catalog\n")
    (pytester.path / "catalog/profiles").mkdir(parents=True)
    return pytester


def run(project: pytest.Pytester, *args: str) -> tuple[pytest.RunResult, RunRecord]:
    """Run the plugin's own suites once; return what was printed, and the bundle that was kept."""
    result = project.runpytest_subprocess("--moegpu-starts=1", *args, timeout=RUN_SECONDS)
    return result, read_run(RunStore(project.path / ".moegpu/runs").find("latest"))


def test_a_run_judges_text_speed_memory_and_leaves_nothing(project: pytest.Pytester, cache: Path) -> None:
    result, record = run(project, "--moegpu=embedded-mlx")
    text = result.stdout.str()
    assert (record.status, record.profile) == ("finished", "embedded-mlx"), text
    (evidence,) = record.evidence
    (start,) = evidence.starts
    assert start.failure is None, text
    assert (evidence.backend, evidence.stack.engine_version) == ("mlx", "0.32.2")
    # It tells neither a name but the path, nor a context, nor anything of its KV cache.
    assert (start.served_model, start.served_context, start.kv_tokens) == (None, None, None)
    assert start.argv[1:3] == ("--model", str(cache / "models/smollm2-135m-instruct-hf"))
    assert (start.log.oom_lines, start.log.fatal_lines) == ((), ())

    fresh = start.of_kind(RequestKind.THROUGHPUT)
    assert [(r.error, r.cached_tokens, r.token_source) for r in fresh] == [(None, 0, "usage")]
    assert all(r.output_tokens is not None and r.output_tokens > 4 for r in fresh)
    (recalled,) = start.of_kind(RequestKind.CONTEXT)
    assert recalled.error is None
    assert recalled.expect[0] in recalled.text

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


def test_a_model_that_never_loads_leaves_a_process_that_is_never_ready(project: pytest.Pytester, cache: Path) -> None:
    whole, cut = cache / "models/smollm2-135m-instruct-hf", project.path / "cut"
    cut.mkdir()
    for file in whole.iterdir():
        if file.suffix != ".safetensors":
            (cut / file.name).symlink_to(file)
    with (whole / "model.safetensors").open("rb") as weights:
        (cut / "model.safetensors").write_bytes(weights.read(2**20))
    (project.path / "catalog/profiles/mlx-10s.toml").write_text(SHORT_PATIENCE)
    result, record = run(project, "--moegpu=mlx-10s", f"--moegpu-model={cut}", "-k", "output")
    text = result.stdout.str()
    assert result.ret == 1, text
    (start,) = record.evidence[0].starts
    failure = start.failure
    assert failure is not None
    # Its health is good until the thread that loads has died, so either the start or the first chat meets it.
    assert failure.phase in (Phase.LOAD, Phase.READY)
    assert "HTTP 503" in failure.cause or "generation thread died" in failure.cause
    assert failure.cause in text
    assert failure.exit_code is None
    assert "generation thread died: " in Path(start.log_path).read_text("utf-8", "replace")
    assert (start.exit_code, start.left_over) == (-15, ())
    assert [pid for pid in start.pids if psutil.pid_exists(pid)] == []


def test_a_gguf_is_refused_before_anything_starts(project: pytest.Pytester, model: Path) -> None:
    result = project.runpytest_subprocess("--moegpu=embedded-mlx", f"--moegpu-model={model}", timeout=60)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    told = next(line for line in result.stderr.lines if line.startswith("ERROR: "))
    assert told == (
        f"ERROR: mlx does not load {model}: it is a GGUF file, and it takes a folder with config.json and safetensors, "
        "as Hugging Face's libraries save it"
    )
    assert not (project.path / ".moegpu").exists()
