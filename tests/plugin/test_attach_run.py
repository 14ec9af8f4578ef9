"""Attached to a server that was there before, through the whole plugin: a stand-in, and the real llama.cpp server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.evidence import RequestKind
from pytest_moegpu.host.control import free_port
from pytest_moegpu.host.fetch import fetch_model
from tests.fakes.openai_server import Behaviour, serving
from tests.fakes.project import Project, section, usage_error

KEY = "sk-attached-0123456789"
KEY_VARIABLE = "MOEGPU_API_KEY"
SPEEDS = "output or stability or (throughput and decode)"


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def kept(project: Project) -> str:
    """All that a run has written."""
    files = [path for path in project.store.find("latest").rglob("*") if path.is_file()]
    return "\n".join(path.read_text("utf-8", "replace") for path in files)


def test_an_attached_server_is_judged_by_what_can_be_known(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with serving(Behaviour(key=KEY, version="0.32.0")) as address:
        result = project.measure(f"--moegpu-attach={address}", "--moegpu-level=2")
        text = result.stdout.str()
    run = project.last_run()
    (evidence,) = run.evidence
    (start,) = evidence.starts
    assert (evidence.backend, evidence.attached, evidence.stack.engine_version) == ("openai", address, "vLLM 0.32.0")
    assert (start.failure, start.load_seconds, start.idle_bytes, start.after_bytes) == (None, None, None, None)
    assert (start.argv, start.left_over, start.log_path) == ((), (), start.log_path)
    assert evidence.identity["attached"] == "this machine"
    assert evidence.identity["model.sha256"] == "not known: served as tiny"
    assert evidence.identity["settings.kv_cache"] == "not known: attached"
    # The plugin's own tests of memory, baseline and placement have nothing to judge; those of speed do.
    assert f"attached {address}, on this machine, not started by this run" in text
    assert "not judged memory, baseline, offload, golden: not known of an attached server" in text
    assert {v.check for v in run.verdicts} == {"preflight", "output", "stability", "throughput"}
    assert {v.subject: v.outcome for v in run.verdicts if v.check == "output"}["known answers"] == "PASS"
    assert {v.subject: v.outcome for v in run.verdicts if v.check == "throughput"} == {
        "TTFT": "PASS",
        "prefill": "PASS",
        "decode": "PASS",
    }
    assert all(("attached", f"{address}, not started by this run") in v.lines for v in run.verdicts)
    assert result.ret == 0, text
    assert KEY not in kept(project) + text


def test_memory_that_is_asked_for_is_not_green_and_blames_nobody(project: Project) -> None:
    test = (
        "import pytest\n\n@pytest.mark.moegpu_memory(budget='1 GiB')\ndef test_a(moegpu_verify):\n    moegpu_verify()\n"
    )
    project.pytester.makepyfile(test_mine=test)
    with serving(Behaviour()) as address:
        result = project.run(f"--moegpu-attach={address}", "test_mine.py")
    assert result.ret == 1
    verdicts = project.last_run().verdicts
    (verdict,) = (v for v in verdicts if v.subject == "memory")
    assert (verdict.outcome, verdict.failed_class) == ("INCONCLUSIVE", None)
    assert "which was there before: what the device held without it is not known" in verdict.reason


def test_a_wrong_answer_is_one_whoever_started_the_server(project: Project) -> None:
    answers = project.catalog / "models/tiny.toml"
    answers.write_text(answers.read_text().replace('expect = ["Tokyo"]', 'expect = ["Kyoto"]'))
    with serving(Behaviour()) as address:
        result = project.run(f"--moegpu-attach={address}", "-k", "output")
    assert result.ret == 1
    told = section(result.stdout.str(), "FAILED  known answers")
    assert f"--moegpu-attach={address}" in told
    assert f"attached  {address}, not started by this run" in told


def test_a_model_of_a_name_that_the_catalog_does_not_know_is_asked_general_questions(project: Project) -> None:
    # Nearly two hundred questions.
    behaviour = Behaviour(models=("acme/some-model",), first_seconds=0.01, token_seconds=0.001)
    with serving(behaviour) as address:
        project.run(f"--moegpu-attach={address}", "-k", "output")
    (evidence,) = project.last_run().evidence
    general = Catalog.load().model("qwen3.6-35b-a3b").known_answers
    assert evidence.identity["model.sha256"] == "not known: served as acme/some-model"
    assert [r.prompt for r in evidence.starts[0].of_kind(RequestKind.ANSWER)] == [a.prompt for a in general]


def test_a_live_server_for_tests_that_talk_to_it_is_the_attached_one(project: Project) -> None:
    test = """
        def test_a(moegpu_server, moegpu_client):
            assert moegpu_client("What is the opposite of up?").text.strip() == "The opposite of up is down."
            assert moegpu_server.served.name == "tiny"
            assert moegpu_server.url.startswith("http://127.0.0.1:")
        """
    project.pytester.makepyfile(test_mine=test)
    behaviour = Behaviour()
    with serving(behaviour) as address:
        result = project.run(f"--moegpu-attach={address}", "test_mine.py")
        assert len(behaviour.asked) == 3
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--moegpu-server=x",), ("--moegpu-server with --moegpu-attach", "no program is started")),
        (("--moegpu-starts=3",), ("--moegpu-starts with --moegpu-attach", "started once")),
        (("--moegpu-max-starts=7",), ("--moegpu-max-starts with --moegpu-attach", "started once")),
        (("--moegpu-gate",), ("--moegpu-gate with --moegpu-attach", "no baseline")),
        (("--moegpu-emulate-vram=24GiB",), ("--moegpu-emulate-vram with --moegpu-attach", "taken already")),
        (("--moegpu-backend=opnai",), ("unknown backend 'opnai'", "did you mean 'openai'?")),
    ],
)
def test_what_does_not_go_with_an_attached_server(
    project: Project, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    usage_error(project.refuse("--moegpu-attach=http://127.0.0.1:1", *options), *words)


def test_addresses_and_servers_that_cannot_be_measured(project: Project) -> None:
    port = free_port()
    usage_error(project.run(f"--moegpu-attach=http://127.0.0.1:{port}"), f"nobody listens on port {port}")
    usage_error(project.refuse("--moegpu-attach=https://127.0.0.1:1"), "HTTPS is not spoken")
    usage_error(
        project.refuse("--moegpu-backend=openai"), "--moegpu-backend=openai starts no server", "--moegpu-attach"
    )
    with serving(Behaviour(key=KEY)) as address:
        usage_error(project.run(f"--moegpu-attach={address}"), address, "HTTP 401: give the key in MOEGPU_API_KEY")
    with serving(Behaviour(usage=False)) as address:
        usage_error(project.run(f"--moegpu-attach={address}"), address, "its streams carry no usage")
    assert not project.store.ids()


@pytest.fixture(scope="module")
def model() -> Path:
    """The real model out of the user's own cache: found before a project has a home folder of its own."""
    return fetch_model(Catalog.load().model("smollm2-135m-instruct"))


