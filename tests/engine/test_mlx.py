"""The real MLX server on the processor through the whole plugin, and a model that it never loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_moegpu.core.evidence import Phase, RequestKind
from tests.engine.running import installed, judged_good, nothing_left, prepare, run

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


@pytest.fixture
def cache() -> Path:
    return installed("mlx/bin/mlx_lm.server", "MLX")


@pytest.fixture
def project(cache: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    return prepare(pytester, monkeypatch, "MOEGPU_MLX_SERVER")


def test_a_run_judges_text_speed_memory_and_leaves_nothing(project: pytest.Pytester, cache: Path) -> None:
    result, record = run(project, "--moegpu=embedded-mlx")
    start = judged_good(record, "embedded-mlx", result.stdout.str())
    (evidence,) = record.evidence
    assert (evidence.backend, evidence.stack.engine_version) == ("mlx", "0.32.2")
    # It tells neither a name but the path, nor a context, nor anything of its KV cache.
    assert (start.served_model, start.served_context, start.kv_tokens) == (None, None, None)
    assert start.argv[1:3] == ("--model", str(cache / "models/smollm2-135m-instruct-hf"))

    fresh = start.of_kind(RequestKind.THROUGHPUT)
    assert [(r.error, r.cached_tokens, r.token_source) for r in fresh] == [(None, 0, "usage")]
    assert all(r.output_tokens is not None and r.output_tokens > 4 for r in fresh)
    (recalled,) = start.of_kind(RequestKind.CONTEXT)
    assert recalled.error is None
    assert recalled.expect[0] in recalled.text

    assert start.exit_code == -15
    nothing_left(start)


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
    assert start.exit_code == -15
    nothing_left(start)


def test_a_gguf_is_refused_before_anything_starts(project: pytest.Pytester, model: Path) -> None:
    result = project.runpytest_subprocess("--moegpu=embedded-mlx", f"--moegpu-model={model}", timeout=60)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    told = next(line for line in result.stderr.lines if line.startswith("ERROR: "))
    assert told == (
        f"ERROR: mlx does not load {model}: it is a GGUF file, and it takes a folder with config.json and safetensors, "
        "as Hugging Face's libraries save it"
    )
    assert not (project.path / ".moegpu").exists()
