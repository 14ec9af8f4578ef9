"""The MLX recipe: command line, environment, and what is read out of recordings of the real mlx_lm.server 0.32.2."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_moegpu.backends.base import ChatRequest, EngineVersion, Health, Load, ServedModel
from pytest_moegpu.backends.mlx import Mlx
from pytest_moegpu.core.evidence import LogFacts
from pytest_moegpu.core.model import DeviceKind, ModelFormat, Settings
from pytest_moegpu.errors import UserError
from tests.unit.recordings import Recorded

RECIPE = Mlx()
ENGINE = Recorded(RECIPE, "/opt/bin/mlx_lm.server", scratch="/runs/1/scratch")
launch, flags, recorded = ENGINE.launch, ENGINE.flags, ENGINE.text
streamed = ENGINE.streamed


class TestArgv:
    def test_of_plain_settings(self) -> None:
        assert RECIPE.argv(launch())[0] == "/opt/bin/mlx_lm.server"
        assert flags(launch()) == {
            "--model": "/models/smol",
            "--host": "127.0.0.1",
            "--port": "18080",
            "--decode-concurrency": "1",
            "--prompt-concurrency": "1",
            "--chat-template-args": '{"enable_thinking": false}',
        }

    def test_other_settings(self) -> None:
        found = flags(launch(Settings(context=6144, slots=4, thinking=True, prefill_chunk=512, prefix_cache=False)))
        expected = {
            "--decode-concurrency": "4",
            "--prompt-concurrency": "4",
            "--chat-template-args": '{"enable_thinking": true}',
            "--prefill-step-size": "512",
            "--prompt-cache-size": "0",
        }
        assert {name: found[name] for name in expected} == expected
        assert not any("6144" in word for word in RECIPE.argv(launch(Settings(context=6144))))

    @pytest.mark.parametrize(("word", "bits"), [("int8", "8"), ("q8_0", "8"), ("int4", "4"), ("q4_0", "4")])
    def test_a_quantised_kv_cache_is_so_from_the_first_token(self, word: str, bits: str) -> None:
        found = flags(launch(Settings(context=2048, kv_cache=word)))
        assert (found["--kv-bits"], found["--quantized-kv-start"]) == (bits, "0")

    def test_a_quantised_kv_cache_serves_one_request_at_a_time(self) -> None:
        with pytest.raises(
            UserError, match=r"^settings\.slots: MLX serves one request at a time with a KV cache of int8"
        ):
            RECIPE.argv(launch(Settings(context=2048, kv_cache="int8", slots=2)))

    def test_fp8_is_refused_and_8_bits_offered(self) -> None:
        with pytest.raises(UserError) as caught:
            RECIPE.argv(launch(Settings(context=2048, kv_cache="fp8_e4m3")))
        assert str(caught.value) == (
            "settings.kv_cache: mlx has no KV cache of fp8_e4m3; with as many bits: int8; it has f16, int8, int4"
        )

    @pytest.mark.parametrize(
        "changed",
        [
            {"memory_share": 0.9},
            {"cpu_expert_layers": 3},
            {"flash_attention": "on"},
            {"batch": 512},
            {"ubatch": 128},
            {"threads": 2},
            {"mmap": False},
            {"cuda_graphs": False},
            {"gpu_layers": 20},
        ],
    )
    def test_what_it_cannot_do_is_refused(self, changed: dict[str, Any]) -> None:
        with pytest.raises(UserError, match=rf"^settings\.{next(iter(changed))}: MLX: MLX "):
            RECIPE.argv(launch(Settings(context=2048, **changed)))

    def test_no_gpu_layer_is_what_a_profile_without_a_gpu_has(self) -> None:
        plain = launch(device_kind=DeviceKind.CPU)
        assert RECIPE.argv(launch(Settings(context=2048, gpu_layers=0), device_kind=DeviceKind.CPU)) == RECIPE.argv(
            plain
        )

    def test_extra_flags_come_last_so_that_they_win(self) -> None:
        argv = RECIPE.argv(launch(Settings(context=2048, extra_flags=("--log-level", "DEBUG"))))
        assert argv[-2:] == ("--log-level", "DEBUG")

    def test_it_asks_no_hub_and_has_a_cache_folder_of_its_own(self) -> None:
        assert RECIPE.environment(launch()) == {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": "/runs/1/scratch"}
        assert not RECIPE.takes_key

    def test_it_loads_folders_only(self) -> None:
        assert RECIPE.model_formats == (ModelFormat.HF,)


class TestFlags:
    def test_every_flag_written_is_in_the_help_text(self) -> None:
        known = {name for flag in RECIPE.read_help(recorded("help.txt")) for name in flag.names}
        every = Settings(context=1, kv_cache="int8", prefill_chunk=1, prefix_cache=False)
        assert set(flags(launch(every))) <= known
        assert {name for names in RECIPE.meanings.values() for name in names} <= known
        assert not set(RECIPE.not_flags) & known

    @pytest.mark.parametrize(
        ("program", "argv"),
        [
            (("/opt/bin/mlx_lm.server",), ("/opt/bin/mlx_lm", "--version")),
            (("python", "-m", "mlx_lm", "server"), ("python", "-m", "mlx_lm", "--version")),
            (("python", "-m", "mlx_lm.server"), ("python", "-m", "mlx_lm", "--version")),
            (("/opt/server",), ("/opt/server", "--version")),
        ],
    )
    def test_the_version_is_asked_of_the_program_beside_the_server(
        self, program: tuple[str, ...], argv: tuple[str, ...]
    ) -> None:
        assert RECIPE.version_argv(program) == argv

    def test_the_version_is_a_line_of_its_own(self) -> None:
        assert RECIPE.read_version("0.32.2\n") == EngineVersion(version="0.32.2")
        assert RECIPE.read_version("UserWarning: 3.11 is old\n0.32.2\n") == EngineVersion(version="0.32.2")


class TestAnswers:
    def test_the_name_of_a_model_is_its_path(self) -> None:
        assert RECIPE.read_props(json.loads(recorded("props.json"))) == ServedModel(path="/models/hf")

    def test_health(self) -> None:
        assert RECIPE.read_health(200, recorded("health.json")) == Health(ready=True)

    def test_unavailable_is_not_loading(self) -> None:
        health = RECIPE.read_health(503, '{"status": "unavailable"}')
        assert (health.ready, health.loading) == (False, False)
        assert health.detail == 'HTTP 503 {"status": "unavailable"}: its generation thread has died'

    def test_a_stream(self) -> None:
        answer = streamed("stream.txt")
        assert answer.error is None
        assert (answer.text, answer.finish_reason) == ("The capital of Japan is Tokyo.", "stop")
        assert (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens) == (37, 29, 8)
        # The end counts as a token and brings no text.
        assert len(answer.gaps) == 6

    def test_an_end_cannot_be_forbidden_nor_an_answer_begun(self) -> None:
        assert streamed("stream-ignore-eos.txt").output_tokens == 8
        assert not RECIPE.ignores_eos
        assert streamed("stream-prefill.txt").text == "The capital city of Japan is Tokyo."
        assert not RECIPE.continues_prefill

    def test_no_log_probabilities_come_in_a_stream(self) -> None:
        answer = streamed("stream-logprobs.txt")
        assert not RECIPE.gives_logprobs
        assert (answer.error, answer.tightest, answer.text) == (None, None, "The capital of Japan is Tokyo.")

    def test_an_error_is_a_text_and_no_object(self) -> None:
        assert RECIPE.read_event('{"error": "generation thread died"}').error == "generation thread died"

    def test_a_request_names_the_model_by_its_path_and_has_no_seed(self) -> None:
        body = RECIPE.request(launch(), ChatRequest(prompt="q", max_tokens=4, top_logprobs=2))
        assert body == {
            "model": "/models/smol",
            "messages": [{"role": "user", "content": "q"}],
            "max_tokens": 4,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"enable_thinking": False},
            "logprobs": True,
            "top_logprobs": 2,
        }

    def test_no_prompt_is_too_long(self) -> None:
        assert not RECIPE.limits_context
        assert not RECIPE.is_too_long(400, "the prompt is too long for the context length")

    def test_it_has_no_counters(self) -> None:
        assert RECIPE.metrics_path is None
        assert RECIPE.read_load({"num_requests_running": 1.0}) == Load()


class TestLog:
    def test_of_a_good_start(self) -> None:
        assert RECIPE.read_log(recorded("log-good.txt")) == LogFacts()

    def test_a_model_that_never_loads(self) -> None:
        first, *_ = RECIPE.read_log(recorded("faults/4-model-never-loads.txt")).fatal_lines
        assert first.startswith("mlx_lm.server generation thread died: Repo id must be in the form")

    def test_an_unknown_flag(self) -> None:
        found = RECIPE.read_log(recorded("faults/9-unknown-flag-mlx.txt"))
        assert found.fatal_lines == ("mlx_lm.server: error: unrecognized arguments: --ctx-size 6144",)
