"""llama.cpp's `llama-server`, and the embedded server that takes the same flags.

Log lines and flags were read off build 11434 (CUDA) and xllamacpp 2026.10.11549 (CPU); see docs/how-to/llamacpp.md.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from pytest_moegpu.backends.base import ChatRequest, Delta, EngineVersion, Health, ServedModel, Usage
from pytest_moegpu.core.evidence import LogFacts
from pytest_moegpu.core.model import DeviceKind, LaunchSpec
from pytest_moegpu.core.units import MIB

__all__ = ["LlamaCpp"]

# llama-server takes any number not below the layer count as "all of them".
_ALL_LAYERS = 999

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
# The tail of a crash repeats itself; the first cause is what a person needs.
_MOST_LINES = 10
_STAMP = re.compile(r"^\d+\.\d+\.\d+\.\d+ [A-Z] ")
_METRIC = re.compile(r"^llamacpp:(\w+) ([-+.\deE]+)$", re.MULTILINE)
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


def _lines(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    found = dict.fromkeys(_STAMP.sub("", line).strip() for line in text.splitlines() if pattern.search(line))
    return tuple(found)[:_MOST_LINES]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class LlamaCpp:
    """Recipe for llama-server."""

    name = "llamacpp"
    program = "llama-server"
    program_variable = "MOEGPU_LLAMA_SERVER"
    environment_prefixes = ("GGML_", "LLAMA_ARG_", "CUDA_", "NCCL_", "OMP_", "GOMP_")
    health_path = "/health"
    chat_path = "/v1/chat/completions"
    props_path = "/props"
    metrics_path = "/metrics"

    def argv(self, spec: LaunchSpec) -> tuple[str, ...]:
        """Write the command line. `--fit off`: a model that does not fit must fail, not shrink in silence."""
        s = spec.settings
        layers = 0 if spec.device_kind is DeviceKind.CPU else _ALL_LAYERS if s.gpu_layers is None else s.gpu_layers
        flags: list[str] = [
            *("--model", spec.model_path, "--alias", spec.model_name),
            *("--ctx-size", str(s.context * s.slots), "--parallel", str(s.slots)),
            *("--gpu-layers", str(layers)),
            *("--cache-type-k", s.kv_cache, "--cache-type-v", s.kv_cache, "--flash-attn", s.flash_attention),
            *("--batch-size", str(s.batch), "--ubatch-size", str(s.ubatch)),
            *("--host", spec.host, "--port", str(spec.port)),
            # Verbosity 4 prints the offloaded layers and the buffer sizes.
            *("--metrics", "--no-webui", "--cache-ram", "0", "--fit", "off", "--log-verbosity", "4"),
        ]
        if s.threads is not None:
            flags += ["--threads", str(s.threads)]
        if not s.prefix_cache:
            flags.append("--no-cache-prompt")
        return (*spec.program, *flags, *s.extra_flags)

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        """The key goes by environment, because a command line can be read by every user of the machine."""
        variables = {"LLAMA_API_KEY": spec.api_key}
        if spec.devices:
            variables |= {
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "CUDA_VISIBLE_DEVICES": ",".join(spec.devices),
            }
        return variables

    def version_argv(self, program: Sequence[str]) -> tuple[str, ...]:
        """Command that prints version and build."""
        return (*program, "--version")

    def read_version(self, output: str) -> EngineVersion:
        """Read `version: …` and `built with …`; the CUDA toolkit is not among what llama-server prints."""
        version, build = _VERSION.search(output), _BUILD.search(output)
        return EngineVersion(version=version[1].strip() if version else None, build=build[1].strip() if build else None)

    def read_health(self, status: int, body: str) -> Health:
        """200 is ready, 503 loading; anything else is neither."""
        if status == 200:
            return Health(ready=True)
        return Health(ready=False, loading=status == 503, detail=f"HTTP {status} {body[:200]}".strip())

    def read_props(self, body: Any) -> ServedModel:
        """Read `/props`: alias, path, slots and context of one slot. What is not of the known form says nothing."""
        props = body if isinstance(body, dict) else {}
        settings = props.get("default_generation_settings")
        settings = settings if isinstance(settings, dict) else {}
        return ServedModel(
            name=_text(props.get("model_alias")),
            path=_text(props.get("model_path")),
            context=_count(settings.get("n_ctx")),
            slots=_count(props.get("total_slots")),
        )

    def read_metrics(self, text: str) -> dict[str, float]:
        """Read `/metrics`, without the prefix `llamacpp:`."""
        return {name: float(value) for name, value in _METRIC.findall(text)}

    def read_log(self, text: str) -> LogFacts:
        """Read what the server said about itself. The last line of a kind counts."""
        offloaded = _OFFLOADED.findall(text)
        slots = _SLOTS.findall(text)
        return LogFacts(
            offloaded_layers=int(offloaded[-1][0]) if offloaded else None,
            total_layers=int(offloaded[-1][1]) if offloaded else None,
            model_bytes=_added_up(_MODEL_BUFFER, text, _LOADING),
            kv_bytes=_added_up(_KV_BUFFER, text, _CONSTRUCTING),
            compute_bytes=_megabytes(_COMPUTE_BUFFER, text),
            slots=int(slots[-1][0]) if slots else None,
            context=int(slots[-1][1]) if slots else None,
            devices=tuple(dict.fromkeys(name.strip() for name in _DEVICE.findall(text))),
            oom_lines=_lines(_OOM, text),
            fatal_lines=_lines(_FATAL, text),
        )

    def request(self, spec: LaunchSpec, chat: ChatRequest) -> dict[str, Any]:
        """Write a streamed, greedy chat request. A prefilled answer is a last message of the assistant."""
        messages = [{"role": "user", "content": chat.prompt}]
        if chat.prefill:
            messages.append({"role": "assistant", "content": chat.prefill})
        body: dict[str, Any] = {
            "model": spec.model_name,
            "messages": messages,
            "max_tokens": chat.max_tokens,
            "temperature": 0,
            "seed": chat.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_prompt": chat.cache_prompt,
            "chat_template_kwargs": {"enable_thinking": chat.thinking},
        }
        if chat.ignore_eos:
            body["ignore_eos"] = True
        if chat.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": chat.top_logprobs}
        return body

    def read_event(self, data: str) -> Delta:
        """Read one chunk: choices, usage, timings, or an error object under HTTP 200."""
        chunk = json.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError("not a JSON object")  # noqa: TRY004 - unreadable data, as text that is not JSON
        if (error := chunk.get("error")) is not None:
            return Delta(error=str(error.get("message", error)) if isinstance(error, dict) else str(error))
        try:
            choice = (chunk.get("choices") or [{}])[0]
            delta = choice.get("delta") or {}
            return Delta(
                text=delta.get("content") or "",
                reasoning=delta.get("reasoning_content") or "",
                finish_reason=choice.get("finish_reason"),
                usage=_usage(chunk),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a chunk of a known form: {error}") from error


def _usage(chunk: dict[str, Any]) -> Usage | None:
    usage = chunk.get("usage")
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    timings = chunk.get("timings") or {}
    return Usage(
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=details.get("cached_tokens"),
        output_tokens=usage.get("completion_tokens"),
        timings={n: float(v) for n, v in timings.items() if isinstance(v, int | float) and math.isfinite(v)},
    )
