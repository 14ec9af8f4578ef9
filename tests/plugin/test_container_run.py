"""A run whose server is in a container, from the catalog to the bundle; and what is left when pytest is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_moegpu.core.model import Container
from tests.fakes import docker as fake
from tests.fakes.docker import DIGEST, IMAGE, VARIABLE, Docker
from tests.fakes.project import Project, usage_error
from tests.fakes.waiting import gone, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in has its socket below /proc")

FLAGS = ("--env", "MOEGPU_FAKE", "--shm-size=1g")
CONTAINER = """
[container]
image = {image}
runner = {runner}
program = {program}
flags = {flags}
"""
EMBEDDED = """
schema = 1
name = "boxed-2k"
title = "Embedded, in a container"
extends = "embedded-2k"
"""


@pytest.fixture
def docker(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Docker]:
    """A daemon, which must have no container left at the end."""
    state = project.pytester.path / "docker"
    monkeypatch.setenv(VARIABLE, str(state))
    with fake.running(state) as made:
        yield made
        made.behave()
        assert made.containers() == []


def box(project: Project, scenario: str, text: str, program: str, flags: tuple[str, ...] = FLAGS) -> Path:
    """Write a scenario with a container; returns the runner."""
    runner = fake.install(project.pytester.path / "bin")
    words = {"image": IMAGE, "runner": str(runner), "program": program, "flags": list(flags)}
    project.write(f"scenarios/{scenario}", text + CONTAINER.format(**{k: json.dumps(v) for k, v in words.items()}))
    return runner


def boxed_fake(project: Project) -> Path:
    text = (project.catalog / "scenarios/fake-1k.toml").read_text()
    return box(project, "fake-1k", text, str(project.program))


def test_a_good_run(project: Project, docker: Docker) -> None:
    runner = boxed_fake(project)
    result = project.measure("--moegpu-starts=2", token_seconds=0.006, version="1.0 (in the image)")
    assert result.ret == 0, result.stdout.str()
    result.assert_outcomes(passed=10, skipped=5)
    record = project.last_run()
    (evidence,) = record.evidence
    container = record.scenarios[0].container
    assert container is not None
    assert replace(container, digest="") == Container(
        image=IMAGE, runner=(str(runner),), program=(str(project.program),), flags=FLAGS
    )
    assert evidence.stack.image == DIGEST
    assert evidence.stack.program is None
    assert evidence.identity["os.class"] == "container"
    assert evidence.identity["container.flags"] == "--env MOEGPU_FAKE --shm-size=1g"
    assert not [field for field in evidence.identity if "image" in field]
    assert evidence.noted["container.image"] == IMAGE
    for start in evidence.starts:
        assert start.argv[:3] == (str(runner), "run", "--rm")
        assert start.exit_code == 0
        assert start.pid in start.pids
        # The server's memory, and not that of the command that started the container.
        assert {process.pid for process in start.processes} <= set(start.pids)
        assert start.peak_bytes is not None
        assert start.peak_bytes > 0
    assert docker.containers() == []


@pytest.mark.alone
def test_the_real_embedded_server_in_a_container(
    project: Project, docker: Docker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOEGPU_CACHE")
    box(project, "boxed-2k", EMBEDDED, f"{sys.executable} -m pytest_moegpu.host.embedded_server", ())
    args = ("--moegpu-scenario=boxed-2k", "--moegpu-starts=1", "--moegpu-level=1")
    result = project.run(*args, profile="embedded")
    assert result.ret == 0, result.stdout.str()
    (evidence,) = project.last_run().evidence
    (start,) = evidence.starts
    assert evidence.stack.image == DIGEST
    assert evidence.stack.engine_version is not None
    assert evidence.stack.engine_version.endswith("(xllamacpp)")
    assert (start.failure, start.exit_code, start.served_context) == (None, 0, 2048)
    assert start.peak_bytes is not None
    assert start.peak_bytes > 90 * 2**20
    assert docker.containers() == []


def test_pytest_is_killed_in_the_middle_of_a_run(project: Project, docker: Docker) -> None:
    boxed_fake(project)
    project.monkeypatch.setenv("MOEGPU_FAKE", json.dumps({"token_seconds": 0.5}))
    argv = [sys.executable, "-m", "pytest", "--moegpu=fake", "-p", "no:cacheprovider"]
    with subprocess.Popen(argv, cwd=project.pytester.path, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: any("--publish" in call for call in docker.calls("run")), "the server", 60)
        wait_for(lambda: bool(docker.containers()), "the container")
        process.kill()
        process.wait()
    wait_for(lambda: docker.containers() == [], "the end of the container", 40)
    assert gone([process.pid])


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ({"images": {}}, "fetch it with `docker pull example/server:1`; nothing is fetched in a run"),
        ({"down": True}, "the docker daemon does not run: start it"),
        ({"denied": True}, "you may not use docker here: join the group `docker`, or write `sudo docker`"),
    ],
)
def test_what_is_wrong_with_docker_is_told_and_nothing_is_started(
    behaviour: dict[str, object], words: str, project: Project, docker: Docker
) -> None:
    boxed_fake(project)
    docker.behave(**behaviour)
    result = project.run("--moegpu-starts=1", "--moegpu-level=1")
    assert result.ret != 0
    assert words in result.stdout.str() + result.stderr.str()
    assert docker.calls("run") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[container]\nimage = "i"\nrunner = "lxc"\n', ("container.runner: 'lxc' is not known",)),
        ('[container]\nimage = "i"\nrunner = "docker \'"\n', ("container.runner", "is not a command")),
        ('[container]\nrunner = "docker"\n', ("container.image", "required")),
        ('[container]\nimage = "i"\ngpus = "all"\n', ("container.gpus: unknown key", "image, runner, program, flags")),
    ],
)
def test_a_container_that_cannot_be_read(text: str, words: tuple[str, ...], project: Project) -> None:
    path = project.catalog / "scenarios/fake-1k.toml"
    path.write_text(f"{path.read_text()}\n{text}")
    usage_error(project.refuse(), str(path), *words)
