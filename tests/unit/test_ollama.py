"""The recipe for Ollama, by the documentation of its API."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from pytest_moegpu.backends.base import ChatRequest, Delta, ServedModel
from pytest_moegpu.backends.ollama import Ollama, daemon_address
from pytest_moegpu.core.evidence import TokenChoice
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, Settings
from pytest_moegpu.errors import UserError

OLLAMA = Ollama()
SPEC = LaunchSpec(
    program=("/usr/bin/ollama",),
    model_path="/models/with space/tiny.gguf",
    model_name="tiny",
    settings=Settings(context=6144, slots=2, ubatch=256),
    host="127.0.0.1",
    port=18_434,
    api_key="secret",
    devices=("0",),
    scratch="/runs/1/scratch",
)


def with_settings(**settings: object) -> LaunchSpec:
    return replace(SPEC, settings=replace(SPEC.settings, **settings))  # type: ignore[arg-type]


def test_it_serves_at_its_own_address_from_its_own_models_folder() -> None:
    assert OLLAMA.argv(SPEC) == ("/usr/bin/ollama", "serve")
    assert OLLAMA.environment(SPEC) == {
        "OLLAMA_HOST": "127.0.0.1:18434",
        "OLLAMA_MODELS": "/runs/1/scratch/models",
        "OLLAMA_CONTEXT_LENGTH": "6144",
        "OLLAMA_NUM_PARALLEL": "2",
        "OLLAMA_KV_CACHE_TYPE": "f16",
        "OLLAMA_MAX_LOADED_MODELS": "1",
        "OLLAMA_KEEP_ALIVE": "-1",
        "OLLAMA_NOPRUNE": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0",
    }


def test_the_model_is_made_from_its_file() -> None:
    (command,) = OLLAMA.setup(SPEC)
    assert command.argv == ("/usr/bin/ollama", "create", "tiny", "-f", "Modelfile")
    assert command.environment == {"OLLAMA_HOST": "127.0.0.1:18434"}
    assert command.files == {
        "Modelfile": (
            "FROM /models/with space/tiny.gguf\n"
            "PARAMETER num_ctx 6144\nPARAMETER num_gpu 999\nPARAMETER num_batch 256\n"
        )
    }
    (on_cpu,) = OLLAMA.setup(replace(with_settings(threads=2, mmap=False), device_kind=DeviceKind.CPU))
    assert (
        "num_gpu 0\nPARAMETER num_batch 256\nPARAMETER num_thread 2\nPARAMETER use_mmap false\n"
        in on_cpu.files["Modelfile"]
    )


@pytest.mark.parametrize(
    ("word", "spelled", "flash"), [("q8_0", "q8_0", "1"), ("int4", "q4_0", "1"), ("f16", "f16", None)]
)
def test_a_quantised_cache_takes_flash_attention(word: str, spelled: str, flash: str | None) -> None:
    variables = OLLAMA.environment(with_settings(kv_cache=word))
    assert variables["OLLAMA_KV_CACHE_TYPE"] == spelled
    assert variables.get("OLLAMA_FLASH_ATTENTION") == flash


def test_flash_attention_as_asked() -> None:
    assert OLLAMA.environment(with_settings(flash_attention="on"))["OLLAMA_FLASH_ATTENTION"] == "1"
    assert OLLAMA.environment(with_settings(flash_attention="off"))["OLLAMA_FLASH_ATTENTION"] == "0"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kv_cache": "fp8_e4m3"}, r"settings\.kv_cache: ollama has no KV cache of fp8_e4m3; with as many bits: int8"),
        ({"kv_cache": "q8_0", "flash_attention": "off"}, r"settings\.flash_attention: Ollama quantises"),
        ({"extra_flags": ("--verbose",)}, r"settings\.extra_flags: ollama: `ollama serve` takes no flags"),
        ({"cpu_expert_layers": 8}, r"settings\.cpu_expert_layers: ollama: Ollama places whole layers"),
        ({"batch": 512}, r"settings\.batch: .*settings\.ubatch"),
        ({"prefix_cache": False}, r"settings\.prefix_cache: ollama: Ollama has no switch"),
    ],
)
def test_what_it_cannot_do_is_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        OLLAMA.argv(with_settings(**settings))


def test_a_request_is_refused_rather_than_cut_and_loads_nothing_anew() -> None:
    body = OLLAMA.request(SPEC, ChatRequest(prompt="q", max_tokens=32, seed=3, top_logprobs=2))
    assert body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "q"}],
        "stream": True,
        "think": False,
        "truncate": False,
        "shift": False,
        "keep_alive": -1,
        "logprobs": True,
        "top_logprobs": 2,
        "options": {
            "num_predict": 32,
            "temperature": 0,
            "seed": 3,
            "num_ctx": 6144,
            "num_gpu": 999,
            "num_batch": 256,
        },
    }


def test_a_request_to_an_attached_one_changes_nothing_of_what_it_has_loaded() -> None:
    body = OLLAMA.request(replace(SPEC, program=()), ChatRequest(prompt="q", max_tokens=8, thinking=True))
    assert body["options"] == {"num_predict": 8, "temperature": 0, "seed": 1}
    assert body["think"] is True
    assert "keep_alive" not in body


def test_text_thinking_and_the_last_line_are_read() -> None:
    assert OLLAMA.read_event('{"message":{"role":"assistant","content":" Paris"},"done":false}') == Delta(text=" Paris")
    assert OLLAMA.read_event('{"message":{"content":"","thinking":"Hm"},"done":false}') == Delta(reasoning="Hm")
    # Of the documentation of /api/chat, with a reason.
    last = OLLAMA.read_event(
        '{"model":"llama3.2","created_at":"2023-08-04T19:22:45.499127Z","done":true,"done_reason":"length",'
        '"total_duration":4883583458,"load_duration":1334875,"prompt_eval_count":26,'
        '"prompt_eval_duration":342546000,"eval_count":282,"eval_duration":4535599000}'
    )
    assert (last.text, last.finish_reason) == ("", "length")
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.cached_tokens, last.usage.output_tokens) == (26, None, 282)
    assert last.usage.timings is not None
    assert last.usage.timings["eval_duration"] == 4_535_599_000.0
    assert OLLAMA.read_event('{"done":true}').finish_reason == "stop"


def test_errors_and_what_is_no_answer() -> None:
    assert OLLAMA.read_event('{"error":"llama runner process has terminated"}').error is not None
    with pytest.raises(ValueError, match="known form"):
        OLLAMA.read_event('{"message":"text"}')


def test_log_probabilities_are_read() -> None:
    line = {
        "message": {"content": "A"},
        "logprobs": [{"token": "A", "logprob": -0.1, "top_logprobs": [{"token": "B", "logprob": None}]}],
    }
    (choice,) = OLLAMA.read_event(json.dumps(line)).choices
    assert (choice.token, choice.logprob, choice.top[0][0]) == ("A", -0.1, "B")
    assert math.isnan(choice.top[0][1])
    assert OLLAMA.read_event('{"logprobs":[{"token":"A","logprob":-1}]}').choices == (
        TokenChoice(token="A", logprob=-1.0),
    )


@pytest.mark.parametrize(
    ("entry", "share"),
    [
        ({"size": 6_591_830_464, "size_vram": 5_333_539_264}, 0.809),
        ({"size": 100, "size_vram": 100}, 1.0),
        ({"size": 100}, 0.0),
        ({}, None),
        ({"size": 0, "size_vram": 0}, None),
    ],
)
def test_the_share_of_the_model_on_a_gpu(entry: dict[str, int], share: float | None) -> None:
    served = OLLAMA.read_props(
        {"models": [{"name": "tiny:latest", "model": "tiny:latest", "context_length": 4096} | entry]}
    )
    assert (served.name, served.context) == ("tiny", 4096)
    assert served.gpu_share == (None if share is None else pytest.approx(share, abs=0.001))


@pytest.mark.parametrize("body", [{}, {"models": []}, {"models": None}, {"models": ["x"]}, [], None])
def test_nothing_loaded_is_nothing_known(body: object) -> None:
    assert OLLAMA.read_props(body) == ServedModel()


def test_the_version_is_that_of_the_program_and_not_of_a_server_it_reached() -> None:
    assert OLLAMA.read_version("ollama version is 0.40.2\n").version == "0.40.2"
    reached = "ollama version is 0.12.6\nWarning: client version is 0.40.2\n"
    assert OLLAMA.read_version(reached).version == "0.40.2"
    alone = "Warning: could not connect to a running Ollama instance\nWarning: client version is 0.40.2\n"
    assert OLLAMA.read_version(alone).version == "0.40.2"


@pytest.mark.parametrize(
    "body",
    [
        '{"error":"the input length exceeds the context length"}',
        json.dumps(
            {"error": '{"error":{"message":"request (2622 tokens) exceeds the available context size (512 tokens)"}}'}
        ),
    ],
)
def test_a_prompt_that_is_too_long_is_refused_in_words(body: str) -> None:
    assert OLLAMA.is_too_long(400, body)
    assert not OLLAMA.is_too_long(400, '{"error":"illegal base64 data at input byte 0"}')


def test_log_lines() -> None:
    log = OLLAMA.read_log(
        'time=2026-11-30T12:00:00.000Z level=INFO source=ggml.go:494 msg="offloaded 25/31 layers to GPU"\n'
        "Error: listen tcp 127.0.0.1:11434: bind: address already in use\n"
    )
    assert (log.offloaded_layers, log.total_layers) == (25, 31)
    assert log.fatal_lines == ("Error: listen tcp 127.0.0.1:11434: bind: address already in use",)


@pytest.mark.parametrize(
    ("value", "address"),
    [
        (None, ("127.0.0.1", 11_434)),
        ("", ("127.0.0.1", 11_434)),
        ("0.0.0.0", ("127.0.0.1", 11_434)),
        ("0.0.0.0:8000", ("127.0.0.1", 8000)),
        (":8000", ("127.0.0.1", 8000)),
        ("http://gpu-box", ("gpu-box", 80)),
        ("http://gpu-box:11434/", ("gpu-box", 11_434)),
        ("'localhost:1234'", ("localhost", 1234)),
        ("[::1]:1234", ("::1", 1234)),
        ("[::1]", ("::1", 11_434)),
    ],
)
def test_where_an_ollama_of_this_user_listens(value: str | None, address: tuple[str, int]) -> None:
    assert daemon_address(value) == address


@pytest.mark.parametrize("value", ["localhost:http", "localhost:0", "localhost:99999"])
def test_an_address_without_a_readable_port(value: str) -> None:
    with pytest.raises(UserError, match=r"OLLAMA_HOST=localhost:\w+: '\w+' is no port"):
        daemon_address(value)
