"""A server in a container, which is a child of the runner's daemon: whatever happens, the container is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from pytest_moegpu.backends.base import ChatRequest
from pytest_moegpu.backends.llamacpp import LlamaCpp
from pytest_moegpu.core import container as container_module
from pytest_moegpu.core.evidence import RequestKind
from pytest_moegpu.core.model import Container, DeviceKind, LaunchSpec, Limits, Settings
from pytest_moegpu.errors import ProgramError, StartError, UserError
from pytest_moegpu.host import ending
from pytest_moegpu.host.container import once, prepare
from pytest_moegpu.host.control import free_port
from pytest_moegpu.session.contained import examine
from pytest_moegpu.session.server import Server, new_container_name
from tests.fakes import docker as fake
from tests.fakes.docker import DIGEST, IMAGE, VARIABLE, Docker
from tests.fakes.llama_server import environment, install
from tests.fakes.waiting import gone, pids_in, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in has its socket below /proc")

Make = Callable[..., Server]

# A stand-in for pytest: starts a server in a container, says so, and waits to be killed.
PARENT = """
import sys, threading
from pathlib import Path
from pytest_moegpu.backends.llamacpp import LlamaCpp
from pytest_moegpu.core.model import Container, DeviceKind, LaunchSpec, Limits, Settings
from pytest_moegpu.session.server import Server

