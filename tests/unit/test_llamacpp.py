"""The llama.cpp recipe: command line, environment, and what is read out of the server's words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_moegpu.backends.base import ChatRequest, Delta, EngineVersion, Health, ServedModel
from pytest_moegpu.backends.llamacpp import LlamaCpp
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, Settings

RECIPE = LlamaCpp()


def launch(settings: Settings | None = None, **changes: Any) -> LaunchSpec:
    given: dict[str, Any] = {
        "program": ("/opt/llama-server",),
        "model_path": "/models/smol.gguf",
        "model_name": "smol",
        "settings": settings or Settings(context=2048),
        "host": "127.0.0.1",
        "port": 18080,
        "api_key": "secret",
    }
    return LaunchSpec(**given | changes)


def flags(spec: LaunchSpec) -> dict[str, str]:
    """Each flag with the word that follows it."""
    argv = RECIPE.argv(spec)
    return {word: argv[at + 1] if at + 1 < len(argv) else "" for at, word in enumerate(argv) if word.startswith("--")}


class TestArgv:
    def test_of_plain_settings(self) -> None:
        found = flags(launch())
        assert RECIPE.argv(launch())[0] == "/opt/llama-server"
        expected = {
            "--model": "/models/smol.gguf",
            "--alias": "smol",
            "--ctx-size": "2048",
            "--parallel": "1",
            "--gpu-layers": "999",
            "--cache-type-k": "f16",
            "--cache-type-v": "f16",
            "--flash-attn": "auto",
            "--batch-size": "2048",
            "--ubatch-size": "512",
            "--host": "127.0.0.1",
            "--port": "18080",
            "--fit": "off",
            "--cache-ram": "0",
        }
        assert {name: found[name] for name in expected} == expected
        assert {"--metrics", "--no-webui"} <= found.keys()
        assert not {"--threads", "--no-cache-prompt", "--api-key"} & found.keys()

    def test_context_is_for_every_slot(self) -> None:
        found = flags(launch(Settings(context=4096, slots=4)))
        assert (found["--ctx-size"], found["--parallel"]) == ("16384", "4")

    def test_other_settings(self) -> None:
        s = Settings(
            context=6144, kv_cache="q8_0", gpu_layers=20, flash_attention="on", batch=1024, ubatch=256, threads=8
        )
        found = flags(launch(s))
        assert found["--cache-type-k"] == found["--cache-type-v"] == "q8_0"
        assert (found["--gpu-layers"], found["--flash-attn"], found["--threads"]) == ("20", "on", "8")
        assert (found["--batch-size"], found["--ubatch-size"]) == ("1024", "256")

    @pytest.mark.parametrize("layers", [None, 0, 5])
    def test_no_layer_goes_to_a_gpu_that_is_not_there(self, layers: int | None) -> None:
        spec = launch(Settings(context=2048, gpu_layers=layers), device_kind=DeviceKind.CPU)
        assert flags(spec)["--gpu-layers"] == "0"

    def test_no_layer_asked_for_is_not_all(self) -> None:
        assert flags(launch(Settings(context=2048, gpu_layers=0)))["--gpu-layers"] == "0"

    def test_prefix_cache_off(self) -> None:
        assert "--no-cache-prompt" in RECIPE.argv(launch(Settings(context=2048, prefix_cache=False)))

    def test_extra_flags_come_last_so_that_they_win(self) -> None:
        argv = RECIPE.argv(launch(Settings(context=2048, extra_flags=("--n-cpu-moe", "12"))))
        assert argv[-2:] == ("--n-cpu-moe", "12")

    def test_a_program_of_several_words(self) -> None:
        spec = launch(program=("python", "-m", "server"))
        assert RECIPE.argv(spec)[:4] == ("python", "-m", "server", "--model")
        assert RECIPE.version_argv(spec.program) == ("python", "-m", "server", "--version")


def test_environment_holds_the_key_and_the_devices_in_nvml_order() -> None:
    assert RECIPE.environment(launch()) == {"LLAMA_API_KEY": "secret"}
    assert RECIPE.environment(launch(devices=("2", "0"))) == {
        "LLAMA_API_KEY": "secret",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "2,0",
    }


@pytest.mark.parametrize(
    ("output", "version"),
    [
        (
            "ggml_cuda_init: found 1\nversion: 11434 (a1b2c3d)\nbuilt with cc 13.2 for x86_64-linux-gnu\n",
            EngineVersion(version="11434 (a1b2c3d)", build="cc 13.2 for x86_64-linux-gnu"),
        ),
        ("version: 5 (x)\r\n", EngineVersion(version="5 (x)")),
        ("no such thing", EngineVersion()),
    ],
)
def test_version(output: str, version: EngineVersion) -> None:
    assert RECIPE.read_version(output) == version


def test_health() -> None:
    assert RECIPE.read_health(200, '{"status":"ok"}') == Health(ready=True)
    loading = RECIPE.read_health(503, '{"error":{"message":"Loading model"}}')
    assert (loading.ready, loading.loading) == (False, True)
    other = RECIPE.read_health(500, "x" * 1000)
    assert (other.ready, other.loading, len(other.detail)) == (False, False, 209)


def test_props() -> None:
    body = {
        "default_generation_settings": {"n_ctx": 2048, "params": {}},
        "total_slots": 2,
        "model_alias": "smol",
        "model_path": "/models/smol.gguf",
    }
    assert RECIPE.read_props(body) == ServedModel(name="smol", path="/models/smol.gguf", context=2048, slots=2)
    assert RECIPE.read_props({"default_generation_settings": None}) == ServedModel()


@pytest.mark.parametrize("body", [[], [{"model_alias": "smol"}], "text", 5, None, True])
def test_props_that_are_no_object_say_nothing(body: object) -> None:
    assert RECIPE.read_props(body) == ServedModel()


def test_props_of_other_types_say_nothing() -> None:
    body = {"model_alias": ["a"], "model_path": 5, "total_slots": True, "default_generation_settings": [{"n_ctx": 1}]}
    assert RECIPE.read_props(body) == ServedModel()
    assert RECIPE.read_props({"model_alias": "a", "total_slots": "2"}) == ServedModel(name="a")


def test_metrics() -> None:
    text = (
        "# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.\n"
        "# TYPE llamacpp:prompt_tokens_total counter\n"
        "llamacpp:prompt_tokens_total 254\n"
        "llamacpp:tokens_predicted_seconds_total 1e-06\n"
        "llamacpp:predicted_tokens_seconds nan\n"
        "process_cpu_seconds_total 3\n"
    )
    assert RECIPE.read_metrics(text) == {"prompt_tokens_total": 254.0, "tokens_predicted_seconds_total": 1e-06}


class TestRequest:
    def test_is_greedy_and_streamed(self) -> None:
        body = RECIPE.request(launch(), ChatRequest(prompt="Hello", max_tokens=7))
        assert body == {
            "model": "smol",
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 7,
            "temperature": 0,
            "seed": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_prompt": True,
            "chat_template_kwargs": {"enable_thinking": False},
        }

    def test_of_everything(self) -> None:
        chat = ChatRequest(
            prompt="q",
            max_tokens=7,
            prefill="The answer is",
            ignore_eos=True,
            cache_prompt=False,
            thinking=True,
            top_logprobs=5,
            seed=9,
        )
        body = RECIPE.request(launch(), chat)
        assert body["messages"][-1] == {"role": "assistant", "content": "The answer is"}
        assert (body["ignore_eos"], body["cache_prompt"], body["seed"]) == (True, False, 9)
        assert (body["logprobs"], body["top_logprobs"]) == (True, 5)
        assert body["chat_template_kwargs"] == {"enable_thinking": True}


def event(**chunk: Any) -> Delta:
    return RECIPE.read_event(json.dumps(chunk))


class TestEvent:
    def test_role_delta_is_empty(self) -> None:
        assert event(choices=[{"delta": {"role": "assistant", "content": None}, "finish_reason": None}]) == Delta()

    def test_text_and_reasoning_are_kept_apart(self) -> None:
        assert event(choices=[{"delta": {"content": " Paris"}}]) == Delta(text=" Paris")
        assert event(choices=[{"delta": {"reasoning_content": "hm"}}]) == Delta(reasoning="hm")

    def test_finish_reason(self) -> None:
        assert event(choices=[{"delta": {}, "finish_reason": "length"}]) == Delta(finish_reason="length")

    def test_usage_with_timings(self) -> None:
        found = event(
            choices=[],
            usage={"prompt_tokens": 111, "completion_tokens": 16, "prompt_tokens_details": {"cached_tokens": 24}},
            timings={"prompt_ms": 2336.4, "predicted_n": 16, "note": "text", "rate": float("inf")},
        )
        assert found.usage is not None
        assert (found.usage.prompt_tokens, found.usage.cached_tokens, found.usage.output_tokens) == (111, 24, 16)
        assert found.usage.timings == {"prompt_ms": 2336.4, "predicted_n": 16.0}
        assert (found.text, found.error) == ("", None)

    @pytest.mark.parametrize(
        ("error", "text"),
        [
            ({"code": 500, "message": "slot died", "type": "server_error"}, "slot died"),
            ({"code": 500}, "{'code': 500}"),
            ("plain", "plain"),
        ],
    )
    def test_error_object_under_http_200(self, error: object, text: str) -> None:
        assert event(error=error) == Delta(error=text)

    def test_no_error_is_none(self) -> None:
        assert event(error=None, choices=[{"delta": {"content": "a"}}]) == Delta(text="a")

    @pytest.mark.parametrize("data", ["", "{", "null", "5", '"text"', "[]"])
    def test_what_is_no_chunk_is_a_value_error(self, data: str) -> None:
        with pytest.raises(ValueError, match=r"\S"):
            RECIPE.read_event(data)

    @pytest.mark.parametrize(
        "chunk", [{"choices": {"a": 1}}, {"choices": ["a"]}, {"choices": [{"delta": ["a"]}]}, {"usage": [1]}]
    )
    def test_a_chunk_of_another_form_is_a_value_error(self, chunk: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="not a chunk of a known form"):
            event(**chunk)
