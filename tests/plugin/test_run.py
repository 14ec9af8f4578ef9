"""A run of the plugin's own suites against the fake server, from the exit code to every report."""

from __future__ import annotations

import json
from statistics import fmean
from typing import Any

import pytest

from tests.fakes.project import Project, section

TOKEN_SECONDS = 0.006
ONE_START = ("--moegpu-starts=1", "--moegpu-level=2")


def test_a_good_run_and_all_its_reports(project: Project) -> None:
    result = project.measure("--junit-xml=junit.xml", "--benchmark-json=bench.json", token_seconds=TOKEN_SECONDS)
    assert result.ret == 0
    result.assert_outcomes(passed=10, skipped=5)
    text = result.stdout.str()
    assert text.count("ready after") == 3, "measured more often than asked"
    assert text.count("context: 5 requests") == 1
    assert "good: 5 NO_BASELINE, 14 PASS" in text
    assert f"keep it as baseline: moegpu promote .moegpu/runs/{project.store.ids()[-1]}\n" in text

    junit = project.junit()
    assert junit.counts == {"tests": 15, "failures": 0, "errors": 0, "skipped": 5}
    assert junit.suite["moegpu.profile"] == "fake"
    assert junit.suite["moegpu.processor"]
    assert junit.suite["moegpu.engine"] == "llamacpp 4242 (fake)"
    assert (junit.suite["moegpu.tests.PASS"], junit.suite["moegpu.tests.NO_BASELINE"]) == ("10", "5")
    assert junit.properties["test_output[fake-1k]"]["moegpu.outcome"] == "PASS"
    assert junit.properties["test_stability[fake-1k]"]["moegpu.check"] == "stability"
    decode = junit.properties["test_throughput[fake-1k-decode]"]
    assert (decode["moegpu.outcome"], decode["moegpu.check"]) == ("PASS", "throughput")
    assert len(decode["moegpu.decode.starts"].split(",")) == 3
    assert junit.properties["test_baseline[fake-1k-decode]"]["moegpu.outcome"] == "NO_BASELINE"

    record = project.last_run()
    assert (record.status, record.profile) == ("finished", "fake")
    assert record.command[0] == "pytest"
    (evidence,) = record.evidence
    assert [start.failure for start in evidence.starts] == [None] * 3
    assert evidence.stack.engine_version == "4242 (fake)"
    assert evidence.starts[0].served_model == "tiny"
    folder = project.store.find("latest")
    assert len(list(folder.glob("server-*.log"))) == len(list(folder.glob("telemetry-*.jsonl"))) == 3

    summary = project.summary.read_text()
    assert "pytest-moegpu: fake" in summary
    assert "| decode" in summary

    written = json.loads((project.pytester.path / "bench.json").read_text())
    assert written["machine_info"]["moegpu"]["engine"] == "llamacpp 4242 (fake)"
    stats = {bench["name"]: bench["stats"] for bench in written["benchmarks"]}
    assert set(stats) == {"test_throughput[fake-1k-decode]", "test_throughput[fake-1k-prefill]"}
    assert [stat["rounds"] for stat in stats.values()] == [3, 3]
    told = next(v for v in record.verdicts if v.metric == "decode" and v.check == "throughput")
    rate = 1 / fmean(1 / value for value in told.values)
    assert stats["test_throughput[fake-1k-decode]"]["ops"] == pytest.approx(rate, rel=1e-6)
    # The fake keeps to a schedule, so even a busy machine adds little over a whole answer.
    assert rate == pytest.approx(1 / TOKEN_SECONDS, rel=0.2)


def test_a_wrong_answer_fails_and_leaves_speed_without_a_verdict(project: Project) -> None:
    result = project.run(*ONE_START, "--junit-xml=junit.xml", wrong=True)
    assert result.ret == 1
    told = section(result.stdout.str(), "FAILED  known answers")
    assert "0 of 3 right" in told
    assert "I cannot tell." in told
    assert "class correctness" in told
    junit = project.junit()
    assert junit.tests["test_output[fake-1k]"] == "failure"
    speeds = {name: p["moegpu.outcome"] for name, p in junit.properties.items() if "throughput" in name}
    assert speeds == {f"test_throughput[fake-1k-{m}]": "INCONCLUSIVE" for m in ("ttft", "prefill", "decode")}
    assert "no speed verdict: output failed" in result.stdout.str()
    baselines = {name: p["moegpu.outcome"] for name, p in junit.properties.items() if "baseline" in name}
    assert baselines.pop("test_baseline[fake-1k-peak_memory]") == "NO_BASELINE"
    assert set(baselines.values()) == {"INCONCLUSIVE"}
    outcomes = result.parseoutcomes()
    assert junit.counts["failures"] == outcomes["failed"]
    assert junit.counts["skipped"] == outcomes.get("skipped", 0)
    assert junit.counts["tests"] == sum(outcomes.get(word, 0) for word in ("passed", "failed", "skipped"))
    refused = project.moegpu("promote", "latest")
    assert refused.returncode == 2
    assert "not good enough" in refused.stderr
    assert not project.baseline.exists()


@pytest.mark.parametrize("text", ["@", "��"], ids=["one-character", "bytes"])
def test_gibberish_fails_even_where_the_known_answers_are_right(project: Project, text: str) -> None:
    result = project.run(*ONE_START, "-k", "output or decode", text=text, first_seconds=0.001)
    assert result.ret == 1
    assert "class correctness" in section(result.stdout.str(), "FAILED  text form: broken text")
    assert "no speed verdict" in result.stdout.str()


