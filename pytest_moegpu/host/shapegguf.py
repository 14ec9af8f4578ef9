"""The shape of a model from its GGUF file: weights by block, cache by layer, recurrent state. Weights are not read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from pytest_moegpu.core.shape import BlockWeights, KvGroup, ModelShape, WeightTable
from pytest_moegpu.errors import ModelFileError
from pytest_moegpu.host.ggufheader import Tensor
from pytest_moegpu.host.modelfile import catalog_name, facts_of_headers, tensor_size, whole_headers

__all__ = ["KNOWN_ARCHITECTURES", "shape_of_gguf"]

KNOWN_ARCHITECTURES = {
    "deepseek2": "latent",
    "gpt-oss": "window",
    **dict.fromkeys(("qwen35moe", "qwen35", "qwen3next"), "hybrid"),
    **dict.fromkeys(("llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "glm4moe", "olmoe", "mistral3"), "full"),
}
"""GGUF architecture → how its layers cache: all of them in full, a latent, windows in turn, or a recurrent state."""
_BLOCK = re.compile(r"blk\.(\d+)\.")
_EXPERTS = re.compile(r"_exps\.")
_FLOAT_BYTES = 4


def shape_of_gguf(path: Path) -> ModelShape:
    """Read the shape of a model file, or of all parts when `path` is the first part of a split one.

    Raises:
        ModelFileError: As `host.modelfile.read_gguf`, or a tensor of a block that the model does not have.
    """
    headers = whole_headers(path)
    facts = facts_of_headers(path, headers)
    metadata, architecture = headers[0].metadata, facts.architecture
    values = _Values(metadata, architecture)
    mtp = values.number("nextn_predict_layers")
    layers = facts.layers - mtp
    missing = []
    kind = KNOWN_ARCHITECTURES.get(architecture)
    if kind is None:
        missing.append(
            f"how the layers of architecture {architecture!r} cache: all are taken to hold the whole context"
        )
    weights = _weights(path, [t for header in headers for t in header.tensors], facts.layers, mtp)
    recurrent = layers - facts.kv_layers if kind == "hybrid" else 0
    width = values.number("feed_forward_length")
    return ModelShape(
        name=catalog_name(facts.name) or architecture,
        architecture=architecture,
        layers=layers,
        embedding=facts.embedding,
        heads=facts.heads,
        kv=_kv(
            values, kind, layers if kind != "hybrid" else min(facts.kv_layers, layers), facts.kv_heads, facts.head_dim
        ),
        vocabulary=facts.vocabulary,
        context_train=facts.context_train,
        recurrent_layers=recurrent,
        recurrent_bytes_per_slot=_state(values) * recurrent,
        experts=facts.experts,
        experts_used=facts.experts_used,
        shared_experts=values.number("expert_shared_count"),
        # Mixtures of the llama architecture have one width for both.
        expert_width=values.number("expert_feed_forward_length", width if facts.experts else 0) or None,
        feed_forward=width or None,
        quantisation=facts.quantisation,
        parameters=sum(t.elements for header in headers for t in header.tensors),
        weights=weights,
        missing=tuple(missing),
        sources=(f"{path.name}: its own header",),
    )


class _Values:
    """Numbers of the metadata below the architecture's name."""

    def __init__(self, metadata: Mapping[str, object], architecture: str) -> None:
        self._metadata, self._architecture = metadata, architecture

    def number(self, key: str, default: int = 0) -> int:
        """Return one number; the largest of several, one for each layer."""
        value = self._metadata.get(f"{self._architecture}.{key}", default)
        if isinstance(value, tuple) and value:
            value = max(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def flags(self, key: str) -> tuple[bool, ...]:
        """Return one flag for each layer; empty where there are none."""
        value = self._metadata.get(f"{self._architecture}.{key}")
        return tuple(map(bool, value)) if isinstance(value, tuple) else ()


def _kv(values: _Values, kind: str | None, layers: int, kv_heads: int, head_dim: int) -> tuple[KvGroup, ...]:
    """Return the cached layers by form.

    A latent (`attention.kv_lora_rank`) is cached once for all heads with its rotated part, and V is computed from it:
    llama_model::create_memory with `attention.key_length_mla`. Windows: every other layer (gpt-oss), or as flagged.
    """
    if not layers:
        return ()
    rank = values.number("attention.kv_lora_rank")
    if kind == "latent" and rank and values.number("attention.key_length_mla"):
        return (KvGroup(layers=layers, k_width=rank + values.number("rope.dimension_count"), v_width=0),)
    width = kv_heads * head_dim
    v_width = kv_heads * values.number("attention.value_length", head_dim)
    window = values.number("attention.sliding_window")
    if window and (kind == "window" or values.flags("attention.sliding_window_pattern")):
        flagged = values.flags("attention.sliding_window_pattern")
        windowed = sum(flagged[:layers]) if flagged else layers - layers // 2
        full = KvGroup(layers=layers - windowed, k_width=width, v_width=v_width)
        return (full, KvGroup(layers=windowed, k_width=width, v_width=v_width, window=window))
    return (KvGroup(layers=layers, k_width=width, v_width=v_width),)


def _state(values: _Values) -> int:
    """Return the bytes of one recurrent layer's state for one sequence.

    llama_hparams::n_embd_r and n_embd_s, as F32: (kernel - 1) x (inner + 2 x groups x state) and inner x state. The
    logged 432.00 and 16.88 MiB of three sequences of a 27B model with 48 such layers (ggml-org/llama.cpp#23792) are it.
    """
    inner, state, groups = (values.number(f"ssm.{key}") for key in ("inner_size", "state_size", "group_count"))
    kernel = values.number("ssm.conv_kernel")
    return ((max(kernel, 1) - 1) * (inner + 2 * groups * state) + inner * state) * _FLOAT_BYTES


def _weights(path: Path, tensors: list[Tensor], layers: int, mtp: int) -> WeightTable:
    blocks = [[0, 0] for _ in range(layers)]
    by_type: Counter[str] = Counter()
    embedding = output = other = 0
    tied = True
    for tensor in tensors:
        label, size = tensor_size(tensor.type, tensor.elements)
        if size is None:
            raise ModelFileError(f"model file {path}: tensor {tensor.name} is of {label}, whose size is not known here")
        by_type[label] += size
        if match := _BLOCK.match(tensor.name):
            if int(match[1]) >= layers:
                raise ModelFileError(
                    f"model file {path}: tensor {tensor.name} is of a block that is not there ({layers})"
                )
            blocks[int(match[1])][bool(_EXPERTS.search(tensor.name))] += size
        elif tensor.name.startswith("token_embd."):
            embedding += size
        elif tensor.name.startswith("output"):
            output += size
            tied = tied and not tensor.name.startswith("output.")
        else:
            other += size
    return WeightTable(
        embedding=embedding,
        output=output,
        blocks=tuple(BlockWeights(other=plain, experts=experts) for plain, experts in blocks),
        mtp_blocks=mtp,
        other=other,
        by_type=dict(by_type),
        tied=tied,
    )
