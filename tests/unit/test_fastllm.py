"""The FastLLM recipe: command line, environment, and what is read out of recordings of the real ftllm 1.9.0."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_moegpu.backends.base import ChatRequest, EngineVersion, Load, ServedModel, Usage
from pytest_moegpu.backends.fastllm import FastLlm
from pytest_moegpu.core.evidence import LogFacts
from pytest_moegpu.core.model import ALL_LAYERS, DeviceKind, LaunchSpec, Settings
from pytest_moegpu.core.sse import parse_events
from pytest_moegpu.errors import UserError
from tests.unit.recordings import Recorded

RECIPE = FastLlm()
ENGINE = Recorded(RECIPE, "/opt/ftllm")
launch, flags, recorded = ENGINE.launch, ENGINE.flags, ENGINE.text
streamed = ENGINE.streamed


def on_cpu(settings: Settings | None = None) -> LaunchSpec:
    return launch(settings, device_kind=DeviceKind.CPU)


class TestArgv:
    def test_on_a_gpu(self) -> None:
        assert RECIPE.argv(launch())[:3] == ("/opt/ftllm", "server", "/models/smol")
        assert flags(launch()) == {
            "--model_name": "smol",
            "--device": "cuda",
            "--max_context_length": "2048",
            "--max_batch": "1",
            "--kv_cache_dtype": "auto",
            "--prefix_cache": "true",
            "--enable_thinking": "false",
            "--host": "127.0.0.1",
            "--port": "18080",
        }

    def test_on_a_processor_it_has_one_thread_unless_the_scenario_says_more(self) -> None:
        found = flags(on_cpu())
        assert (found["--device"], found["--threads"]) == ("cpu", "1")
        assert flags(on_cpu(Settings(context=2048, threads=6)))["--threads"] == "6"
        assert "--threads" not in flags(launch())

    def test_other_settings(self) -> None:
        s = Settings(
            context=6144,
            slots=4,
            kv_cache="fp8",
            threads=8,
            thinking=True,
            prefix_cache=False,
            memory_share=0.85,
            prefill_chunk=1024,
            cpu_expert_layers=12,
        )
        found = flags(launch(s, devices=("0", "2")))
        expected = {
            "--max_context_length": "6144",
            "--max_batch": "4",
            "--kv_cache_dtype": "fp8_e4m3",
            "--threads": "8",
            "--enable_thinking": "true",
            "--prefix_cache": "false",
            "--gpu_mem_ratio": "0.85",
            "--chunked_prefill_size": "1024",
            "--moe_device": "cpu",
            "--moe_device_layers": "12",
            "--tp": "2",
        }
        assert {name: found[name] for name in expected} == expected

    def test_the_experts_of_all_layers_in_host_memory_need_no_number(self) -> None:
        found = flags(launch(Settings(context=2048, cpu_expert_layers=ALL_LAYERS)))
        assert found["--moe_device"] == "cpu"
        assert "--moe_device_layers" not in found

    def test_extra_flags_come_last_so_that_they_win(self) -> None:
        argv = RECIPE.argv(launch(Settings(context=2048, extra_flags=("--atype", "float32"))))
        assert argv[-2:] == ("--atype", "float32")

    @pytest.mark.parametrize(
        ("word", "spelled"),
        [("f16", "auto"), ("f32", "float32"), ("bf16", "bfloat16"), ("fp8", "fp8_e4m3"), ("fp4", "fp4_e2m1")],
    )
    def test_kv_cache_types_of_a_gpu(self, word: str, spelled: str) -> None:
        assert flags(launch(Settings(context=2048, kv_cache=word)))["--kv_cache_dtype"] == spelled

    def test_a_kv_cache_of_8_bits_with_scales_is_refused_and_fp8_offered(self) -> None:
        with pytest.raises(UserError) as caught:
            RECIPE.argv(launch(Settings(context=2048, kv_cache="q8_0")))
        assert str(caught.value) == (
            "settings.kv_cache: fastllm has no KV cache of q8_0; with as many bits: fp8_e4m3; "
            "it has f16, f32, bf16, fp8_e4m3, fp4"
        )

    @pytest.mark.parametrize(("word", "why"), [("bf16", "aborts at the first request"), ("fp8", "needs CUDA")])
    def test_a_processor_has_no_kv_cache_but_its_own(self, word: str, why: str) -> None:
        with pytest.raises(UserError, match=rf"settings\.kv_cache: fastllm has no KV cache of {word}: .*{why}"):
            RECIPE.argv(on_cpu(Settings(context=2048, kv_cache=word)))
        assert flags(on_cpu(Settings(context=2048, kv_cache="f32")))["--kv_cache_dtype"] == "float32"

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"flash_attention": "on"}, "settings.flash_attention: FastLLM: FastLLM chooses its attention kernels"),
            ({"batch": 512}, "settings.batch: FastLLM: FastLLM has one such size: settings.prefill_chunk"),
            ({"ubatch": 128}, "settings.ubatch: FastLLM: FastLLM has one such size: settings.prefill_chunk"),
            ({"mmap": False}, "settings.mmap: FastLLM: FastLLM has no such choice"),
            ({"host_weights_bytes": 1}, "settings.host_weights: FastLLM: FastLLM counts layers of experts"),
            ({"cuda_graphs": False}, "settings.cuda_graphs: FastLLM: FastLLM has no such flag"),
            ({"gpu_layers": 20}, "settings.gpu_layers: FastLLM: FastLLM puts all layers on one device"),
        ],
    )
    def test_what_it_cannot_do_is_refused(self, changed: dict[str, Any], message: str) -> None:
        with pytest.raises(UserError) as caught:
            RECIPE.argv(launch(Settings(context=2048, **changed)))
        assert str(caught.value).startswith(message)

    @pytest.mark.parametrize("changed", [{"memory_share": 0.9}, {"cpu_expert_layers": 4}])
    def test_what_needs_a_gpu_is_refused_on_a_processor(self, changed: dict[str, Any]) -> None:
        assert RECIPE.argv(launch(Settings(context=2048, **changed)))
        with pytest.raises(UserError, match=rf"^settings\.{next(iter(changed))}: FastLLM: "):
            RECIPE.argv(on_cpu(Settings(context=2048, **changed)))

    def test_no_gpu_layer_is_what_a_profile_without_a_gpu_has(self) -> None:
        assert flags(on_cpu(Settings(context=2048, gpu_layers=0)))["--device"] == "cpu"

    def test_it_gets_no_key_and_asks_no_hub(self) -> None:
        assert not RECIPE.takes_key
        assert RECIPE.environment(launch(devices=("1",))) == {
            "HF_HUB_OFFLINE": "1",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": "1",
        }


class TestFlags:
    def test_every_flag_written_is_in_the_help_text(self) -> None:
        help_text = recorded("help.txt")
        known = {name for flag in RECIPE.read_help(help_text) for name in flag.names}
        every = Settings(context=1, threads=1, memory_share=0.5, prefill_chunk=1, cpu_expert_layers=1)
        assert set(flags(launch(every, devices=("0", "1")))) <= known
        spellings = {name for names in RECIPE.meanings.values() for name in names if name.startswith("-")}
        assert spellings <= known
        assert not set(RECIPE.not_flags) & known

    def test_help_is_asked_of_the_server_and_version_of_the_program(self) -> None:
        assert RECIPE.help_argv(("/opt/ftllm",)) == ("/opt/ftllm", "server", "--help")
        assert RECIPE.version_argv(("/opt/ftllm",)) == ("/opt/ftllm", "--version")
        assert RECIPE.read_version(recorded("version.txt")) == EngineVersion(version="1.9.0")


class TestAnswers:
    def test_its_model_list_tells_name_and_context(self) -> None:
        served = RECIPE.read_props(json.loads(recorded("props.json")))
        assert served == ServedModel(name="smollm2-135m-instruct", context=2048)

    def test_a_limit_of_the_kv_cache_is_read_where_it_is_told(self) -> None:
        assert RECIPE.read_props({"data": [{"id": "m", "kv_cache_token_limit": 4096}]}).kv_tokens == 4096

    @pytest.mark.parametrize("body", [None, [], {"data": []}, {"data": ["m"]}, {"data": {"id": "m"}}])
    def test_a_model_list_of_another_form_says_nothing(self, body: Any) -> None:
        assert RECIPE.read_props(body) == ServedModel()

    def test_a_stream(self) -> None:
        answer = streamed("stream.txt")
        assert answer.error is None
        assert (answer.text, answer.finish_reason) == ("The capital of Japan is Tokyo.", "stop")
        assert (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens) == (37, 0, 7)
        assert len(answer.gaps) == 6

    def test_usage_comes_with_the_last_chunk(self) -> None:
        events = parse_events([(1.0, recorded("stream.txt").encode())])
        usages = [u for e in events if e.data != "[DONE]" and (u := RECIPE.read_event(e.data).usage)]
        assert usages == [Usage(prompt_tokens=37, cached_tokens=0, output_tokens=7, timings={})]

    def test_an_end_cannot_be_forbidden_nor_an_answer_begun(self) -> None:
        assert streamed("stream-ignore-eos.txt").output_tokens == 7
        assert not RECIPE.ignores_eos
        begun = streamed("stream-prefill.txt")
        assert begun.text == "The capital city of Japan is Tokyo."
        assert not RECIPE.continues_prefill

    def test_no_log_probabilities_come_when_they_are_asked_for(self) -> None:
        answer = streamed("stream-logprobs.txt")
        assert not RECIPE.gives_logprobs
        assert (answer.error, answer.tightest, answer.logprobs_missing) == (None, None, 0)
        assert answer.text == "The capital of Japan is Tokyo."

    def test_a_prompt_too_long_is_an_error_in_the_stream(self) -> None:
        answer = streamed("too-long-stream.txt")
        assert answer.error is not None
        assert RECIPE.is_too_long(400, answer.error)
        status, _, body = recorded("too-long.txt").partition("\n")
        assert status == "HTTP 400"
        assert RECIPE.is_too_long(400, body)
        for name in ("wrong-model.txt", "no-messages.txt"):
            status, _, body = recorded(name).partition("\n")
            assert not RECIPE.is_too_long(int(status.split()[1]), body)

    def test_a_request_names_the_model_as_served(self) -> None:
        body = RECIPE.request(launch(), ChatRequest(prompt="q", max_tokens=4, thinking=True))
        assert (body["model"], body["max_tokens"], body["temperature"]) == ("smol", 4, 0)
        assert body["chat_template_kwargs"] == {"enable_thinking": True}

    def test_it_has_no_counters(self) -> None:
        assert RECIPE.metrics_path is None
        assert RECIPE.read_load({"num_requests_running": 1.0}) == Load()


class TestLog:
    def test_of_a_good_start(self) -> None:
        assert RECIPE.read_log(recorded("log-good.txt")) == LogFacts(
            context=2048, slots=512, kv_tokens=372_827, kv_type="auto", devices=("CPU",)
        )

    def test_half_the_bits_are_twice_the_tokens_so_auto_is_32_bits_on_a_processor(self) -> None:
        found = RECIPE.read_log(recorded("faults/2-abort-on-the-first-chat.txt"))
        assert (found.kv_type, found.kv_tokens) == ("float16", 745_654)
        # Keys and values of 30 layers with 3 heads of 64, 4 bytes each, in 16 GiB.
        assert 2**34 // (30 * 3 * 64 * 2 * 4) == 372_827

    @pytest.mark.parametrize(
        ("name", "line"),
        [
            (
                "2-abort-on-the-first-chat",
                "FastLLM Error: CatDirect's inputs should have the same float or int8 type.",
            ),
            (
                "3-bad-kv-type",
                "FastLLM Error: set_model_kv_cache_dtype error: kv_cache_dtype should be auto, float32, float16, "
                "bfloat16, fp8_e4m3 or fp4_e2m1.",
            ),
            (
                "3-cuda-without-a-gpu",
                "FastLLM Error: Linear error: unsupported data types input=float16, weight=bfloat16, output=float16.",
            ),
            ("3-q4-1-gguf", "iqk_quantize_row_q8_K error with type q4_1 (vec dot type = f32)"),
            (
                "9-too-much-context-fastllm",
                "ValueError: Context/RoPE: context extension is not implemented for this model layout",
            ),
            ("9-unknown-flag-fastllm", "ftllm: error: unrecognized arguments: --flash-attn on --ctx-size 6144"),
        ],
    )
    def test_the_first_line_that_names_a_failure(self, name: str, line: str) -> None:
        assert RECIPE.read_log(recorded(f"faults/{name}.txt")).fatal_lines[0] == line

    def test_a_model_that_is_not_there_was_looked_up_in_a_hub(self) -> None:
        *_, line = RECIPE.read_log(recorded("faults/8-missing-fastllm.txt")).fatal_lines
        assert line.startswith("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hf-mirror.com'")

    def test_a_server_that_talks_nonsense_names_no_failure(self) -> None:
        found = RECIPE.read_log(recorded("faults/7-gibberish-from-gguf.txt"))
        assert (found.fatal_lines, found.oom_lines, found.kv_tokens) == ((), (), 372_827)

    def test_memory_that_ran_out(self) -> None:
        found = RECIPE.read_log(
            "Error: CUDA error when allocating 512 MB memory! maybe there's no enough memory left on device."
        )
        assert len(found.oom_lines) == 1
