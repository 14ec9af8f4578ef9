"""FastLLM's `ftllm server`.

Flags, answers and log lines were read off ftllm 1.9.0 on a CPU; what is said of a GPU stands in its help text and its
library. It has no health, metrics or version endpoint, ends with exit code 0 after most fatal errors, and answers
nonsense from a GGUF file of an architecture that it does not know, llama among them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pytest_moegpu.backends.base import EngineVersion, ServedModel
from pytest_moegpu.backends.recipe import Recipe, count, lines, refuse, text
from pytest_moegpu.core.evidence import LogFacts
from pytest_moegpu.core.kvcache import spell_kv
from pytest_moegpu.core.model import ALL_LAYERS, DeviceKind, LaunchSpec, ModelFormat

__all__ = ["FastLlm"]

_VERSION = re.compile(r"^ftllm version: (\S+)", re.MULTILINE)
_CONTEXT = re.compile(r"Per-session context window limit: (\d+) tokens")
# Both are printed at the first request.
_KV_TOKENS = re.compile(r"Fastllm KV Cache Token limit: (\d+) tokens")
_SLOTS = re.compile(r"Fastllm Batch limit: (\d+)\.")
_KV_TYPE = re.compile(r"\bkv_cache_dtype='(\w{1,32})'")
_CPU_LIBRARY = "Load libfastllm_tools-cpu.so"
_OOM = re.compile(
    r"no enough memory left on device|fatal CUDA allocation error|out of memory|std::bad_alloc", re.IGNORECASE
)
_FATAL = re.compile(
    r"FastLLM Error: |fatal CUDA|CUDA error|^ftllm[\w ]{0,20}: error: |error with type \w|^[A-Za-z_][\w.]{0,80}Error: "
)

_KV_SPELLINGS = {
    # The type it computes in: float16 on a GPU, and float32 on a processor, where it has no other.
    "f16": "auto",
    "f32": "float32",
    "bf16": "bfloat16",
    "fp8_e4m3": "fp8_e4m3",
    "fp4": "fp4_e2m1",
}
_ON_CPU = {
    "bf16": "on a processor it aborts at the first request (CatDirect's inputs should have the same float type)",
    "fp8_e4m3": "it needs CUDA",
    "fp4": "it needs CUDA",
}
_UNABLE = {
    "flash_attention": "FastLLM chooses its attention kernels itself",
    "batch": "FastLLM has one such size: settings.prefill_chunk",
    "ubatch": "FastLLM has one such size: settings.prefill_chunk",
    "mmap": "FastLLM has no such choice",
    "host_weights_bytes": "FastLLM counts layers of experts: settings.cpu_expert_layers",
    "cuda_graphs": "FastLLM has no such flag",
    "gpu_layers": "FastLLM puts all layers on one device; settings.cpu_expert_layers keeps experts in host memory",
}
_UNABLE_ON_CPU = {
    "memory_share": "it is a share of a GPU's memory, and this profile has none",
    "cpu_expert_layers": "all layers are in host memory already",
}


class FastLlm(Recipe):
    """Recipe for ftllm. It tells nothing of KV cache use and queue, and a stream carries no log-probabilities."""

    name = "fastllm"
    program = "ftllm"
    program_variable = "MOEGPU_FTLLM"
    install_hint = "pip install ftllm==1.9.0"
    environment_prefixes = ("FASTLLM_", "FTLLM_", "FT_", "CUDA_", "NCCL_", "OMP_", "GOMP_")
    model_formats = (ModelFormat.HF, ModelFormat.GGUF)
    ignores_eos = False
    continues_prefill = False
    gives_logprobs = False
    takes_key = False
    health_path = "/v1/models"
    meanings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model": ("model", "--path", "-p"),
        "served_name": ("--model_name",),
        "context": ("--max_context_length", "--max-context-length"),
        "slots": ("--max_batch",),
        "kv_cache": ("--kv_cache_dtype",),
        "cpu_expert_layers": ("--moe_device_layers",),
        "memory_share": ("--gpu_mem_ratio",),
        "prefill_chunk": ("--chunked_prefill_size",),
        "prefix_cache_on": ("--prefix_cache", "--prefix-cache"),
        "thinking": ("--enable_thinking",),
        "threads": ("--threads", "-t"),
        "tensor_parallel": ("--tp",),
        "device": ("--device",),
        "host": ("--host",),
        "port": ("--port",),
        "api_key": ("--api_key",),
        "chat_template": ("--chat_template",),
    }
    not_flags: ClassVar[Mapping[str, str]] = {
        "--ctx-size": "--max_context_length N",
        "--cache-type-k": "--kv_cache_dtype, for keys and values alike",
        "--cache-type-v": "--kv_cache_dtype, for keys and values alike",
        "--flash-attn": "nothing: it chooses its attention kernels itself",
        "--n-gpu-layers": "--device cuda; --moe_device cpu --moe_device_layers N keeps experts in host memory",
        "-ngl": "--device cuda; --moe_device cpu --moe_device_layers N keeps experts in host memory",
        "--n-cpu-moe": "--moe_device cpu --moe_device_layers N",
        "--parallel": "--max_batch N",
    }

    def argv(self, spec: LaunchSpec) -> tuple[str, ...]:
        """Write the command line.

        One thread on a processor unless the scenario says more: its workers spin, and two of them on two busy cores
        gave 0.4 to 0.6 tok/s in place of 31 to 37. Experts in host memory are those of the last layers.
        """
        s, on_cpu = spec.settings, spec.device_kind is DeviceKind.CPU
        unable = _UNABLE | (_UNABLE_ON_CPU if on_cpu else {})
        refuse("FastLLM", s, {name: why for name, why in unable.items() if name != "gpu_layers" or not on_cpu})
        kv = spell_kv(self.name, s.kv_cache, _KV_SPELLINGS, _ON_CPU if on_cpu else None)
        flags: list[str] = [
            *("server", spec.model_path, "--model_name", spec.model_name),
            *("--device", "cpu" if on_cpu else "cuda"),
            *("--max_context_length", str(s.context), "--max_batch", str(s.slots)),
            *("--kv_cache_dtype", kv, "--prefix_cache", _word(s.prefix_cache), "--enable_thinking", _word(s.thinking)),
            *("--host", spec.host, "--port", str(spec.port)),
        ]
        if s.threads is not None or on_cpu:
            flags += ["--threads", str(s.threads or 1)]
        if len(spec.devices) > 1:
            flags += ["--tp", str(len(spec.devices))]
        if s.prefill_chunk is not None:
            flags += ["--chunked_prefill_size", str(s.prefill_chunk)]
        if s.memory_share is not None:
            flags += ["--gpu_mem_ratio", f"{s.memory_share:g}"]
        if s.cpu_expert_layers:
            flags += ["--moe_device", "cpu"]
            if s.cpu_expert_layers < ALL_LAYERS:
                flags += ["--moe_device_layers", str(s.cpu_expert_layers)]
        return (*spec.program, *flags, *s.extra_flags)

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        """No look-ups in a hub. A key would have to stand on its command line, so it gets none."""
        return {"HF_HUB_OFFLINE": "1"} | self.devices(spec)

    def help_argv(self, program: Sequence[str]) -> tuple[str, ...]:
        """Command that prints the flags of the server; those of the program itself are others."""
        return (*program, "server", "--help")

    def read_version(self, output: str) -> EngineVersion:
        """Read `ftllm version: …`; it tells neither its build nor the toolkit it was built with."""
        version = _VERSION.search(output)
        return EngineVersion(version=version[1] if version else None)

    def read_props(self, body: Any) -> ServedModel:
        """Read `/v1/models`. `kv_cache_token_limit` is not set on a processor, where the log tells it."""
        models = body.get("data") if isinstance(body, dict) else None
        first = models[0] if isinstance(models, list) and models and isinstance(models[0], dict) else {}
        return ServedModel(
            name=text(first.get("id")),
            context=count(first.get("context_window")),
            kv_tokens=count(first.get("kv_cache_token_limit")),
        )

    def read_log(self, output: str) -> LogFacts:
        """Read what the server said about itself; it gives no sizes of weights and buffers."""
        context, slots = _CONTEXT.findall(output), _SLOTS.findall(output)
        tokens, kinds = _KV_TOKENS.findall(output), _KV_TYPE.findall(output)
        return LogFacts(
            context=int(context[-1]) if context else None,
            slots=int(slots[-1]) if slots else None,
            kv_tokens=int(tokens[-1]) if tokens else None,
            kv_type=kinds[-1] if kinds else None,
            # The library without CUDA; the other one does not say where it computes.
            devices=("CPU",) if _CPU_LIBRARY in output else (),
            oom_lines=lines(_OOM, output),
            fatal_lines=lines(_FATAL, output),
        )


def _word(value: bool) -> str:
    return "true" if value else "false"