runner, program, model, port, log = sys.argv[1:]
spec = LaunchSpec(
    program=(), model_path=model, model_name="tiny", settings=Settings(context=1024), host="127.0.0.1", port=int(port),
    api_key="secret", device_kind=DeviceKind.CPU,
    container=Container(image="example/server:1", runner=(runner,), program=(program,), flags=("--env", "MOEGPU_FAKE")),
)
LlamaCpp.stop_seconds = 1.0
server = Server(LlamaCpp(), spec, Limits(ready_seconds=20.0), Path(log))
server.start()
print(server.pid, flush=True)
threading.Event().wait()
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Docker]:
    """A daemon; whatever a test did to it, no container may be left at the end."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "docker"))
    with fake.running(tmp_path / "docker") as made:
        yield made
        made.behave()
        assert made.containers() == []
        assert gone(pids_in(tmp_path / "pids"))


@pytest.fixture
def contained(tmp_path: Path) -> Container:
    return Container(
        image=IMAGE,
        runner=(str(fake.install(tmp_path / "bin")),),
        program=(str(install(tmp_path / "bin")),),
        flags=("--env", "MOEGPU_FAKE"),
    )


@pytest.fixture
def spec(tmp_path: Path, contained: Container) -> LaunchSpec:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    return LaunchSpec(
        program=("not-on-this-host",),
        model_path=str(tmp_path / "tiny.gguf"),
        model_name="tiny",
        settings=Settings(context=1024),
        host="127.0.0.1",
        port=free_port(),
        api_key="secret",
        device_kind=DeviceKind.CPU,
        container=contained,
    )


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: Docker, spec: LaunchSpec) -> Iterator[Make]:
    made: list[Server] = []

    def build(given: LaunchSpec = spec, **behaviour: object) -> Server:
        assert docker.containers() == []
        for name, value in environment(pids=str(tmp_path / "pids"), **behaviour).items():
            monkeypatch.setenv(name, value)
        made.append(
            Server(LlamaCpp(), given, Limits(ready_seconds=20.0, request_seconds=10.0), tmp_path / "server.log")
        )
        return made[-1]

    yield build
    for server in made:
        server.stop()


def cause(server: Server) -> str:
    with pytest.raises(StartError) as caught:
        server.start()
    return f"{caught.value.failure.phase}: {caught.value.failure.cause}"


def test_it_starts_answers_and_is_gone_after_the_stop(make: Make, docker: Docker, tmp_path: Path) -> None:
    server = make()
    spawned: list[int] = []
    server.start(spawned.append)
    assert len(docker.containers()) == 1
    assert spawned == [server.pid]
    assert pids_in(tmp_path / "pids") == [server.pid]
    assert server.pid in server.tree
    assert server.notes == []
    record = server.chat(ChatRequest(prompt="Tell me of the sea.", max_tokens=8), RequestKind.THROUGHPUT, "sea")
    assert (record.error, record.output_tokens) == (None, 8)
    assert set(server.log_facts().model_bytes) == {"CPU_Mapped"}
    report = server.stop()
    assert (report.exit_code, report.killed, report.left, report.unended, report.describe()) == (0, (), (), "", "")
    assert docker.containers() == []
    assert docker.calls("stop") == docker.calls("rm") == []


def test_what_the_container_is_told(make: Make, docker: Docker, spec: LaunchSpec) -> None:
    server = make()
    server.start()
    (call,) = docker.calls("run")
    assert "secret" not in " ".join([*call, *server.argv])
    assert call[call.index("--publish") + 1] == f"127.0.0.1:{spec.port}:{spec.port}"
    assert call[call.index("--mount") + 1] == f"type=bind,source={spec.model_path},target={spec.model_path},readonly"
    assert call[call.index("--host") + 1] == "0.0.0.0"
    assert spec.container is not None
    assert call[call.index(IMAGE) - 2 : call.index(IMAGE)] == ["--entrypoint", spec.container.program[0]]
    assert server.pid is not None
    assert psutil.Process(server.pid).environ()["LLAMA_API_KEY"] == "secret"
    assert "HOME" not in psutil.Process(server.pid).environ()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_pytest_is_killed(
    number: signal.Signals, docker: Docker, spec: LaunchSpec, contained: Container, tmp_path: Path
) -> None:
    argv = [sys.executable, "-c", PARENT, contained.runner[0], contained.program[0], spec.model_path, str(spec.port)]
    variables = os.environ | environment(pids=str(tmp_path / "pids"))
    with subprocess.Popen([*argv, str(tmp_path / "log")], env=variables, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert len(docker.containers()) == 1
        parent.send_signal(number)
        parent.wait()
    wait_for(lambda: not docker.containers(), "the end of the container")
    assert gone([pid])


def test_pytest_is_killed_and_the_server_ignores_term(
    docker: Docker, spec: LaunchSpec, contained: Container, tmp_path: Path
) -> None:
    argv = [sys.executable, "-c", PARENT, contained.runner[0], contained.program[0], spec.model_path, str(spec.port)]
    variables = os.environ | environment(pids=str(tmp_path / "pids"), ignore_term=True)
    with subprocess.Popen([*argv, str(tmp_path / "log")], env=variables, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    wait_for(lambda: not docker.containers(), "the end of the container", seconds=40)
    assert gone([pid])
    (stop,) = docker.calls("stop")
    assert stop[:3] == ["stop", "-t", "1"]


def test_the_supervisor_is_killed_and_its_watcher_ends_the_container(make: Make, docker: Docker) -> None:
    server = make()
    server.start()
    assert server._process is not None
    os.kill(server._process.supervisor_pid, signal.SIGKILL)
    wait_for(lambda: not docker.containers(), "the end of the container")
    assert server.stop().unended == ""


def test_supervisor_and_watcher_are_killed_and_stop_ends_the_container(make: Make, docker: Docker) -> None:
    server = make()
    server.start()
    assert server._process is not None
    supervisor = psutil.Process(server._process.supervisor_pid)
    watcher = supervisor.parent()
    assert watcher is not None
    # The watcher first: it would end everything at the death of the supervisor, which would do so at the watcher's.
    supervisor.suspend()
    watcher.kill()
    supervisor.kill()
    wait_for(lambda: not supervisor.is_running(), "the death of the supervisor")
    assert len(docker.containers()) == 1
    report = server.stop()
    assert (report.left, report.unended) == ((), "")
    assert docker.containers() == []


def test_the_client_is_killed_alone(make: Make, docker: Docker) -> None:
    server = make()
    server.start()
    assert server._process is not None
    assert server._process.pid is not None
    (identity,) = docker.containers()
    os.kill(server._process.pid, signal.SIGKILL)
    wait_for(lambda: not server.alive, "the notice of the death")
    assert server.death().startswith("the server ended with signal 9")
    assert server.stop().unended == ""
    assert docker.containers() == []
    assert docker.calls("stop") == [["stop", "-t", "10", identity]]


def test_a_server_that_ignores_term_is_killed_with_its_container(
    make: Make, docker: Docker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LlamaCpp, "stop_seconds", 1.0)
    server = make(ignore_term=True, setsid_worker=False)
    server.start()
    pid = server.pid
    report = server.stop()
    assert report.unended == ""
    assert pid is not None
    assert gone([pid])
    assert docker.containers() == []


def test_a_runner_that_hangs_is_told(make: Make, docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_module, "_RUNNER_SECONDS", 0.5)
    monkeypatch.setattr(container_module, "_REMOVE_SECONDS", 0.5)
    monkeypatch.setattr(LlamaCpp, "stop_seconds", 0.5)
    server = make(ignore_term=True)
    server.start()
    (identity,) = docker.containers()
    docker.behave(hang=["stop", "rm"])
    began = time.monotonic()
    report = server.stop()
    assert time.monotonic() - began < 15
    assert report.unended.startswith(f"container {identity[:12]} still exists: '")
    assert report.unended.endswith("docker rm --force': no answer within 0.5 s")
    assert report.left == (server.pid,)
    assert report.describe() == f"pid {server.pid}, {report.unended}"
    assert docker.containers() == [identity]
    docker.behave()
    subprocess.run([server._launch.argv[0], "rm", "--force", identity], check=True, capture_output=True)


def test_a_runner_that_says_it_removed_what_is_still_there(
    docker: Docker, contained: Container, monkeypatch: pytest.MonkeyPatch, spec: LaunchSpec
) -> None:
    monkeypatch.setattr(ending, "REMOVAL_SECONDS", 0.5)
    launch = container_module.wrap(spec, ("/bin/sleep", "60"), {}, name="moegpu-test")
    assert launch.end is not None
    with subprocess.Popen(launch.argv, env=os.environ | {"MOEGPU_FAKE": ""}) as client:
        wait_for(lambda: len(docker.containers()) == 1, "the container")
        (identity,) = docker.containers()
        docker.behave(stubborn=["stop", "rm"])
        order = asdict(launch.end)
        left = ending.end(order, os.environ)
        docker.behave()
        assert ending.end(order, os.environ) == ""
        client.wait(10)
    assert left == f"container {identity[:12]} still exists: no reason given"


@pytest.mark.parametrize("behaviour", [{"hang": ["ps"]}, {"down": True}])
def test_a_runner_that_does_not_say_what_runs(
    behaviour: dict[str, object], docker: Docker, spec: LaunchSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "LISTING_SECONDS", 0.3)
    launch = container_module.wrap(spec, ("/bin/true",), {}, name="moegpu-test")
    assert launch.end is not None
    docker.behave(**behaviour)
    left = ending.end(asdict(launch.end), os.environ)
    assert left.startswith("whether a container is left is not known: '")
    assert left.endswith(("no answer within 0.3 s", "Is the docker daemon running?"))


def test_the_image_is_missing_at_the_start(make: Make, docker: Docker) -> None:
    server = make()
    docker.behave(images={})
    assert cause(server).startswith(
        "launch: the image is not here: fetch it with `docker pull example/server:1`; nothing is fetched in a run "
        "(docker: Error response from daemon: No such image: example/server:1) (exit code 125)"
    )


def test_somebody_took_the_port(make: Make, docker: Docker) -> None:
    server = make()
    docker.behave(port_taken=True)
    said = cause(server)
    assert "port is already allocated" in said
    assert said.startswith("launch: somebody took the port in between: run it again")


def test_docker_cannot_give_a_gpu(make: Make, docker: Docker, spec: LaunchSpec) -> None:
    server = make(replace(spec, device_kind=DeviceKind.GPU, devices=("GPU-1111", "GPU-2222")))
    docker.behave(no_gpu=True)
    assert cause(server).startswith("launch: docker cannot give GPUs to containers: install nvidia-container-toolkit")
    (call,) = docker.calls("run")
    assert call[call.index("--gpus") + 1] == '"device=GPU-1111,GPU-2222"'
    assert call.count("CUDA_VISIBLE_DEVICES") == 1


def test_the_program_is_not_in_the_image(make: Make, docker: Docker, spec: LaunchSpec) -> None:
    assert spec.container is not None
    server = make(replace(spec, container=replace(spec.container, program=("no-such-server",))))
    said = cause(server)
    assert said.startswith("launch: the image has no such program on its PATH: give its path in `container.program`")
    assert said.endswith("(exit code 127)")
    assert docker.containers() == []


def test_the_exit_code_is_the_servers_own(make: Make, docker: Docker) -> None:
    server = make(exit_at_once={"code": 1, "lines": ["error: failed to load model"]})
    assert cause(server) == "launch: fatal error (exit code 1): error: failed to load model"
    assert docker.containers() == []


def test_the_image_is_examined_before_a_start(docker: Docker, spec: LaunchSpec, contained: Container) -> None:
    found = examine(LlamaCpp(), spec, new_container_name())
    assert found.container == replace(contained, digest=DIGEST)
    assert found.image == DIGEST
    assert found.engine.version == "4242 (fake)"
    (call,) = docker.calls("run")
    assert "--publish" not in call
    assert docker.calls("image") == [
        ["image", "inspect", "--format", "{{.Id}}{{range .RepoDigests}} {{.}}{{end}}", IMAGE]
    ]


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ({"images": {}}, "the image is not here: fetch it with `docker pull example/server:1`"),
        ({"down": True}, "the docker daemon does not run: start it"),
        ({"denied": True}, "you may not use docker here: join the group `docker`, or write `sudo docker`"),
    ],
)
def test_what_keeps_an_image_from_being_used(
    behaviour: dict[str, object], words: str, docker: Docker, contained: Container
) -> None:
    docker.behave(**behaviour)
    with pytest.raises(UserError, match=words) as caught:
        prepare(contained)
    assert str(caught.value).startswith(f"container.image {IMAGE} with '{contained.runner[0]}': ")


def test_a_runner_that_hangs_or_is_missing_is_told_before_a_start(
    docker: Docker, contained: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_moegpu.host.container._RUNNER_SECONDS", 0.3)
    docker.behave(hang=["image"])
    with pytest.raises(ProgramError, match=r"docker' does not work: no answer within 0\.3 s"):
        prepare(contained)
    with pytest.raises(ProgramError, match="'/nowhere/docker' is not on PATH: install it, or give its path"):
        prepare(replace(contained, runner=("/nowhere/docker",)))


def test_a_command_that_does_not_end_in_its_container_leaves_nothing(
    docker: Docker, spec: LaunchSpec, contained: Container
) -> None:
    launch = container_module.wrap(spec, ("/bin/sleep", "600"), {}, name="moegpu-test", grace=1.0)
    with pytest.raises(ProgramError, match=r"container\.image example/server:1: no answer within 0\.5 s$"):
        once(launch, contained, 0.5)
    assert docker.containers() == []
    assert [call[:3] for call in docker.calls("stop")] == [["stop", "-t", "1"]]


def test_a_pid_older_than_the_container_is_not_taken_for_its_process(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make()
    monkeypatch.setattr("pytest_moegpu.host.container._CLOCK_SECONDS", -3600.0)
    server.start()
    assert server.pid is None
    assert server.notes == ["the processes of the container are not seen from here: what they use is not known"]
    assert server.stop().unended == ""


def test_another_one_on_the_port_is_found_out(make: Make, docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    # The runner does not know the port, and the process that listens is none of the container's.
    monkeypatch.setattr("pytest_moegpu.host.container.ContainerProcess.publishes", lambda *_: False)
    monkeypatch.setattr("pytest_moegpu.host.container._CLOCK_SECONDS", -3600.0)
    server = make()
    assert "which this run did not start" in cause(server)
    server.stop()
    assert docker.containers() == []
