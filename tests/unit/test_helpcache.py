"""A help text is asked for once, and again when the program is another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_moegpu.errors import ProgramError
from pytest_moegpu.host import helpcache
from pytest_moegpu.host.helpcache import ProgramTexts, program_texts
from tests.fakes.waiting import gone, pids_in, wait_for


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("MOEGPU_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "help"


def script(tmp_path: Path, body: str, first: str = "#!/bin/sh") -> str:
    """Write a program that notes each call before it does what it does."""
    path = tmp_path / "env" / "bin" / "engine"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{first}\necho \"$1\" >> '{tmp_path}/calls'\n{body}\n")
    path.chmod(0o755)
    return str(path)


def calls(tmp_path: Path) -> list[str]:
    path = tmp_path / "calls"
    return path.read_text().split() if path.exists() else []


def ask(program: str) -> ProgramTexts:
    return program_texts((program, "--version"), (program, "--help"))


def test_the_second_time_nothing_is_run(tmp_path: Path, cache: Path) -> None:
    program = script(tmp_path, 'echo "it says $1"; echo "and this" >&2')
    first = ask(program)
    assert first == ProgramTexts(version="it says --version\nand this\n", help="it says --help\nand this\n")
    assert calls(tmp_path) == ["--version", "--help"]
    assert ask(program) == first
    assert calls(tmp_path) == ["--version", "--help"]
    assert len(list(cache.iterdir())) == 1


def test_another_program_is_asked_again(tmp_path: Path) -> None:
    ask(script(tmp_path, "echo one"))
    assert ask(script(tmp_path, "echo two")).help == "two\n"
    assert len(calls(tmp_path)) == 4


def test_an_upgraded_package_is_asked_again_though_its_script_is_the_same(tmp_path: Path) -> None:
    program = script(tmp_path, "echo one")
    packages = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    (packages / "engine-1.0.dist-info").mkdir(parents=True)
    ask(program)
    ask(program)
    assert len(calls(tmp_path)) == 2
    (packages / "engine-1.0.dist-info").rename(packages / "engine-1.1.dist-info")
    ask(program)
    assert len(calls(tmp_path)) == 4


def test_a_binary_is_asked_for_its_version_each_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its libraries may be others while the file is the same."""
    program = script(tmp_path, "echo one")
    monkeypatch.setattr(helpcache, "_is_python", lambda path: False)
    ask(program)
    ask(program)
    assert calls(tmp_path) == ["--version", "--help", "--version"]
    (tmp_path / "env" / "bin" / "engine").write_text(f"#!/bin/sh\necho \"$1\" >> '{tmp_path}/calls'\necho two\n")
    assert ask(program).help == "two\n"


def test_a_version_that_cannot_be_had_is_empty(tmp_path: Path) -> None:
    program = script(tmp_path, '[ "$1" = --help ] && echo help')
    assert ask(program) == ProgramTexts(version="", help="help\n")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("echo no library; exit 127", "ended with exit code 127: no library"),
        ("kill -9 $$", "ended with exit code -9"),
    ],
)
def test_a_help_that_cannot_be_had_is_told(tmp_path: Path, cache: Path, body: str, says: str) -> None:
    with pytest.raises(ProgramError, match=says):
        ask(script(tmp_path, body))
    assert not cache.exists()


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="cannot be read"):
        ask(str(tmp_path / "nothing"))
    with pytest.raises(ProgramError, match="cannot run"):
        ask(script(tmp_path, "true", first="#!/nowhere/sh"))


def test_one_that_hangs_is_ended_with_all_it_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(helpcache, "_SECONDS", 0.5)
    program = script(tmp_path, f"sleep 300 & echo $! > '{tmp_path}/child'; wait")
    with pytest.raises(ProgramError, match=r"printed nothing whole in 0\.5 s"):
        ask(program)
    pids = pids_in(tmp_path / "child")
    assert len(pids) == 1
    # A process that was killed takes a moment to go.
    wait_for(lambda: gone(pids), "the child of the program to end")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": "1"}'])
def test_a_damaged_cache_is_written_anew(tmp_path: Path, cache: Path, content: str) -> None:
    program = script(tmp_path, "echo one")
    ask(program)
    (kept,) = cache.iterdir()
    kept.write_text(content)
    assert ask(program).help == "one\n"
    assert len(calls(tmp_path)) == 4
    assert '"help": "one\\n"' in kept.read_text()


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path: Path, cache: Path) -> None:
    program = script(tmp_path, "echo one")
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be")
    assert ask(program).help == ask(program).help == "one\n"
    assert len(calls(tmp_path)) == 4
