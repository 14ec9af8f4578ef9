"""What the value of a flag means, whichever engine it was written for, as a setting of a scenario."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pytest_moegpu.core.kvcache import kv_meaning
from pytest_moegpu.core.units import GIB
from pytest_moegpu.errors import UserError

__all__ = ["AS_WRITTEN", "DOCUMENTED", "FIELDS", "SAME_BITS", "has_suffix", "read_meaning"]

DOCUMENTED: dict[str, str] = {
    "--model-format": "load_format",
    "--enable-radix-cache": "prefix_cache_on",
    "--chunked-prefill-enabled": "prefill_chunk",
    "--extra-body": "thinking",
    "--device-map": "host_weights",
}
"""Flags that documents give and no server has, by meaning."""

FIELDS: dict[str, str] = {
    "context": "context",
    "slots": "slots",
    "kv_cache": "kv_cache",
    "kv_cache_value": "kv_cache",
    "gpu_layers": "gpu_layers",
    "cpu_expert_layers": "cpu_expert_layers",
    "memory_share": "memory_share",
    "host_weights": "host_weights_bytes",
    "prefill_chunk": "prefill_chunk",
    "prefix_cache_on": "prefix_cache",
    "prefix_cache_off": "prefix_cache",
    "flash_attention": "flash_attention",
    "thinking": "thinking",
    "threads": "threads",
    "graphs_off": "cuda_graphs",
}
"""Meaning → the field of `Settings` that says it, for all that a recipe writes itself."""

AS_WRITTEN: frozenset[str] = frozenset(
    ("model", "served_name", "tensor_parallel", "host", "port", "api_key", "chat_template", "load_format", "metrics")
)
"""Meanings whose value every engine writes alike."""

SAME_BITS: dict[str, tuple[str, ...]] = {
    "int8": ("fp8_e4m3", "fp8_e5m2"),
    "fp8_e4m3": ("fp8_e5m2", "int8"),
    "fp8_e5m2": ("fp8_e4m3", "int8"),
    "int4": ("fp4",),
    "fp4": ("int4",),
    "bf16": ("f16",),
    "f16": ("bf16",),
}
"""KV cache type → others that take as much memory, the most precise first."""

# vLLM's names of its own types, SGLang's and FastLLM's of those of 4 bits, and MLX's numbers of bits.
_KV_NAMES = {
    "int8_per_token_head": "int8",
    "int4_per_token_head": "int4",
    "fp4_e2m1": "fp4",
    "nvfp4": "fp4",
    "8": "int8",
    "4": "int4",
}
# What people write for all layers of any model.
_MEANS_ALL = 99
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmM]?)")
# vLLM's own: a small letter counts in tens, a capital one in powers of two.
_TIMES = {"": 1, "k": 1000, "K": 1024, "m": 1_000_000, "M": 1_048_576}
_COUNTS = ("context", "slots", "prefill_chunk")
_TRUE, _FALSE = ("true", "on", "1", "yes"), ("false", "off", "0", "no")


def read_meaning(meaning: str, value: str) -> Any:
    """Return what a value says, as the field of `Settings` has it; None where it leaves the choice to the engine.

    Args:
        meaning: A key of `FIELDS`.
        value: The value as written; empty for a flag without one.

    Raises:
        UserError: The value cannot mean that; says why.
    """
    word = value.strip()
    if meaning in ("kv_cache", "kv_cache_value"):
        return None if word == "auto" else kv_meaning(_KV_NAMES.get(word, word))
    if meaning in ("prefix_cache_on", "prefix_cache_off"):
        said = _truth(word) if word else True
        return said if meaning == "prefix_cache_on" else not said
    if meaning == "graphs_off":
        return False
    if meaning == "thinking":
        return _thinking(word)
    if meaning == "flash_attention":
        return "auto" if word == "auto" else "on" if not word or _truth(word) else "off"
    if meaning == "memory_share":
        return _number(word)
    if meaning == "host_weights":
        return round(_number(word) * GIB)
    if meaning == "gpu_layers":
        return None if word in ("all", "auto", "-1") or _whole(word) >= _MEANS_ALL else _whole(word)
    if word in ("", "auto", "-1"):
        return None
    return _whole(word)


def has_suffix(meaning: str, value: str) -> bool:
    """Whether a value is a number of tokens or requests that ends in k or M, which most parsers refuse or cut off."""
    match = _COUNT.fullmatch(value.strip()) if meaning in _COUNTS else None
    return match is not None and bool(match[2])


def _thinking(word: str) -> bool:
    """Read a word, or the template's arguments as JSON, in a request's body or by themselves."""
    if not word.startswith("{"):
        return _truth(word)
    try:
        body = json.loads(word)
    except json.JSONDecodeError as error:
        raise UserError(f"{word!r} is no JSON: {error}") from None
    inner = body.get("chat_template_kwargs", body)
    said = inner.get("enable_thinking") if isinstance(inner, Mapping) else None
    if not isinstance(said, bool):
        raise UserError("it says nothing of enable_thinking, the one key that has a flag")
    return said


def _truth(word: str) -> bool:
    if word.lower() in (*_TRUE, *_FALSE):
        return word.lower() in _TRUE
    raise UserError(f"{word!r} is neither on nor off")


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise UserError(f"{word!r} is no number") from None


def _whole(word: str) -> int:
    match = _COUNT.fullmatch(word)
    if match is None:
        raise UserError(f"{word!r} is no whole number")
    return round(float(match[1]) * _TIMES[match[2]])
