"""Which layers of a GGUF model hold a cache that grows, which a state of fixed size, and how large that state is."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["KNOWN_ARCHITECTURES", "Values", "attention_layers", "state_bytes"]

KNOWN_ARCHITECTURES = {
    "deepseek2": "latent",
    "gpt-oss": "window",
    **dict.fromkeys(("qwen35moe", "qwen35", "qwen3next"), "hybrid"),
    **dict.fromkeys(("llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "glm4moe", "olmoe", "mistral3"), "full"),
}
"""GGUF architecture → how its layers cache: all of them in full, a latent, windows in turn, or a recurrent state."""
_DEFAULT_INTERVAL = 4
_FLOAT_BYTES = 4


class Values:
    """Numbers of the metadata below the architecture's name."""

    def __init__(self, metadata: Mapping[str, object], architecture: str) -> None:
        self._metadata, self._prefix = metadata, f"{architecture}."

    def number(self, key: str, default: int = 0) -> int:
        """Return one number, the largest of several, one for each layer; the default for what is no count."""
        value = self._metadata.get(self._prefix + key, default)
        if isinstance(value, tuple) and value:
            value = max(value)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default

    def each(self, key: str) -> tuple[object, ...]:
        """Return one value for each layer; empty where there are none."""
        value = self._metadata.get(self._prefix + key)
        return value if isinstance(value, tuple) else ()

    def any_below(self, start: str) -> bool:
        """Tell whether there is a key that starts so."""
        return any(key.startswith(self._prefix + start) for key in self._metadata)


def attention_layers(values: Values, architecture: str, layers: int) -> int:
    """Return how many of the layers, without those of multi-token prediction, hold a KV cache.

    A hybrid says it by `attention.recurrent_layers`, one flag a layer, else by `full_attention_interval`, and where it
    says neither llama.cpp takes every fourth (src/models/qwen35moe.cpp, load_arch_hparams).
    """
    heads = values.each("attention.head_count_kv")[:layers]
    if len(heads) == layers:
        return sum(1 for each in heads if each)
    recurrent = values.each("attention.recurrent_layers")[:layers]
    if len(recurrent) == layers:
        return sum(1 for each in recurrent if not each)
    default = _DEFAULT_INTERVAL if KNOWN_ARCHITECTURES.get(architecture) == "hybrid" else 0
    interval = values.number("full_attention_interval", default)
    return layers // interval if interval else layers


def state_bytes(values: Values) -> int:
    """Return the bytes of one recurrent layer's state for one sequence.

    llama_hparams::n_embd_r and n_embd_s, as F32: (kernel - 1) x (inner + 2 x groups x state) and inner x state. The
    logged 432.00 and 16.88 MiB of three sequences of a 27B model with 48 such layers (ggml-org/llama.cpp#23792) are it.
    """
    inner, state, groups = (values.number(f"ssm.{key}") for key in ("inner_size", "state_size", "group_count"))
    kernel = values.number("ssm.conv_kernel")
    return ((max(kernel, 1) - 1) * (inner + 2 * groups * state) + inner * state) * _FLOAT_BYTES
