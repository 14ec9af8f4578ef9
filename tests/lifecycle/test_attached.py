"""A server that was there before: found, asked, and left as it was."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_moegpu.backends.base import ChatRequest, EngineVersion, ServedModel
from pytest_moegpu.backends.openai import OpenAi
from pytest_moegpu.core.evidence import DeviceProcess, Evidence, Phase, Preflight, RequestKind
from pytest_moegpu.core.model import Gpu, Limits, Settings, Stack
from pytest_moegpu.errors import StartError, UserError
from pytest_moegpu.host.addresses import reach
from pytest_moegpu.host.control import free_port
from pytest_moegpu.session.attached import AttachedServer, processes_of
from pytest_moegpu.session.attachedfacts import attached_evidence, not_judged
from pytest_moegpu.session.attaching import Attachment, attach
from pytest_moegpu.session.serving import strangers
from tests.fakes.openai_server import Behaviour, serving
from tests.fakes.probe import GIB

KEY = "sk-attached-0123456789"


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOEGPU_API_KEY", raising=False)


def server_at(address: str, tmp_path: Path, model: str | None = None) -> AttachedServer:
    backend, found = attach(address, model, OpenAi())
    limits = Limits(request_seconds=10)
    return AttachedServer(backend, found, Settings(context=1024), limits, tmp_path / "logs/server.log")


def refused(address: str, model: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        attach(address, model, OpenAi())
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_server_is_found_asked_and_left_running(tmp_path: Path) -> None:
    with serving(Behaviour(version="0.32.0")) as address:
        server = server_at(address, tmp_path)
        spawned: list[int] = []
        server.start(spawned.append)
        assert spawned == [os.getpid()], "the listener is a thread of this very process"
        assert server.attachment.engine.version == "vLLM 0.32.0"
        assert (server.served.name, server.load_seconds, server.argv) == ("tiny", None, ())
        assert os.getpid() in server.tree
        record = server.chat(ChatRequest(prompt="What is the opposite of up?", max_tokens=32), RequestKind.ANSWER, "a")
        assert record.text == "The opposite of up is down. "
        report = server.stop()
        assert (report.exit_code, report.left, report.killed) == (None, (), ())
        assert server.stopped
        assert server.health_at_end() == ""
        assert "this run did not start the server" in server.log_path.read_text()


def test_the_trial_and_the_first_token_are_all_that_is_sent_before_the_workload(tmp_path: Path) -> None:
    behaviour = Behaviour()
    with serving(behaviour) as address:
        server_at(address, tmp_path).start()
    assert [body["max_tokens"] for body in behaviour.asked] == [4, 1]


def test_a_server_that_checks_every_field_is_asked_in_openais_words_alone() -> None:
    behaviour = Behaviour(strict=True)
    with serving(behaviour) as address:
        backend, _ = attach(address, None, OpenAi())
    assert isinstance(backend, OpenAi)
    assert not backend.extended
    assert "ignore_eos" not in behaviour.asked[0]


def test_whether_it_tells_what_came_from_its_cache_is_known_before_anything_is_measured() -> None:
    with serving(Behaviour()) as address:
        assert attach(address, None, OpenAi())[1].tells_cached
    with serving(Behaviour(cached=False)) as address:
        found = attach(address, None, OpenAi())[1]
    assert not found.tells_cached
    assert not_judged(found, tells_placement=False) == ("memory", "baseline", "offload", "prefill")
    assert not_judged(found, tells_placement=True) == ("memory", "baseline", "prefill")
    elsewhere = ("memory", "baseline", "offload", "preflight", "stability", "prefill")
    assert not_judged(replace(found, own=False), tells_placement=False) == elsewhere


def test_the_key_comes_from_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Behaviour(key=KEY)) as address:
        assert "HTTP 401: give the key in MOEGPU_API_KEY" in refused(address)
        monkeypatch.setenv("MOEGPU_API_KEY", "wrong")
        assert "HTTP 401: the key in MOEGPU_API_KEY is not one it takes" in refused(address)
        monkeypatch.setenv("MOEGPU_API_KEY", f"{KEY}\n")
        server = server_at(address, tmp_path)
        server.start()
        assert KEY not in repr(server.attachment)
        monkeypatch.setenv("MOEGPU_API_KEY", "two words")
        assert refused(address).startswith("MOEGPU_API_KEY: a key is printable ASCII")


def test_a_key_that_the_server_repeats_is_in_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behaviour = Behaviour(key=KEY, echoes=True)
    monkeypatch.setenv("MOEGPU_API_KEY", KEY)
    with serving(behaviour) as address:
        server = server_at(address, tmp_path)
        behaviour.key = "another by now"
        with pytest.raises(StartError) as caught:
            server.start()
        record = server.chat(ChatRequest(prompt="q", max_tokens=1), RequestKind.ANSWER, "a")
    assert "Incorrect API key provided: <MOEGPU_API_KEY>" in caught.value.failure.cause
    assert record.error is not None
    assert KEY not in record.error


def test_models_are_chosen_by_name() -> None:
    with serving(Behaviour(models=("small", "large"))) as address:
        assert refused(address) == f"{address} serves several models: choose one with --moegpu-model=NAME: small, large"
        assert f"--moegpu-model=lage: {address} does not serve it (did you mean 'large'?)" in refused(address, "lage")
        assert attach(address, "large", OpenAi())[1].model == "large"
    with serving(Behaviour(models=None)) as address:
        assert "lists no model at /v1/models: name the one to ask for" in refused(address)
        found = attach(address, "unlisted", OpenAi())[1]
        assert (found.model, found.listed) == ("unlisted", False)
    with serving(Behaviour(models=("tiny:latest",))) as address:
        assert attach(address, "tiny", OpenAi())[1].model == "tiny:latest"


def test_only_the_model_asked_for_is_confirmed(tmp_path: Path) -> None:
    behaviour = Behaviour(models=("small", "large"))
    with serving(behaviour) as address:
        server = server_at(address, tmp_path, "large")
        server.start()
        assert server.served.name == "large"
        behaviour.models = ("small",)
        assert server.ask_model() == ""
        assert server.served == ServedModel()


def test_a_server_without_a_health_path_is_watched_by_its_models(tmp_path: Path) -> None:
    behaviour = Behaviour(health=404)
    with serving(behaviour) as address:
        server = server_at(address, tmp_path)
        server.start()
        assert server.health_at_end() == ""
        behaviour.models = None
        assert server.health_at_end() == "/v1/models says HTTP 404"
    assert server.health_at_end() == "/v1/models does not answer"


def test_a_server_with_neither_is_only_asked(tmp_path: Path) -> None:
    with serving(Behaviour(health=404, models=None)) as address:
        server = server_at(address, tmp_path, "unlisted")
        server.start()
        assert server.health_at_end() == ""


def test_a_server_that_is_not_well_is_the_first_cause(tmp_path: Path) -> None:
    behaviour = Behaviour()
    with serving(behaviour) as address:
        server = server_at(address, tmp_path)
        behaviour.health = 503
        with pytest.raises(StartError) as caught:
            server.start()
        assert caught.value.failure.phase is Phase.READY
        assert caught.value.failure.cause == f"attached to {address}: health says loading"
        behaviour.health, behaviour.broken = 200, "EngineCore encountered an issue"
        with pytest.raises(StartError, match="it does not generate: EngineCore encountered an issue"):
            server.start()


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (Behaviour(stream=False), "/v1/chat/completions does not stream: without the time of each token"),
        (Behaviour(usage=False), "its streams carry no usage (stream_options.include_usage)"),
        (Behaviour(chat=False), "it has no /v1/chat/completions, or not the model: HTTP 404"),
        (Behaviour(broken="EngineCore encountered an issue"), "it does not answer: EngineCore encountered an issue"),
    ],
)
def test_half_of_the_api_is_refused_in_one_message(behaviour: Behaviour, words: str) -> None:
    with serving(behaviour) as address:
        message = refused(address)
    assert message.startswith(f"--moegpu-attach={address}: ")
    assert words in message


def test_addresses_that_nobody_answers() -> None:
    port = free_port()
    assert f"nobody listens on port {port} of 127.0.0.1" in refused(f"http://127.0.0.1:{port}")
    assert "the name 'no-such-host.invalid' cannot be resolved" in refused("http://no-such-host.invalid:1")


@contextmanager
def speaking(words: bytes) -> Iterator[int]:
    """Something that listens, says a few words whatever it is told, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                connection, _ = listening.accept()
                with connection:
                    connection.sendall(words)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            over.set()
            socket.create_connection(listening.getsockname()).close()
            thread.join()


