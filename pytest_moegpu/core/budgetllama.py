"""The memory of llama.cpp's server: weights by placement, cache, recurrent state, compute buffer, context."""

from __future__ import annotations

from pytest_moegpu.core.budget import Budget, Part, Reserve, element_bytes
from pytest_moegpu.core.kvcache import kv_meaning
from pytest_moegpu.core.model import Settings
from pytest_moegpu.core.shape import KvGroup, ModelShape

__all__ = ["LIMITED_LOGITS_BUILD", "cells", "compute_bytes", "llama_budget"]

LIMITED_LOGITS_BUILD = 9500
"""Builds from about this one on reserve logits for one token a slot, older ones for a whole ubatch.

ggml-org/llama.cpp#23861, merged after build 9272 of 22 May 2026; build 11434 prints `n_outputs_max = 1`.
"""
_CELL_PADDING = 256
_FLOAT, _HALF = 4, 2
# Read off build 11434 on a processor: SmolLM2-135M takes 14.64 MiB at a ubatch of 512 beside the mask, its upcycled
# mixtures 14.64 and 23.64. With CUDA it is one hidden width less, which is left to the error band.
_INNER_WIDTHS, _HIDDEN_WIDTHS = 3, 5


def llama_budget(
    shape: ModelShape, settings: Settings, reserve: Reserve, *, build: int | None = None, mtp: bool = False
) -> Budget:
    """Return what llama-server takes on one device.

    `gpu_layers` counts as the program does: the output first, then blocks from the last one. `cpu_expert_layers` counts
    from the first block. The token embeddings stay in host memory; where the output head is tied to them, it is a copy.
    Without any layer on it the device still has a context and a compute buffer, for long prompts are computed there.

    Args:
        shape: The model.
        settings: The launch.
        reserve: What is taken beside what the log names.
        build: The number of the build; None: one that still reserves all logits, which is the larger figure.
        mtp: Whether multi-token prediction is on.

    Raises:
        UserError: Unknown cache type.
    """
    blocks = shape.weights.blocks if shape.weights is not None else ()
    spare = shape.weights.mtp_blocks if shape.weights is not None and not mtp else 0
    blocks = blocks[: len(blocks) - spare]
    count = shape.layers + (0 if not mtp or shape.weights is None else shape.weights.mtp_blocks)
    asked = count + 1 if settings.gpu_layers is None else min(settings.gpu_layers, count + 1)
    first = count - max(asked - 1, 0)
    share = (count - first) / count if count else 0.0
    weights = expert_host = total = 0
    if shape.weights is not None:
        total = shape.weights.total
        for number, block in enumerate(blocks):
            if number >= first:
                weights += block.other
                held = number < settings.cpu_expert_layers
                weights += 0 if held else block.experts
                expert_host += block.experts if held else 0
        if asked > 0:
            weights += shape.weights.output + (shape.weights.embedding if shape.weights.tied else 0)
    slots, kv = settings.slots, 0
    for group in shape.kv:
        layers = group.layers * share
        width = (group.k_width + group.v_width) * element_bytes(settings.kv_cache)
        kv += round(layers * width * cells(group, settings) * slots)
    if mtp and shape.kv:
        kv += round((shape.kv[0].k_width + shape.kv[0].v_width) * element_bytes(settings.kv_cache) * settings.context)
    state = round(shape.recurrent_bytes_per_slot * slots * share)
    parts = [
        Part(name="weights", size_bytes=weights, how=_placement(asked, count, settings, expert_host)),
        Part(name="KV cache", size_bytes=kv, how=f"{settings.kv_cache}, {settings.context} tokens x {slots}"),
        *([Part(name="recurrent state", size_bytes=state, how=f"{slots} x fixed")] if state else []),
        Part(
            name="compute buffer",
            size_bytes=compute_bytes(shape, settings, build=build),
            how=f"ubatch {settings.ubatch}",
        ),
        # llama_context initialises every device it was given, whatever gpu_layers is (src/llama-context.cpp).
        Part(name="context and driver", size_bytes=reserve.size_bytes, how=reserve.source),
    ]
    return Budget(
        parts=tuple(parts),
        host_bytes=max(total - weights, 0),
        band_bytes=reserve.band_bytes,
        notes=_notes(shape, settings, build),
        missing=shape.missing if shape.weights is not None else (*shape.missing, "how large its weights are"),
    )


def cells(group: KvGroup, settings: Settings) -> int:
    """Return the cells that a slot's cache has in one layer of a group: the context, or the window and one ubatch.

    llama_kv_cache_iswa: the window and what is computed at once, padded to 256, never more than the context.
    """
    context = _padded(settings.context)
    if group.window is None:
        return context
    return min(context, _padded(group.window + settings.ubatch))


def compute_bytes(shape: ModelShape, settings: Settings, *, build: int | None = None) -> int:
    """Return the size of the compute buffer: activations of one ubatch, its mask or scores, and the logits reserved.

    Without flash attention the scores of all heads are kept as F32. Logits and activations are never needed at once.
    """
    tokens = min(settings.ubatch, settings.context)
    context = _padded(settings.context)
    inner = _INNER_WIDTHS * (shape.feed_forward or 0)
    if shape.experts:
        used = shape.experts_used * (shape.expert_width or 0)
        # Gate, up and their product of the experts used; or the product and the outputs of each.
        inner = max(inner, _INNER_WIDTHS * used, used + shape.experts_used * shape.embedding)
    activations: float = tokens * (inner + _HIDDEN_WIDTHS * shape.embedding) * _FLOAT
    if settings.flash_attention == "off":
        attention = tokens * context * (shape.heads + 1) * _FLOAT
        activations = max(activations, activations / 2 + attention)
    else:
        activations += tokens * context * _HALF
    limited = build is not None and build >= LIMITED_LOGITS_BUILD
    logits = (settings.slots if limited else tokens) * shape.vocabulary * _FLOAT
    return round(max(activations, logits))


def _padded(tokens: int) -> int:
    return -(-tokens // _CELL_PADDING) * _CELL_PADDING


def _placement(asked: int, count: int, settings: Settings, expert_host: int) -> str:
    if not asked:
        return "none on the device"
    where = "all layers" if asked > count else f"output and the last {asked - 1} of {count} layers"
    held = min(settings.cpu_expert_layers, count)
    return f"{where}, experts of {held} layers in host memory" if expert_host else where


def _notes(shape: ModelShape, settings: Settings, build: int | None) -> tuple[str, ...]:
    notes = []
    if shape.weights is not None and not shape.weights.exact:
        notes.append("weights spread over the layers by arithmetic: name the file for exact figures")
    if build is None and settings.ubatch * shape.vocabulary * _FLOAT > compute_bytes(
        shape, settings, build=LIMITED_LOGITS_BUILD
    ):
        notes.append("compute buffer as of builds before June 2026, which reserve logits for a whole ubatch")
    if settings.flash_attention == "off" and kv_meaning(settings.kv_cache) not in ("f16", "bf16", "f32"):
        notes.append("llama.cpp needs flash attention for a quantised V cache")
    return tuple(notes)
