"""SGLang's server, `sglang serve`, on a GPU or on a processor.

Flags, answers and log lines were read off SGLang 0.5.23 on a processor, those log lines that only a GPU gives off the
sources of 0.5.15 and 0.5.23. `program` may also be `python -m sglang.launch_server`, or a script that runs it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, ClassVar

from pytest_moegpu.backends.base import EngineVersion, Load, Post, ServedModel
from pytest_moegpu.backends.recipe import LAST_PORT, count, lines, number, text
from pytest_moegpu.backends.torchserver import TorchServer, prompt_score, refused_fp8
from pytest_moegpu.core.evidence import LogFacts
from pytest_moegpu.core.golden import TokenScore
from pytest_moegpu.core.kvcache import spell_kv
from pytest_moegpu.core.model import DeviceKind, LaunchSpec
from pytest_moegpu.core.units import GIB

__all__ = ["SgLang"]

_COMMAND = "sglang"
_SERVE = "serve"
# A server of gRPC may take the port this much above the one given.
_GRPC_PORTS = 10_000
# What the slots of a processor's profile can hold, twice: the rest is for prefixes that come again.
_CPU_POOL = 2

_KV_SPELLINGS = {
    # The model's own 16-bit type, whichever of the two it is.
    "f16": "auto",
    "bf16": "auto",
    "fp8_e4m3": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
    "fp4": "nvfp4",
}
_ONE_TOKEN: dict[str, Any] = {
    "sampling_params": {"max_new_tokens": 1, "temperature": 0},
    "return_logprob": True,
    "logprob_start_len": 0,
}
_UNABLE = {
    "flash_attention": "SGLang chooses the attention kernels by --attention-backend, for settings.extra_flags",
    "batch": "SGLang has one such size: settings.prefill_chunk",
    "ubatch": "SGLang has one such size: settings.prefill_chunk",
    "cpu_expert_layers": "SGLang counts bytes, not layers: settings.host_weights, or --kt-* in settings.extra_flags",
    "mmap": "SGLang chooses how weights are read by --load-format, for settings.extra_flags",
}
_UNABLE_ON_GPU = {
    "gpu_layers": "SGLang has all layers on the GPU; settings.host_weights keeps a part of the weights in host memory",
    "threads": "SGLang has such a setting on a processor only",
}
_UNABLE_ON_CPU = {"host_weights_bytes": "without a GPU all weights are in host memory"}

_VERSION = re.compile(r"^(?:sglang version:|sglang) +(\d\S*)\s*$", re.MULTILINE)
_REVISION = re.compile(r"^git revision: +([0-9a-f]{7,40})\s*$", re.MULTILINE)
_TORCH = re.compile(r"^torch \S*\+cu(\d+)(\d)\b", re.MULTILINE)

_STAMP = re.compile(r"^\[\d{4}-\d\d-\d\d [\d:.]{5,16}(?: [A-Z]{2}\d+){0,4}\] ")
_RANK = r"(?:TP(\d+)[^\n\]]{0,30}\] )?"
_WEIGHTS = re.compile(_RANK + r"Load weight end\.[^\n]{0,200}?\bmem usage=([\d.]+) GB")
_KV = re.compile(_RANK + r"KV Cache is allocated\. dtype: torch\.(\w+), #tokens: \d+, ([^\n]{0,120})")
_KV_SIZE = re.compile(r"\bsize: ([\d.]+) GB")
_GRAPHS = re.compile(_RANK + r"Capture [\w ]{1,40} end\.[^\n]{0,200}?\bmem usage=([\d.]+) GB")
_CAPACITY = re.compile(r"max_total_num_tokens=(\d+), [^\n]{0,160}max_running_requests=(\d+), context_len=(\d+)")
_ON_CPU = re.compile(r"'device': 'cpu'|available_cpu_mem=")
_OOM = re.compile(r"out of memory|OutOfMemoryError|Not enough memory\. Please try to increase", re.IGNORECASE)
_FATAL = re.compile(
    r"^(?:\[[\d: .TPDEA-]{10,50}\] )?"
    r"(?:[A-Za-z_][\w.]{0,80}(?:Error|Exception): \S|[\w. -]{1,60}: error: )"
)


class SgLang(TorchServer):
    """Recipe for SGLang's server.

    It takes a key on its command line only, which every user of the machine can read, so it gets none: it listens on
    this machine alone. Thinking is said in each request: 0.5.15 has no flag for a default. Exit code 137 is how it
    ends itself, and no sign of a lack of memory.
    """

    name = "sglang"
    version_modules: ClassVar[Mapping[str, str]] = {"sglang": "sglang.version"}
    program = _COMMAND
    program_variable = "MOEGPU_SGLANG"
    install_hint = "pip install sglang: https://docs.sglang.io/get_started/install.html"
    environment_prefixes = (
        "SGLANG_",
        "SGL_",
        "FLASHINFER_",
        "TORCH",
        "PYTORCH_",
        "TRITON_",
        "CUDA_",
        "NCCL_",
        "OMP_",
        "GOMP_",
    )
    takes_key = False
    last_port = LAST_PORT - _GRPC_PORTS
    # Drained after 6.5 s in the runs seen.
    stop_seconds = 20.0
    props_path = "/server_info"
    metrics_path = "/metrics"
    metric_prefix = "sglang:"
    meanings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model": ("--model-path", "--model"),
        "served_name": ("--served-model-name",),
        "context": ("--context-length",),
        "slots": ("--max-running-requests",),
        "kv_cache": ("--kv-cache-dtype",),
        "memory_share": ("--mem-fraction-static",),
        "host_weights": ("--cpu-offload-gb",),
        "prefill_chunk": ("--chunked-prefill-size",),
        "prefix_cache_off": ("--disable-radix-cache",),
        "flash_attention": ("--attention-backend",),
        "thinking": ("--default-chat-template-kwargs",),
        "tensor_parallel": ("--tensor-parallel-size", "--tp-size"),
        "device": ("--device",),
        "host": ("--host",),
        "port": ("--port",),
        "api_key": ("--api-key",),
        "chat_template": ("--chat-template",),
        "load_format": ("--load-format",),
        "graphs_off": ("--disable-cuda-graph",),
        "metrics": ("--enable-metrics",),
    }
    not_flags: ClassVar[Mapping[str, str]] = {
        "--model-format": "--load-format",
        "--enable-radix-cache": "leave it away: the radix cache is on; --disable-radix-cache turns it off",
        "--enable-prefix-caching": "vLLM's: the radix cache is on; --disable-radix-cache turns it off",
        "--chunked-prefill-enabled": "leave it away: --chunked-prefill-size N sets the size, -1 is off",
        "--enable-chunked-prefill": "vLLM's: prefill is chunked; --chunked-prefill-size N sets the size, -1: off",
        "--extra-body": "a client's argument: --default-chat-template-kwargs, or chat_template_kwargs in the request",
        "--device-map": "no such flag: --cpu-offload-gb keeps a part of the weights in host memory",
        "--swap-space": "gone in vLLM and never here: retracted requests are computed again",
        "--max-model-len": "vLLM's: --context-length",
        "--max-num-seqs": "vLLM's: --max-running-requests",
        "--gpu-memory-utilization": "vLLM's: --mem-fraction-static",
        "--enforce-eager": "vLLM's: --disable-cuda-graph",
        "--ctx-size": "llama.cpp's: --context-length",
        "--cache-type-k": "llama.cpp's: --kv-cache-dtype",
        "--cache-type-v": "llama.cpp's: --kv-cache-dtype, for keys and values alike",
        "--flash-attn": "llama.cpp's: --attention-backend",
        "--n-gpu-layers": "llama.cpp's: all layers are on the GPU; --cpu-offload-gb keeps weights in host memory",
    }

    def argv(self, spec: LaunchSpec) -> tuple[str, ...]:
        """Write the command line. On a processor the kernels of torch are chosen, which need no extensions."""
        s, on_cpu = spec.settings, spec.device_kind is DeviceKind.CPU
        self.refuse_on_device(spec, _UNABLE, _UNABLE_ON_GPU, _UNABLE_ON_CPU)
        kv = spell_kv(self.name, s.kv_cache, _KV_SPELLINGS, _refused_kv(spec))
        flags = [
            *("--model-path", spec.model_path, "--served-model-name", spec.model_name),
            *("--host", spec.host, "--port", str(spec.port)),
            *("--context-length", str(s.context), "--max-running-requests", str(s.slots), "--kv-cache-dtype", kv),
            # How many tokens came from the cache, without which no prefill speed is known.
            *("--enable-metrics", "--enable-cache-report"),
        ]
        if on_cpu:
            flags += ["--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"]
            flags += ["--grammar-backend", "none", "--disable-overlap-schedule"]
        if s.memory_share is not None:
            flags += ["--mem-fraction-static", f"{s.memory_share:g}"]
        elif on_cpu:
            flags += ["--max-total-tokens", str(_CPU_POOL * s.context * s.slots)]
        if s.host_weights_bytes:
            # It takes whole GiB only.
            flags += ["--cpu-offload-gb", str(math.ceil(s.host_weights_bytes / GIB))]
        if s.prefill_chunk is not None:
            flags += ["--chunked-prefill-size", str(s.prefill_chunk)]
        if not s.prefix_cache:
            flags.append("--disable-radix-cache")
        if not s.cuda_graphs and not on_cpu:
            # Deprecated, but the only spelling that versions before and after 0.5.15 have.
            flags.append("--disable-cuda-graph")
        if len(spec.devices) > 1:
            flags += ["--tensor-parallel-size", str(len(spec.devices))]
        return (*spec.program, *_serve(spec.program), *flags, *s.extra_flags)

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        """Offline: a path that is not there would be looked up on the hub."""
        made = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"} | self.devices(spec)
        if spec.device_kind is DeviceKind.CPU and spec.settings.threads is not None:
            made["OMP_NUM_THREADS"] = str(spec.settings.threads)
        return made

    def version_argv(self, program: Sequence[str]) -> tuple[str, ...]:
        """The command `sglang` has a verb for it, the interpreter can be asked; other programs may not answer."""
        command = program[:-1] if program[-1] == _SERVE else program
        if "-m" not in program and PurePath(command[-1]).name == _COMMAND:
            return (*command, "version")
        return super().version_argv(program)

    def read_version(self, output: str) -> EngineVersion:
        """Read version and revision, and the CUDA toolkit from torch's version, such as `+cu130`: 13.0."""
        version, revision, cuda = _VERSION.search(output), _REVISION.search(output), _TORCH.search(output)
        return EngineVersion(
            version=version[1] if version else None,
            build=revision[1] if revision else None,
            toolkit=f"{cuda[1]}.{cuda[2]}" if cuda else None,
        )

    def help_argv(self, program: Sequence[str]) -> tuple[str, ...]:
        """Command that prints all flags."""
        return (*program, *_serve(program), "--help")

    def read_props(self, body: Any) -> ServedModel:
        """Read `/server_info`: the launch settings as they were resolved, and how many tokens the KV pool holds."""
        info = body if isinstance(body, dict) else {}
        return ServedModel(
            name=text(info.get("served_model_name")),
            path=text(info.get("model_path")),
            context=count(info.get("context_length")),
            slots=count(info.get("max_running_requests")),
            kv_tokens=count(info.get("max_total_num_tokens")),
        )

    def tokenize(self, spec: LaunchSpec, text: str) -> Post:  # noqa: ARG002 - as above
        """Ask for the ids beside log-probabilities of the prompt.

        `/tokenize` of 0.5.15 fails with HTTP 500 for a tokenizer without a largest length.
        """
        return Post(path="/generate", body={"text": text} | _ONE_TOKEN)

    def read_tokens(self, body: Any) -> tuple[int, ...]:
        """Read the ids of all places of the prompt."""
        try:
            return tuple(int(token) for _, token, *_ in body["meta_info"]["input_token_logprobs"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"an answer without token ids: {error!r}") from error

    def score(
        self,
        spec: LaunchSpec,  # noqa: ARG002 - as above
        ids: Sequence[int],
        first: int,  # noqa: ARG002 - as above
        top: int,
        *,
        fresh: bool,  # noqa: ARG002 - as above
    ) -> Post:
        """Ask for the log-probabilities of the prompt from its beginning, which has SGLang compute it whole."""
        return Post(path="/generate", body={"input_ids": list(ids), "top_logprobs_num": top} | _ONE_TOKEN)

    def read_score(self, body: Any, ids: Sequence[int], first: int) -> tuple[TokenScore, ...]:
        """Read log-probability, id and text of each place, and of the likeliest there; the first place has none."""
        try:
            told = body["meta_info"]
            own, top = told["input_token_logprobs"][first:], told["input_top_logprobs"][first:]
            listed = [
                {int(token): number(logprob) for logprob, token, *_ in [*(likely or ()), one]}
                for one, likely in zip(own, top, strict=True)
            ]
            tokens = [int(one[1]) for one in own]
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"input_token_logprobs of an unknown form: {error!r}") from error
        if tokens != list(ids[first:]):
            raise ValueError("log-probabilities of other tokens than were sent")
        return tuple(prompt_score(token, place) for token, place in zip(tokens, listed, strict=True))

    def read_load(self, counters: Mapping[str, float]) -> Load:
        """Read KV use, queue, and retracted requests; their total is not there before the first one."""
        return Load(
            kv_use=counters.get("token_usage"),
            preemptions=counters.get("num_retracted_requests_total", counters.get("num_retracted_reqs")),
            running=counters.get("num_running_reqs"),
            waiting=counters.get("num_queue_reqs"),
        )

    def read_log(self, output: str) -> LogFacts:
        """Read what the engine said about itself. Its GB are GiB, and given in hundredths."""
        prefix = "" if _ON_CPU.search(output) else "CUDA"
        kv, capacity = _KV.findall(output), _CAPACITY.findall(output)
        return LogFacts(
            model_bytes=_sizes(prefix, _WEIGHTS.findall(output)),
            kv_bytes=_sizes(prefix, [(rank, str(sum(map(float, _KV_SIZE.findall(sizes))))) for rank, _, sizes in kv]),
            compute_bytes=_sizes(prefix, _GRAPHS.findall(output)),
            kv_tokens=int(capacity[-1][0]) if capacity else None,
            slots=int(capacity[-1][1]) if capacity else None,
            context=int(capacity[-1][2]) if capacity else None,
            kv_type=kv[-1][1] if kv else None,
            oom_lines=lines(_OOM, output, _STAMP),
            fatal_lines=lines(_FATAL, output, _STAMP),
        )


def _serve(program: Sequence[str]) -> tuple[str, ...]:
    """Return the verb that the command `sglang` needs and the module does not."""
    return (_SERVE,) if PurePath(program[-1]).name == _COMMAND else ()


def _sizes(prefix: str, found: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Add up sizes in GiB per device; a line without a rank is of the first. Without a prefix all is in host memory.

    0.00 is what is too small to be told.
    """
    sizes: dict[str, int] = {}
    for rank, size in found:
        if not float(size):
            continue
        device = f"{prefix}{rank or 0}" if prefix else "CPU"
        sizes[device] = sizes.get(device, 0) + round(float(size) * GIB)
    return sizes


def _refused_kv(spec: LaunchSpec) -> dict[str, str]:
    """Return what this device cannot hold, each with the reason."""
    if spec.device_kind is DeviceKind.CPU:
        return dict.fromkeys(("fp8_e4m3", "fp8_e5m2", "fp4"), "on a processor SGLang needs Intel AMX for it")
    return refused_fp8(spec)
