"""What a difference is put down to: what moved, alone or together, and what trials of wrong text mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_moegpu.core.attribution import CAUSE, cause, with_cause
from pytest_moegpu.core.evidence import Phase
from pytest_moegpu.core.identity import stack_changes
from pytest_moegpu.core.model import DeviceKind, Settings, Stack
from pytest_moegpu.core.trials import Attribution, Change, Result, Trial, Tried, conclusion, plan
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict

BASE = Stack(
    driver="570.86",
    cuda_driver="12.8",
    toolkit="12.8",
    engine="llamacpp",
    engine_version="1",
    program="aa",
    libraries={"cublas": "12.8"},
    kernel="6.1",
)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "nothing under test moved"),
        ({"kernel": "6.8"}, "only the kernel moved (kernel 6.1 → 6.8): the suspect"),
        ({"toolkit": "13.0"}, "only CUDA moved (toolkit 12.8 → 13.0): the suspect"),
        (
            {"driver": "580.1", "cuda_driver": "13.0"},
            "only the driver moved (driver 570.86 → 580.1, CUDA driver 12.8 → 13.0): the suspect",
        ),
        ({"cuda_driver": "13.0"}, "only CUDA moved (CUDA driver 12.8 → 13.0): the suspect"),
        (
            {"driver": "580.1", "cuda_driver": "13.0", "toolkit": "13.0"},
            "the driver and CUDA moved together: cannot say which; move one at a time to know",
        ),
        (
            {"engine_version": "2", "program": "bb"},
            "only the engine moved (engine version 1 → 2, program aa → bb): the suspect",
        ),
        (
            {"driver": "580.1", "program": "bb", "libraries": {"cublas": "13"}},
            "the driver, the engine and its libraries moved together: cannot say which; move one at a time to know",
        ),
        (
            {"driver": "580.1", "kernel": None},
            "only the driver moved (driver 570.86 → 580.1): the suspect; not recorded on one side, so not ruled out: "
            "kernel",
        ),
        (
            {"driver": None, "toolkit": None},
            "nothing under test is known to have moved; not recorded on one side, so not ruled out: driver and toolkit",
        ),
    ],
)
def test_one_is_named_and_several_are_not_told_apart(changes: dict[str, Any], says: str) -> None:
    assert cause(stack_changes(BASE, replace(BASE, **changes))) == says


def verdict(outcome: Outcome, failed_class: FailedClass | None = None) -> Verdict:
    return Verdict(
        outcome=outcome, check="x", scenario="s", subject="decode", phase=Phase.COMPARE, failed_class=failed_class
    )


CHANGES = stack_changes(BASE, replace(BASE, kernel="6.8"))


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (verdict(Outcome.REGRESSED, FailedClass.PERFORMANCE), True),
        (verdict(Outcome.IMPROVED), True),
        (verdict(Outcome.FAILED, FailedClass.CORRECTNESS), True),
        (verdict(Outcome.FAILED, FailedClass.ENVIRONMENT), False),
        (verdict(Outcome.INCONCLUSIVE), False),
        (verdict(Outcome.PASS), False),
    ],
)
def test_only_a_difference_has_a_cause(told: Verdict, said: bool) -> None:
    once = with_cause(told, CHANGES)
    assert [label for label, _ in once.lines] == ([CAUSE] if said else [])
    assert with_cause(once, CHANGES) == once


PLAIN = Settings(context=2048)


def changes(
    settings: Settings, gpus: int = 1, kind: DeviceKind = DeviceKind.GPU, *, constant: bool = True
) -> list[str]:
    return [trial.change.value for trial in plan(settings, gpus, kind, constant=constant)]


def test_only_what_differs_from_the_scenario_is_tried() -> None:
    assert changes(PLAIN) == ["flash-attention", "cpu", "backend"]
    assert changes(replace(PLAIN, flash_attention="off")) == ["cpu", "backend"]
    assert changes(replace(PLAIN, kv_cache="float16"), kind=DeviceKind.CPU) == ["flash-attention", "backend"]
    every = ["nothing", "kv-cache", "flash-attention", "one-gpu", "cpu", "backend"]
    assert changes(replace(PLAIN, kv_cache="q8_0"), 2, constant=False) == every


def test_a_quantised_cache_goes_with_flash_attention_and_says_so() -> None:
    kv, flash, cpu, backend = plan(replace(PLAIN, kv_cache="q8_0", batch=512), 1, DeviceKind.GPU, constant=True)
    assert (kv.settings.kv_cache, kv.settings.flash_attention, kv.settings.batch) == ("f16", "auto", 512)
    assert (flash.settings.kv_cache, flash.settings.flash_attention) == ("f16", "off")
    assert flash.title == "flash_attention off, kv_cache f16"
    assert (cpu.settings.gpu_layers, cpu.settings.kv_cache) == (0, "f16")
    assert backend.settings == PLAIN


def tried(change: Change, result: Result) -> Tried:
    names = {trial.change: trial for trial in plan(replace(PLAIN, kv_cache="q8_0"), 2, DeviceKind.GPU, constant=False)}
    return Tried(trial=names[change], result=result, detail="3 of 3", seconds=4.2)


def test_the_first_cure_is_named_and_the_others_beside_it() -> None:
    said = conclusion(
        [
            tried(Change.KV_CACHE, Result.WRONG),
            tried(Change.FLASH_ATTENTION, Result.CURED),
            tried(Change.ONE_GPU, Result.NO_ANSWER),
            tried(Change.CPU, Result.CURED),
        ]
    )
    assert said == (
        "flash_attention off, kv_cache f16: right again: the flash attention kernel is the suspect; "
        "right as well: the processor alone"
    )


@pytest.mark.parametrize("result", [Result.NO_ANSWER, Result.NOT_TRIED])
def test_no_answer_is_no_cure_and_no_acquittal(result: Result) -> None:
    said = conclusion([tried(Change.FLASH_ATTENTION, result), tried(Change.CPU, result)])
    assert said == "no trial gave an answer: nothing can be said about the cause"


def test_none_of_them() -> None:
    said = conclusion([tried(Change.NOTHING, Result.WRONG), tried(Change.CPU, Result.WRONG)])
    assert said.startswith("none of them cured it (the processor alone): the cause is in what they share")


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (Result.CURED, "the same start is right this time: the fault comes and goes"),
        (Result.NO_ANSWER, "the start as it was could not be repeated"),
        (Result.NOT_TRIED, "the start as it was could not be repeated"),
    ],
)
def test_a_fault_that_is_not_repeated_accuses_nobody(result: Result, says: str) -> None:
    said = conclusion([tried(Change.NOTHING, result), tried(Change.CPU, Result.CURED)])
    assert said.startswith(says)
    assert "suspect" not in said


def test_the_lines_name_result_time_and_what_was_judged() -> None:
    left_out = Tried(
        trial=Trial(change=Change.BACKEND, title="another backend", suspect="", settings=PLAIN),
        result=Result.NOT_TRIED,
        detail="none is here",
    )
    found = Attribution(
        scenario="s",
        check="output",
        budget=5,
        tried=(tried(Change.CPU, Result.WRONG), left_out),
        conclusion="So it is.",
    )
    assert str(found).splitlines() == [
        "the processor alone: still wrong, 4 s (3 of 3)",
        "another backend: not tried (none is here)",
        "So it is.",
    ]
