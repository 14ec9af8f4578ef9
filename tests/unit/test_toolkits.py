"""Which CUDA toolkits are installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_moegpu.host import toolkits
from pytest_moegpu.host.toolkits import installed_toolkits

ANSWER = "Cuda compilation tools, release 13.2, V13.2.51\nBuild cuda_13.2.r13.2/compiler.1_0"


def nvcc(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def found(root: Path, **environment: str) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    listed, problems = installed_toolkits(environment, (root,))
    return [(toolkit.version, str(Path(toolkit.place).relative_to(root))) for toolkit in listed], problems


def test_a_folder_says_its_version_and_links_to_it_are_not_counted_twice(tmp_path: Path) -> None:
    new, old = tmp_path / "cuda-13.0", tmp_path / "cuda-10.2"
    new.mkdir()
    (new / "version.json").write_text(json.dumps({"cuda": {"name": "CUDA SDK", "version": "13.0.1"}}))
    old.mkdir()
    (old / "version.txt").write_text("CUDA Version 10.2.89\n")
    (tmp_path / "cuda").symlink_to(new)
    assert found(tmp_path, CUDA_HOME=str(new)) == ([("13.0.1", "cuda-13.0"), ("10.2.89", "cuda-10.2")], ())


def test_a_folder_that_does_not_say_it_has_its_compiler_asked(tmp_path: Path) -> None:
    nvcc(tmp_path / "cuda-13.2/bin/nvcc", f"echo '{ANSWER}'")
    assert found(tmp_path) == ([("13.2.0", "cuda-13.2")], ())


def test_a_script_on_path_that_starts_the_same_compiler_is_not_another_toolkit(tmp_path: Path) -> None:
    real = nvcc(tmp_path / "cuda-13.2/bin/nvcc", f"echo '{ANSWER}'")
    nvcc(tmp_path / "bin/nvcc", f'exec {real} "$@"')
    assert found(tmp_path, PATH=str(tmp_path / "bin")) == ([("13.2.0", "cuda-13.2")], ())


def test_a_compiler_on_path_alone_is_found(tmp_path: Path) -> None:
    nvcc(tmp_path / "bin/nvcc", f"echo '{ANSWER}'")
    assert found(tmp_path, PATH=str(tmp_path / "bin")) == ([("13.2.0", "bin/nvcc")], ())


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exec sleep 60", "did not answer within 0 s"),
        ("exit 1", "says no version"),
    ],
)
def test_a_compiler_that_does_not_answer_is_told_and_no_toolkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    monkeypatch.setattr(toolkits, "_SECONDS", 0.3)
    nvcc(tmp_path / "cuda-13.2/bin/nvcc", script)
    listed, (problem,) = found(tmp_path)
    assert listed == []
    assert words in problem


def test_damaged_version_files_are_passed_over(tmp_path: Path) -> None:
    for number, text in enumerate(("{", "[]", '{"cuda": 1}', '{"cuda": {"version": 13}}')):
        (tmp_path / f"cuda-{number}").mkdir()
        (tmp_path / f"cuda-{number}" / "version.json").write_text(text)
    assert found(tmp_path) == ([], ())
