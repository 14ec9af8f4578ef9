"""What fits on a device: contexts by cache types, the largest context, and what must leave it if it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pytest_moegpu.core.budget import Budget, Reserve
from pytest_moegpu.core.budgetllama import llama_budget
from pytest_moegpu.core.budgetpool import POOLS, least_share, pool_budget
from pytest_moegpu.core.model import Settings
from pytest_moegpu.core.shape import ModelShape
from pytest_moegpu.errors import UserError

__all__ = ["PLANNED_BACKENDS", "Cell", "Fit", "Placement", "Planner"]

PLANNED_BACKENDS = ("llamacpp", *POOLS)
_STEP = 256


class Fit(StrEnum):
    """Whether a launch fits."""

    FITS = "fits"
    TIGHT = "tight"
    """Within the error band of what the device has, on either side."""
    NO = "no"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One context and cache type on one device; `free_bytes` is below 0 where it does not fit."""

    context: int
    kv_cache: str
    budget: Budget
    free_bytes: int
    fit: Fit


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The least that must leave the device: experts or layers. `settings` hold it, None where nothing helps."""

    settings: Settings | None
    words: str
    budget: Budget | None = None


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Plans one model for one backend on one device.

    Raises:
        UserError: The backend's memory cannot be planned.
    """

    shape: ModelShape
    backend: str
    device_bytes: int
    reserve: Reserve
    build: int | None = None

    def __post_init__(self) -> None:
        if self.backend not in PLANNED_BACKENDS:
            raise UserError(
                f"what {self.backend} takes of a device is not known here: plan for {', '.join(PLANNED_BACKENDS)}"
            )

    def budget(self, settings: Settings) -> Budget:
        """Return the parts of one launch.

        Raises:
            UserError: Unknown cache type.
        """
        if self.backend in POOLS:
            return pool_budget(self.shape, settings, self.backend, self.device_bytes, self.reserve)
        return llama_budget(self.shape, settings, self.reserve, build=self.build)

    def cell(self, settings: Settings) -> Cell:
        """Judge one launch."""
        budget = self.budget(settings)
        free = self.device_bytes - budget.total
        band = budget.band_bytes
        fit = Fit.FITS if free >= band else Fit.TIGHT if free >= -band else Fit.NO
        return Cell(context=settings.context, kv_cache=settings.kv_cache, budget=budget, free_bytes=free, fit=fit)

    def largest_context(self, settings: Settings) -> int:
        """Return the largest context whose sum is not above the device, up to what the model was trained for; 0: none.

        In steps of 256 tokens.
        """
        low, high = 0, self.shape.context_train // _STEP
        while low < high:
            middle = (low + high + 1) // 2
            if self.cell(replace(settings, context=middle * _STEP)).free_bytes >= 0:
                low = middle
            else:
                high = middle - 1
        return low * _STEP

    def share(self, settings: Settings) -> float | None:
        """Return the smallest share of the device that a server with a pool needs; None for others."""
        if self.backend not in POOLS:
            return None
        return least_share(self.shape, settings, self.backend, self.device_bytes, self.reserve)

    def placement(self, settings: Settings) -> Placement:
        """Return the least that must leave the device for a launch to fit: experts first, for these are used least."""
        if self.cell(settings).free_bytes >= 0:
            return Placement(settings=settings, words="nothing", budget=self.budget(settings))
        if self.backend in POOLS:
            return Placement(settings=None, words=f"{self.backend} keeps all weights on the device")
        layers = self.shape.layers
        tried: Sequence[tuple[str, Settings]] = [
            *(
                [
                    (f"the experts of {count} of {layers} layers", replace(settings, cpu_expert_layers=count))
                    for count in range(1, layers + 1)
                ]
                if self.shape.experts
                else []
            ),
            *(
                (f"{layers + 1 - count} of {layers} layers", replace(settings, gpu_layers=count))
                for count in range(layers, 0, -1)
            ),
        ]
        for words, changed in tried:
            if self.cell(changed).free_bytes >= 0:
                return Placement(settings=changed, words=words, budget=self.budget(changed))
        return Placement(settings=None, words="it does not fit with one layer on the device either")
