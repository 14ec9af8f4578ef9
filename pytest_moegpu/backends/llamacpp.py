"""llama.cpp's `llama-server`, and the embedded server that takes the same flags.

Log lines and flags were read off build 11434 (CUDA) and xllamacpp 2026.10.11549 (CPU); see docs/how-to/llamacpp.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pytest_moegpu.backends.base import ChatRequest, EngineVersion, Load, Post, ServedModel
from pytest_moegpu.backends.recipe import Recipe, count, lines, number, refuse, text
from pytest_moegpu.core.evidence import LogFacts
from pytest_moegpu.core.golden import ScoreMethod, TokenScore
from pytest_moegpu.core.kvcache import spell_kv
from pytest_moegpu.core.model import ALL_LAYERS, DeviceKind, LaunchSpec, ModelFormat, Settings
from pytest_moegpu.core.units import MIB

__all__ = ["LlamaCpp"]

_LOADING = "loading model tensors"
_CONSTRUCTING = "constructing llama_context"
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
# A device is a short word of its own: a search without bounds takes quadratic time in a log full of noise.
_NAME = r"(?<!\S)(\S{1,64})"
_MODEL_BUFFER = re.compile(_NAME + r" model buffer size = +([\d.]+) MiB")
_KV_BUFFER = re.compile(_NAME + r" (?:KV|RS) buffer size = +([\d.]+) MiB")
_COMPUTE_BUFFER = re.compile(_NAME + r" compute buffer size = +([\d.]+) MiB")
_SLOTS = re.compile(r"n_slots = (\d+), n_ctx_slot = (\d+)")
_DEVICE = re.compile(r"Device \d+: ([^,]+), compute capability")
_OOM = re.compile(
    r"out of memory|unable to allocate \S+ buffer|failed to allocate (?:compute|buffer for kv|buffer for rs)|"
    r"failed to allocate memory",
    re.IGNORECASE,
)
_FATAL = re.compile(
    r"CUDA error|no kernel image|driver version is insufficient|error while loading shared libraries|"
    r"failed to load model|couldn't bind HTTP server socket|exiting due to|GGML_ASSERT|"
    r"^error: |ggml_cuda_init: failed to initialize|symbol lookup error|version `[^']+' not found",
    re.IGNORECASE,
)
# Cells of one stream; a model with a sliding window has a second, smaller cache.
_KV_TOKENS = re.compile(
    r"llama_kv_cache: size = +[\d.]+ MiB \( *(\d+) cells, +\d+ layers, +\d+/ *(\d+) seqs\), K \((\w+)\)"
)
_KV_SPELLINGS = {
    **{word: word for word in ("f32", "f16", "bf16", "q5_1", "q5_0", "q4_1", "iq4_nl")},
    "int8": "q8_0",
    "int4": "q4_0",
}
_READ_WHOLE = ("--load-mode", "none")
_UNABLE = {
    "memory_share": "llama.cpp takes what the model and its cache need; settings.context and gpu_layers set how much",
    "host_weights_bytes": "llama.cpp counts layers: settings.gpu_layers, or settings.cpu_expert_layers",
    "prefill_chunk": "llama.cpp has two such sizes: settings.batch and settings.ubatch",
    "cuda_graphs": "only at build time, or by the variable GGML_CUDA_DISABLE_GRAPHS=1",
}
_STAMP = re.compile(r"^\d+\.\d+\.\d+\.\d+ [A-Z] ")
_VERSION = re.compile(r"^version: (.+)$", re.MULTILINE)
_BUILD = re.compile(r"^built with (.+)$", re.MULTILINE)


def _megabytes(pattern: re.Pattern[str], text: str) -> dict[str, int]:
    """Read a size per device. A buffer reported again replaces the earlier figure, as the engine does on a new try."""
    return {device: round(float(size) * MIB) for device, size in pattern.findall(text)}


def _added_up(pattern: re.Pattern[str], text: str, began: str) -> dict[str, int]:
    """Read a size per device where one device may hold several buffers; what stands before the last `began` is over."""
    found: dict[str, int] = {}
    for device, size in pattern.findall(text[max(text.rfind(began), 0) :]):
        found[device] = found.get(device, 0) + round(float(size) * MIB)
    return found


class LlamaCpp(Recipe):
    """Recipe for llama-server."""

    name = "llamacpp"
    program = "llama-server"
    program_variable = "MOEGPU_LLAMA_SERVER"
    environment_prefixes = ("GGML_", "LLAMA_ARG_", "CUDA_", "NCCL_", "OMP_", "GOMP_")
    install_hint = "build llama.cpp or take a release of it: https://github.com/ggml-org/llama.cpp/releases"
    model_formats = (ModelFormat.GGUF,)
    score_method = ScoreMethod.STEPS
    props_path = "/props"
    metrics_path = "/metrics"
    metric_prefix = "llamacpp:"
    meanings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model": ("--model", "-m"),
        "served_name": ("--alias", "-a"),
        "context": ("--ctx-size", "-c"),
        "slots": ("--parallel", "-np"),
        "kv_cache": ("--cache-type-k", "-ctk"),
        "kv_cache_value": ("--cache-type-v", "-ctv"),
        "gpu_layers": ("--gpu-layers", "-ngl", "--n-gpu-layers"),
        "cpu_expert_layers": ("--n-cpu-moe", "-ncmoe"),
        "prefill_chunk": ("--ubatch-size", "-ub"),
        "prefix_cache_on": ("--cache-prompt",),
        "prefix_cache_off": ("--no-cache-prompt",),
        "flash_attention": ("--flash-attn", "-fa"),
        "thinking": ("--chat-template-kwargs",),
        "threads": ("--threads", "-t"),
        "device": ("--device", "-dev"),
        "host": ("--host",),
        "port": ("--port",),
        "api_key": ("--api-key",),
        "chat_template": ("--chat-template",),
        "metrics": ("--metrics",),
    }

    def spells_by_build(self, settings: Settings) -> bool:
        """Builds of the autumn of 2026 have `--load-mode` in place of `--no-mmap`, and refuse that."""
        return not settings.mmap

    def argv(self, spec: LaunchSpec) -> tuple[str, ...]:
        """Write the command line. `--fit off`: a model that does not fit must fail, not shrink in silence."""
        s = spec.settings
        refuse(self.name, s, _UNABLE)
        kv = spell_kv(self.name, s.kv_cache, _KV_SPELLINGS)
        layers = 0 if spec.device_kind is DeviceKind.CPU else ALL_LAYERS if s.gpu_layers is None else s.gpu_layers
        flags: list[str] = [
            *("--model", spec.model_path, "--alias", spec.model_name),
            *("--ctx-size", str(s.context * s.slots), "--parallel", str(s.slots)),
            *("--gpu-layers", str(layers)),
            *("--cache-type-k", kv, "--cache-type-v", kv, "--flash-attn", s.flash_attention),
            *("--batch-size", str(s.batch), "--ubatch-size", str(s.ubatch)),
            *("--host", spec.host, "--port", str(spec.port)),
            # Verbosity 4 prints the offloaded layers and the buffer sizes.
            *("--metrics", "--no-webui", "--cache-ram", "0", "--fit", "off", "--log-verbosity", "4"),
        ]
        if s.threads is not None:
            flags += ["--threads", str(s.threads)]
        if not s.prefix_cache:
            flags.append("--no-cache-prompt")
        if s.cpu_expert_layers:
            flags += ["--n-cpu-moe", str(s.cpu_expert_layers)]
        if not s.mmap:
            flags += _READ_WHOLE if _READ_WHOLE[0] in spec.flags else ("--no-mmap",)
        return (*spec.program, *flags, *s.extra_flags)

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        """The key goes by environment, because a command line can be read by every user of the machine."""
        return {"LLAMA_API_KEY": spec.api_key} | self.devices(spec)

    def read_version(self, output: str) -> EngineVersion:
        """Read `version: …` and `built with …`; the CUDA toolkit is not among what llama-server prints."""
        version, build = _VERSION.search(output), _BUILD.search(output)
        return EngineVersion(version=version[1].strip() if version else None, build=build[1].strip() if build else None)

    def read_props(self, body: Any) -> ServedModel:
        """Read `/props`: alias, path, slots and context of one slot. What is not of the known form says nothing."""
        props = body if isinstance(body, dict) else {}
        settings = props.get("default_generation_settings")
        settings = settings if isinstance(settings, dict) else {}
        return ServedModel(
            name=text(props.get("model_alias")),
            path=text(props.get("model_path")),
            context=count(settings.get("n_ctx")),
            slots=count(props.get("total_slots")),
        )

    def read_load(self, counters: Mapping[str, float]) -> Load:
        """Read how many requests are served and wait; newer servers do not tell how full the cache is."""
        return Load(
            kv_use=counters.get("kv_cache_usage_ratio"),
            running=counters.get("requests_processing"),
            waiting=counters.get("requests_deferred"),
        )

    def read_log(self, output: str) -> LogFacts:
        """Read what the server said about itself. The last line of a kind counts."""
        offloaded = _OFFLOADED.findall(output)
        slots = _SLOTS.findall(output)
        cells = _KV_TOKENS.findall(output)
        return LogFacts(
            offloaded_layers=int(offloaded[-1][0]) if offloaded else None,
            total_layers=int(offloaded[-1][1]) if offloaded else None,
            model_bytes=_added_up(_MODEL_BUFFER, output, _LOADING),
            kv_bytes=_added_up(_KV_BUFFER, output, _CONSTRUCTING),
            compute_bytes=_megabytes(_COMPUTE_BUFFER, output),
            slots=int(slots[-1][0]) if slots else None,
            context=int(slots[-1][1]) if slots else None,
            kv_tokens=max(int(size) * int(streams) for size, streams, _ in cells) if cells else None,
            kv_type=cells[-1][2] if cells else None,
            devices=tuple(dict.fromkeys(name.strip() for name in _DEVICE.findall(output))),
            oom_lines=lines(_OOM, output, _STAMP),
            fatal_lines=lines(_FATAL, output, _STAMP),
        )

    def request(self, spec: LaunchSpec, chat: ChatRequest) -> dict[str, Any]:
        """Write a streamed, greedy chat request, and whether the slot's cache may be used."""
        return super().request(spec, chat) | {"cache_prompt": chat.cache_prompt}

    def tokenize(self, spec: LaunchSpec, text: str) -> Post:  # noqa: ARG002 - of the Protocol
        """Ask for the ids, with what the model wants before a text."""
        return Post(path="/tokenize", body={"content": text, "add_special": True})

    def score(
        self,
        spec: LaunchSpec,  # noqa: ARG002 - as above
        ids: Sequence[int],
        first: int,  # noqa: ARG002 - as above
        top: int,
        *,
        fresh: bool,
    ) -> Post:
        """Ask what comes after all tokens but the last: llama-server has no log-probabilities of a prompt.

        Those before are in the slot's cache from the step before, so that one token is computed, as in decode. The
        numbers are those before sampling; the bias has it choose a whole letter, for a token that is a part of a
        character holds them back.
        """
        body = {
            "prompt": list(ids[:-1]),
            "n_predict": 1,
            "n_probs": top,
            "temperature": 0,
            "cache_prompt": not fresh,
            "post_sampling_probs": False,
            "logit_bias": [["a", 1000]],
            "response_fields": ["completion_probabilities"],
        }
        return Post(path="/completion", body=body)

    def read_score(self, body: Any, ids: Sequence[int], first: int) -> tuple[TokenScore, ...]:  # noqa: ARG002 - as above
        """Find the last token among the likeliest; one that is not there is below the least of them."""
        try:
            likely = body["completion_probabilities"][0]["top_logprobs"]
            listed = [(int(each["id"]), number(each.get("logprob"))) for each in likely]
            least = listed[-1][1]
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(f"completion_probabilities of an unknown form: {error!r}") from error
        known = dict(listed)
        below = ids[-1] not in known
        return (TokenScore(token=ids[-1], logprob=known.get(ids[-1], least), top=tuple(listed), below=below),)
