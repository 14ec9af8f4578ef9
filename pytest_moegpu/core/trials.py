"""Wrong text narrowed down: the same questions to servers that differ in one thing each, and what the answers mean.

A trial that comes out right makes the part it left out the suspect. It proves nothing about hardware or driver by
itself: a broken card shows itself through a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pytest_moegpu.core.evidence import StartEvidence
from pytest_moegpu.core.kvcache import kv_meaning
from pytest_moegpu.core.model import DeviceKind, Settings

__all__ = ["Attribution", "Change", "Result", "Trial", "Tried", "conclusion", "plan"]


class Change(StrEnum):
    """What a trial changes."""

    NOTHING = "nothing"
    FLASH_ATTENTION = "flash-attention"
    KV_CACHE = "kv-cache"
    ONE_GPU = "one-gpu"
    CPU = "cpu"
    BACKEND = "backend"


class Result(StrEnum):
    """How a trial came out."""

    CURED = "right again"
    WRONG = "still wrong"
    NO_ANSWER = "no answer"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One start that differs in one thing; `suspect` is what it would accuse by being right."""

    change: Change
    title: str
    suspect: str
    settings: Settings


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A trial with its result. `detail` says what was judged or why nothing was; `start` is None where none was made.

    `seconds` is how long the start took from idle to idle, None without one.
    """

    trial: Trial
    result: Result
    detail: str
    seconds: float | None = None
    start: StartEvidence | None = None


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """All trials of one scenario. `check` is what had failed, `budget` the most starts that were allowed."""

    scenario: str
    check: str
    budget: int
    tried: tuple[Tried, ...]
    conclusion: str

    def __str__(self) -> str:
        """Print a line for each trial, and what they say together."""
        return "\n".join([*(_line(each) for each in self.tried), self.conclusion])


def plan(settings: Settings, gpus: int, kind: DeviceKind, *, constant: bool) -> tuple[Trial, ...]:
    """Return the trials worth a start, cheapest and most telling first.

    Args:
        settings: As the scenario was measured.
        gpus: Devices of the run.
        kind: Whether the model was on a GPU or on the processor.
        constant: Every one of several starts was wrong. Else the first trial repeats the start as it was: what comes
            and goes by itself would make any trial look like a cure.
    """
    f16 = kv_meaning(settings.kv_cache) != "f16"
    trials = []
    if not constant:
        trials.append(Trial(change=Change.NOTHING, title="as it was, once more", suspect="", settings=settings))
    if f16:
        trials.append(
            Trial(
                change=Change.KV_CACHE,
                title="kv_cache f16",
                suspect=f"the {settings.kv_cache} KV cache",
                settings=replace(settings, kv_cache="f16"),
            )
        )
    if settings.flash_attention != "off":
        # llama.cpp has no quantised cache without flash attention, so that both go together.
        off = replace(settings, flash_attention="off", kv_cache="f16")
        title = "flash_attention off" + (", kv_cache f16" if f16 else "")
        trials.append(
            Trial(change=Change.FLASH_ATTENTION, title=title, suspect="the flash attention kernel", settings=off)
        )
    if gpus > 1:
        suspect = "the split over several GPUs, or another GPU than the first,"
        trials.append(Trial(change=Change.ONE_GPU, title="the first GPU alone", suspect=suspect, settings=settings))
    if kind is DeviceKind.GPU:
        alone = replace(settings, gpu_layers=0, flash_attention="off" if f16 else settings.flash_attention)
        alone = replace(alone, kv_cache="f16") if f16 else alone
        suspect = "what computes on the GPU (its kernels, the driver or the card)"
        trials.append(Trial(change=Change.CPU, title="the processor alone", suspect=suspect, settings=alone))
    plain = Settings(
        context=settings.context, slots=settings.slots, gpu_layers=settings.gpu_layers, thinking=settings.thinking
    )
    trials.append(
        Trial(change=Change.BACKEND, title="another backend", suspect="the engine, or how it is set,", settings=plain)
    )
    return tuple(trials)


def conclusion(tried: Sequence[Tried]) -> str:
    """Say what the results mean together. Nothing is accused by a trial that gave no answer."""
    made = [each for each in tried if each.result in (Result.CURED, Result.WRONG)]
    if any(each.trial.change is Change.NOTHING and each.result is not Result.WRONG for each in tried):
        return _unsteady(tried)
    changed = [each for each in made if each.trial.change is not Change.NOTHING]
    if not changed:
        return "no trial gave an answer: nothing can be said about the cause"
    cured = [each for each in changed if each.result is Result.CURED]
    if cured:
        first = cured[0]
        others = [each.trial.title for each in cured[1:]]
        also = f"; right as well: {', '.join(others)}" if others else ""
        return f"{first.trial.title}: right again: {first.trial.suspect} is the suspect{also}"
    names = ", ".join(each.trial.title for each in changed)
    return (
        f"none of them cured it ({names}): the cause is in what they share, such as the model file, its chat template "
        "or the questions"
    )


def _unsteady(tried: Sequence[Tried]) -> str:
    first = next(each for each in tried if each.trial.change is Change.NOTHING)
    if first.result is Result.CURED:
        return (
            "the same start is right this time: the fault comes and goes, and no single trial could tell a cure from "
            "luck; measure with more starts (--moegpu-starts=5)"
        )
    return "the start as it was could not be repeated: nothing can be said about the cause"


def _line(each: Tried) -> str:
    took = "" if each.seconds is None else f", {each.seconds:.0f} s"
    return f"{each.trial.title}: {each.result}{took} ({each.detail})"
