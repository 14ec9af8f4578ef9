"""Tests of a user's own, with markers and fixtures, with a profile and without."""

from __future__ import annotations

import json

import pytest

from tests.fakes.project import Project, section

ALL_OF_IT = """
import pytest

@pytest.mark.moegpu(level=1)
def test_gpu(moegpu_gpu):
    assert moegpu_gpu.memory_bytes > 0
    assert moegpu_gpu.name

@pytest.mark.moegpu(scenario="fake-1k")
def test_server(moegpu_server):
    assert moegpu_server.alive
    assert moegpu_server.url.startswith("http://127.0.0.1:")
    assert moegpu_server.spec.api_key
    assert moegpu_server.served.name == "tiny"

@pytest.mark.moegpu
def test_client(moegpu_client):
    answer = moegpu_client("What is the capital of Japan?", max_tokens=16)
    assert "Tokyo" in answer.text
    assert answer.finish_reason == "stop"
    assert answer.ttft > 0 and answer.decode > 0

@pytest.mark.moegpu
def test_client_again(moegpu_client, moegpu_server):
    assert moegpu_client.server is moegpu_server

@pytest.mark.moegpu(level=2)
@pytest.mark.moegpu_memory(budget="900 MiB")
@pytest.mark.moegpu_throughput(metric="decode", min=10)
@pytest.mark.moegpu_throughput(metric="ttft", max=5)
@pytest.mark.moegpu_context(tokens=600)
@pytest.mark.moegpu_output(prompt="What is the opposite of up?", expect="down")
def test_verify(moegpu_verify):
    verdicts = moegpu_verify()
    assert {v.check for v in verdicts} == {"output", "context", "memory", "throughput"}

@pytest.mark.moegpu_output
def test_known_answers(moegpu_verify):
    assert moegpu_verify()

def test_by_name(moegpu_verify):
    (verdict,) = moegpu_verify("offload")
    assert verdict.outcome == "PASS"

def test_plain():
    pass
"""
MARKED = """
import pytest

@pytest.mark.moegpu
def test_a(moegpu_server): pass

@pytest.mark.moegpu_memory(budget="23 GiB")
def test_b(moegpu_verify): pass

@pytest.mark.moegpu_output
class TestC:
    def test_c(self): pass

def test_fixture_only(moegpu_gpu): pass

def test_fixture_only_too(moegpu_client): pass

def test_verify_only(moegpu_verify): pass

def test_plain(): pass
"""
# What must not be paid for by people whose tests need no GPU.
FORBIDDEN = ("pynvml", "httpx", "httptools", "numpy", "scipy", "msgspec", "psutil", "gguf", "tabulate", "tqdm")


def test_all_markers_and_fixtures(project: Project) -> None:
    project.pytester.makepyfile(test_mine=ALL_OF_IT)
    result = project.measure("test_mine.py", "--moegpu-starts=1", "--strict-markers", "--junit-xml=junit.xml")
    result.assert_outcomes(passed=8)
    assert result.ret == 0
    verified = project.junit().properties["test_verify[fake-1k]"]
    assert verified["moegpu.outcome"] == "PASS"
    assert verified["moegpu.check"].split(", ") == ["output", "context", "memory", "throughput"]
    assert project.last_run().status == "finished"


def test_a_budget_under_the_peak_fails(project: Project) -> None:
    project.pytester.makepyfile(
        """
        import pytest

        @pytest.mark.moegpu_memory(budget="1 MiB")
        def test_memory(moegpu_verify):
            moegpu_verify()
        """
    )
    result = project.run("--moegpu-starts=1", str(project.pytester.path))
    assert result.ret == 1
    told = section(result.stdout.str(), "FAILED  peak memory")
    assert "limit at most 1 MiB" in told
    assert "class memory" in told


def test_a_test_above_the_level_is_deselected(project: Project) -> None:
    project.pytester.makepyfile(test_mine=ALL_OF_IT)
    result = project.run("test_mine.py", "--moegpu-level=1", "--collect-only", "-q")
    assert "test_verify" not in result.stdout.str()
    assert "test_gpu" in result.stdout.str()
    assert "1 deselected" in result.stdout.str()
    assert not project.store.ids(), "collecting must leave no trace"


def test_without_a_profile_all_are_skipped_with_one_reason(project: Project) -> None:
    project.pytester.makepyfile(test_mine=MARKED)
    result = project.run("-rs", "--strict-markers", profile=None)
    assert result.ret == 0
    result.assert_outcomes(skipped=6, passed=1)
    reasons = {line.split(": ", 1)[1] for line in result.stdout.lines if line.startswith("SKIPPED")}
    assert len(reasons) == 1
    assert "--moegpu=PROFILE" in reasons.pop()


def test_without_a_profile_nothing_heavy_is_imported(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.pytester.makepyfile(test_mine=MARKED)
    project.pytester.makeconftest(
        """
        import json, pathlib, sys

        def pytest_unconfigure():
            pathlib.Path("modules.json").write_text(json.dumps(sorted(sys.modules)))
        """
    )
    # Other plugins may import what they like; only this one is looked at.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    result = project.run("-p", "pytest_moegpu.plugin", profile=None)
    result.assert_outcomes(skipped=6, passed=1)
    loaded = set(json.loads((project.pytester.path / "modules.json").read_text()))
    assert "pytest_moegpu.plugin" in loaded
    assert not loaded & set(FORBIDDEN)
    ours = {name for name in loaded if name.startswith("pytest_moegpu")}
    assert not {name for name in ours if name.split(".")[1:2] in (["session"], ["host"], ["backends"], ["run"])}


def test_a_test_that_asks_nothing_says_what_to_add(project: Project) -> None:
    project.pytester.makepyfile(test_mine="def test_a(moegpu_verify):\n    moegpu_verify()\n")
    result = project.run("test_mine.py")
    assert result.ret == 1
    assert "nothing to judge: add a marker" in result.stdout.str()


def test_a_server_that_dies_under_a_users_test(project: Project) -> None:
    project.pytester.makepyfile("def test_a(moegpu_client):\n    moegpu_client('Tell me of the sea.', max_tokens=16)\n")
    result = project.run(str(project.pytester.path), die_mid_stream=4)
    assert result.ret == 1
    assert "the request failed: connection closed" in result.stdout.str()