def test_an_address_that_is_not_http() -> None:
    with speaking(b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        assert "something listens there, but gave no HTTP answer" in refused(f"http://127.0.0.1:{port}")


def test_an_address_of_this_machine_is_known_as_one() -> None:
    with serving(Behaviour()) as address:
        port = int(address.rpartition(":")[2])
        assert reach("localhost", port).own
        assert reach("127.0.0.1", port).ip == "127.0.0.1"


def test_a_server_that_dies_is_known_to_be_gone(tmp_path: Path) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        found = Attachment(
            host="127.0.0.1",
            port=1,
            ip="127.0.0.1",
            own=True,
            api_key="k",
            model="m",
            engine=EngineVersion(),
            pid=sleeper.pid,
        )
        server = AttachedServer(OpenAi(), found, Settings(context=64), Limits(), tmp_path / "server.log")
        lived = server.alive
        assert server.tree == {sleeper.pid}
    finally:
        sleeper.send_signal(signal.SIGKILL)
        sleeper.wait()
    assert (lived, server.alive) == (True, False)
    assert server.death() == f"the attached server (pid {sleeper.pid}) is gone; its own log says why"
    assert server.tree == {sleeper.pid}, "what was once seen stays its own"
    assert processes_of(None) == frozenset()


def attachment(**more: object) -> Attachment:
    found = Attachment(
        host="127.0.0.1",
        port=8000,
        ip="127.0.0.1",
        own=True,
        api_key="k",
        model="m",
        engine=EngineVersion(),
        pid=os.getpid(),
    )
    return replace(found, **more)  # type: ignore[arg-type]


def evidence(*processes: DeviceProcess, idle: int | None) -> Evidence:
    return Evidence(
        profile="h200",
        scenario="s",
        backend="openai",
        gpus=(Gpu(index=0, name="NVIDIA H200", memory_bytes=140 * GIB),),
        stack=Stack(driver="580", kernel="6.1", program="abc"),
        identity={
            "settings.kv_cache": "f16",
            "settings.context": "2048",
            "gpu.name": "NVIDIA H200",
            "environment": "x",
        },
        preflight=Preflight(idle_bytes=idle, free_bytes=GIB, processes=processes),
    )


OURS = DeviceProcess(pid=os.getpid(), device=0, name="vllm", used_bytes=20 * GIB)
OTHER = DeviceProcess(pid=1, device=0, name="other", used_bytes=GIB)


def test_the_device_before_the_run_is_that_without_the_server() -> None:
    told = attached_evidence(evidence(OURS, OTHER, idle=22 * GIB), attachment())
    assert told.attached == "http://127.0.0.1:8000"
    assert (told.preflight.processes, told.preflight.idle_bytes) == ((OTHER,), 2 * GIB)
    unknown = attached_evidence(evidence(replace(OURS, used_bytes=None), idle=22 * GIB), attachment())
    assert unknown.preflight.idle_bytes is None


def test_nobody_on_the_device_is_accused_while_the_server_is_not_seen_there() -> None:
    told = attached_evidence(evidence(OTHER, idle=2 * GIB), attachment(pid=None))
    assert told.preflight.processes == ()
    assert told.preflight.notes[0].startswith("processes of the attached server are not seen on the device")


def test_settings_of_the_server_are_not_known_and_never_equal_to_those_of_a_started_one() -> None:
    identity = attached_evidence(evidence(OURS, idle=GIB), attachment()).identity
    assert identity == {
        "attached": "this machine",
        "environment": "not known: attached",
        "gpu.name": "NVIDIA H200",
        "settings.context": "2048",
        "settings.kv_cache": "not known: attached",
    }


def test_nothing_of_this_machine_is_said_about_a_server_elsewhere() -> None:
    told = attached_evidence(evidence(OURS, idle=GIB), attachment(own=False, pid=None))
    assert (told.gpus, told.preflight, told.stack) == ((), Preflight(), Stack())
    assert told.identity["gpu.name"] == "not known: another machine"
    assert told.identity["attached"] == "another machine"


def test_beside_an_attached_server_strangers_are_those_it_does_not_hold(tmp_path: Path) -> None:
    server = AttachedServer(OpenAi(), attachment(), Settings(context=64), Limits(), tmp_path / "server.log")
    assert strangers((OURS, OTHER), server) == (OTHER,)
    assert strangers((OTHER,), server) == (), "it may be the server, behind a proxy or in a container"
