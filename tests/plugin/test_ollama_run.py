"""Ollama through the whole plugin, against a stand-in for its program."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.ollama_server import install
from tests.fakes.project import Project, section, usage_error
from tests.fakes.waiting import gone, pids_in

QUICK = ("--moegpu-starts=1", "--moegpu-level=2")


@pytest.fixture
def ollama(project: Project, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Options that have the project served by the stand-in; no Ollama is looked for where a real one may run."""
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    project.behaviour["pids"] = str(project.pytester.path / "pids")
    program = install(project.pytester.path / "bin")
    return ("--moegpu-backend=ollama", f"--moegpu-server={program}")


def test_a_model_file_is_made_known_served_and_judged(project: Project, ollama: tuple[str, ...]) -> None:
    result = project.measure(*QUICK, *ollama, "-k", "preflight or offload or output or decode or memory or stability")
    text = result.stdout.str()
    run = project.last_run()
    (start,) = run.evidence[0].starts
    assert start.failure is None, text
    assert start.argv == (str(project.pytester.path / "bin/ollama"), "serve")
    assert (start.served_model, start.served_context, start.gpu_share) == ("tiny", 1024, 0.0)
    assert (start.log.offloaded_layers, start.log.total_layers) == (0, 5)
    assert run.evidence[0].stack.engine_version == "0.40.2"
    outcomes = {(v.check, v.subject): v.outcome for v in run.verdicts}
    assert outcomes["output", "known answers"] == "PASS"
    assert outcomes["throughput", "decode"] == "PASS"
    answers = [r for r in start.requests if r.kind == "throughput"]
    assert {r.output_tokens for r in answers} == {16}
    assert answers[0].engine_timings["eval_count"] == 16
    assert answers[0].cached_tokens is None
    assert gone(pids_in(project.pytester.path / "pids"))
    assert not list(run_folder(project).glob("work-*")), "the copy of the model is gone with its server"


def run_folder(project: Project) -> Path:
    return project.store.find("latest")


def test_prefill_of_a_prompt_that_may_be_cached_is_not_judged_unless_somebody_asks(
    project: Project, ollama: tuple[str, ...]
) -> None:
    own = project.run(*QUICK, *ollama, "-k", "prefill")
    assert own.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "not judged prefill" in own.stdout.str()
    asked = "import pytest\n\n@pytest.mark.moegpu_throughput(metric='prefill')\ndef test_a(moegpu_verify):\n"
    project.pytester.makepyfile(test_mine=f"{asked}    moegpu_verify()\n")
    result = project.measure(*QUICK, *ollama, "test_mine.py")
    assert result.ret == 1
    (verdict,) = project.last_run().verdicts
    assert (verdict.subject, verdict.outcome, verdict.value) == ("prefill", "INCONCLUSIVE", None)


def test_a_model_that_cannot_be_made_is_the_first_cause(project: Project, ollama: tuple[str, ...]) -> None:
    result = project.run(*QUICK, *ollama, "-k", "output", create_fails="unsupported architecture")
    assert result.ret == 1
    told = section(result.stdout.str(), "ERROR  output")
    assert "create tiny -f Modelfile' ended with exit code 1: Error: unsupported architecture" in told
    assert "phase ready" in told
    assert gone(pids_in(project.pytester.path / "pids"))


def test_another_model_in_memory_is_not_taken_for_ours(project: Project, ollama: tuple[str, ...]) -> None:
    result = project.run(*QUICK, *ollama, "-k", "output", loaded="llama3:8b")
    assert result.ret == 1
    assert "ready for another model: serves 'llama3:8b', wanted 'tiny'" in result.stdout.str()


@contextmanager
def daemon() -> Iterator[int]:
    """Something that answers as an Ollama does."""

    class Version(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"version": "0.40.2"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Version)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_ollama_that_runs_already_is_refused_and_not_used(
    project: Project, ollama: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with daemon() as port:
        monkeypatch.setenv("OLLAMA_HOST", f"0.0.0.0:{port}")
        usage_error(
            project.run(*ollama),
            f"an Ollama runs already at 127.0.0.1:{port} (pid ",
            "Stop it",
            f"--moegpu-backend=ollama --moegpu-attach=http://127.0.0.1:{port}",
        )
    assert not project.store.ids()


def test_settings_that_it_does_not_have_are_refused_before_anything_starts(
    project: Project, ollama: tuple[str, ...]
) -> None:
    path = project.catalog / "scenarios/fake-1k.toml"
    path.write_text(path.read_text().replace("context = 1024", 'context = 1024\nextra_flags = ["--verbose"]'))
    usage_error(project.run(*ollama), "scenario fake-1k: settings.extra_flags: ollama: `ollama serve` takes no flags")