def healthy(url: str) -> bool:
    # Not by httpx: what it loads at its first request would be unloaded again with the project of this test.
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def llama_server(model: Path, folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The real llama.cpp server with the real model, started as a user starts one."""
    port = free_port()
    argv = [sys.executable, "-m", "pytest_moegpu.host.embedded_server", "-m", str(model)]
    argv += ["-a", "smollm2-135m-instruct", "-c", "2048", "-np", "1", "--port", str(port)]
    with (folder / "llama.log").open("wb") as log:
        server = subprocess.Popen(argv, stdout=log, stderr=log, env=os.environ | {"LLAMA_API_KEY": KEY})
        try:
            end = time.monotonic() + 120
            while not healthy(f"http://127.0.0.1:{port}/health"):
                assert server.poll() is None, (folder / "llama.log").read_text("utf-8", "replace")
                assert time.monotonic() < end
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}", server
        finally:
            server.terminate()
            server.wait(30)


@pytest.mark.alone
def test_the_real_llama_cpp_server_is_measured_and_lives_on(
    model: Path, project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with llama_server(model, tmp_path) as (address, server):
        result = project.measure(f"--moegpu-attach={address}", "--moegpu-level=2", "-k", SPEEDS, profile="embedded")
        text = result.stdout.str()
        assert server.poll() is None
        run = project.last_run()
    (start,) = run.evidence[0].starts
    assert start.failure is None, text
    assert (start.pid, start.served_model) == (server.pid, "smollm2-135m-instruct")
    assert start.peak_bytes is None
    outcomes = {(v.check, v.subject): v.outcome for v in run.verdicts}
    assert outcomes["output", "known answers"] == "PASS"
    assert outcomes["throughput", "decode"] == "PASS"
    assert result.ret == 0, text
    assert KEY not in kept(project) + text
