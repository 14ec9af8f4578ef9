"""The memory of servers that take a share of the device for themselves: vLLM and SGLang."""

from __future__ import annotations

from pytest_moegpu.core.budget import Budget, Part, Reserve, kv_bytes_per_token
from pytest_moegpu.core.model import Settings
from pytest_moegpu.core.shape import ModelShape
from pytest_moegpu.core.units import GIB, format_bytes, format_percent

__all__ = ["DEFAULT_SHARE", "POOLS", "kv_room", "least_share", "pool_budget"]

POOLS = ("vllm", "sglang")
DEFAULT_SHARE = {"vllm": 0.92}
"""What is taken when nobody says: vLLM's `gpu_memory_utilization` by the help of 0.32.0; older ones took 0.9. SGLang
works its share out from the device and the graphs it records."""
# Beside weights and cache, from recorded runs on an H200 with a small model: inside vLLM's share 0.42 GiB of
# activations; outside SGLang's 0.5 GiB of graphs and activations. They grow with the model, so twice as much is set.
_ACTIVATION_BYTES = GIB


def pool_budget(shape: ModelShape, settings: Settings, backend: str, device_bytes: int, reserve: Reserve) -> Budget:
    """Return what a launch needs at least: weights, the cache of all slots at full context, activations, context.

    What such a server really takes is its share of the device; what of it is left for the cache says `kv_room`.

    Raises:
        UserError: Unknown cache type.
    """
    weights = shape.weights.without_mtp if shape.weights is not None else 0
    kv = round(kv_bytes_per_token(shape.kv, settings.kv_cache) * settings.context * settings.slots)
    state = shape.state_bytes * settings.slots
    share = settings.memory_share or DEFAULT_SHARE.get(backend)
    taken = "a share of its own choice" if share is None else _share(share, device_bytes)
    return Budget(
        parts=(
            Part(name="weights", size_bytes=weights, how=_whole(shape)),
            Part(
                name="KV cache", size_bytes=kv, how=f"{settings.kv_cache}, {settings.context} tokens x {settings.slots}"
            ),
            *([Part(name="recurrent state", size_bytes=state, how=f"{settings.slots} x fixed")] if state else []),
            Part(name="activations", size_bytes=_ACTIVATION_BYTES, how="assumed; CUDA graphs among them"),
            Part(name="context and driver", size_bytes=reserve.size_bytes, how=reserve.source),
        ),
        host_bytes=0,
        band_bytes=reserve.band_bytes,
        notes=(
            *shape.notes,
            f"{backend} takes {taken} of the device, whatever it needs",
        ),
        missing=shape.not_known,
    )


def _whole(shape: ModelShape) -> str:
    ahead = shape.weights is not None and shape.weights.mtp_blocks > 0
    return "all but those of multi-token prediction" if ahead else "all of them"


def kv_room(shape: ModelShape, share: float, backend: str, device_bytes: int, reserve: Reserve) -> int:
    """Return the bytes that a share of the device leaves for the cache; below 0 the weights do not fit.

    vLLM: share x device less weights and activations. SGLang: share x what is free before the weights, less these.
    """
    weights = shape.weights.without_mtp if shape.weights is not None else 0
    if backend == "sglang":
        return round(share * (device_bytes - reserve.size_bytes)) - weights
    return round(share * device_bytes) - weights - _ACTIVATION_BYTES


def _share(share: float, device_bytes: int) -> str:
    return f"{format_percent(share, signed=False)}, {format_bytes(share * device_bytes)},"


def least_share(shape: ModelShape, settings: Settings, backend: str, device_bytes: int, reserve: Reserve) -> float:
    """Return the smallest share of the device that holds weights and the cache of all slots; above 1 none does."""
    weights = shape.weights.without_mtp if shape.weights is not None else 0
    kv = kv_bytes_per_token(shape.kv, settings.kv_cache) * settings.context * settings.slots
    state = shape.state_bytes * settings.slots
    if backend == "sglang":
        return (weights + kv + state) / (device_bytes - reserve.size_bytes)
    return (weights + kv + state + _ACTIVATION_BYTES) / device_bytes
