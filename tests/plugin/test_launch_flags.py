"""Flags of the user's own are held against what the program says it has, before anything is started."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import docker as fake
from tests.fakes.docker import IMAGE, VARIABLE, Docker
from tests.fakes.openai_server import Behaviour, serving
from tests.fakes.project import Project, usage_error

HELP = Path(__file__).parents[1] / "data" / "help" / "llama-server.txt"
QUICK = ("--moegpu-starts=1", "--moegpu-level=1", "-k", "preflight")
UNREADABLE = "extra_flags are not checked"


def helpful(project: Project, answer: str) -> Path:
    """Put a shell command that answers --help in front of the fake server; returns where it counts its calls."""
    calls = project.pytester.path / "help-calls"
    calls.write_text("")
    real = project.program.rename(project.program.with_name("real-server"))
    project.program.write_text(
        f'#!/bin/sh\nif [ "$1" = --help ]; then echo x >> "{calls}"; {answer}; fi\nexec "{real}" "$@"\n'
    )
    project.program.chmod(0o755)
    return calls


def flags(project: Project, *words: str, name: str = "fake-1k") -> None:
    """Give a scenario flags of its own; one of another name is written beside it."""
    text = (project.catalog / "scenarios/fake-1k.toml").read_text()
    if name == "fake-1k":
        text = text.replace("context = 1024", f"context = 1024\nextra_flags = {json.dumps(words)}")
    else:
        text = text.replace('name = "fake-1k"', f'name = "{name}"')
    project.write(f"scenarios/{name}", text)


def asked(calls: Path) -> int:
    return len(calls.read_text().splitlines())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("--n-cpu-mo", "8"),
            "--n-cpu-mo 8: llamacpp 4242 (fake) has no such flag; write --n-cpu-moe 8",
        ),
        (
            ("--cache-type-k", "q8_O"),
            "--cache-type-k q8_O: llamacpp 4242 (fake) has no value 'q8_O' for it (did you mean 'q8_0'?)",
        ),
        (
            ("--max-model-len", "6144"),
            "--max-model-len 6144: llamacpp 4242 (fake) has no such flag, it is one of vllm (context length in tokens)",
        ),
    ],
    ids=["typing-error", "value", "another-engine"],
)
def test_a_wrong_flag_ends_the_run_with_its_right_spelling(project: Project, words: tuple[str, ...], says: str) -> None:
    helpful(project, f'cat "{HELP}"; exit 0')
    flags(project, *words)
    usage_error(project.refuse(), f"scenario fake-1k: settings.extra_flags: {says}")
    assert not project.store.ids()


def test_right_flags_are_run_with_and_the_help_is_asked_for_once(project: Project) -> None:
    calls = helpful(project, f'cat "{HELP}"; exit 0')
    flags(project, "--no-warmup", "--batch-size", "512")
    flags(project, name="fake-too")
    for _ in range(2):
        result = project.run(*QUICK, "--moegpu-scenario=fake-1k", "--moegpu-scenario=fake-too")
        assert result.ret == 0, result.stdout.str()
        assert UNREADABLE not in result.stdout.str() + result.stderr.str()
    assert asked(calls) == 1
    argv = project.last_run().evidence[0].starts[0].argv
    assert argv[-3:] == ("--no-warmup", "--batch-size", "512")


@pytest.mark.parametrize("answer", ["exit 1", "echo usage: none; exit 0"], ids=["it-fails", "no-flags-in-it"])
def test_a_help_that_cannot_be_read_is_told_once_and_stops_nothing(project: Project, answer: str) -> None:
    calls = helpful(project, answer)
    flags(project, "--no-mapp")
    flags(project, name="fake-too")
    result = project.run(*QUICK, "--moegpu-scenario=fake-1k", "--moegpu-scenario=fake-too")
    assert result.ret == 0, result.stdout.str()
    said = result.stdout.str() + result.stderr.str()
    assert said.count(UNREADABLE) == 1
    assert asked(calls) == 1


def test_without_flags_of_its_own_no_help_is_asked_for(project: Project) -> None:
    calls = helpful(project, "exit 1")
    result = project.run(*QUICK)
    assert result.ret == 0, result.stdout.str()
    assert asked(calls) == 0


@pytest.fixture
def docker(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Docker]:
    state = project.pytester.path / "docker"
    monkeypatch.setenv(VARIABLE, str(state))
    with fake.running(state) as made:
        yield made


@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in has its socket below /proc")
def test_the_program_in_a_container_is_not_asked(project: Project, docker: Docker) -> None:
    calls = helpful(project, "exit 1")
    flags(project, "--no-mapp")
    runner = fake.install(project.pytester.path / "bin")
    path = project.catalog / "scenarios/fake-1k.toml"
    words = {"image": IMAGE, "runner": str(runner), "program": str(project.program), "flags": ["--env", "MOEGPU_FAKE"]}
    table = "\n".join(f"{key} = {json.dumps(value)}" for key, value in words.items())
    path.write_text(f"{path.read_text()}\n[container]\n{table}\n")
    result = project.run(*QUICK)
    assert result.ret == 0, result.stdout.str()
    assert UNREADABLE not in result.stdout.str() + result.stderr.str()
    assert asked(calls) == 0
    assert docker.containers() == []


def test_a_server_that_is_attached_to_is_not_asked(project: Project) -> None:
    calls = helpful(project, "exit 1")
    flags(project, "--no-mapp")
    with serving(Behaviour(version="0.32.0")) as address:
        result = project.run(*QUICK, f"--moegpu-attach={address}")
    assert result.ret == 0, result.stdout.str()
    assert UNREADABLE not in result.stdout.str() + result.stderr.str()
    assert asked(calls) == 0


@pytest.mark.parametrize(
    ("said", "written"),
    [
        (f'cat "{HELP}"', ("--load-mode", "none")),
        (f'sed "s/-lm,   --load-mode MODE/--mmap, --no-mmap      /" "{HELP}"', ("--no-mmap",)),
        ("false", ("--no-mmap",)),
    ],
    ids=["build-11434", "an-older-one", "not-known"],
)
def test_a_model_that_is_not_mapped_is_asked_for_as_the_build_spells_it(
    project: Project, said: str, written: tuple[str, ...]
) -> None:
    helpful(project, f"{said}; exit $?")
    text = (project.catalog / "scenarios/fake-1k.toml").read_text()
    project.write("scenarios/fake-1k", text.replace("context = 1024", "context = 1024\nmmap = false"))
    result = project.run(*QUICK)
    assert result.ret == 0, result.stdout.str()
    argv = project.last_run().evidence[0].starts[0].argv
    assert argv[-len(written) :] == written
