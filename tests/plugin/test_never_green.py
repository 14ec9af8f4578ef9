"""Never green without a judgement: what a skip, an xfail, another plugin or a forgotten call must not hide."""

from __future__ import annotations

import json

import pytest

from tests.fakes.project import Project, section

ONE = ("--moegpu-starts=1", "test_mine.py")
TOO_FAST = """
import pytest

@pytest.mark.moegpu_throughput(metric="decode", min=1e6)
def test_speed(moegpu_verify):
    moegpu_verify()
"""
TWO_SPEEDS = """
import pytest

@pytest.mark.moegpu_throughput(metric="decode", min=1)
@pytest.mark.moegpu_throughput(metric="prefill", min=1)
def test_both(moegpu_verify):
    assert len([v for v in moegpu_verify() if v.metric]) == 2

@pytest.mark.moegpu_throughput(metric="decode", min=1)
def test_uses_benchmark(moegpu_verify, benchmark):
    assert moegpu_verify()
    assert benchmark(lambda: 7) == 7

@pytest.mark.moegpu_throughput(metric="decode", min=1)
def test_uses_benchmark_later(moegpu_verify, request):
    assert moegpu_verify()
    assert request.getfixturevalue("benchmark")(lambda: 7) == 7
"""
BROKEN_THEN_GOOD = """
import pytest

@pytest.mark.moegpu(scenario="broken-1k")
@pytest.mark.xfail(reason="known")
def test_expected(moegpu_verify):
    moegpu_verify("offload")

@pytest.mark.moegpu(scenario="broken-1k")
def test_next(moegpu_verify):
    moegpu_verify("offload")

@pytest.mark.moegpu(scenario="broken-1k")
def test_last(moegpu_verify):
    moegpu_verify("offload")

@pytest.mark.moegpu(scenario="fake-1k")
def test_good(moegpu_verify):
    assert moegpu_verify("offload")
"""
HIDDEN = """
import pytest

def test_good(moegpu_verify):
    assert moegpu_verify("offload")

@pytest.mark.moegpu_memory(budget="1 MiB")
def test_hides(moegpu_verify):
    try:
        moegpu_verify()
    except pytest.fail.Exception:
        pytest.skip("not today")
"""
EXPECTED = """
import pytest

def test_good(moegpu_verify):
    assert moegpu_verify("offload")

@pytest.mark.xfail(reason="known")
@pytest.mark.moegpu_memory(budget="1 MiB")
def test_expected(moegpu_verify):
    moegpu_verify()
"""
JUDGES_NOTHING = """
import unittest
import pytest

@pytest.mark.moegpu_throughput(min=1e9)
def test_marker_alone():
    pass

def test_parentheses_forgotten(moegpu_verify):
    assert moegpu_verify

@pytest.mark.moegpu_output
class TestClass:
    def test_method(self): pass

@pytest.mark.usefixtures("moegpu_verify")
class TestCase(unittest.TestCase):
    def test_unit(self): pass

@pytest.mark.moegpu
def test_gpu_only(moegpu_gpu):
    assert moegpu_gpu.memory_bytes

def test_verify_too(moegpu_verify):
    assert moegpu_verify("preflight")

def test_skips_itself(moegpu_verify):
    pytest.skip("no reason")
"""


@pytest.mark.parametrize("option", ["--benchmark-skip", "--benchmark-disable", "--benchmark-enable"])
def test_a_failed_speed_is_red_whatever_pytest_benchmark_does(project: Project, option: str) -> None:
    project.pytester.makepyfile(test_mine=TOO_FAST)
    result = project.measure(*ONE, option)
    assert result.ret == 1
    result.assert_outcomes(failed=1)
    assert "limit at least" in section(result.stdout.str(), "FAILED  decode")


def test_a_view_of_one_speed_a_test_and_none_of_a_test_with_a_benchmark_of_its_own(project: Project) -> None:
    project.pytester.makepyfile(test_mine=TWO_SPEEDS)
    result = project.measure(*ONE, "--benchmark-json=bench.json")
    assert result.ret == 0
    result.assert_outcomes(passed=3)
    shown = json.loads((project.pytester.path / "bench.json").read_text())["benchmarks"]
    ours = [bench["name"] for bench in shown if "tokens_per_second" in bench["extra_info"]]
    assert ours == ["test_both[fake-1k]"]
    assert len(shown) == 3


def test_an_xfail_does_not_tell_for_the_tests_after_it(project: Project) -> None:
    scenario = (project.catalog / "scenarios/fake-1k.toml").read_text()
    project.write("scenarios/broken-1k", scenario.replace("fake-1k", "broken-1k").replace("= 1024", "= 1025"))
    project.pytester.makepyfile(test_mine=BROKEN_THEN_GOOD)
    # In front of the fake: a program that ends at once where it has to serve that context.
    real = project.program.rename(project.program.with_name("real"))
    project.program.write_text(f'#!/bin/sh\ncase "$*" in *1025*) exit 1;; esac\nexec {real} "$@"\n')
    project.program.chmod(0o755)
    result = project.run(*ONE, "-rs")
    assert result.ret == 1
    result.assert_outcomes(xfailed=1, failed=1, skipped=1, passed=1)
    assert "not judged: " in result.stdout.str()


