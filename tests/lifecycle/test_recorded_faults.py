"""Faults that real engines gave, replayed through a whole run: is the right thing said of each?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_moegpu.backends import get_backend
from pytest_moegpu.core.evidence import Phase, StartFailure
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from tests.fakes import recorded_server
from tests.fakes.project import Project, usage_error
from tests.fakes.recorded_server import Recording

ENGINES = Path(__file__).parent.parent / "data/engines"
RECORDINGS = sorted(ENGINES.glob("*/faults/*.txt"))
DIED = [
    path
    for path in RECORDINGS
    if "by itself" in (parts := Recording.read(path).parts)["exit code"] and "healthy" not in parts
]

PROFILE = """
schema = 1
name = "recorded"
title = "What was recorded of a real engine"
probe = "host"
backend = "{backend}"
program = {program}
model = "tiny"
model_path = {model}
scenarios = ["recorded"]

[gpu]
names = []
kind = "cpu"
memory = "64 MiB"

[limits]
ready = "20 s"
request = "10 s"
"""
SCENARIO = """
schema = 1
name = "recorded"
title = "Context {context}"

[settings]
context = {context}

[workload]
prompt_tokens = 64
output_tokens = 16
requests = 3
context_fills = [0.5, 0.95]
context_depths = [0.9]
context_output_tokens = 8
"""
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "vocab_size": 128,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
# vLLM 0.32.0 with a GGUF on a processor, whose kernels are for CUDA only: its engine dies of the first chat.
ENGINE_DIES = Recording.read(ENGINES / "vllm/faults/1-gguf-kills-the-engine.txt")

Replay = Callable[..., pytest.RunResult]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project.create(pytester, monkeypatch)


@pytest.fixture
def replay(project: Project) -> Replay:
    """Run the plugin against a recorded engine; what the recording does not say is that of its healthy run."""

    def run(backend: str, *args: str, context: int = 1024, **told: Any) -> pytest.RunResult:
        root = project.pytester.path
        model = root / "hf"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(CONFIG))
        (model / "model.safetensors").write_bytes(bytes(4096))
        program = recorded_server.install(root / "bin", get_backend(backend).program)
        if backend == "mlx":
            # The version is told by the command beside the server's.
            recorded_server.install(root / "bin", "mlx_lm")
        words = {"program": json.dumps(str(program)), "model": json.dumps(str(model)), "backend": backend}
        project.write("profiles/recorded", PROFILE.format(**words))
        project.write("scenarios/recorded", SCENARIO.format(context=context))
        healthy = {name: (ENGINES / backend / f"{name}.txt").read_text() for name in ("version", "help")}
        described = root / "recorded.json"
        described.write_text(json.dumps(healthy | told))
        project.monkeypatch.setenv(recorded_server.VARIABLE, str(described))
        return project.run("--moegpu-starts=1", *args, profile="recorded")

    return run


def failure(project: Project) -> StartFailure:
    (evidence,) = project.last_run().evidence
    assert evidence.failure is not None
    return evidence.failure


def verdicts(project: Project, check: str) -> list[Verdict]:
    return [verdict for verdict in project.last_run().verdicts if verdict.check == check]


def vllm_answers(context: int) -> dict[str, list[object]]:
    models = {"object": "list", "data": [{"id": "tiny", "root": "/models/hf", "max_model_len": context}]}
    return {"/health": [200, ""], "/v1/models": [200, json.dumps(models)]}


def test_there_are_recordings_of_every_engine_that_can_be_run() -> None:
    assert {path.parent.parent.name for path in RECORDINGS} >= {"vllm", "sglang", "fastllm", "mlx"}
    assert {path.name[0] for path in RECORDINGS} >= set("2345678")


@pytest.mark.parametrize("path", DIED, ids=lambda path: f"{path.parent.parent.name}-{path.stem}")
def test_a_program_that_ended_before_it_served_is_an_error_with_its_own_words(
    path: Path, project: Project, replay: Replay
) -> None:
    recording = Recording.read(path)
    result = replay(path.parent.parent.name, "--moegpu-level=1", log=recording.log, exit=recording.exit_code)
    assert result.ret == 1
    told = failure(project)
    assert (told.phase, told.exit_code) == (Phase.LAUNCH, recording.exit_code)
    # Never only the exit code: the log names the cause, and the last line of a traceback is not always it.
    head, _, line = told.cause.partition(": ")
    assert head.startswith(("fatal error", "out of")), told.cause
    assert line
    # A very long line is cut.
    assert line.removesuffix("…") in recording.log
    assert "Engine core initialization failed" not in line
    assert "Press any key" not in line


def engine_dies(chats: int) -> dict[str, object]:
    """What was recorded, the engine dying of the chat behind so many good ones."""
    status, body = ENGINE_DIES.answer("first streamed chat")
    health, models = (ENGINE_DIES.answer(f"GET {path} after the first chat") for path in ("/health", "/v1/models"))
    # The model of this run has another name; that the list is still answered is the point.
    assert (health[0], models[0]) == (503, 200)
    return {
        "log": ENGINE_DIES.log,
        "get": vllm_answers(1024),
        "fault": [chats, status, f"{body}\n\n"],
        "get_then": {"/health": list(health)},
    }


def last_chat(number: int) -> list[object]:
    """The chat after which the server was seen to end as well, with what it was answered."""
    return [number, *ENGINE_DIES.answer("second streamed chat"), ENGINE_DIES.exit_code]


def test_the_engine_dies_behind_a_front_that_lives_on(project: Project, replay: Replay) -> None:
    result = replay("vllm", **engine_dies(3))
    assert result.ret == 1
    (start,) = project.last_run().evidence[0].starts
    assert start.health_at_end.startswith("health says ")
    told = [v for v in verdicts(project, "stability") if v.outcome is Outcome.FAILED]
    assert [v.failed_class for v in told] == [FailedClass.STABILITY]
    text = " ".join([told[0].reason, *map(str, told[0].findings)])
    assert "the server lived on, but not its engine" in text
    assert "EngineCore encountered an issue" in text
    assert not [v for v in project.last_run().verdicts if v.metric == "decode" and v.outcome.green]


def test_the_first_request_kills_the_engine(project: Project, replay: Replay) -> None:
    result = replay("vllm", "--moegpu-level=1", **engine_dies(0), last=last_chat(2))
    assert result.ret == 1
    told = failure(project)
    assert told.phase is Phase.READY
    assert told.state == "health 503"
    assert "healthy, but it does not generate: " in told.cause
    assert "EngineCore encountered an issue" in told.cause


def test_the_front_ends_as_well_and_with_exit_code_0(project: Project, replay: Replay) -> None:
    result = replay("vllm", **engine_dies(3), last=last_chat(5))
    assert result.ret == 1
    told = failure(project)
    assert told.exit_code == 0
    # Exit code 0 says nothing: the log has the cause.
    head, _, line = told.cause.partition(": ")
    assert head == "fatal error (exit code 0)"
    assert line.startswith("RuntimeError: Worker failed with error 'Triton dequant kernels require CUDA tensors'")


def test_a_kv_pool_smaller_than_the_context(project: Project, replay: Replay) -> None:
    recording = Recording.read(ENGINES / "sglang/faults/5-pool-smaller-than-context.txt")
    status, info = recording.answer("GET /server_info, three of its keys")
    refused, body = recording.answer("chat of about 400 tokens")
    healthy = (ENGINES / "sglang/metrics.txt").read_text()
    result = replay(
        "sglang",
        context=4096,
        log=recording.log,
        get={"/health": [200, ""], "/server_info": [status, info], "/metrics": [200, healthy]},
        refuse=[250, refused, body],
    )
    assert result.ret == 1
    (start,) = project.last_run().evidence[0].starts
    assert (start.kv_tokens, start.served_context) == (256, 4096)
    (told,) = [v for v in verdicts(project, "memory") if v.subject == "KV cache"]
    assert (told.outcome, told.failed_class, told.phase) == (Outcome.FAILED, FailedClass.MEMORY, Phase.LOAD)
    assert told.reason.removeprefix("start 1: ") == "the KV cache holds 256 tokens, and one request may have 4096"
    assert start.failure is None


def test_requests_that_lost_their_cache_give_no_speed(project: Project, replay: Replay) -> None:
    recording = Recording.read(ENGINES / "vllm/faults/6-preemptions.txt")
    # The last reading that was recorded.
    metrics = recording.parts["some of GET /metrics"]
    result = replay(
        "vllm",
        context=640,
        log=recording.log,
        get=vllm_answers(640) | {"/metrics": [200, metrics]},
        refuse=[640, 400, "{}"],
    )
    assert result.ret == 1
    (start,) = project.last_run().evidence[0].starts
    assert (start.kv_tokens, start.preemptions) == (1024, 3.0)
    (told,) = [v for v in verdicts(project, "throughput") if v.metric == "decode"]
    assert told.outcome is Outcome.INCONCLUSIVE
    text = " ".join([told.reason, *map(str, told.findings)])
    assert "3 times a request lost its KV cache and was computed again: the cache of 1024 tokens is too small" in text


@pytest.mark.parametrize("backend", ["vllm", "sglang", "fastllm", "mlx"])
def test_a_path_that_is_not_there_is_never_taken_for_a_name_on_the_hub(
    backend: str, project: Project, replay: Replay
) -> None:
    result = replay(backend, "--moegpu-model=/models/nope")
    usage_error(result, "/models/nope", "does not exist")
    assert not project.store.ids()
