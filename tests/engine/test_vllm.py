"""The real vLLM on the processor through the whole plugin. Nightly: it takes minutes, and 3.3 GB on the disk."""

from __future__ import annotations

import os

import psutil
import pytest

from pytest_moegpu.core.evidence import RequestKind
from pytest_moegpu.core.units import GIB
from pytest_moegpu.core.verdict import Outcome
from pytest_moegpu.host.cache import cache_dir
from pytest_moegpu.host.store import RunStore, read_run

pytestmark = pytest.mark.skipif(
    os.environ.get("MOEGPU_ENGINES") != "all", reason="nightly: scripts/test --engines=all installs vLLM and runs this"
)

# Asked for here, since pytester gives a home folder of its own.
_CACHE = cache_dir()
_BUSY = "client too slow"
_RUN_SECONDS = 600
_CONTEXT = 2048


def test_a_run_judges_text_speed_memory_and_leaves_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MOEGPU_PROFILE", "MOEGPU_MODEL", "MOEGPU_VLLM", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MOEGPU_CACHE", str(_CACHE))
    pytester.makeini("[pytest]\n")
    result = pytester.runpytest_subprocess("--moegpu=embedded-vllm", "--moegpu-starts=1", timeout=_RUN_SECONDS)
    text = result.stdout.str()
    record = read_run(RunStore(pytester.path / ".moegpu/runs").find("latest"))
    assert (record.status, record.profile) == ("finished", "embedded-vllm"), text

    (evidence,) = record.evidence
    (start,) = evidence.starts
    assert start.failure is None, text
    assert (evidence.backend, evidence.stack.engine_version) == ("vllm", "0.32.0+cpu")
    assert (start.served_model, start.served_context) == ("smollm2-135m-instruct", _CONTEXT)
    assert start.kv_tokens is not None
    assert start.kv_tokens > _CONTEXT
    assert (start.log.kv_type, start.log.kv_bytes) == ("bfloat16", {"CPU": GIB})
    assert start.preemptions == 0
    assert (start.log.oom_lines, start.log.fatal_lines) == ((), ())

    fresh = start.of_kind(RequestKind.THROUGHPUT)
    assert [(r.error, r.output_tokens, r.cached_tokens) for r in fresh] == [(None, 64, 0)] * len(fresh)
    assert all(r.prompt_tokens is not None and 200 < r.prompt_tokens < 400 for r in fresh)

    outcomes: dict[str, set[Outcome]] = {}
    for verdict in record.verdicts:
        # A speed may be doubted on a busy machine, and then for that alone.
        if verdict.check not in ("throughput", "baseline") or _BUSY not in verdict.reason:
            outcomes.setdefault(verdict.check, set()).add(verdict.outcome)
    assert outcomes.pop("baseline", {Outcome.NO_BASELINE}) == {Outcome.NO_BASELINE}, text
    assert outcomes.pop("throughput", {Outcome.PASS}) == {Outcome.PASS}, text
    judged = ("preflight", "offload", "output", "context", "memory", "stability")
    assert outcomes == {check: {Outcome.PASS} for check in judged}, text
    decode = next(v for v in record.verdicts if (v.check, v.metric) == ("throughput", "decode"))
    assert decode.value is not None
    assert decode.value > 1

    assert (start.exit_code, start.left_over) == (0, ())
    assert [pid for pid in start.pids if psutil.pid_exists(pid)] == []