@pytest.mark.alone
def test_promote_then_compare_and_a_slower_engine_is_regressed(project: Project) -> None:
    args = ("--moegpu-starts=5", "--moegpu-max-starts=5", "--moegpu-level=2", "-k", "output or decode")
    # All speeds, because a baseline is made only of a run whose every speed is valid.
    slow: dict[str, Any] = {
        "token_seconds": TOKEN_SECONDS,
        "first_seconds": 0.15,
    }  # a busy machine is late by a smaller share of it
    assert project.measure(*args[:-1], "output or throughput", patient=False, **slow).ret == 0
    promoted = project.moegpu("promote", "latest")
    assert (promoted.returncode, promoted.stderr) == (0, "")
    assert "5 starts of" in promoted.stdout
    assert project.baseline.exists()

    same = project.measure(*args, "--junit-xml=same.xml", patient=False, token_seconds=TOKEN_SECONDS)
    outcome = project.junit("same.xml").properties["test_baseline[fake-1k-decode]"]["moegpu.outcome"]
    # A busy machine may widen the interval; it must never make the same engine worse.
    assert (outcome, same.ret) in {("PASS", 0), ("IMPROVED", 0), ("INCONCLUSIVE", 1)}

    slower = project.measure(*args, patient=False, token_seconds=TOKEN_SECONDS / 0.7, version="5000 (newer)")
    assert slower.ret == 1
    told = section(slower.stdout.str(), "REGRESSED  decode")
    assert "allowed -5 %" in told
    assert "phase compare" in told.splitlines()[0]
    assert "engine version 4242 (fake) → 5000 (newer)" in section(told, "  changed")
    assert "baseline 5 starts" in section(told, "  starts")
    rerun = section(told, "  rerun")
    assert "pytest " in rerun
    assert "--moegpu=fake" in rerun
    assert "decode" in rerun
    regressed = next(v for v in project.last_run().verdicts if v.check == "baseline")
    assert regressed.change is not None
    assert regressed.change == pytest.approx(-0.3, abs=0.1)

    one = ("--moegpu-starts=1", "--moegpu-max-starts=1", "--moegpu-varying=driver")
    fixed = project.run(*args, *one, token_seconds=TOKEN_SECONDS, version="5000 (newer)")
    assert fixed.ret == 1
    assert "only driver may vary, but this moved" in section(fixed.stdout.str(), "NOT_COMPARABLE  decode")


def test_without_a_baseline(project: Project) -> None:
    skipped = project.measure(*ONE_START, "-rs", "-k", "baseline and decode")
    assert skipped.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    skipped.assert_outcomes(skipped=1, deselected=14)
    run = project.store.ids()[-1]
    assert "NO_BASELINE: nothing to compare with" in skipped.stdout.str()
    assert f"moegpu promote {project.store.root / run}" in skipped.stdout.str()
    assert "no answer: 1 NO_BASELINE" in skipped.stdout.str()

    gated = project.measure(*ONE_START, "-k", "baseline and decode", "--moegpu-gate")
    assert gated.ret == 1
    gated.assert_outcomes(failed=1, deselected=14)
    assert "moegpu promote" in section(gated.stdout.str(), "NO_BASELINE  decode")
    assert "no answer: 1 NO_BASELINE" in gated.stdout.str()


def test_selecting_nothing_is_not_green_and_starts_nothing(project: Project) -> None:
    result = project.run("-k", "nothing_has_this_name")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "NOTHING MEASURED" in result.stdout.str()
    assert not project.store.ids()


def test_a_model_in_the_wrong_place_fails_offload_and_speed_is_not_comparable(project: Project) -> None:
    line = "load_tensors: offloaded 3/5 layers to GPU"
    result = project.run(*ONE_START, "-k", "offload or decode", "--junit-xml=junit.xml", log=[line])
    assert result.ret == 1
    told = section(result.stdout.str(), "FAILED  model on the CPU")
    assert "3/5 layers on GPU, expected none" in told
    assert "class environment" in told
    outcomes = {name: p["moegpu.outcome"] for name, p in project.junit().properties.items()}
    assert outcomes == {
        "test_offload[fake-1k]": "FAILED",
        "test_throughput[fake-1k-decode]": "NOT_COMPARABLE",
        "test_baseline[fake-1k-decode]": "NOT_COMPARABLE",
    }


def test_out_of_memory_at_a_long_context_blames_memory_and_not_speed(project: Project) -> None:
    result = project.measure("--moegpu-starts=1", "-k", "context or decode", "--junit-xml=junit.xml", oom_at=800)
    assert result.ret == 1
    assert "class memory" in section(result.stdout.str(), "FAILED  context: out of memory")
    failure = project.last_run().evidence[0].starts[0].failure
    assert failure is not None
    assert (failure.out_of_memory, failure.exit_code) == (True, 1)
    outcomes = {name: p["moegpu.outcome"] for name, p in project.junit().properties.items()}
    assert outcomes["test_context[fake-1k]"] == "FAILED"
    assert outcomes["test_throughput[fake-1k-decode]"] == "PASS"


def test_a_server_that_does_not_start_is_told_once(project: Project) -> None:
    failed = {"code": 1, "lines": ["error: no kernel image is available for execution on the device"]}
    result = project.run(*ONE_START, "--junit-xml=junit.xml", "-rs", exit_at_once=failed)
    assert result.ret == 1
    text = result.stdout.str()
    assert text.count("exit code 1): error: no kernel image") >= 1
    assert len([line for line in text.splitlines() if line.startswith("ERROR  ")]) == 1
    junit = project.junit()
    assert junit.counts["failures"] == 1
    assert project.last_run().evidence[0].starts[0].failure is not None


def test_profiles_are_listed_without_starting_anything(project: Project) -> None:
    result = project.run(profile="list")
    assert result.ret == 0
    for name in ("fake", "rtx3090", "h200", "embedded"):
        assert name in result.stdout.str()
    assert not project.store.ids()
