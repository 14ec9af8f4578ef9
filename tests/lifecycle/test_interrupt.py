"""Ctrl-C: the server is gone, and the bundle says that the run was interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fakes.llama_server import VARIABLE
from tests.fakes.project import Project
from tests.fakes.waiting import gone, pids_in, wait_for


@pytest.mark.parametrize("behaviour", [{"never_ready": True}, {"first_seconds": 60}], ids=["load", "request"])
def test_interrupt(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, behaviour: dict[str, object]) -> None:
    project = Project.create(pytester, monkeypatch)
    scenario = project.catalog / "scenarios/fake-1k.toml"
    scenario.write_text(scenario.read_text() + 'ready = "300 s"\nrequest = "300 s"\n')
    pids = pytester.path / "pids"
    told = json.dumps({"pids": str(pids), "setsid_worker": True, **behaviour})
    argv = [sys.executable, "-m", "pytest", "--moegpu=fake", "--junit-xml=junit.xml"]
    with (
        Path("output").open("wb") as output,
        # A group of its own, which gets the signal as a whole, as from a terminal.
        subprocess.Popen(
            argv, cwd=pytester.path, env=os.environ | {VARIABLE: told}, stdout=output, start_new_session=True
        ) as run,
    ):
        try:
            wait_for(lambda: len(pids_in(pids)) == 2 and "listening" in _log(project), "the server", 60)
            os.killpg(run.pid, signal.SIGINT)
            assert run.wait(60) == pytest.ExitCode.INTERRUPTED
        finally:
            run.kill()
    assert gone(pids_in(pids))
    record = project.last_run()
    assert record.status == "interrupted"
    assert record.finished_at is not None
    text = Path("output").read_text()
    assert "KeyboardInterrupt" in text
    assert "INTERNALERROR" not in text
    shown = project.moegpu("show")
    assert "interrupted" in shown.stdout
    refused = project.moegpu("promote", "latest")
    assert refused.returncode == 2
    assert "only a finished run can be promoted" in refused.stderr


def test_a_second_interrupt_waits_for_a_server_that_ignores_term(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project.create(pytester, monkeypatch)
    pids = pytester.path / "pids"
    told = json.dumps({"pids": str(pids), "setsid_worker": True, "ignore_term": True, "first_seconds": 60})
    scenario = project.catalog / "scenarios/fake-1k.toml"
    scenario.write_text(scenario.read_text() + 'ready = "300 s"\nrequest = "300 s"\n')
    argv = [sys.executable, "-m", "pytest", "--moegpu=fake"]
    with (
        Path("output").open("wb") as output,
        subprocess.Popen(
            argv, cwd=pytester.path, env=os.environ | {VARIABLE: told}, stdout=output, start_new_session=True
        ) as run,
    ):
        try:
            wait_for(lambda: len(pids_in(pids)) == 2 and "listening" in _log(project), "the server", 60)
            os.killpg(run.pid, signal.SIGINT)
            # Long enough for the first to have asked the server to stop, which takes 10 s when it is not hurried.
            time.sleep(1)
            os.killpg(run.pid, signal.SIGINT)
            began = time.monotonic()
            run.wait(60)
            took = time.monotonic() - began
            assert gone(pids_in(pids)), "pytest returned before its server had ended"
            assert took < 8, "the second interrupt did not end the grace"
        finally:
            run.kill()


def _log(project: Project) -> str:
    return "".join(path.read_text() for path in project.store.root.glob("*/server-*.log"))
