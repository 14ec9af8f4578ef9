"""The shape of a model that is not at hand: from its facts in the catalog, with a file's bytes spread by arithmetic."""

from __future__ import annotations

from pytest_moegpu.core.modelfacts import ModelFacts, PublishedFile
from pytest_moegpu.core.shape import BlockWeights, KvGroup, ModelShape, WeightTable
from pytest_moegpu.errors import UserError, nearest

__all__ = ["BITS_PER_WEIGHT", "published", "shape_of_facts"]

BITS_PER_WEIGHT = {
    "BF16": 16.0,
    "F16": 16.0,
    "FP8": 8.0,
    "Q8_0": 8.5,
    "Q6_K": 6.56,
    "Q5_K_M": 5.69,
    "Q4_K_M": 4.86,
    "Q4_0": 4.5,
    "IQ4_XS": 4.25,
    "Q3_K_M": 3.91,
    "Q2_K": 3.35,
    "MXFP4": 4.34,
}
"""Quantisation → bits a weight over a whole file, for files that nobody has told the size of.

Q4_K_M: 4.86 of a Qwen3-Next file (lmstudio-bug-tracker#1266). MXFP4: 63.4 GB of 116.83 billion weights. Of one type
only (BF16, Q8_0, Q4_0): the block. The mixtures else: llama.cpp's own table for an 8B model (tools/quantize), which a
mixture of experts follows to some per cent.
"""
_GATE_UP_DOWN = 3


def published(facts: ModelFacts, quantisation: str | None) -> PublishedFile:
    """Return the published file of a quantisation, or what one would have; without a name the first that is known.

    Raises:
        UserError: Neither is known; says which are.
    """
    if quantisation is None and facts.size_bytes is not None:
        return PublishedFile(
            quantisation=facts.quantisation or "", size_bytes=facts.size_bytes, source="the catalog, with its checksum"
        )
    if quantisation is None and facts.files:
        return facts.files[0]
    wanted = (quantisation or "Q4_K_M").upper()
    for file in facts.files:
        if file.quantisation.upper() == wanted:
            return file
    bits = BITS_PER_WEIGHT.get(wanted)
    if bits is None or facts.parameters is None:
        known = list(dict.fromkeys((*(file.quantisation for file in facts.files), *BITS_PER_WEIGHT)))
        close = nearest(wanted, map(str.lower, known))
        raise UserError(
            f"quantisation {quantisation!r} of {facts.name}{close}: known are {', '.join(known)}; or name a file"
        )
    return PublishedFile(
        quantisation=wanted,
        size_bytes=round(facts.parameters * bits / 8),
        rounded=True,
        source=f"{facts.parameters / 1e9:.1f} billion weights of {bits:g} bits",
    )


def shape_of_facts(facts: ModelFacts, file: PublishedFile | None) -> ModelShape:
    """Return the shape of a model, with the bytes of a file spread over its parts as its parameters are.

    A file gives some tensors more bits than others, so the parts are estimates; their sum is the file.
    """
    missing = [] if facts.parameters is not None else ["how many parameters it has"]
    if facts.recurrent_bytes_per_slot is None:
        missing.append("how large its recurrent state is: none is counted")
    kv = facts.kv or _uniform(facts)
    return ModelShape(
        name=facts.name,
        architecture=facts.architecture,
        layers=facts.layers,
        embedding=facts.embedding,
        heads=facts.heads or facts.kv_heads,
        kv=kv,
        vocabulary=facts.vocabulary,
        context_train=facts.context_train,
        recurrent_layers=facts.recurrent_layers,
        recurrent_bytes_per_slot=facts.recurrent_bytes_per_slot,
        mtp_layers=facts.mtp_layers,
        experts=facts.experts,
        experts_used=facts.experts_used,
        shared_experts=facts.shared_experts,
        expert_width=facts.expert_width,
        feed_forward=facts.feed_forward,
        quantisation=file.quantisation if file is not None else facts.quantisation,
        parameters=facts.parameters,
        weights=_spread(facts, file.size_bytes) if file is not None else None,
        licence=facts.licence or None,
        missing=tuple(missing),
        sources=facts.references if file is None else (*facts.references, f"file: {file.source}"),
    )


def _uniform(facts: ModelFacts) -> tuple[KvGroup, ...]:
    if not facts.kv_layers:
        return ()
    width = facts.kv_heads * facts.head_dim
    return (KvGroup(layers=facts.kv_layers, k_width=width, v_width=width),)


def _spread(facts: ModelFacts, size: int) -> WeightTable:
    table = facts.vocabulary * facts.embedding
    in_layer = facts.experts * _GATE_UP_DOWN * facts.embedding * (facts.expert_width or 0)
    with_experts = facts.layers - facts.dense_layers if facts.experts else 0
    heads = table if facts.tied else 2 * table
    known = heads + with_experts * in_layer
    total = max(facts.parameters or known, known)
    each = size / total
    other = round((total - known) / facts.layers * each)
    blocks = tuple(
        BlockWeights(other=other, experts=round(in_layer * each) if number >= facts.dense_layers else 0)
        for number in range(facts.layers)
    )
    output = 0 if facts.tied else round(table * each)
    return WeightTable(
        embedding=size - output - sum(block.other + block.experts for block in blocks),
        output=output,
        blocks=blocks,
        by_type={},
        tied=facts.tied,
        exact=False,
    )
