"""The real SGLang on the processor through the whole plugin. Nightly: it takes minutes, and 3.6 GB on the disk."""

from __future__ import annotations

import os

import pytest

from pytest_moegpu.core.evidence import RequestKind
from pytest_moegpu.core.units import GIB
from tests.engine.running import judged_good, nothing_left, prepare, run

pytestmark = pytest.mark.skipif(
    os.environ.get("MOEGPU_ENGINES") != "all",
    reason="nightly: scripts/test --engines=all installs SGLang and runs this",
)

_CONTEXT = 2048
# A token's keys and values in 30 layers, 3 heads of 64 numbers, two bytes each.
_KV_BYTES = 30 * 3 * 64 * 2 * 2


def test_a_run_judges_text_speed_memory_and_leaves_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = prepare(pytester, monkeypatch, "MOEGPU_SGLANG")
    result, record = run(project, "--moegpu=embedded-sglang")
    start = judged_good(record, "embedded-sglang", result.stdout.str())
    (evidence,) = record.evidence
    assert (evidence.backend, evidence.stack.engine_version) == ("sglang", "0.5.23")
    assert (start.served_model, start.served_context) == ("smollm2-135m-instruct", _CONTEXT)
    assert (start.kv_tokens, start.log.kv_type) == (2 * _CONTEXT, "bfloat16")
    # Its log gives hundredths of a GiB.
    assert sum(start.log.kv_bytes.values()) == pytest.approx(2 * _CONTEXT * _KV_BYTES, abs=GIB / 100)
    assert start.log.model_bytes.keys() == {"CPU"}
    assert start.preemptions == 0

    fresh = start.of_kind(RequestKind.THROUGHPUT)
    assert [(r.error, r.output_tokens, r.cached_tokens) for r in fresh] == [(None, 64, 0)] * len(fresh)
    assert all(r.prompt_tokens is not None and 200 < r.prompt_tokens < 400 for r in fresh)

    # It drains, and then kills what it has started, itself included.
    assert start.exit_code in (0, -9)
    nothing_left(start)
