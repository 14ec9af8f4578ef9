"""What the `config.json` of a model folder says of its layers: caches, recurrent state, experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytest_moegpu.core.shape import KvGroup
from pytest_moegpu.errors import ModelFileError

__all__ = ["CONFIG", "KNOWN_TYPES", "Config"]

CONFIG = "config.json"
KNOWN_TYPES = frozenset(
    [
        "llama",
        "mistral",
        "mistral3",
        "mixtral",
        "qwen2",
        "qwen3",
        "qwen2_moe",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_5",
        "qwen3_5_text",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "gpt_oss",
        "deepseek_v2",
        "deepseek_v3",
        "glm4_moe",
        "olmoe",
        "olmo2",
        "smollm3",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "phi3",
    ]
)
"""Values of `model_type` whose layers are described by the keys read here."""
_ALL_WINDOWED = frozenset(("mistral", "mixtral", "phi3"))
_DEFAULT_INTERVAL = 4
_MOST_LAYERS = 10_000
_FLOAT_BYTES = 4
_LINEAR = ("linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads", "linear_value_head_dim")


class Config:
    """The numbers of one `config.json`; those of a nested `text_config` count.

    Raises:
        ModelFileError: There is none, it cannot be read, or a number that every language model has is missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.outer = _read(path)
        inner = self.outer.get("text_config")
        self.inner: dict[str, Any] = inner if isinstance(inner, dict) else self.outer
        self.type = _text(self.outer.get("model_type")) or _text(self.inner.get("model_type"))
        self.layers = self.need("num_hidden_layers")
        if self.layers > _MOST_LAYERS:
            raise ModelFileError(f"model folder {path}: {CONFIG} has {self.layers:,} layers, which no model has")
        self.heads = self.need("num_attention_heads")
        self.embedding = self.need("hidden_size")
        self.kv_heads = self.number("num_key_value_heads", default=self.heads)
        self.head_dim = self.number("head_dim", default=self.embedding // max(self.heads, 1))
        self.experts = self.number("num_experts", "num_local_experts", "n_routed_experts")
        self.experts_used = self.number("num_experts_per_tok", "num_experts_per_token", "experts_per_token")
        self.mtp = self.number("mtp_num_hidden_layers", "num_nextn_predict_layers")
        kinds = self.inner.get("layer_types")
        self.kinds = tuple(map(str, kinds[: self.layers])) if isinstance(kinds, list) else ()

    def number(self, *names: str, default: int = 0) -> int:
        """Return the first of some numbers that is there."""
        for name in names:
            value = self.inner.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
                return value
        return default

    def need(self, name: str) -> int:
        """Return a number that every language model has.

        Raises:
            ModelFileError: It is not there.
        """
        if found := self.number(name):
            return found
        raise ModelFileError(f"model folder {self._path}: {CONFIG} has no {name}: it is not a language model")

    @property
    def tied(self) -> bool:
        """Whether the output head is the token embeddings: said outside or inside; Transformers takes it as true."""
        return next((c[key] for c in (self.outer, self.inner) if (key := "tie_word_embeddings") in c), True) is True

    @property
    def recurrent_layers(self) -> int:
        """Layers whose state has a fixed size: named in `layer_types`, or all but every fourth if widths are given."""
        if self.kinds:
            return sum("linear" in kind or "recurrent" in kind or "mamba" in kind for kind in self.kinds)
        if not all(self.number(name) for name in _LINEAR):
            return 0
        return self.layers - self.layers // max(self.number("full_attention_interval", default=_DEFAULT_INTERVAL), 1)

    @property
    def state_bytes(self) -> int | None:
        """Bytes of the whole recurrent state for one sequence; None where its widths are not there.

        Gated DeltaNet as F32, as llama.cpp keeps it: (kernel - 1) x (2 x key heads x key width + value heads x value
        width) of the convolution, and value heads x key width x value width (transformers, modeling_qwen3_next.py).
        """
        if not self.recurrent_layers:
            return 0
        key_heads, key, value_heads, value = (self.number(name) for name in _LINEAR)
        if not (key_heads and key and value_heads and value):
            return None
        kernel = self.number("linear_conv_kernel_dim", default=1)
        convolution = (kernel - 1) * (2 * key_heads * key + value_heads * value)
        return self.recurrent_layers * (convolution + value_heads * key * value) * _FLOAT_BYTES

    @property
    def kv(self) -> tuple[KvGroup, ...]:
        """The layers with a cache by form: a latent (MLA), whole, and with a sliding window."""
        cached = self.layers - self.recurrent_layers
        if not cached:
            return ()
        if rank := self.number("kv_lora_rank"):
            return (KvGroup(layers=cached, k_width=rank + self.number("qk_rope_head_dim"), v_width=0),)
        width, v_width = self.kv_heads * self.head_dim, self.kv_heads * self.number("v_head_dim", default=self.head_dim)
        windowed, window = self._windowed(cached)
        groups = (
            KvGroup(layers=cached - windowed, k_width=width, v_width=v_width),
            KvGroup(layers=windowed, k_width=width, v_width=v_width, window=window),
        )
        return tuple(group for group in groups if group.layers)

    @property
    def missing(self) -> tuple[str, ...]:
        """What is needed for planning and is not said, in words."""
        found = []
        if self.type not in KNOWN_TYPES:
            found.append(f"how the layers of model type {self.type!r} cache: what {CONFIG} says is taken as it is")
        if self.state_bytes is None:
            found.append("how large its recurrent state is: none is counted")
        if self._unclear_window:
            found.append("which layers have the sliding window: all are taken to hold the whole context")
        return tuple(found)

    @property
    def _unclear_window(self) -> bool:
        return bool(
            self.number("sliding_window")
            and self.inner.get("use_sliding_window") is not False
            and not (self.kinds or self.number("sliding_window_pattern") or self.type in _ALL_WINDOWED)
        )

    def _windowed(self, cached: int) -> tuple[int, int | None]:
        """Return how many layers have a window, and its tokens."""
        window = self.number("sliding_window", "attention_chunk_size")
        if not window or self.inner.get("use_sliding_window") is False:
            return 0, None
        if self.kinds:
            return sum(kind.startswith(("sliding", "chunked")) for kind in self.kinds), window
        if pattern := self.number("sliding_window_pattern"):
            return cached - cached // pattern, window
        return (cached, window) if self.type in _ALL_WINDOWED else (0, None)


def _read(path: Path) -> dict[str, Any]:
    file = path / CONFIG
    try:
        config = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ModelFileError(f"model folder {path}: has no {CONFIG}: it is not a model folder") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"model folder {path}: {CONFIG} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelFileError(f"model folder {path}: {CONFIG} is not a JSON object")
    return config


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
