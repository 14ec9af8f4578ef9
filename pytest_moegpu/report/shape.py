"""What a model is made of, as text for people and as JSON for others."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from pytest_moegpu.core.budget import kv_bytes_per_token
from pytest_moegpu.core.shape import KvGroup, ModelShape, WeightTable
from pytest_moegpu.core.units import format_bytes

__all__ = ["KV_TYPES", "shape_as_json", "shape_as_text"]

KV_TYPES = ("f16", "q8_0", "fp8", "q4_0")
"""Cache types whose bytes a token are told."""


def shape_as_text(shape: ModelShape) -> str:
    """Print one fact a line, then what is not known and where the facts are from."""
    facts = [
        ("model", f"{shape.name}, {shape.architecture or 'architecture not known'}"),
        ("weights", f"{shape.quantisation or 'quantisation not known'}, {_parameters(shape.parameters)}"),
        *_weights(shape.weights),
        ("layers", f"{shape.layers}, hidden width {shape.embedding:,}, {shape.heads} heads"),
        *(("KV cache", _group(group)) for group in shape.kv),
        ("a token", ", ".join(f"{kind} {kv_bytes_per_token(shape.kv, kind):,.0f} B" for kind in KV_TYPES)),
    ]
    if shape.recurrent_layers:
        size = shape.recurrent_bytes_per_slot
        state = "a state of unknown size" if size is None else f"{format_bytes(size)} a slot in all"
        facts.append(("state", f"{shape.recurrent_layers} layers with {state}, whatever the context"))
    if shape.experts:
        shared = f", {shape.shared_experts} shared" if shape.shared_experts else ""
        width = f", inner width {shape.expert_width:,}" if shape.expert_width else ""
        facts.append(
            ("experts", f"{shape.experts} in a layer, {shape.experts_used} used for each token{shared}{width}")
        )
    facts.append(("context", f"trained for {shape.context_train:,} tokens; vocabulary of {shape.vocabulary:,}"))
    if shape.mtp_layers:
        facts.append(("ahead", f"{shape.mtp_layers} more layers of multi-token prediction"))
    if shape.licence:
        facts.append(("licence", shape.licence))
    lines = [f"{label:<9}{text}" for label, text in facts]
    lines += [f"note: {note}" for note in shape.notes]
    lines += [f"NOT KNOWN: {text}" for text in shape.not_known]
    return "\n".join([*lines, *(f"source: {source}" for source in shape.sources)])


def shape_as_json(shape: ModelShape) -> str:
    """Return all facts; sizes are bytes, what is not known is null."""
    table = shape.weights
    facts: dict[str, Any] = {"schema": 1, **asdict(shape)}
    facts["kv_bytes_per_token"] = {kind: round(kv_bytes_per_token(shape.kv, kind)) for kind in KV_TYPES}
    if table is not None:
        facts["weights"]["total"] = table.total
    return json.dumps(facts, indent=2, ensure_ascii=False)


def _parameters(count: int | None) -> str:
    return "number of parameters not known" if count is None else f"{count:,} parameters"


def _weights(table: WeightTable | None) -> list[tuple[str, str]]:
    """Say where the bytes are."""
    if table is None:
        return [("", "how large they are is not known")]
    experts = sum(block.experts for block in table.blocks)
    text = len(table.blocks) - table.mtp_blocks
    inner = sum(block.other for block in table.blocks[:text])
    spare = sum(block.other + block.experts for block in table.blocks[text:])
    head = "the token embeddings again" if table.tied else format_bytes(table.output)
    parts = [
        f"token embeddings {format_bytes(table.embedding)}",
        f"output head {head}",
        f"{text} blocks {format_bytes(inner)}" + (" without their experts" if experts else ""),
    ]
    if experts:
        parts.append(f"experts {format_bytes(experts)}")
    if table.mtp_blocks:
        parts.append(f"{table.mtp_blocks} of multi-token prediction {format_bytes(spare)}")
    if table.other:
        parts.append(f"other {format_bytes(table.other)}")
    found = [("", f"{format_bytes(table.total)}: {', '.join(parts)}{'' if table.exact else ' (by arithmetic)'}")]
    if table.by_type:
        sizes = sorted(table.by_type.items(), key=lambda each: -each[1])
        found.append(("types", ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes)))
    return found


def _group(group: KvGroup) -> str:
    window = f", a window of {group.window:,} tokens" if group.window is not None else ""
    latent = " (a latent, of which V is computed)" if not group.v_width else f" + {group.v_width:,}"
    return f"{group.layers} layers with {group.k_width:,}{latent} elements a token{window}"
