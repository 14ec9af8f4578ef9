"""The real vLLM on the processor through the whole plugin. Nightly: it takes minutes, and 3.3 GB on the disk."""

from __future__ import annotations

import os

import pytest

from pytest_moegpu.core.evidence import RequestKind
from pytest_moegpu.core.units import GIB
from tests.engine.running import judged_good, nothing_left, prepare, run

pytestmark = pytest.mark.skipif(
    os.environ.get("MOEGPU_ENGINES") != "all", reason="nightly: scripts/test --engines=all installs vLLM and runs this"
)

_CONTEXT = 2048


def test_a_run_judges_text_speed_memory_and_leaves_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = prepare(pytester, monkeypatch, "MOEGPU_VLLM")
    result, record = run(project, "--moegpu=embedded-vllm")
    start = judged_good(record, "embedded-vllm", result.stdout.str())
    (evidence,) = record.evidence
    assert (evidence.backend, evidence.stack.engine_version) == ("vllm", "0.32.0+cpu")
    assert (start.served_model, start.served_context) == ("smollm2-135m-instruct", _CONTEXT)
    assert start.kv_tokens is not None
    assert start.kv_tokens > _CONTEXT
    assert (start.log.kv_type, start.log.kv_bytes) == ("bfloat16", {"CPU": GIB})
    assert start.preemptions == 0

    fresh = start.of_kind(RequestKind.THROUGHPUT)
    assert [(r.error, r.output_tokens, r.cached_tokens) for r in fresh] == [(None, 64, 0)] * len(fresh)
    assert all(r.prompt_tokens is not None and 200 < r.prompt_tokens < 400 for r in fresh)

    assert start.exit_code == 0
    nothing_left(start)
