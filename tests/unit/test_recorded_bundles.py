"""Runs of real engines, read and judged again: what a log says, and that nobody is accused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_moegpu import cli
from pytest_moegpu.backends import get_backend
from pytest_moegpu.checks import get_check
from pytest_moegpu.core.evidence import Evidence, LogFacts, Margin, RequestKind
from pytest_moegpu.core.model import Profile, Scenario
from pytest_moegpu.core.units import GIB, MIB
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from pytest_moegpu.host.store import read_run

BUNDLES = Path(__file__).parents[1] / "data" / "bundles"
ENGINES = ("llamacpp", "vllm", "sglang")
CHECKS = ("preflight", "offload", "output", "context", "memory", "stability", "throughput")


def recorded(engine: str, where: str = "h200") -> tuple[Evidence, Scenario, Profile]:
    run = read_run(BUNDLES / f"{where}-{engine}")
    assert run.asked is not None
    return run.evidence[0], run.scenarios[0], run.asked


def facts(engine: str) -> LogFacts:
    text = (BUNDLES / f"h200-{engine}" / "server.log").read_text(encoding="utf-8", errors="replace")
    return get_backend(engine).read_log(text)


def judged(evidence: Evidence, scenario: Scenario, profile: Profile, check: str) -> tuple[Verdict, ...]:
    return get_check(check).judge(evidence, scenario, profile)


def test_what_llama_server_says_on_a_gpu() -> None:
    log = facts("llamacpp")
    assert (log.offloaded_layers, log.total_layers) == (31, 31)
    assert (log.context, log.slots, log.kv_tokens, log.kv_type) == (4096, 1, 4096, "q8_0")
    assert log.model_bytes == {"CPU_Mapped": round(28.69 * MIB), "CUDA0": round(92.17 * MIB)}
    assert (log.fatal_lines, log.oom_lines) == ((), ())


def test_what_vllm_says_on_a_gpu() -> None:
    log = facts("vllm")
    assert log.model_bytes == {"CUDA0": round(0.26 * GIB)}
    assert (log.context, log.kv_tokens, log.kv_type) == (4096, 1_276_928, "bfloat16")
    # The refusal of a prompt that is too long is no fatal line.
    assert (log.fatal_lines, log.oom_lines) == ((), ())


def test_what_sglang_says_on_a_gpu() -> None:
    log = facts("sglang")
    assert log.model_bytes == {"CUDA0": round(0.27 * GIB)}
    assert log.kv_bytes == {"CUDA0": round(20.54 * GIB)}
    assert (log.context, log.kv_tokens, log.kv_type) == (4096, 957_469, "bfloat16")
    assert (log.fatal_lines, log.oom_lines) == ((), ())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("check", CHECKS)
def test_nobody_is_accused(engine: str, check: str) -> None:
    found = judged(*recorded(engine), check)
    assert found
    assert not [verdict for verdict in found if verdict.outcome in (Outcome.FAILED, Outcome.ERROR)]


@pytest.mark.parametrize("engine", ["fastllm", "mlx", "sglang", "vllm"])
@pytest.mark.parametrize("check", CHECKS)
def test_nobody_is_accused_on_a_processor(engine: str, check: str) -> None:
    found = judged(*recorded(engine, "processor"), check)
    assert found
    assert {verdict.outcome for verdict in found} == {Outcome.PASS}


@pytest.mark.parametrize(
    ("engine", "token", "other", "nat"),
    [("llamacpp", "L", "The", 0.073), ("vllm", "The", "L", 0.125), ("sglang", "L", "The", 0.0)],
)
def test_the_near_tie_is_shown_with_the_way_each_engine_took(engine: str, token: str, other: str, nat: float) -> None:
    evidence, scenario, profile = recorded(engine)
    asked = [r for r in evidence.starts[0].of_kind(RequestKind.ANSWER) if r.prompt == "What is the capital of France?"]
    margin = asked[0].tightest
    assert margin is not None
    assert (margin.token, margin.other, round(margin.nat, 3)) == (token, other, nat)
    answers = judged(evidence, scenario, profile, "output")[0]
    assert answers.outcome is Outcome.PASS
    ((label, line),) = answers.lines
    assert label == "near-tie"
    assert f"{token!r}" in line
    assert f"{nat:.2f} nat apart" in line or nat == 0.125
    assert line.endswith("shown, not judged")


def test_the_same_run_with_wrong_answers_is_accused() -> None:
    evidence, scenario, profile = recorded("sglang")
    start = evidence.starts[0]
    wide = Margin(index=0, nat=3.0, logprob=-0.01, token="x", other="y")
    wrong = tuple(
        replace(r, text="x x x x", tightest=wide) if r.kind is RequestKind.ANSWER else r for r in start.requests
    )
    answers = judged(replace(evidence, starts=(replace(start, requests=wrong),)), scenario, profile, "output")[0]
    assert (answers.outcome, answers.failed_class) == (Outcome.FAILED, FailedClass.CORRECTNESS)


@pytest.mark.parametrize("engine", ENGINES)
def test_it_can_be_shown(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", str(BUNDLES / f"h200-{engine}")]) == 0
    assert "NVIDIA H200" in capsys.readouterr().out
