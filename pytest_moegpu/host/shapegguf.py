"""The shape of a model from its GGUF file: weights by block, cache by layer, recurrent state. Weights are not read."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from pytest_moegpu.core.shape import BlockWeights, KvGroup, ModelShape, WeightTable
from pytest_moegpu.errors import ModelFileError
from pytest_moegpu.host.ggufheader import Tensor
from pytest_moegpu.host.gguflayers import KNOWN_ARCHITECTURES, Values
from pytest_moegpu.host.modelfile import GgufFacts, catalog_name, facts_of_headers, tensor_size, whole_headers

__all__ = ["shape_of_gguf"]

_BLOCK = re.compile(r"blk\.(\d{1,9})\.")
_EXPERTS = re.compile(r"_exps\.")


def shape_of_gguf(path: Path) -> ModelShape:
    """Read the shape of a model file, or of all parts when `path` is the first part of a split one.

    Raises:
        ModelFileError: As `host.modelfile.read_gguf`, or a tensor of a block that the model does not have.
    """
    headers = whole_headers(path)
    facts = facts_of_headers(path, headers)
    architecture = facts.architecture
    values = Values(headers[0].metadata, architecture)
    layers = facts.layers - facts.mtp_layers
    kind = KNOWN_ARCHITECTURES.get(architecture)
    weights = _weights(path, [t for header in headers for t in header.tensors], facts.layers, facts.mtp_layers)
    width = values.number("feed_forward_length")
    return ModelShape(
        name=catalog_name(facts.name) or architecture,
        architecture=architecture,
        layers=layers,
        embedding=facts.embedding,
        heads=facts.heads,
        kv=_kv(values, facts, kind, layers),
        vocabulary=facts.vocabulary,
        context_train=facts.context_train,
        recurrent_layers=facts.recurrent_layers,
        recurrent_bytes_per_slot=facts.recurrent_bytes_per_slot,
        mtp_layers=facts.mtp_layers,
        experts=facts.experts,
        experts_used=facts.experts_used,
        shared_experts=values.number("expert_shared_count"),
        # Mixtures of the llama architecture have one width for both.
        expert_width=values.number("expert_feed_forward_length", width if facts.experts else 0) or None,
        feed_forward=width or None,
        quantisation=facts.quantisation,
        parameters=sum(t.elements for header in headers for t in header.tensors),
        weights=weights,
        licence=facts.licence or None,
        missing=_missing(facts, kind),
        sources=(f"{path.name}: its own header",),
    )


def _missing(facts: GgufFacts, kind: str | None) -> tuple[str, ...]:
    found = []
    if kind is None:
        found.append(
            f"how the layers of architecture {facts.architecture!r} cache: all are taken to hold the whole context"
        )
    if facts.recurrent_bytes_per_slot is None:
        found.append(f"how large the recurrent state of architecture {facts.architecture!r} is: none is counted")
    return tuple(found)


def _kv(values: Values, facts: GgufFacts, kind: str | None, layers: int) -> tuple[KvGroup, ...]:
    """Return the cached layers by form: those with the whole context first.

    A latent (`attention.kv_lora_rank`) is cached once for all heads with its rotated part, and V is computed from it:
    llama_model::create_memory with `attention.key_length_mla`.
    """
    rank = values.number("attention.kv_lora_rank")
    if kind == "latent" and rank and values.number("attention.key_length_mla"):
        return (KvGroup(layers=layers, k_width=rank + values.number("rope.dimension_count"), v_width=0),)
    each: tuple[object, ...] = values.each("attention.head_count_kv")[:layers]
    if len(each) != layers:
        each = (facts.kv_heads,) * facts.kv_layers
    pairs = zip(each, _windowed(values, kind, len(each)), strict=True)
    forms = Counter((inside, heads) for heads, inside in pairs if isinstance(heads, int) and heads > 0)
    return tuple(_group(values, facts, heads, inside, forms[inside, heads]) for inside, heads in sorted(forms))


def _group(values: Values, facts: GgufFacts, heads: int, inside: bool, layers: int) -> KvGroup:
    k, v = facts.head_dim, values.number("attention.value_length", facts.head_dim)
    if inside:
        k, v = values.number("attention.key_length_swa", k), values.number("attention.value_length_swa", v)
    window = values.number("attention.sliding_window") if inside else None
    return KvGroup(layers=layers, k_width=heads * k, v_width=heads * v, window=window)


def _windowed(values: Values, kind: str | None, layers: int) -> list[bool]:
    """Tell for each layer whether it keeps a window only: as flagged, or all but each n-th (gpt-oss: n is 2)."""
    if not values.number("attention.sliding_window"):
        return [False] * layers
    flags = values.each("attention.sliding_window_pattern")[:layers]
    if len(flags) == layers:
        return [bool(flag) for flag in flags]
    period = values.number("attention.sliding_window_pattern", 2 if kind == "window" else 0)
    return [bool(period) and number % period < period - 1 for number in range(layers)]


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
