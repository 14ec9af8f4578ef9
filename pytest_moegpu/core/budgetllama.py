"""The memory of llama.cpp's server: weights by placement, cache, recurrent state, compute buffer, context."""

from __future__ import annotations

from pytest_moegpu.core.budget import Budget, Part, Reserve, element_bytes
from pytest_moegpu.core.budgetcompute import LIMITED_LOGITS_BUILD, cells, compute_bytes
from pytest_moegpu.core.kvcache import kv_meaning
from pytest_moegpu.core.model import DeviceKind, Settings
from pytest_moegpu.core.shape import ModelShape

__all__ = ["CUBLAS", "llama_budget", "uses_cublas"]

CUBLAS = "cuBLAS"
"""Name of the part that the library takes once something is computed by it."""
# Tensors of 16 bits below this share are no matrices that are multiplied for every token.
_LEAST_SHARE = 0.01
_FLOAT = 4


def llama_budget(
    shape: ModelShape,
    settings: Settings,
    reserve: Reserve,
    *,
    build: int | None = None,
    mtp: bool = False,
    kind: DeviceKind = DeviceKind.GPU,
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
        kind: Where the layers counted as on the device are computed.

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
    state = round(shape.state_bytes * slots * share)
    parts = [
        Part(name="weights", size_bytes=weights, how=_placement(asked, count, settings, expert_host)),
        Part(name="KV cache", size_bytes=kv, how=f"{settings.kv_cache}, {settings.context} tokens x {slots}"),
        *([Part(name="recurrent state", size_bytes=state, how=f"{slots} x fixed")] if state else []),
        Part(
            name="compute buffer",
            size_bytes=compute_bytes(shape, settings, build=build, kind=kind),
            how=f"ubatch {settings.ubatch}",
        ),
        # llama_context initialises every device it was given, whatever gpu_layers is (src/llama-context.cpp).
        Part(name="context and driver", size_bytes=reserve.size_bytes, how=reserve.source),
    ]
    if reserve.cublas_bytes and uses_cublas(shape, settings):
        parts.append(Part(name=CUBLAS, size_bytes=reserve.cublas_bytes, how="16-bit weights, routers, plain attention"))
    return Budget(
        parts=tuple(parts),
        host_bytes=max(total - weights, 0),
        band_bytes=reserve.band_bytes,
        notes=_notes(shape, settings, build),
        missing=shape.not_known,
    )


def uses_cublas(shape: ModelShape, settings: Settings) -> bool:
    """Tell whether a launch computes anything by cuBLAS: 16-bit weights, routers, or attention without flash attention.

    Quantised weights and flash attention have kernels of llama.cpp's own.
    """
    by_type = shape.weights.by_type if shape.weights is not None else {}
    halves = sum(size for name, size in by_type.items() if name.upper() in ("F16", "BF16"))
    wide = halves > _LEAST_SHARE * sum(by_type.values())
    return wide or bool(shape.experts) or settings.flash_attention == "off"


def _placement(asked: int, count: int, settings: Settings, expert_host: int) -> str:
    if not asked:
        return "none on the device"
    where = "all layers" if asked > count else f"output and the last {asked - 1} of {count} layers"
    held = min(settings.cpu_expert_layers, count)
    return f"{where}, experts of {held} layers in host memory" if expert_host else where


def _notes(shape: ModelShape, settings: Settings, build: int | None) -> tuple[str, ...]:
    notes = [*shape.notes]
    if shape.weights is not None and not shape.weights.exact:
        notes.append("weights spread over the layers by arithmetic: name the file for exact figures")
    if build is None and settings.ubatch * shape.vocabulary * _FLOAT > compute_bytes(
        shape, settings, build=LIMITED_LOGITS_BUILD
    ):
        notes.append("compute buffer as of builds before June 2026, which reserve logits for a whole ubatch")
    if settings.flash_attention == "off" and kv_meaning(settings.kv_cache) not in ("f16", "bf16", "f32"):
        notes.append("llama.cpp needs flash attention for a quantised V cache")
    return tuple(notes)
