"""The vLLM recipe: its command line, and what is read out of what the real server printed and answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_moegpu.backends.base import Delta, EngineVersion, Load, ServedModel, Usage
from pytest_moegpu.backends.vllm import Vllm
from pytest_moegpu.core.faults import OUT_OF_MEMORY, find
from pytest_moegpu.core.flags import Flag
from pytest_moegpu.core.model import DeviceKind, Settings
from pytest_moegpu.core.units import GIB
from pytest_moegpu.errors import UserError
from tests.unit.recordings import Recorded

RECIPE = Vllm()
ENGINE = Recorded(RECIPE, "/opt/vllm")
launch, flags, recorded = ENGINE.launch, ENGINE.flags, ENGINE.text
events, answer = ENGINE.events, ENGINE.answer

# Formats as gpu_model_runner.py, gpu_worker.py and kv_cache_utils.py of 0.32.0 write them.
GPU_LOG = """\
(APIServer pid=41) INFO 12-01 10:00:01 [model.py:2152] Using max model len 4096
(Worker_TP0 pid=77) INFO 12-01 10:00:20 [gpu_model_runner.py:5150] Model loading took 10.5 GiB memory and 4.5 seconds
(Worker_TP1 pid=78) INFO 12-01 10:00:20 [gpu_model_runner.py:5150] Model loading took 10.25 GiB memory and 4.6 seconds
(Worker_TP0 pid=77) INFO 12-01 10:00:31 [gpu_worker.py:760] Available KV cache memory: 8.0 GiB
(Worker_TP1 pid=78) INFO 12-01 10:00:31 [gpu_worker.py:760] Available KV cache memory: 8.0 GiB
(EngineCore pid=60) INFO 12-01 10:00:31 [kv_cache_utils.py:2327] GPU KV cache size: 1,245,184 tokens, Maximum \
concurrency for 4,096 tokens per request: 304.00x
(Worker_TP0 pid=77) INFO 12-01 10:00:40 [gpu_model_runner.py:6582] Graph capturing finished in 9 secs, took 0.53 GiB
"""
ONE_GPU_LOG = """\
(EngineCore pid=60) INFO 12-01 10:00:20 [gpu_model_runner.py:5150] Model loading took 0.26 GiB memory and 0.5 seconds
(EngineCore pid=60) INFO 12-01 10:00:31 [gpu_worker.py:760] Available KV cache memory: 27.1 GiB
"""


class TestArgv:
    def test_of_plain_settings_on_a_gpu(self) -> None:
        assert RECIPE.argv(launch()) == (
            *("/opt/vllm", "serve", "/models/smol", "--served-model-name", "smol"),
            *("--host", "127.0.0.1", "--port", "18080"),
            *("--max-model-len", "2048", "--max-num-seqs", "1", "--kv-cache-dtype", "auto", "--enable-prefix-caching"),
            *("--default-chat-template-kwargs", '{"enable_thinking": false}', "--enable-prompt-tokens-details"),
        )

    def test_of_other_settings(self) -> None:
        s = Settings(
            context=6144,
            slots=4,
            thinking=True,
            prefix_cache=False,
            memory_share=0.2,
            host_weights_bytes=5 * GIB // 2,
            prefill_chunk=1024,
            cuda_graphs=False,
            extra_flags=("--seed", "3"),
        )
        found = flags(launch(s, devices=("0", "1")))
        expected = {
            "--max-model-len": "6144",
            "--max-num-seqs": "4",
            "--gpu-memory-utilization": "0.2",
            "--cpu-offload-gb": "2.5",
            "--max-num-batched-tokens": "1024",
            "--tensor-parallel-size": "2",
            "--default-chat-template-kwargs": '{"enable_thinking": true}',
        }
        assert {name: found[name] for name in expected} == expected
        assert {"--no-enable-prefix-caching", "--enforce-eager"} <= found.keys()
        assert "--enable-prefix-caching" not in found
        assert RECIPE.argv(launch(s))[-2:] == ("--seed", "3")
        assert "--tensor-parallel-size" not in flags(launch(s, devices=("1",)))

    def test_on_a_processor(self) -> None:
        spec = launch(Settings(context=2048, gpu_layers=0, threads=2), device_kind=DeviceKind.CPU)
        assert "--enforce-eager" in RECIPE.argv(spec)
        assert "--gpu-memory-utilization" not in flags(spec)
        environment = RECIPE.environment(spec)
        assert environment["VLLM_CPU_KVCACHE_SPACE"] == "1"
        assert (environment["VLLM_CPU_OMP_THREADS_BIND"], environment["OMP_NUM_THREADS"]) == ("nobind", "2")

    def test_a_share_of_the_memory_replaces_the_fixed_cache_of_a_processor(self) -> None:
        spec = launch(Settings(context=2048, memory_share=0.25), device_kind=DeviceKind.CPU)
        assert flags(spec)["--gpu-memory-utilization"] == "0.25"
        assert not {"VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND"} & RECIPE.environment(spec).keys()

    @pytest.mark.parametrize(
        ("word", "spelling"),
        [
            ("f16", "auto"),
            ("bf16", "auto"),
            ("fp8", "fp8_e4m3"),
            ("fp8_e5m2", "fp8_e5m2"),
            ("q8_0", "int8_per_token_head"),
            ("int4", "int4_per_token_head"),
            ("fp4", "nvfp4"),
        ],
    )
    def test_kv_cache_is_spelled_as_the_help_text_allows(self, word: str, spelling: str) -> None:
        spec = launch(Settings(context=2048, kv_cache=word), compute_capability="10.0")
        assert flags(spec)["--kv-cache-dtype"] == spelling
        (flag,) = (each for each in RECIPE.read_help(recorded("help.txt")) if "--kv-cache-dtype" in each.names)
        assert spelling in flag.choices

    @pytest.mark.parametrize(
        ("changes", "settings", "message"),
        [
            ({}, {"kv_cache": "q4_1"}, "settings.kv_cache: vllm has no KV cache of q4_1"),
            ({"compute_capability": "8.6"}, {"kv_cache": "fp8"}, "need compute capability 8.9, and this GPU has 8.6"),
            ({"compute_capability": "12.0"}, {"kv_cache": "fp4"}, "need compute capability 10, and this GPU has 12.0"),
            ({"device_kind": DeviceKind.CPU}, {"kv_cache": "int8"}, "vLLM's attention on a processor does not read it"),
            (
                {},
                {"gpu_layers": 20},
                "settings.gpu_layers: vllm: vLLM has all layers on the GPU; settings.host_weights",
            ),
            ({}, {"gpu_layers": 0}, "settings.gpu_layers: vllm: vLLM has all layers on the GPU"),
            ({"device_kind": DeviceKind.CPU}, {"gpu_layers": 3}, "settings.gpu_layers: vllm: the profile has no GPU"),
            ({}, {"cpu_expert_layers": 4}, "settings.cpu_expert_layers: vllm: .*: settings.host_weights"),
            ({}, {"flash_attention": "on"}, "settings.flash_attention: vllm: .*--attention-backend"),
            ({}, {"batch": 1024}, "settings.batch: vllm: vLLM has one such size: settings.prefill_chunk"),
            ({}, {"ubatch": 256}, "settings.ubatch: vllm: vLLM has one such size: settings.prefill_chunk"),
            ({}, {"threads": 4}, "settings.threads: vllm: vLLM has such a setting on a processor only"),
            ({}, {"mmap": False}, "settings.mmap: vllm: .*--safetensors-load-strategy"),
            (
                {"device_kind": DeviceKind.CPU},
                {"host_weights_bytes": GIB},
                "settings.host_weights: vllm: without a GPU",
            ),
        ],
    )
    def test_what_it_cannot_do_is_refused(
        self, changes: dict[str, Any], settings: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(UserError, match=message):
            RECIPE.argv(launch(Settings(context=2048, **settings), **changes))

    def test_fp8_on_an_older_gpu_is_left_to_kernels_that_the_scenario_names(self) -> None:
        s = Settings(context=2048, kv_cache="fp8", extra_flags=("--attention-backend", "FLASHINFER"))
        assert flags(launch(s, compute_capability="8.6"))["--kv-cache-dtype"] == "fp8_e4m3"

    def test_every_flag_it_writes_stands_in_the_help_text(self) -> None:
        known = {name for flag in RECIPE.read_help(recorded("help.txt")) for name in flag.names}
        s = Settings(context=9, memory_share=0.5, host_weights_bytes=GIB, prefill_chunk=9, cuda_graphs=False)
        written = {
            *flags(launch(s, devices=("0", "1"))),
            *flags(launch(Settings(context=9, prefix_cache=False))),
            *(name for names in RECIPE.meanings.values() for name in names if name != "model"),
        }
        assert written <= known
        assert not known & RECIPE.not_flags.keys()


def test_environment_holds_the_key_and_the_devices_and_asks_nobody_outside() -> None:
    assert RECIPE.environment(launch(devices=("2", "0"))) == {
        "VLLM_API_KEY": "secret",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "2,0",
    }


@pytest.mark.parametrize(
    ("output", "version"),
    [
        (None, EngineVersion(version="0.32.0+cpu")),
        ("Triton is installed, but doesn't include CPU backend.\n0.32.0+cpu\n", EngineVersion(version="0.32.0+cpu")),
        ("vllm 0.22.1\ntorch 2.11.0+cu130\n", EngineVersion(version="0.22.1", toolkit="13.0")),
        ("vllm 0.22.1+cu129\ntorch 2.11.0+cu130\n", EngineVersion(version="0.22.1+cu129", toolkit="12.9")),
        ("torch 2.11.0\n", EngineVersion()),
    ],
)
def test_version(output: str | None, version: EngineVersion) -> None:
    assert RECIPE.read_version(recorded("version.txt") if output is None else output) == version


def test_the_version_of_a_module_is_asked_of_its_interpreter() -> None:
    asked = RECIPE.version_argv(("/venv/bin/python", "-m", "vllm.entrypoints.cli.main"))
    assert asked[:2] == ("/venv/bin/python", "-c")
    assert "importlib.metadata" in asked[2]
    assert RECIPE.version_argv(("/venv/bin/vllm",)) == ("/venv/bin/vllm", "--version")


def test_help() -> None:
    assert RECIPE.help_argv(("/opt/vllm",)) == ("/opt/vllm", "serve", "--help=all")
    read = {flag.names[0]: flag for flag in RECIPE.read_help(recorded("help.txt"))}
    assert read["--dtype"] == Flag(
        names=("--dtype",),
        takes_value=True,
        choices=("auto", "bfloat16", "float", "float16", "float32", "half"),
    )


def test_props() -> None:
    served = RECIPE.read_props(json.loads(recorded("props.json")))
    assert served == ServedModel(name="smollm2-135m-instruct", path="/models/hf", context=2048)


def test_metrics_and_load() -> None:
    metrics = RECIPE.read_metrics(recorded("metrics.txt"))
    assert (metrics["prompt_tokens_total"], metrics["generation_tokens_total"]) == (314.0, 66.0)
    assert metrics["time_to_first_token_seconds_count"] == 8.0
    assert not {name for name in metrics if name.startswith(("http_", "process_", "python_"))}
    assert RECIPE.read_load(metrics) == Load(kv_use=0.0, preemptions=0.0, running=0.0, waiting=0.0)


def test_a_cache_that_was_too_small_is_seen_in_the_load() -> None:
    parts = recorded("faults/6-preemptions.txt").split("## some of GET /metrics\n")[1:]
    loads = [RECIPE.read_load(RECIPE.read_metrics(part)) for part in parts]
    assert max(load.kv_use for load in loads if load.kv_use is not None) == 1.0
    assert max(load.waiting for load in loads if load.waiting is not None) == 2.0
    assert loads[-1].preemptions == 3.0
    assert RECIPE.read_log(parts[-1]).kv_tokens == 1024


class TestLog:
    def test_of_a_good_start_on_a_processor(self) -> None:
        facts = RECIPE.read_log(recorded("log-good.txt"))
        assert (facts.context, facts.slots) == (2048, 4)
        assert (facts.kv_tokens, facts.kv_type) == (46_592, "bfloat16")
        assert facts.kv_bytes == {"CPU": GIB}
        assert facts.model_bytes == facts.compute_bytes == {}
        assert (facts.offloaded_layers, facts.total_layers) == (None, None)
        assert (facts.oom_lines, facts.fatal_lines) == ((), ())

    def test_of_two_gpus(self) -> None:
        facts = RECIPE.read_log(GPU_LOG)
        assert facts.model_bytes == {"CUDA0": round(10.5 * GIB), "CUDA1": round(10.25 * GIB)}
        assert facts.kv_bytes == {"CUDA0": 8 * GIB, "CUDA1": 8 * GIB}
        assert facts.compute_bytes == {"CUDA0": round(0.53 * GIB)}
        assert (facts.kv_tokens, facts.context) == (1_245_184, 4096)

    def test_of_one_gpu(self) -> None:
        facts = RECIPE.read_log(ONE_GPU_LOG)
        assert facts.model_bytes == {"CUDA0": round(0.26 * GIB)}
        assert facts.kv_bytes == {"CUDA0": round(27.1 * GIB)}

    def test_a_type_that_was_asked_for_is_the_type(self) -> None:
        assert RECIPE.read_log("dtype=torch.bfloat16, kv_cache_dtype=fp8_e4m3, x").kv_type == "fp8_e4m3"
        assert RECIPE.read_log("kv_cache_dtype=auto, x").kv_type == "auto"

    def test_a_folder_that_is_not_there(self) -> None:
        facts = RECIPE.read_log(recorded("faults/8-missing-vllm.txt"))
        assert facts.fatal_lines[0].startswith("huggingface_hub.errors.HFValidationError: Repo id must be")
        assert "'/models/nope'" in facts.fatal_lines[0]
        assert facts.oom_lines == ()

    @pytest.mark.parametrize(
        ("line", "fatal"),
        [
            ("vllm: error: unrecognized arguments: --bogus-flag 1", None),
            ("vllm serve: error: argument --kv-cache-dtype: invalid choice: 'int8' (choose from auto)", None),
            (
                "(EngineCore pid=7) ERROR 12-01 00:11:45 [core.py:1090] ValueError: Available memory on node 0 "
                "(21.99/23.54 GiB) on startup is less than desired CPU memory utilization",
                "ValueError: Available memory on node 0 (21.99/23.54 GiB) on startup is less than desired CPU memory "
                "utilization",
            ),
            (
                "(VllmWorker-0 pid=7) ERROR 12-01 00:11:45 [x.py:1] torch.OutOfMemoryError: CUDA out of memory.",
                "torch.OutOfMemoryError: CUDA out of memory.",
            ),
            ("  Value error, User-specified max_model_len (999999) is greater than the derived", "strip"),
        ],
    )
    def test_a_first_cause_comes_before_what_follows_from_it(self, line: str, fatal: str | None) -> None:
        last = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
        found = RECIPE.read_log(f"{line}\n(APIServer pid=1) {last}\n").fatal_lines
        assert found == (line.strip() if fatal in (None, "strip") else fatal, last)

    def test_what_is_survived_is_no_failure(self) -> None:
        lines = (
            "(APIServer pid=1) ERROR 12-01 00:12:14 [serving.py:274] Error with model error=ErrorInfo(message='x')",
            "/x/dispatcher.py:138: FutureWarning: `torch.distributed.reduce_op` is deprecated",
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
        )
        assert RECIPE.read_log("\n".join(lines)).fatal_lines == ()

    def test_an_engine_that_goes_first_when_told_to_stop_has_not_failed(self) -> None:
        # As a healthy server wrote it.
        stop = "(APIServer pid=1870) INFO 12-01 00:57:38 [launcher.py:254] [shutdown] API server: shutdown triggered\n"
        dead = (
            "(APIServer pid=1870) ERROR 12-01 00:57:38 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: "
            "EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
        )
        assert RECIPE.read_log(stop + dead).fatal_lines == ()
        (line,) = RECIPE.read_log(dead + stop).fatal_lines
        assert line.startswith("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.")

    @pytest.mark.parametrize(
        "line",
        [
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
            "ValueError: Free memory on device cuda:0 (10.1/139.8 GiB) on startup is less than desired GPU memory "
            "utilization (0.9, 125.8 GiB).",
            "ValueError: To serve at least one request (4.0 GiB KV cache is needed, which is larger than the available "
            "KV cache memory (1.2 GiB).",
        ],
    )
    def test_a_lack_of_memory_is_one_in_its_words_and_in_ours(self, line: str) -> None:
        assert RECIPE.read_log(line).oom_lines == (line,)
        fault = find([line])
        assert fault is not None
        assert fault.name == OUT_OF_MEMORY


class TestChat:
    def test_a_stream(self) -> None:
        deltas = events("stream.txt")
        assert deltas[0] == Delta()
        assert "".join(delta.text for delta in deltas) == "The capital of Japan is Tokyo."
        assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["stop"]
        assert deltas[-1].usage == Usage(prompt_tokens=37, cached_tokens=0, output_tokens=8, timings={})

    def test_a_stream_that_goes_on_after_the_end_of_the_answer(self) -> None:
        deltas = events("stream-ignore-eos.txt")
        assert deltas[-1].usage == Usage(prompt_tokens=37, cached_tokens=0, output_tokens=24, timings={})
        assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["length"]

    def test_log_probabilities(self) -> None:
        choices = [choice for delta in events("stream-logprobs.txt") for choice in delta.choices]
        assert [choice.token for choice in choices][:3] == ["The", " capital", " of"]
        assert choices[0].logprob == pytest.approx(-0.3132, abs=1e-4)
        token, logprob = choices[0].top[1]
        assert token == "K"
        assert logprob == pytest.approx(-2.9382, abs=1e-4)

    def test_a_prompt_that_is_too_long_is_refused_as_such_and_another_mistake_is_not(self) -> None:
        for name in ("too-long.txt", "too-long-stream.txt"):
            assert RECIPE.is_too_long(*answer(name))
        for name in ("no-messages.txt", "wrong-model.txt"):
            assert not RECIPE.is_too_long(*answer(name))

    def test_an_engine_that_died_says_so_under_http_200(self) -> None:
        data = '{"error": {"message": "EngineCore encountered an issue. See stack trace", "code": 500}}'
        assert RECIPE.read_event(data).error == "EngineCore encountered an issue. See stack trace"
