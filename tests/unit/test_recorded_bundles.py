"""Runs of real engines, read and judged again: what a log says, and that nobody is accused."""

from __future__ import annotations

import re
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


def log_text(engine: str) -> str:
    return (BUNDLES / f"h200-{engine}" / "server.log").read_text(encoding="utf-8", errors="replace")


def facts(engine: str) -> LogFacts:
    return get_backend(engine).read_log(log_text(engine))


def without_details_none_cached(evidence: Evidence) -> Evidence:
    """Return the run as it would be recorded today: an answer without details of its prompt had nothing cached."""
    return replace(
        evidence,
        starts=tuple(
            replace(
                start,
                requests=tuple(
                    replace(r, cached_tokens=0) if r.prompt_tokens is not None and r.cached_tokens is None else r
                    for r in start.requests
                ),
            )
            for start in evidence.starts
        ),
    )


def judged(evidence: Evidence, scenario: Scenario, profile: Profile, check: str) -> tuple[Verdict, ...]:
    return get_check(check).judge(evidence, scenario, profile)


def test_what_llama_server_says_on_a_gpu() -> None:
    log = facts("llamacpp")
    assert (log.offloaded_layers, log.total_layers) == (31, 31)
    assert (log.context, log.slots, log.kv_tokens, log.kv_type) == (4096, 1, 4096, "q8_0")
    assert log.model_bytes == {"CPU_Mapped": round(28.69 * MIB), "CUDA0": round(92.17 * MIB)}
    assert log.kv_bytes == {"CUDA0": round(47.83 * MIB)}
    assert log.compute_bytes == {"CUDA0": round(17.55 * MIB), "CUDA_Host": round(8.55 * MIB)}
    assert (log.fatal_lines, log.oom_lines) == ((), ())


def test_what_vllm_says_on_a_gpu() -> None:
    log = facts("vllm")
    assert log.model_bytes == {"CUDA0": round(0.26 * GIB)}
    assert log.kv_bytes == {"CUDA0": round(27.4 * GIB)}
    # No graphs were asked for.
    assert log.compute_bytes == {}
    assert (log.context, log.slots, log.kv_tokens, log.kv_type) == (4096, 1, 1_276_928, "bfloat16")
    # The refusal of a prompt that is too long is no fatal line.
    assert (log.fatal_lines, log.oom_lines) == ((), ())


def test_what_sglang_says_on_a_gpu() -> None:
    log = facts("sglang")
    assert log.model_bytes == {"CUDA0": round(0.27 * GIB)}
    assert log.kv_bytes == {"CUDA0": round(20.54 * GIB)}
    # No graphs were asked for.
    assert log.compute_bytes == {}
    assert (log.context, log.slots, log.kv_tokens, log.kv_type) == (4096, 1, 957_469, "bfloat16")
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
    ("engine", "token", "other", "nat", "shown"),
    [
        ("llamacpp", "L", "The", 0.073, "'L' -2.01, 'The' -2.09: 0.07 nat apart"),
        ("vllm", "The", "L", 0.125, "'The' -1.89, 'L' -2.02: 0.13 nat apart"),
        ("sglang", "L", "The", 0.0, "'L' -1.93, 'The' -1.93: 0.00 nat apart"),
    ],
)
def test_the_near_tie_is_shown_with_the_way_each_engine_took(
    engine: str, token: str, other: str, nat: float, shown: str
) -> None:
    evidence, scenario, profile = recorded(engine)
    asked = [r for r in evidence.starts[0].of_kind(RequestKind.ANSWER) if r.prompt == "What is the capital of France?"]
    margin = asked[0].tightest
    assert margin is not None
    assert (margin.token, margin.other, round(margin.nat, 3)) == (token, other, nat)
    answers = judged(evidence, scenario, profile, "output")[0]
    assert answers.outcome is Outcome.PASS
    ((label, line),) = answers.lines
    assert label == "near-tie"
    assert shown in line
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


@pytest.mark.parametrize(
    ("engine", "counter", "totals"),
    [("vllm", "prompt_tokens_cached_total", (6288, 240)), ("sglang", "cached_tokens_total", (6541,))],
)
def test_a_prompt_without_details_had_nothing_cached_by_the_engines_own_count(
    engine: str, counter: str, totals: tuple[int, ...]
) -> None:
    starts = recorded(engine)[0].starts
    unsaid = [r for s in starts for r in s.requests if r.prompt_tokens is not None and r.cached_tokens is None]
    assert len(unsaid) == 6 * len(starts)
    assert tuple(s.counters[counter] for s in starts) == totals
    assert tuple(sum(r.cached_tokens or 0 for r in s.requests) for s in starts) == totals


def test_sglang_logs_each_prompt_with_as_many_cached_tokens() -> None:
    asked = without_details_none_cached(recorded("sglang")[0]).starts[0].requests
    answered = [(r.prompt_tokens, r.cached_tokens) for r in asked if r.prompt_tokens is not None]
    prefills = re.findall(r"Prefill batch, #new-seq: 1, #new-token: (\d+), #cached-token: (\d+)", log_text("sglang"))
    logged = [(int(new) + int(cached), int(cached)) for new, cached in prefills]
    # Around them are its own three before it was ready, and the one of its health.
    assert logged[3:-1] == answered
    assert len(answered) == 33


@pytest.mark.parametrize(("engine", "speed"), [("vllm", 30_712), ("sglang", 28_864)])
def test_prefill_has_a_speed_once_nothing_said_is_nothing_cached(engine: str, speed: int) -> None:
    evidence, scenario, profile = recorded(engine)

    def prefill(of: Evidence) -> Verdict:
        return next(v for v in judged(of, scenario, profile, "throughput") if v.metric == "prefill")

    assert prefill(evidence).outcome is Outcome.INCONCLUSIVE
    mended = prefill(without_details_none_cached(evidence))
    assert mended.outcome is Outcome.PASS
    assert mended.value == pytest.approx(speed, abs=1)


@pytest.mark.parametrize("engine", ENGINES)
def test_it_can_be_shown(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", str(BUNDLES / f"h200-{engine}")]) == 0
    assert "NVIDIA H200" in capsys.readouterr().out
