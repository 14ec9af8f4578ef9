"""What a launch was expected to take, kept with what it took: the parts that a server's log names, and the rest."""

from __future__ import annotations

import re
from dataclasses import replace

from pytest_moegpu.core.budget import Budget, Reserve
from pytest_moegpu.core.budgetllama import llama_budget
from pytest_moegpu.core.evidence import LogFacts
from pytest_moegpu.core.model import DeviceKind, Settings
from pytest_moegpu.core.shape import ModelShape

__all__ = ["build_of", "logged_parts", "predicted_budget"]

# `11434 (abc1234)`, `0.6.0-dev (build 11434, commit …)`, and of xllamacpp the last number of its own version.
_BUILD = re.compile(r"\bbuild (\d+)|^(\d+) \(|^\d+\.\d+\.(\d{4,}) \(xllamacpp\)")
_NO_RESERVE = Reserve(size_bytes=0, source="no device", band_bytes=0)
_CONTEXT = "context and driver"


def build_of(version: str | None) -> int | None:
    """Return the number of a llama.cpp build from its version; None where it has none, or 0 in a build without git."""
    found = _BUILD.search(version or "")
    return int(next(filter(None, found.groups()))) or None if found else None


def predicted_budget(
    shape: ModelShape, settings: Settings, kind: DeviceKind, reserve: Reserve, build: int | None
) -> Budget:
    """Return the budget of llama-server on a GPU; on a processor everything is in its memory, the head no copy.

    Of the process itself nothing is predicted on a processor: only the parts that its log names.

    Raises:
        UserError: Unknown cache type.
    """
    if kind is DeviceKind.GPU:
        return llama_budget(shape, settings, reserve, build=build)
    here = replace(settings, gpu_layers=None, cpu_expert_layers=0)
    budget = llama_budget(shape, here, _NO_RESERVE, build=build, kind=kind)
    total = shape.weights.total if shape.weights is not None else 0
    parts = tuple(
        replace(part, size_bytes=total) if part.name == "weights" else part
        for part in budget.parts
        if part.name != _CONTEXT
    )
    return replace(budget, parts=parts, host_bytes=0)


def logged_parts(log: LogFacts, kind: DeviceKind) -> dict[str, int]:
    """Return the bytes of each part that a log names on the device asked for, in all of its buffers.

    llama.cpp's figure of the KV cache holds the recurrent state too. Empty where the log names no buffer there.
    """

    def there(device: str) -> bool:
        return (device.startswith(("CPU", "AMX")) or device.endswith("Host")) is (kind is DeviceKind.CPU)

    named = {"weights": log.model_bytes, "KV cache": log.kv_bytes, "compute buffer": log.compute_bytes}
    parts = {part: sum(size for device, size in sizes.items() if there(device)) for part, sizes in named.items()}
    return parts if any(parts.values()) else {}