def test_a_bad_verdict_behind_a_skip_is_not_green(project: Project) -> None:
    project.pytester.makepyfile(test_mine=HIDDEN)
    result = project.run(*ONE)
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "NOT GREEN: pytest counts no failed test" in result.stdout.str()
    assert "keep it as baseline" not in result.stdout.str()


def test_what_was_expected_to_fail_does_not_count(project: Project) -> None:
    project.pytester.makepyfile(test_mine=EXPECTED)
    result = project.run(*ONE)
    result.assert_outcomes(passed=1, xfailed=1)
    assert result.ret == 0
    assert "good: 1 PASS" in result.stdout.str()
    assert "not counted: 2 verdicts of tests that were expected to fail" in result.stdout.str()


def test_a_test_that_judges_nothing_fails_and_says_what_to_call(project: Project) -> None:
    project.pytester.makepyfile(test_mine=JUDGES_NOTHING)
    result = project.run(*ONE)
    result.assert_outcomes(failed=4, passed=2, skipped=1)
    assert result.ret == 1
    assert result.stdout.str().count("\nnothing was judged: call moegpu_verify() in the test") == 4


def test_the_same_judgement_stands_once_in_the_table(project: Project) -> None:
    names = "".join(f"def test_{n}(moegpu_verify):\n    assert moegpu_verify('offload')\n\n" for n in "abc")
    project.pytester.makepyfile(test_mine=names)
    result = project.run(*ONE)
    result.assert_outcomes(passed=3)
    text = result.stdout.str()
    assert len([line for line in text.splitlines() if line.startswith("fake-1k ") and "offload" in line]) == 1
    assert "good: 1 PASS" in text
    # No throughput and no text were judged: nothing to make a baseline of.
    assert "keep it as baseline" not in text


LEFT_BEHIND = """
import pytest_moegpu.session.measure as measure

measure.wait_idle = lambda probe, idle, seconds: (3 * 1024**3, 1.0)
"""


def test_memory_left_behind_is_red_whatever_the_tests_asked(project: Project) -> None:
    project.pytester.makeconftest(LEFT_BEHIND)
    result = project.run("--moegpu-starts=3", "-k", "offload or memory")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = result.stdout.str()
    assert "LEFT BEHIND: start 1: memory did not come back: " in text
    told = section(text, "ERROR  return to idle")
    assert "memory did not come back: " in told
    assert "phase stop" in told
    assert len(project.last_run().evidence[0].starts) == 1, "nothing more is started on a device like this"
    only = project.run("--moegpu-starts=1", "-k", "offload")
    assert only.ret == pytest.ExitCode.TESTS_FAILED
    assert only.parseoutcomes()["passed"] == 1
    only.stdout.fnmatch_lines(["LEFT BEHIND: start 1: *"])


BROKEN_DEVICE = """
import pytest_moegpu.session.measure as measure
from pytest_moegpu.core.health import DeviceHealth
from pytest_moegpu.host.hostmem import HostProbe

counts = iter(range(100))
HostProbe.health = lambda self: (DeviceHealth(device=0, ecc_uncorrected=next(counts)),)
"""


def test_a_fault_of_the_device_is_red_whatever_the_tests_asked(project: Project) -> None:
    project.pytester.makeconftest(BROKEN_DEVICE)
    result = project.run("--moegpu-starts=1", "-k", "offload")
    assert result.parseoutcomes()["passed"] == 1
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["DEVICE FAULT: fake-1k: *1 uncorrectable ECC errors*"])
    asked = project.run("--moegpu-starts=1", "-k", "stability")
    assert asked.ret == pytest.ExitCode.TESTS_FAILED
    assert "DEVICE FAULT" not in asked.stdout.str(), "told by the test that asked"


def test_a_server_that_runs_out_of_memory_is_told_once_and_counts_everywhere(project: Project) -> None:
    line = (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 99.00 MiB on device 0: cudaMalloc failed: out of memory"
    )
    result = project.run("--moegpu-starts=1", "-k", "not baseline", exit_at_once={"code": 1, "lines": [line]})
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    counts = result.parseoutcomes()
    assert (counts["failed"], counts["passed"], counts["skipped"]) == (1, 1, 9)
    text = result.stdout.str()
    assert text.count("FAILED  offload: out of memory (exit code 1): ggml_backend_cuda") == 1
    assert "lower context, slots, batch" in section(text, "  next")
    assert "worse: 8 FAILED" in text
