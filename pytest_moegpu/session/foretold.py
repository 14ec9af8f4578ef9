"""What a run expects its launches to take, worked out before the first start as `moegpu plan` does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_moegpu.core.budget import Reserve, default_reserve
from pytest_moegpu.core.evidence import Evidence
from pytest_moegpu.core.learned import learned_reserve
from pytest_moegpu.core.model import ModelFormat, Scenario
from pytest_moegpu.core.predicted import build_of, predicted_budget
from pytest_moegpu.errors import MoegpuError
from pytest_moegpu.host.shapegguf import shape_of_gguf
from pytest_moegpu.host.store import RunStore, read_run
from pytest_moegpu.session.target import Target

__all__ = ["foretold"]

# Enough to learn from, and read in a moment before a run.
_MOST_RUNS = 20


def foretold(target: Target, scenario: Scenario, engine_version: str | None, runs: Path | None) -> dict[str, int]:
    """Return the bytes of each part that a launch should take on its device.

    Empty where that is not known: engines other than llama.cpp take what they are given, and how several GPUs share a
    model is not planned. Nothing about a prediction may keep a run from measuring.
    """
    if target.backend.name != "llamacpp" or target.file.format is not ModelFormat.GGUF or len(target.gpus) != 1:
        return {}
    try:
        shape = shape_of_gguf(Path(target.file.path))
        kind = target.profile.gpu.kind
        budget = predicted_budget(shape, scenario.settings, kind, _reserve(target, runs), build_of(engine_version))
    except Exception:  # noqa: BLE001 - a file that nobody foresaw is still served, measured and judged
        return {}
    return {part.name: part.size_bytes for part in budget.parts}


def _reserve(target: Target, runs: Path | None) -> Reserve:
    (gpu,) = target.gpus
    stored = _stored(runs) if runs is not None else iter(())
    default = default_reserve(gpu.memory_bytes)
    learned = learned_reserve(stored, gpu.name, target.backend.name, default.cublas_bytes)
    return default if learned is None else learned.reserve


def _stored(runs: Path) -> Iterator[Evidence]:
    store = RunStore(runs)
    for name in store.ids()[-_MOST_RUNS:]:
        try:
            yield from read_run(store.find(name)).evidence
        except MoegpuError:
            continue
