"""One server from launch to its end, against a server that misbehaves in every known way."""

from __future__ import annotations

import contextlib
import http.server
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_moegpu.backends.base import ChatRequest, ServedModel
from pytest_moegpu.backends.llamacpp import LlamaCpp
from pytest_moegpu.core.evidence import Phase, RequestKind, StartFailure
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, Limits, Settings
from pytest_moegpu.errors import MoegpuError, StartError
from pytest_moegpu.host import process as process_module
from pytest_moegpu.host.boundedlog import HEAD_BYTES, TAIL_BYTES
from pytest_moegpu.host.control import free_port
from pytest_moegpu.host.process import ServerProcess
from pytest_moegpu.session.chat import ChatClient
from pytest_moegpu.session.server import Server
from tests.fakes.llama_server import environment, install
from tests.fakes.waiting import gone, pids_in, wait_for

Make = Callable[..., Server]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Build servers of the fake; afterwards none of their processes may be left."""
    made: list[Server] = []

    def build(*, ready: float = 20.0, request: float = 10.0, port: int | None = None, **behaviour: object) -> Server:
        for name, value in environment(pids=str(tmp_path / "pids"), **behaviour).items():
            monkeypatch.setenv(name, value)
        spec = LaunchSpec(
            program=(str(install(tmp_path / "bin")),),
            model_path=str(tmp_path / "tiny.gguf"),
            model_name="tiny",
            settings=Settings(context=1024),
            host="127.0.0.1",
            port=port or free_port(),
            api_key="secret",
            device_kind=DeviceKind.CPU,
        )
        limits = Limits(ready_seconds=ready, request_seconds=request)
        made.append(Server(LlamaCpp(), spec, limits, tmp_path / "server.log"))
        return made[-1]

    yield build
    for server in made:
        server.stop()
    pids = pids_in(tmp_path / "pids")
    assert gone(pids), f"left behind: {pids}"


def failure(server: Server) -> StartFailure:
    with pytest.raises(StartError) as caught:
        server.start()
    assert caught.value.failure.log_path == str(server.log_path)
    return caught.value.failure


class Health(http.server.BaseHTTPRequestHandler):
    """Says that it is well, whatever it is asked."""

    def do_GET(self) -> None:
        body = b'{"status": "ok"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Mute(Health):
    """Holds the port, and closes every connection without a word."""

    def handle(self) -> None:
        self.close_connection = True


@contextmanager
def squatter(kind: type[Health]) -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_ready_means_alive_healthy_the_right_model_and_a_token(make: Make) -> None:
    server = make()
    spawned: list[int] = []
    server.start(spawned.append)
    assert spawned == [server.pid]
    assert server.alive
    assert server.load_seconds is not None
    assert (server.served.name, server.served.context, server.served.slots) == ("tiny", 1024, 1)
    assert server.pid in server.tree
    assert server.notes == []
    assert server.metrics() == {"prompt_tokens_total": 12.0}
    log = server.log_facts()
    assert set(log.model_bytes) == {"CPU_Mapped"}
    assert (log.slots, log.context) == (1, 1024)
    assert not log.fatal_lines
    record = server.chat(ChatRequest(prompt="Tell me of the sea.", max_tokens=8), RequestKind.THROUGHPUT, "sea")
    assert (record.error, record.output_tokens, record.finish_reason) == (None, 8, "length")
    assert (record.cached_tokens, len(record.gaps)) == (0, 7)
    report = server.stop()
    assert (report.exit_code, report.killed, report.left) == (0, (), ())
    assert server.stop() is report
    assert not server.alive


def test_the_key_is_not_on_the_command_line(make: Make) -> None:
    server = make()
    server.start()
    assert server.pid is not None
    assert b"secret" not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
    assert "secret" not in " ".join(server.argv)


@contextmanager
def time_of_death(pids: Path) -> Iterator[list[float]]:
    """Note when all processes written down so far are gone, as seen by another thread."""
    died: list[float] = []

    def watch() -> None:
        with contextlib.suppress(AssertionError):
            wait_for(lambda: bool(found := pids_in(pids)) and gone(found[:1]), "the death")
        died.append(time.monotonic())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield died
    finally:
        watcher.join()


def test_exits_at_once(make: Make, tmp_path: Path) -> None:
    server = make(exit_at_once={"code": 1, "lines": ["error loading model: a tensor is missing", "bye"]})
    with time_of_death(tmp_path / "pids") as died:
        found = failure(server)
        told = time.monotonic()
    assert (found.phase, found.exit_code) == (Phase.LAUNCH, 1)
    assert "exit code 1" in found.cause
    assert found.log_tail == ("error loading model: a tensor is missing", "bye")
    # The promise is 1 s after the fact; 3 s, because two shared cores may keep this process itself from running.
    assert told - died[0] < 3


def test_an_answer_that_hangs_does_not_delay_the_notice_of_a_death(make: Make, tmp_path: Path) -> None:
    # The connection is also held by a worker that ignores TERM, so the death alone does not close it.
    server = make(hang_health=True, ignore_term=True, exit_after=1.0, last_words=["CUDA error: out of memory"])
    with time_of_death(tmp_path / "pids") as died:
        found = failure(server)
        told = time.monotonic()
    assert (found.exit_code, found.kind) == (7, "out-of-memory")
    assert told - died[0] < 3


def test_an_answer_that_hangs_does_not_delay_the_deadline(make: Make) -> None:
    found = failure(make(ready=1.0, hang_health=True))
    assert found.cause == "not ready after 1 s; last state: no answer on the port"


def test_exits_while_loading(make: Make) -> None:
    found = failure(make(never_ready=True, exit_after=0.5))
    assert (found.phase, found.exit_code) == (Phase.LOAD, 7)
    assert found.log_tail[-1] == "fake: leaving as told"


@pytest.mark.parametrize(
    ("behaviour", "state"),
    [({"never_bind": True}, "no answer on the port"), ({"never_ready": True}, "still loading")],
    ids=["never-binds", "never-ready"],
)
def test_deadline_names_the_last_state(make: Make, behaviour: dict[str, object], state: str) -> None:
    # Long enough for the fake to come up on a busy machine, where that matters to the state.
    found = failure(make(ready=2.0, **behaviour))
    assert found.phase is Phase.LOAD
    assert found.cause == f"not ready after 2 s; last state: {state}"
    assert found.exit_code is None


def test_healthy_but_generates_nothing(make: Make) -> None:
    found = failure(make(hang_generation=True, request=0.5))
    assert found.phase is Phase.READY
    assert "healthy, but it does not generate" in found.cause
    assert found.state == "health 200"


@pytest.mark.parametrize(
    ("behaviour", "note"),
    [
        ({"textless": True}, "the first token has no text: it opens a channel or a thought, or is one of control"),
        ({"ends_at_once": True}, "the first answer was empty: the model ended it at once"),
        ({}, ""),
    ],
)
def test_a_first_token_without_text_is_one_all_the_same(make: Make, behaviour: dict[str, object], note: str) -> None:
    server = make(**behaviour)
    try:
        server.start()
        assert server.notes == ([note] if note else [])
    finally:
        server.stop()


def test_ready_for_another_model(make: Make) -> None:
    found = failure(make(wrong_model="other-7b"))
    assert found.phase is Phase.READY
    assert found.cause == "ready for another model: serves 'other-7b', wanted 'tiny'"


def test_a_squatter_that_says_it_is_well_is_named(make: Make) -> None:
    with squatter(Health) as port:
        found = failure(make(port=port, never_bind=True))
    assert found.phase is Phase.READY
    assert f"port {port} is held by pid {os.getpid()} (" in found.cause
    assert "which this run did not start" in found.cause


def test_a_port_that_is_taken_by_something_else(make: Make) -> None:
    with squatter(Mute) as port:
        found = failure(make(port=port))
    assert found.exit_code == 1
    assert "couldn't bind HTTP server socket" in found.cause


def test_out_of_memory_while_loading(make: Make) -> None:
    line = "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 900.00 MiB: cudaMalloc failed: out of memory"
    found = failure(make(exit_at_once={"code": 1, "lines": [line, "exiting due to model loading error"]}))
    assert found.out_of_memory
    assert found.cause == f"out of memory (exit code 1): {line}"


@pytest.mark.parametrize(
    ("line", "kind", "cause"),
    [
        (
            "CUDA error: no kernel image is available for execution on the device",
            "no-kernel-image",
            "the engine was built for another GPU",
        ),
        (
            "CUDA error: CUDA driver version is insufficient for CUDA runtime version",
            "driver-too-old",
            "the driver is too old for the engine's CUDA toolkit",
        ),
        (
            "llama-server: error while loading shared libraries: libcudart.so.13: cannot open shared object file",
            "missing-library",
            "a shared library is missing",
        ),
        (
            "llama-server: symbol lookup error: libggml.so: undefined symbol: ggml_new",
            "missing-symbol",
            "a shared library does not fit the engine",
        ),
        (
            "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            "device-busy",
            "the GPU is busy or not available",
        ),
        ("ggml_cuda_init: failed: no CUDA-capable device is detected", "no-device", "no GPU was found"),
        (
            "CUDA error: an illegal memory access was encountered",
            "illegal-memory-access",
            "illegal memory access on the GPU",
        ),
        (
            "CUDA error: uncorrectable ECC error encountered",
            "uncorrectable-ecc",
            "uncorrectable memory error of the GPU (ECC)",
        ),
        ("GPU 0: GPU is lost.  Reboot the system to recover", "gpu-lost", "the GPU is lost"),
    ],
)
@pytest.mark.parametrize("loading", [False, True], ids=["at-once", "while-loading"])
def test_a_fault_that_the_log_names(make: Make, line: str, kind: str, cause: str, loading: bool) -> None:
    lines = ["loading", line, "exiting due to model loading error"]
    if loading:
        found = failure(make(never_ready=True, exit_after=0.5, last_words=lines))
    else:
        found = failure(make(exit_at_once={"code": 7, "lines": lines}))
    assert found.cause == f"{cause} (exit code 7): {line}"
    assert (found.kind, found.exit_code, found.out_of_memory) == (kind, 7, False)
    assert found.log_tail[-3:] == tuple(lines)


def test_a_fault_of_a_server_that_never_gets_ready_comes_before_the_deadline(make: Make) -> None:
    line = "(EngineCore pid=7) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    found = failure(make(ready=1.0, never_ready=True, log=[line], flood=2**20))
    assert found.cause == f"out of memory (not ready after 1 s; last state: still loading): {line}"
    assert (found.phase, found.kind, found.out_of_memory) == (Phase.LOAD, "out-of-memory", True)


def test_a_fault_of_a_server_that_generates_nothing(make: Make) -> None:
    line = "CUDA error: an illegal memory access was encountered"
    found = failure(make(hang_generation=True, request=0.5, log=[line]))
    assert found.cause.startswith("illegal memory access on the GPU (healthy, but it does not generate: ")
    assert (found.kind, found.state) == ("illegal-memory-access", "health 200")


def test_a_fault_that_the_server_survived_is_not_named(make: Make) -> None:
    line = "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 900.00 MiB: cudaMalloc failed: out of memory"
    found = failure(make(wrong_model="other-7b", log=[line]))
    assert (found.kind, found.out_of_memory) == ("", False)
    assert found.cause.startswith("ready for another model")


def test_what_was_survived_while_loading_is_not_the_cause_of_a_later_death(make: Make) -> None:
    line = "cudaMalloc failed: out of memory"
    server = make(log=[line], flood=100_000, die_mid_stream=2)
    server.start()
    server.chat(ChatRequest(prompt="Tell me of the sea.", max_tokens=5), RequestKind.THROUGHPUT, "sea")
    assert server.death() == "the server ended with exit code 3"
    found = server.failure(Phase.DECODE, server.death()).failure
    assert (found.kind, found.out_of_memory) == ("", False)
    assert server.log_facts().oom_lines == (line,)


def test_a_signal_that_ended_it_is_named(make: Make) -> None:
    server = make()
    server.start()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSEGV)
    wait_for(lambda: not server.alive, "the notice of its death")
    assert server.death() == "the server ended with signal 11 (SIGSEGV)"


def test_dies_in_the_middle_of_an_answer(make: Make) -> None:
    server = make(die_mid_stream=3)
    server.start()
    record = server.chat(ChatRequest(prompt="Tell me of the sea.", max_tokens=20), RequestKind.THROUGHPUT, "sea")
    assert record.error is not None
    assert "connection closed" in record.error
    assert len(record.text.split()) == 3
    assert record.finish_reason is None
    assert not server.alive, "whoever asks next must know that it is dead"
    assert "exit code 3" in server.death()


def test_a_request_past_the_context_keeps_the_servers_words(make: Make) -> None:
    server = make()
    server.start()
    record = server.chat(ChatRequest(prompt="word " * 1000, max_tokens=8), RequestKind.CONTEXT, "long")
    assert record.status == 400
    assert "exceeds the available context size" in (record.error or "")


@pytest.mark.parametrize("behaviour", [{}, {"ignore_term": True}], ids=["polite", "ignores-term"])
def test_after_stop_nothing_is_left(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: dict[str, object]
) -> None:
    if behaviour:
        # Nothing is gained by waiting for one that never goes.
        monkeypatch.setattr(ServerProcess.stop, "__defaults__", (0.5,))
    server = make(setsid_worker=True, **behaviour)
    server.start()
    pids = pids_in(tmp_path / "pids")
    assert len(pids) == 2
    assert set(pids) <= server.tree
    report = server.stop()
    assert report.left == ()
    assert bool(report.killed) == bool(behaviour)
    assert gone(pids)


def test_a_log_of_noise_is_read_all_the_same(make: Make) -> None:
    server = make(noise=True)
    server.start()
    assert set(server.log_facts().model_bytes) == {"CPU_Mapped"}
    assert "listening" in server.failure(Phase.READY, "none").failure.log_tail[-1]


def test_a_log_that_grows_without_end_neither_blocks_nor_hides_the_death(make: Make) -> None:
    server = make(flood=20 * 2**20, die_mid_stream=2)
    server.start()
    assert server.log_path.stat().st_size < HEAD_BYTES + 2 * TAIL_BYTES
    assert "bytes of the log are left out here" in server.log_path.read_text()
    facts = server.log_facts()
    assert (set(facts.model_bytes), facts.slots) == ({"CPU_Mapped"}, 1), "what was printed behind the flood"
    server.chat(ChatRequest(prompt="Tell me of the sea.", max_tokens=5), RequestKind.THROUGHPUT, "sea")
    wait_for(lambda: not server.alive, "the notice of its death")
    assert "terminate called" in server.failure(Phase.DECODE, server.death()).failure.log_tail[-1]


def test_a_log_is_bounded_while_it_is_flooded_and_while_the_server_is_stopped(make: Make) -> None:
    server = make(flood_for_ever=True, log=["the first line"])
    server.start()
    most = HEAD_BYTES + 2 * TAIL_BYTES
    wait_for(lambda: "left out here" in server.log_path.read_text("utf-8", "replace"), "a first compaction")
    sizes = []
    for _ in range(50):
        sizes.append(server.log_path.stat().st_size)
        time.sleep(0.002)
    assert HEAD_BYTES + TAIL_BYTES - 4096 < max(sizes) <= most
    report = server.stop()
    assert (report.exit_code, report.killed, report.left) == (0, (), ())
    assert server.log_path.stat().st_size < most
    assert server.log_path.read_text().startswith("the first line\n")


def test_where_only_a_process_group_can_be_ended_the_evidence_says_so(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = tmp_path / "changed.py"
    changed.write_text(
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('supervisor', {str(process_module._SUPERVISOR)!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "module.proctree.LINUX = False\n"
        "sys.exit(module.main())\n"
    )
    monkeypatch.setattr(process_module, "_SUPERVISOR", changed)
    server = make()
    server.start()
    assert server.notes == [
        "this system has no child subreaper: only the server's process group can be ended, "
        "and what bears this run's mark"
    ]


def test_stop_before_start(make: Make) -> None:
    assert make().stop().exit_code is None


def test_props_of_an_unknown_form_say_nothing(make: Make) -> None:
    server = make(props=["a list"])
    server.start()
    assert server.served == ServedModel()


def test_an_answer_nobody_foresaw_is_a_first_cause_with_its_phase(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: LlamaCpp, _body: object) -> ServedModel:
        raise AttributeError("'list' object has no attribute 'get'")

    monkeypatch.setattr(LlamaCpp, "read_props", broken)
    found = failure(make())
    assert found.phase is Phase.READY
    assert "unforeseen AttributeError: 'list' object has no attribute 'get' (at test_server.py:" in found.cause


def test_a_log_nobody_foresaw_does_not_hide_the_failure(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: LlamaCpp, _text: str) -> None:
        raise ValueError("could not convert string to float")

    monkeypatch.setattr(LlamaCpp, "read_log", broken)
    server = make(exit_at_once={"code": 1, "lines": ["error: none of ours"]})
    found = failure(server)
    assert (found.phase, found.cause) == (Phase.LAUNCH, "the server ended with exit code 1")
    assert len(server.notes) == 1
    assert server.notes[0].startswith("the log could not be read: unforeseen ValueError")


def test_a_client_of_a_server_that_was_stopped_says_why(make: Make) -> None:
    server = make()
    server.start()
    client = ChatClient(server)
    assert client("Tell me of the sea.", max_tokens=3).text
    server.stop()
    with pytest.raises(MoegpuError, match="no longer running: a measurement or another scenario needed the device"):
        client("Tell me of the sea.")


def test_a_client_of_a_server_that_died_says_how(make: Make) -> None:
    server = make(exit_after=1.0)
    server.start()
    wait_for(lambda: not server.alive, "its death")
    with pytest.raises(MoegpuError, match=r"no longer running: the server ended with exit code 7 \(log: "):
        ChatClient(server)("Tell me of the sea.")
