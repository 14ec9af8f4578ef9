"""Finding server programs: what hangs or crashes is told within its time, and leaves no process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from pytest_moegpu.backends import get_backend
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.machine import FoundEngine
from pytest_moegpu.session.engines import find_engines, look_at, profile_engine

VERSION = "echo 'version: 11434 (0123abcd)'; echo 'built with GNU 12.2.0 for Linux x86_64'"


def program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def asked(path: Path, seconds: float = 5.0) -> FoundEngine:
    return look_at(get_backend("llamacpp"), (str(path),), "PATH", dict(os.environ), seconds)


def test_programs_of_a_variable_and_of_path_are_both_found(tmp_path: Path) -> None:
    on_path = program(tmp_path / "bin", "llama-server", VERSION)
    given = program(tmp_path / "own", "my-server", VERSION.replace("11434", "9000"))
    environment = {"PATH": f"{on_path.parent}:/bin:/usr/bin", "MOEGPU_LLAMA_SERVER": str(given)}
    found, missing = find_engines((), environment)
    assert [(engine.source, engine.version, engine.problem) for engine in found] == [
        ("MOEGPU_LLAMA_SERVER", "9000 (0123abcd)", ""),
        ("PATH", "11434 (0123abcd)", ""),
    ]
    assert found[1].build == "GNU 12.2.0 for Linux x86_64"
    names = [name for name, _ in missing]
    assert names == ["fastllm", "mlx", "ollama", "sglang", "vllm"]


def test_one_program_that_is_named_twice_is_looked_at_once(tmp_path: Path) -> None:
    path = program(tmp_path, "llama-server", f"echo asked >> {tmp_path}/log; {VERSION}")
    found, _ = find_engines((), {"PATH": f"{tmp_path}:/bin:/usr/bin", "MOEGPU_LLAMA_SERVER": str(path)})
    assert [engine.source for engine in found] == ["MOEGPU_LLAMA_SERVER"]
    assert (tmp_path / "log").read_text() == "asked\n"


def test_a_variable_that_names_nothing_is_a_problem_and_not_silence() -> None:
    found, _ = find_engines((), {"PATH": "", "MOEGPU_LLAMA_SERVER": "/not/there"})
    assert found[0].problem == "server program '/not/there' (from MOEGPU_LLAMA_SERVER) does not exist"


def test_one_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    path = program(tmp_path, "llama-server", f"sleep 61 & echo $! > {tmp_path}/child; wait")
    began = time.monotonic()
    engine = asked(path, seconds=0.5)
    assert time.monotonic() - began < 5
    assert engine.problem == f"`{path} --version` did not answer within 0.5 s and was ended"
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 5
    while psutil.pid_exists(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo one; echo two >&2; exit 3", "ended with exit code 3: one / two"),
        ("kill -SEGV $$", "ended with signal 11, and said nothing"),
    ],
)
def test_one_that_crashes_is_told_with_its_last_words(tmp_path: Path, script: str, problem: str) -> None:
    engine = asked(program(tmp_path, "llama-server", script))
    assert engine.problem.endswith(problem)
    assert engine.version is None


def test_a_known_fault_is_told_with_what_to_do(tmp_path: Path) -> None:
    words = "error while loading shared libraries: libcudart.so.13: cannot open shared object file"
    engine = asked(program(tmp_path, "llama-server", f"echo 'llama-server: {words}' >&2; exit 127"))
    assert "ended with exit code 127" in engine.problem
    assert "library" in engine.hint


def test_one_that_is_no_program_is_told(tmp_path: Path) -> None:
    path = tmp_path / "llama-server"
    path.write_bytes(b"\x7fELF\x02\x01\x01 damaged")
    path.chmod(0o755)
    assert "cannot be run" in asked(path).problem


def test_the_profiles_own_program_is_asked_itself() -> None:
    engine = profile_engine(Catalog.load().profile("embedded"))
    assert engine.problem == ""
    assert engine.version is not None
    assert "xllamacpp" in engine.version


def test_a_profile_without_a_program_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("MOEGPU_LLAMA_SERVER", raising=False)
    engine = profile_engine(Catalog.load().profile("rtx3090"))
    assert engine.problem.startswith("server program 'llama-server' is not on PATH")
    assert engine.hint == "Install it, or name it in MOEGPU_LLAMA_SERVER."
