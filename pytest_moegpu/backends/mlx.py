"""MLX's `mlx_lm.server`, on Apple silicon and on Linux.

Flags, answers and log lines were read off mlx-lm 0.32.2 with MLX 0.32.4 on a Linux CPU. It has no limit of the context:
`settings.context` only bounds the prompts that are sent. It has neither metrics nor a key, and tells nothing about the
size of its weights and its KV cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pytest_moegpu.backends.base import ChatRequest, EngineVersion, Health, ServedModel
from pytest_moegpu.backends.recipe import Recipe, lines, refuse
from pytest_moegpu.core.evidence import LogFacts
from pytest_moegpu.core.kvcache import spell_kv
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, Settings
from pytest_moegpu.errors import UserError

__all__ = ["Mlx"]

_SERVER = "server"
_VERSION = re.compile(r"^(\d+\.\d+\S*)\s*$", re.MULTILINE)
_OOM = re.compile(r"out of memory|unable to allocate|greater than the maximum allowed buffer size", re.IGNORECASE)
_FATAL = re.compile(
    r"generation thread died: |^mlx_lm[\w.]{0,20}: error: |^[A-Za-z_][\w.]{0,80}Error: |^\[\w+::\w+\] ", re.IGNORECASE
)
_STAMP = re.compile(r"^[\d-]+ [\d:,]+ - [A-Z]+ - ")
_NONE = ""
_KV_BITS = {"f16": _NONE, "int8": "8", "int4": "4"}
_UNABLE = {
    "memory_share": "MLX takes what the model and its cache need",
    "host_weights_bytes": "MLX has no such choice",
    "cpu_expert_layers": "MLX has no such choice",
    "flash_attention": "MLX chooses its attention kernels itself",
    "batch": "MLX has one such size: settings.prefill_chunk",
    "ubatch": "MLX has one such size: settings.prefill_chunk",
    "threads": "MLX has no such flag",
    "mmap": "MLX has no such choice",
    "cuda_graphs": "MLX has no such flag",
    "gpu_layers": "MLX puts all layers on one device",
}


class Mlx(Recipe):
    """Recipe for mlx_lm.server. A stream carries no log-probabilities, and no answer can be made longer than it is."""

    name = "mlx"
    program = "mlx_lm.server"
    program_variable = "MOEGPU_MLX_SERVER"
    install_hint = "pip install mlx-lm, on Linux with mlx[cpu] or mlx[cuda12]"
    environment_prefixes = ("MLX_", "CUDA_", "NCCL_", "OMP_", "GOMP_")
    ignores_eos = False
    continues_prefill = False
    gives_logprobs = False
    limits_context = False
    takes_key = False
    meanings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model": ("--model",),
        "slots": ("--decode-concurrency",),
        "kv_cache": ("--kv-bits",),
        "prefill_chunk": ("--prefill-step-size",),
        "thinking": ("--chat-template-args",),
        "host": ("--host",),
        "port": ("--port",),
        "chat_template": ("--chat-template",),
    }
    not_flags: ClassVar[Mapping[str, str]] = {
        "--max-kv-size": "nothing: it is a flag of mlx_lm.generate, and the server has no limit of the context",
        "--ctx-size": "nothing: it has no limit of the context",
        "--max-model-len": "nothing: it has no limit of the context",
        "--api-key": "nothing: it takes no key",
        "--served-model-name": "nothing: the model is asked for by its path",
    }

    def argv(self, spec: LaunchSpec) -> tuple[str, ...]:
        """Write the command line.

        `f16` is the model's own type of 16 bits, which needs no flag. A quantised cache is so from the first token, and
        one request is served at a time with it.
        """
        s = spec.settings
        on_cpu = spec.device_kind is DeviceKind.CPU
        refuse("MLX", s, {name: why for name, why in _UNABLE.items() if name != "gpu_layers" or not on_cpu})
        bits = spell_kv(self.name, s.kv_cache, _KV_BITS)
        _must_batch(s, bits)
        flags: list[str] = [
            *("--model", spec.model_path, "--host", spec.host, "--port", str(spec.port)),
            *("--decode-concurrency", str(s.slots), "--prompt-concurrency", str(s.slots)),
            *("--chat-template-args", json.dumps({"enable_thinking": s.thinking})),
        ]
        if bits:
            flags += ["--kv-bits", bits, "--quantized-kv-start", "0"]
        if s.prefill_chunk is not None:
            flags += ["--prefill-step-size", str(s.prefill_chunk)]
        if not s.prefix_cache:
            flags += ["--prompt-cache-size", "0"]
        return (*spec.program, *flags, *s.extra_flags)

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        """No look-ups in a hub, and an empty folder as its cache: `/v1/models` breaks where there is none."""
        cache = {"HF_HUB_CACHE": spec.scratch} if spec.scratch else {}
        return {"HF_HUB_OFFLINE": "1"} | cache | self.devices(spec)

    def version_argv(self, program: Sequence[str]) -> tuple[str, ...]:
        """Command that prints the version of mlx-lm. The server has no such flag, the program beside it has."""
        *before, last = program
        if before and last == _SERVER:
            return (*before, "--version")
        return (*before, last.removesuffix(f".{_SERVER}"), "--version")

    def read_version(self, output: str) -> EngineVersion:
        """Read the version of mlx-lm, a line of its own; that of MLX below it is not told before a start."""
        version = _VERSION.search(output)
        return EngineVersion(version=version[1] if version else None)

    def read_health(self, status: int, body: str) -> Health:
        """200 says that its thread lives, while the model may still load; with 503 that thread has died, for good."""
        health = super().read_health(status, body)
        if status != 503:
            return health
        return Health(ready=False, dead=True, detail=f"{health.detail}: its generation thread has died")

    def read_props(self, body: Any) -> ServedModel:
        """Read `/v1/models`, where a model's name is its path."""
        return ServedModel(path=super().read_props(body).name)

    def read_log(self, output: str) -> LogFacts:
        """Read the lines that name a failure; of itself the server tells nothing else."""
        return LogFacts(oom_lines=lines(_OOM, output, _STAMP), fatal_lines=lines(_FATAL, output, _STAMP))

    def request(self, spec: LaunchSpec, chat: ChatRequest) -> dict[str, Any]:
        """Write a streamed, greedy chat request for the model by its path: any other name is looked up in a hub.

        Without a seed, which temperature 0 does not need: with one a request is kept out of the batch of the others.
        """
        body = super().request(spec, chat) | {"model": spec.model_path}
        del body["seed"]
        return body

    def is_too_long(self, status: int, body: str) -> bool:  # noqa: ARG002 - of the Protocol
        """It has no limit, so it refuses none."""
        return False


def _must_batch(settings: Settings, bits: str) -> None:
    if bits and settings.slots > 1:
        raise UserError(
            f"settings.slots: MLX serves one request at a time with a KV cache of {settings.kv_cache}; "
            "take 1, or kv_cache f16"
        )
