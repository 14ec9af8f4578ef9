"""`moegpu serve` as a person runs it, with a server that only pretends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from pytest_moegpu.host.control import free_port
from tests.fakes.llama_server import VARIABLE
from tests.fakes.project import Project
from tests.fakes.waiting import gone, pids_in, wait_for


def argv(project: Project, *words: str) -> list[str]:
    command = [sys.executable, "-m", "pytest_moegpu.cli", "serve", "fake", "--catalog", str(project.catalog)]
    return [*command, *words]


@contextmanager
def serving(project: Project, *words: str, **behaviour: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start it, and wait until it says that it serves; yields the process and what it printed."""
    told = os.environ | {VARIABLE: json.dumps(behaviour)}
    out = project.pytester.path / "out.txt"
    with (
        out.open("w") as file,
        subprocess.Popen(
            argv(project, *words), cwd=out.parent, stdout=file, stderr=subprocess.PIPE, text=True, env=told
        ) as process,
    ):
        try:
            wait_for(lambda: "Ctrl-C ends it." in out.read_text() or process.poll() is not None, "the server")
            yield process, out.read_text()
        finally:
            if process.poll() is None:
                process.kill()


def serve(project: Project, *words: str, **behaviour: Any) -> subprocess.CompletedProcess[str]:
    told = os.environ | {VARIABLE: json.dumps(behaviour)}
    folder = project.pytester.path
    return subprocess.run(
        argv(project, *words), cwd=folder, capture_output=True, text=True, timeout=60, check=False, env=told
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_how_a_client_reaches_it_and_ends_without_a_trace(project: Project, number: signal.Signals) -> None:
    port, pids = free_port(), project.pytester.path / "pids"
    words = ("--port", str(port), "--api-key", "sesame", "--set", "settings.context=2048")
    with serving(project, *words, pids=str(pids), setsid_worker=True) as (process, told):
        address = f"http://127.0.0.1:{port}/v1"
        assert re.search(rf"^address   {address}$", told, re.MULTILINE)
        assert "scenario  fake-1k: context 2048, slots 1, KV f16" in told
        assert "judged    never judged here; pytest --moegpu=fake --moegpu-scenario=fake-1k does it" in told
        # The command that it prints is one that works.
        (body,) = re.findall(r"-d '(.*)'$", told, re.MULTILINE)
        headers = {"Authorization": "Bearer sesame"}
        answer = httpx.post(
            f"{address}/chat/completions", json=json.loads(body) | {"stream": True, "max_tokens": 4}, headers=headers
        )
        assert answer.status_code == 200
        assert len(pids_in(pids)) == 2
        process.send_signal(number)
        assert process.wait(30) == 0
    assert gone(pids_in(pids))
    out = (project.pytester.path / "out.txt").read_text()
    assert out.endswith("ended, nothing is left of it\n")


def test_what_its_last_run_said_and_what_moved_since_is_told(project: Project) -> None:
    assert project.measure("-k", "output", "--moegpu-starts=1").ret == 0
    (run,) = project.store.ids()
    with serving(project) as (_, told):
        assert f"judged    {run}: good: 2 PASS; nothing has moved since" in told
    with serving(project, version="5000 (newer)") as (_, told):
        assert f"judged    {run}: good: 2 PASS; since then engine_version 4242 (fake) → 5000 (newer)" in told
    with serving(project, "--set", "settings.slots=2") as (_, told):
        assert f"judged    not as it is now; {run}: good: 2 PASS; since then settings.slots 1 → 2" in told


def test_a_server_that_dies_is_told_with_its_cause_and_is_no_good_end(project: Project) -> None:
    done = serve(project, exit_after=2.0, last_words=["CUDA error: out of memory"])
    assert done.returncode == 1
    assert "the server died: " in done.stdout
    assert "exit code 7" in done.stdout
    assert "ended, nothing is left of it" in done.stdout


def test_one_that_does_not_come_up_is_told_with_its_log(project: Project) -> None:
    done = serve(project, exit_at_once={"code": 1, "lines": ["no such kernel"]})
    assert (done.returncode, done.stdout) == (2, "")
    assert "exit code 1" in done.stderr
    assert re.search(r"^log: .*/server\.log$", done.stderr, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "settings.contxt=5"), "--set: settings.contxt: unknown key (did you mean 'context'?)"),
        (("--set", "context=5"), "--set context=5: write it as settings.NAME=VALUE"),
        (("--scenario", "fake-2k"), "unknown scenario 'fake-2k' (did you mean 'fake-1k'?)"),
        (("--port", "70000"), "argument --port: '70000' is not a port: write a whole number from 1 to 65535"),
    ],
)
def test_what_is_wrong_is_told_before_anything_starts(project: Project, words: tuple[str, ...], message: str) -> None:
    done = serve(project, *words, pids=str(project.pytester.path / "pids"))
    assert done.returncode == 3
    assert message in done.stderr
    assert not (project.pytester.path / "pids").exists()


def test_a_port_that_is_taken_names_who_has_it(project: Project) -> None:
    with serving(project, "--port", str(port := free_port())):
        done = serve(project, "--port", str(port))
    assert done.returncode == 3
    assert re.search(rf"--port {port} is taken by pid \d+ \(.+\): choose another, or leave it out", done.stderr)
