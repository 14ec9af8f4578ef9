"""The compute buffer of llama.cpp's server: the largest sum of activations that are needed at one time.

The widths were read off the logs of build 11434 with SmolLM2-135M and mixtures made of it: on a processor, and on an
H200 in 42 launches (docs/how-to/plan.md).
"""

from __future__ import annotations

from pytest_moegpu.core.budget import element_bytes
from pytest_moegpu.core.kvcache import kv_meaning
from pytest_moegpu.core.model import DeviceKind, Settings
from pytest_moegpu.core.shape import KvGroup, ModelShape

__all__ = ["LIMITED_LOGITS_BUILD", "cells", "compute_bytes", "padded"]

LIMITED_LOGITS_BUILD = 9500
"""Builds from about this one on reserve logits for one token a slot, older ones for a whole ubatch.

ggml-org/llama.cpp#23861, merged after build 9272 of 22 May 2026; build 11434 prints `n_outputs_max = 1`.
"""
_CELL_PADDING = 256
_FLOAT, _HALF = 4, 2
_INNER_WIDTHS = 3
# Hidden widths held through a feed-forward and through an attention. A processor keeps one more; a GPU that shares the
# layers with one keeps copies of what goes there and back.
_FEED_FORWARD, _ATTENTION = 4, 5
_SHARED_FEED_FORWARD, _SHARED_ATTENTION = 6, 6
_EXPERT_TENSORS = 3  # gate, up and down
_LEAST_COPIED = 32  # tokens of a ubatch from which weights go to the GPU (ggml_backend_cuda's op offload)


def compute_bytes(
    shape: ModelShape, settings: Settings, *, build: int | None = None, kind: DeviceKind = DeviceKind.GPU
) -> int:
    """Return the size of the compute buffer on a device of one kind.

    A feed-forward and an attention are never computed at once, nor are the logits. Without flash attention the scores
    of all heads are kept as F32. A GPU keeps a quantised cache of one layer as F16 for flash attention, of all slots;
    it gets a copy of the cache of each layer, and of the experts, that stay in host memory, when it computes for them.

    Args:
        shape: The model.
        settings: The launch.
        build: The number of the build; None: one that still reserves all logits, which is the larger figure.
        kind: Where is computed.

    Raises:
        UserError: Unknown cache type.
    """
    tokens = min(settings.ubatch, settings.context)
    on_gpu = kind is DeviceKind.GPU
    shared = on_gpu and settings.gpu_layers is not None and settings.gpu_layers <= shape.layers
    wide_forward = _SHARED_FEED_FORWARD if shared else _FEED_FORWARD + (not on_gpu)
    wide_attention = _SHARED_ATTENTION if shared else _ATTENTION + (not on_gpu)
    forward = tokens * (_inner(shape) + wide_forward * shape.embedding) * _FLOAT
    forward += _expert_copy(shape, settings) if on_gpu and tokens >= _LEAST_COPIED else 0
    attention: float = tokens * wide_attention * shape.embedding * _FLOAT
    if on_gpu:
        attention += max((_cache_copies(group, settings, shared) for group in shape.kv), default=0)
    context = padded(settings.context)
    if settings.flash_attention == "off":
        width = max((group.k_width + group.v_width for group in shape.kv), default=0)
        attention += tokens * (width + context * (shape.heads + 1)) * _FLOAT
    else:
        forward += tokens * context * _HALF
        attention += tokens * context * _HALF
    limited = build is not None and build >= LIMITED_LOGITS_BUILD
    logits = (settings.slots if limited else tokens) * shape.vocabulary * _FLOAT
    return round(max(forward, attention, logits))


def cells(group: KvGroup, settings: Settings) -> int:
    """Return the cells that a slot's cache has in one layer of a group: the context, or the window and one ubatch.

    llama_kv_cache_iswa: the window and what is computed at once, padded to 256, never more than the context.
    """
    context = padded(settings.context)
    if group.window is None:
        return context
    return min(context, padded(group.window + settings.ubatch))


def padded(tokens: int) -> int:
    """Return a length as llama.cpp rounds it up."""
    return -(-tokens // _CELL_PADDING) * _CELL_PADDING


def _inner(shape: ModelShape) -> int:
    """Elements of one token inside a feed-forward: of a dense one, or of the experts used."""
    inner = _INNER_WIDTHS * (shape.feed_forward or 0)
    if shape.experts:
        used = shape.experts_used * (shape.expert_width or 0)
        # Gate, up and their product of the experts used; or the product and the outputs of each.
        inner = max(inner, _INNER_WIDTHS * used, used + shape.experts_used * shape.embedding)
    return inner


def _expert_copy(shape: ModelShape, settings: Settings) -> int:
    """Bytes of one tensor of the experts in host memory, which goes to the GPU when a long prompt is computed."""
    blocks = shape.weights.blocks if shape.weights is not None else ()
    layers = settings.gpu_layers
    absent = 0 if layers is None else shape.layers - max(min(layers, shape.layers + 1) - 1, 0)
    held = blocks[: max(settings.cpu_expert_layers, absent)]
    return max((block.experts // _EXPERT_TENSORS for block in held), default=0)


def _cache_copies(group: KvGroup, settings: Settings, shared: bool) -> float:
    """Bytes of one layer's cache that a GPU holds twice: as F16 where it is quantised, and as it is from the host."""
    elements = cells(group, settings) * settings.slots * (group.k_width + group.v_width)
    quantised = kv_meaning(settings.kv_cache) not in ("f16", "bf16", "f32") and settings.flash_attention != "off"
    return elements * ((_HALF if quantised else 0) + (element_bytes(settings.kv_cache) if shared else 0))
