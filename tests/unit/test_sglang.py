"""The SGLang recipe: its command line, and what is read out of what the real server printed and answered."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from pytest_moegpu.backends.base import Delta, EngineVersion, Load, ServedModel, Usage
from pytest_moegpu.backends.sglang import SgLang
from pytest_moegpu.core.faults import OUT_OF_MEMORY, find
from pytest_moegpu.core.model import DeviceKind, Settings
from pytest_moegpu.core.units import GIB
from pytest_moegpu.errors import UserError
from tests.unit.recordings import Recorded

RECIPE = SgLang()
ENGINE = Recorded(RECIPE, "/opt/python", "-m", "sglang.launch_server")
launch, flags, recorded = ENGINE.launch, ENGINE.flags, ENGINE.text
events, answer = ENGINE.events, ENGINE.answer

# Formats as model_runner.py, memory_pool.py and scheduler.py of 0.5.15 write them.
GPU_LOG = """\
[2026-12-01 10:00:20 TP0] Load weight end. elapsed=4.51 s, type=LlamaForCausalLM, avail mem=120.10 GB, mem usage=10.50 GB.
[2026-12-01 10:00:20 TP1] Load weight end. elapsed=4.60 s, type=LlamaForCausalLM, avail mem=120.20 GB, mem usage=10.25 GB.
[2026-12-01 10:00:21 TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 65536, K size: 4.00 GB, V size: 4.00 GB
[2026-12-01 10:00:21 TP1] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 65536, KV size: 8.00 GB
[2026-12-01 10:00:29 TP0] Capture decode CUDA graph end. elapsed=7.25 s, mem usage=0.33 GB, avail mem=111.77 GB.
[2026-12-01 10:00:30 TP0] max_total_num_tokens=65536, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=4, context_len=4096, available_gpu_mem=111.77 GB
"""  # noqa: E501 - lines of a log


class TestArgv:
    def test_of_plain_settings_on_a_gpu(self) -> None:
        assert RECIPE.argv(launch()) == (
            *("/opt/python", "-m", "sglang.launch_server", "--model-path", "/models/smol"),
            *("--served-model-name", "smol", "--host", "127.0.0.1", "--port", "18080"),
            *("--context-length", "2048", "--max-running-requests", "1", "--kv-cache-dtype", "auto"),
            *("--enable-metrics", "--enable-cache-report"),
        )

    @pytest.mark.parametrize(
        ("program", "verb"),
        [(("/opt/bin/sglang",), ("serve",)), (("/opt/bin/sglang", "serve"), ()), (("/opt/bin/sglang-server",), ())],
    )
    def test_the_command_gets_its_verb_once(self, program: tuple[str, ...], verb: tuple[str, ...]) -> None:
        assert RECIPE.argv(launch(program=program))[: len(program) + len(verb) + 1] == (*program, *verb, "--model-path")
        assert RECIPE.help_argv(program) == (*program, *verb, "--help")

    def test_of_other_settings(self) -> None:
        s = Settings(
            context=6144,
            slots=4,
            prefix_cache=False,
            memory_share=0.15,
            host_weights_bytes=5 * GIB // 2,
            prefill_chunk=1024,
            cuda_graphs=False,
            extra_flags=("--random-seed", "3"),
        )
        found = flags(launch(s, devices=("0", "1")))
        expected = {
            "--context-length": "6144",
            "--max-running-requests": "4",
            "--mem-fraction-static": "0.15",
            "--cpu-offload-gb": "3",
            "--chunked-prefill-size": "1024",
            "--tensor-parallel-size": "2",
        }
        assert {name: found[name] for name in expected} == expected
        assert {"--disable-radix-cache", "--disable-cuda-graph"} <= found.keys()
        assert not {"--device", "--api-key", "--max-total-tokens"} & found.keys()
        assert RECIPE.argv(launch(s))[-2:] == ("--random-seed", "3")
        assert "--tensor-parallel-size" not in flags(launch(s, devices=("1",)))

    def test_on_a_processor(self) -> None:
        spec = launch(
            Settings(context=2048, slots=2, gpu_layers=0, threads=2, cuda_graphs=False), device_kind=DeviceKind.CPU
        )
        found = flags(spec)
        expected = {
            "--device": "cpu",
            "--attention-backend": "torch_native",
            "--sampling-backend": "pytorch",
            "--grammar-backend": "none",
            "--max-total-tokens": "8192",
        }
        assert {name: found[name] for name in expected} == expected
        assert "--disable-cuda-graph" not in found
        assert RECIPE.environment(spec)["OMP_NUM_THREADS"] == "2"

    def test_a_share_of_the_memory_replaces_the_fixed_pool_of_a_processor(self) -> None:
        found = flags(launch(Settings(context=2048, memory_share=0.25), device_kind=DeviceKind.CPU))
        assert found["--mem-fraction-static"] == "0.25"
        assert "--max-total-tokens" not in found

    @pytest.mark.parametrize(
        ("word", "spelling"),
        [("f16", "auto"), ("bf16", "auto"), ("fp8", "fp8_e4m3"), ("fp8_e5m2", "fp8_e5m2"), ("fp4", "nvfp4")],
    )
    def test_kv_cache_is_spelled_as_the_help_text_allows(self, word: str, spelling: str) -> None:
        spec = launch(Settings(context=2048, kv_cache=word), compute_capability="9.0")
        assert flags(spec)["--kv-cache-dtype"] == spelling
        (flag,) = (each for each in RECIPE.read_help(recorded("help.txt")) if "--kv-cache-dtype" in each.names)
        assert spelling in flag.choices

    @pytest.mark.parametrize(
        ("changes", "settings", "message"),
        [
            (
                {},
                {"kv_cache": "int8"},
                "settings.kv_cache: sglang has no KV cache of int8; with as many bits: fp8_e4m3",
            ),
            ({"compute_capability": "8.6"}, {"kv_cache": "fp8"}, "need compute capability 8.9, and this GPU has 8.6"),
            ({"device_kind": DeviceKind.CPU}, {"kv_cache": "fp8"}, "on a processor SGLang needs Intel AMX for it"),
            (
                {},
                {"gpu_layers": 20},
                "settings.gpu_layers: sglang: SGLang has all layers on the GPU; settings.host_wei",
            ),
            ({}, {"gpu_layers": 0}, "settings.gpu_layers: sglang: SGLang has all layers on the GPU"),
            ({"device_kind": DeviceKind.CPU}, {"gpu_layers": 3}, "settings.gpu_layers: sglang: the profile has no GPU"),
            ({}, {"cpu_expert_layers": 4}, "settings.cpu_expert_layers: sglang: .*: settings.host_weights"),
            ({}, {"flash_attention": "on"}, "settings.flash_attention: sglang: .*--attention-backend"),
            ({}, {"batch": 1024}, "settings.batch: sglang: SGLang has one such size: settings.prefill_chunk"),
            ({}, {"ubatch": 256}, "settings.ubatch: sglang: SGLang has one such size: settings.prefill_chunk"),
            ({}, {"threads": 4}, "settings.threads: sglang: SGLang has such a setting on a processor only"),
            ({}, {"mmap": False}, "settings.mmap: sglang: .*--load-format"),
            ({"device_kind": DeviceKind.CPU}, {"host_weights_bytes": GIB}, "settings.host_weights: sglang: without a"),
        ],
    )
    def test_what_it_cannot_do_is_refused(
        self, changes: dict[str, Any], settings: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(UserError, match=message):
            RECIPE.argv(launch(Settings(context=2048, **settings), **changes))

    def test_fp8_on_an_older_gpu_is_left_to_kernels_that_the_scenario_names(self) -> None:
        s = Settings(context=2048, kv_cache="fp8", extra_flags=("--attention-backend", "flashinfer"))
        assert flags(launch(s, compute_capability="8.6"))["--kv-cache-dtype"] == "fp8_e4m3"
        other = Settings(context=2048, kv_cache="fp8_e5m2")
        assert flags(launch(other, compute_capability="8.6"))["--kv-cache-dtype"] == "fp8_e5m2"

    def test_every_flag_it_writes_stands_in_the_help_text(self) -> None:
        known = {name for flag in RECIPE.read_help(recorded("help.txt")) for name in flag.names}
        s = Settings(
            context=9, memory_share=0.5, host_weights_bytes=GIB, prefill_chunk=9, cuda_graphs=False, prefix_cache=False
        )
        written = {
            *flags(launch(s, devices=("0", "1"))),
            *flags(launch(Settings(context=9), device_kind=DeviceKind.CPU)),
            *(name for names in RECIPE.meanings.values() for name in names),
        }
        assert written <= known
        assert not known & RECIPE.not_flags.keys()


def test_environment_holds_the_devices_and_asks_nobody_outside() -> None:
    assert RECIPE.environment(launch(devices=("2", "0"))) == {
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "2,0",
    }
    assert "secret" not in RECIPE.argv(launch())
    assert not RECIPE.takes_key


def test_the_port_ten_thousand_above_exists_too() -> None:
    assert RECIPE.last_port + 10_000 == 65_535


@pytest.mark.parametrize(
    ("output", "version"),
    [
        (None, EngineVersion(version="0.5.23")),
        ("sglang version: 0.5.23\ngit revision: 46c443e\n", EngineVersion(version="0.5.23", build="46c443e")),
        ("sglang version: 0.5.15\ngit revision: N/A\n", EngineVersion(version="0.5.15")),
        ("sglang 0.5.15\ntorch 2.11.0+cu130\n", EngineVersion(version="0.5.15", toolkit="13.0")),
        ("sglang 0.5.23\ntorch 2.13.0+cpu\n", EngineVersion(version="0.5.23")),
        ("usage: sglang serve [-h]\n", EngineVersion()),
    ],
)
def test_version(output: str | None, version: EngineVersion) -> None:
    assert RECIPE.read_version(recorded("version.txt") if output is None else output) == version


def test_each_form_of_the_program_is_asked_for_its_version_in_its_own_way() -> None:
    asked = RECIPE.version_argv(("/venv/bin/python", "-m", "sglang.launch_server"))
    assert asked[:2] == ("/venv/bin/python", "-c")
    assert "importlib.metadata" in asked[2]
    assert RECIPE.version_argv(("/bin/sglang",)) == ("/bin/sglang", "version")
    assert RECIPE.version_argv(("/bin/sglang", "serve")) == ("/bin/sglang", "version")
    assert RECIPE.version_argv(("/bin/sglang-server",)) == ("/bin/sglang-server", "--version")


def test_props() -> None:
    served = RECIPE.read_props(json.loads(recorded("props.json")))
    assert (served.name, served.path) == ("smollm2-135m-instruct", "/models/hf")
    assert (served.context, served.kv_tokens) == (2048, 8192)


def test_a_pool_smaller_than_the_context_is_seen_though_the_server_says_nothing() -> None:
    text = recorded("faults/5-pool-smaller-than-context.txt")
    body = next(line for line in text.splitlines() if line.startswith('{"context_length"'))
    assert RECIPE.read_props(json.loads(body)) == ServedModel(context=4096, kv_tokens=256)
    facts = RECIPE.read_log(text)
    assert (facts.kv_tokens, facts.context) == (256, 4096)
    # It prints 0.00 GB, which is no size.
    assert facts.kv_bytes == {}


def test_metrics_and_load() -> None:
    metrics = RECIPE.read_metrics(recorded("metrics.txt"))
    assert (metrics["prompt_tokens_total"], metrics["generation_tokens_total"]) == (356.0, 78.0)
    assert metrics["max_total_num_tokens"] == 8192.0
    assert RECIPE.read_load(metrics) == Load(kv_use=0.0, preemptions=0.0, running=0.0, waiting=0.0)
    # The gauge is of the latest round; the total is there once there was any.
    again = metrics | {"num_retracted_requests_total": 3.0, "token_usage": 0.97, "num_queue_reqs": 2.0}
    assert RECIPE.read_load(again) == Load(kv_use=0.97, preemptions=3.0, running=0.0, waiting=2.0)


class TestLog:
    def test_of_a_good_start_on_a_processor(self) -> None:
        facts = RECIPE.read_log(recorded("log-good.txt"))
        # It differs from start to start, as a difference of what was free.
        (used,) = re.findall(r"Load weight end.*mem usage=(0\.\d\d) GB", recorded("log-good.txt"))
        assert facts.model_bytes == {"CPU": round(float(used) * GIB)}
        assert facts.kv_bytes == {"CPU": round(0.18 * GIB)}
        assert facts.compute_bytes == {}
        assert (facts.context, facts.slots) == (2048, 2048)
        assert (facts.kv_tokens, facts.kv_type) == (8192, "bfloat16")
        assert (facts.offloaded_layers, facts.total_layers) == (None, None)
        assert (facts.oom_lines, facts.fatal_lines) == ((), ())

    def test_of_two_gpus(self) -> None:
        facts = RECIPE.read_log(GPU_LOG)
        assert facts.model_bytes == {"CUDA0": round(10.5 * GIB), "CUDA1": round(10.25 * GIB)}
        assert facts.kv_bytes == {"CUDA0": 8 * GIB, "CUDA1": 8 * GIB}
        assert facts.compute_bytes == {"CUDA0": round(0.33 * GIB)}
        assert (facts.kv_tokens, facts.kv_type) == (65_536, "float8_e4m3fn")
        assert (facts.context, facts.slots) == (4096, 4)

    def test_of_one_gpu(self) -> None:
        facts = RECIPE.read_log(GPU_LOG.replace(" TP0]", "]").replace("TP1", "DP1"))
        assert facts.compute_bytes == {"CUDA0": round(0.33 * GIB)}

    @pytest.mark.parametrize(
        ("line", "fatal"),
        [
            ("sglang serve: error: unrecognized arguments: --model-format gguf", None),
            ("launch_server.py: error: argument --kv-cache-dtype: invalid choice: 'int8'", None),
            ("OSError: Repo id must use alphanumeric chars: './nope'.", None),
            (
                "[2026-12-01 00:10:13 TP0] ValueError: CPU FP8 KV cache requires Intel AMX support.",
                "ValueError: CPU FP8 KV cache requires Intel AMX support.",
            ),
            ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", None),
        ],
    )
    def test_a_cause_of_a_failed_start(self, line: str, fatal: str | None) -> None:
        text = f"[2026-12-01 00:10:13] Scheduler hit an exception: Traceback (most recent call last):\n{line}\n"
        assert RECIPE.read_log(text).fatal_lines == (fatal or line,)

    def test_a_lack_of_memory_is_one_in_its_words_and_in_ours(self) -> None:
        line = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
        assert RECIPE.read_log(line).oom_lines == (line,)
        fault = find([line])
        assert fault is not None
        assert fault.name == OUT_OF_MEMORY

    def test_its_own_kill_is_no_lack_of_memory(self) -> None:
        text = (
            "[2026-12-01 00:10:29] Subprocess scheduler_0 crashed with exit code -15\n"
            "[2026-12-01 00:10:29] kill_process_tree called: parent_pid=1, include_parent=False, pid=1\n"
        )
        facts = RECIPE.read_log(text)
        assert (facts.oom_lines, facts.fatal_lines) == ((), ())


class TestChat:
    def test_a_stream_with_the_tokens_from_the_cache(self) -> None:
        deltas = events("stream.txt")
        assert deltas[0] == Delta()
        assert "".join(delta.text for delta in deltas) == "The capital of Japan is Tokyo."
        assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["stop"]
        assert deltas[-1].usage == Usage(prompt_tokens=37, cached_tokens=29, output_tokens=8, timings={})

    def test_a_stream_that_goes_on_after_the_end_of_the_answer(self) -> None:
        deltas = events("stream-ignore-eos.txt")
        usage = deltas[-1].usage
        assert usage is not None
        assert usage.output_tokens == 24
        assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["length"]

    def test_log_probabilities(self) -> None:
        choices = [choice for delta in events("stream-logprobs.txt") for choice in delta.choices]
        assert [choice.token for choice in choices][:3] == ["The", " capital", " of"]
        assert choices[0].logprob == pytest.approx(-0.3015, abs=1e-4)
        token, logprob = choices[0].top[1]
        assert token == "K"
        assert logprob == pytest.approx(-3.0515, abs=1e-4)

    def test_a_prompt_that_is_too_long_is_refused_as_such_and_another_mistake_is_not(self) -> None:
        for name in ("too-long.txt", "too-long-stream.txt"):
            assert RECIPE.is_too_long(*answer(name))
        assert not RECIPE.is_too_long(*answer("no-messages.txt"))
