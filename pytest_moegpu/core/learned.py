"""The reserve of a device as stored runs measured it: the peak less what the engine's log names."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_moegpu.core.budget import Reserve
from pytest_moegpu.core.budgetllama import CUBLAS
from pytest_moegpu.core.evidence import Evidence, StartEvidence
from pytest_moegpu.core.model import DeviceKind
from pytest_moegpu.core.units import MIB

__all__ = ["Learned", "learned_reserve", "rest_of"]

# Two starts of one launch differ by some MiB; another launch takes other kernels, each with memory of its own.
_LEAST_BAND = 128 * MIB
_BAND_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class Learned:
    """A reserve with what it was learned from."""

    reserve: Reserve
    starts: int


def rest_of(start: StartEvidence) -> int | None:
    """Return the bytes of the peak that the log names no buffer for; None where one of the two is not known."""
    named = start.log.model_bytes, start.log.kv_bytes, start.log.compute_bytes
    if start.peak_bytes is None or not named[0] or not named[2]:
        return None
    on_device = sum(
        size for buffers in named for name, size in buffers.items() if not name.startswith("CPU") and "Host" not in name
    )
    return start.peak_bytes - on_device if on_device else None


def learned_reserve(evidence: Iterable[Evidence], gpu: str, backend: str, cublas_bytes: int = 0) -> Learned | None:
    """Return the median reserve over all starts on GPUs of one name with one engine; None where there is none.

    What was predicted for cuBLAS in a run is no part of it; a launch that uses cuBLAS takes `cublas_bytes` more.

    Rehearsals of a smaller card, runs on several GPUs and starts beside strangers tell nothing.
    """
    rests = []
    for each in evidence:
        (*devices,) = each.gpus
        alone = len(devices) == 1 and devices[0].kind is DeviceKind.GPU and devices[0].emulated_on is None
        if each.backend == backend and alone and devices[0].name == gpu:
            found = (rest_of(start) for start in each.starts if not start.foreign and start.failure is None)
            library = each.predicted.get(CUBLAS, 0)
            rests += [rest - library for rest in found if rest is not None and rest > library]
    if not rests:
        return None
    middle = round(statistics.median(rests))
    spread = max(rests) - min(rests)
    return Learned(
        reserve=Reserve(
            size_bytes=middle,
            source=f"learned from {len(rests)} starts of {backend} on {gpu}",
            cublas_bytes=cublas_bytes,
            band_bytes=max(_LEAST_BAND, spread, round(_BAND_SHARE * middle)),
        ),
        starts=len(rests),
    )
