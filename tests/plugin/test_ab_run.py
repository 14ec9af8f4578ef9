"""`moegpu ab` and `moegpu gate` as a stranger runs them, with servers that only pretend."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_moegpu.host.store import read_run
from tests.fakes.llama_server import VARIABLE
from tests.fakes.project import Project, section

_TRIES = 5
_SPEED = {"token_seconds": 0.02, "first_seconds": 0.2}


def build(project: Project, name: str, **behaviour: Any) -> Path:
    """Write a program that is the fake with one behaviour, like another build of a server."""
    program = project.program.with_name(name)
    told = json.dumps(behaviour).replace("'", "'\\''")
    program.write_text(f"#!/bin/sh\nexport {VARIABLE}='{told}'\nexec '{project.program}' \"$@\"\n")
    program.chmod(0o755)
    return program


def command(project: Project, *words: str) -> list[str]:
    # Few and short requests: what is tested is the order of things, not how fine it measures.
    text = (project.catalog / "scenarios/fake-1k.toml").read_text()
    project.write("scenarios/fake-1k", text.replace("requests = 3", "requests = 1"))
    catalog = ("--catalog", str(project.catalog), "--starts", "6")
    return [sys.executable, "-m", "pytest_moegpu.cli", "ab", "fake", *catalog, *words]


def ab(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it; again where the plugin itself says that this machine was too busy."""
    argv = command(project, *words)
    for _ in range(_TRIES):
        done = subprocess.run(argv, cwd=project.pytester.path, capture_output=True, text=True, timeout=120, check=False)
        if "INCONCLUSIVE  decode" not in done.stdout:
            break
    return done


@pytest.mark.alone
def test_a_build_that_is_slower_is_found_in_one_session_and_both_runs_can_be_shown(project: Project) -> None:
    old = build(project, "old", **_SPEED)
    new = build(project, "new", token_seconds=0.0222, first_seconds=0.2, version="5000 (newer)")
    done = ab(project, "--a-server", str(old), "--b-server", str(new))
    assert done.returncode == 1, done.stdout + done.stderr
    told = section(done.stdout, "REGRESSED  decode (B against A)")
    assert "engine_version 4242 (fake) → 5000 (newer)" in section(told, "  changed")
    assert done.stdout.index("will see ") < done.stdout.index("known answers (A)")
    runs = [line.split()[2] for line in done.stdout.splitlines() if line.startswith(("run A", "run B"))]
    assert len(runs) == 2
    for run in runs:
        record = read_run(project.pytester.path / run)
        assert (record.status, len(record.evidence[0].starts)) == ("finished", 6)
        shown = project.moegpu("show", run)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "known answers" in shown.stdout
    # In turn, in blocks; a start that was made again takes the place of the one before.
    order = ""
    for line in done.stderr.splitlines():
        if ": ready after" in line:
            order += line[0]
        elif ": made again: " in line:
            order = order[:-1]
    assert sorted(order) == ["A"] * 6 + ["B"] * 6
    assert all(order[at : at + 4] in ("ABBA", "BAAB") for at in (0, 4, 8))


def test_a_build_with_wrong_text_gets_no_speed_verdict(project: Project) -> None:
    old, new = build(project, "old", **_SPEED), build(project, "new", wrong=True, **_SPEED)
    done = subprocess.run(
        command(project, "--a-server", str(old), "--b-server", str(new)),
        cwd=project.pytester.path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED  known answers (B)" in done.stdout
    assert "B against A" not in done.stdout
    assert "no speed was compared" in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_leaves_no_server(project: Project, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = build(project, "old", pids=str(pids), **_SPEED)
    process = subprocess.Popen(
        command(project, "--a-server", str(program), "--b-server", str(program)),
        cwd=project.pytester.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while (not pids.exists() or not pids.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 2, told
    assert "interrupted, nothing was decided" in told
    assert "Traceback" not in told
    started = [int(pid) for pid in pids.read_text().split()]
    assert started
    assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []
    # A server that was never started has no run; the other says that it was interrupted.
    states = [read_run(project.store.find(name)).status for name in project.store.ids()]
    assert states == ["interrupted"]


def test_what_is_wrong_with_the_order_is_told_before_anything_starts(project: Project) -> None:
    for words, says in (
        (("--b-set", "settings.flash_atention=off"), "unknown key (did you mean 'flash_attention'?)"),
        (("--scenario", "fake-2k"), "unknown scenario 'fake-2k'"),
        (("--b-server", "/nowhere/llama-server"), "server program '/nowhere/llama-server'"),
    ):
        done = subprocess.run(
            command(project, *words), cwd=project.pytester.path, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout) == (3, "")
        assert says in done.stderr
        assert "Traceback" not in done.stderr
    assert project.store.ids() == ()
