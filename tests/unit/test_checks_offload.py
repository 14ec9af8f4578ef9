from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_moegpu.checks.offload import judge
from pytest_moegpu.core.evidence import LogFacts, Phase, StartFailure
from pytest_moegpu.core.model import DeviceKind, Settings
from pytest_moegpu.core.units import GIB, MIB
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from tests.unit.builders import CPU_LOG, GPU_LOG, evidence, profile, scenario, start


def on_gpu(*logs: LogFacts, layers: int | None = None) -> Verdict:
    run = evidence(*(start(i, log=log) for i, log in enumerate(logs, 1)))
    (verdict,) = judge(run, scenario(settings=Settings(context=2048, gpu_layers=layers)), profile())
    return verdict


def on_cpu(log: LogFacts) -> Verdict:
    (verdict,) = judge(evidence(start(log=log)), scenario(), profile(DeviceKind.CPU))
    return verdict


def test_all_layers_on_the_gpu_passes() -> None:
    verdict = on_gpu(GPU_LOG, GPU_LOG)
    assert verdict.outcome is Outcome.PASS
    assert verdict.reason == "starts 1, 2: 41/41 layers on GPU"
    assert verdict.lines == (("weights", "CPU_Mapped 300 MiB, CUDA0 20.00 GiB"),)


def test_one_start_with_fewer_layers_fails() -> None:
    verdict = on_gpu(GPU_LOG, replace(GPU_LOG, offloaded_layers=30))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.ENVIRONMENT)
    assert verdict.reason == "start 2: 30/41 layers on GPU, expected 41"
    assert verdict.log_path == "runs/x/server-2.log"


@pytest.mark.parametrize(("layers", "outcome"), [(20, Outcome.PASS), (999, Outcome.FAILED), (0, Outcome.PASS)])
def test_a_number_of_layers_is_a_floor(layers: int, outcome: Outcome) -> None:
    assert on_gpu(replace(GPU_LOG, offloaded_layers=30), layers=layers).outcome is outcome


def test_silent_log_is_inconclusive() -> None:
    assert on_gpu(LogFacts()).outcome is Outcome.INCONCLUSIVE


def test_log_that_the_device_contradicts_fails() -> None:
    run = evidence(start(peaks={"load": 500 * MIB}))
    (verdict,) = judge(run, scenario(), profile())
    assert verdict.outcome is Outcome.FAILED
    assert "20.00 GiB of weights, but the device grew by 490 MiB only" in verdict.reason
    nowhere = on_gpu(replace(GPU_LOG, model_bytes={"CPU": 20 * GIB}))
    assert "all weights are in host memory" in nowhere.reason


HALF = replace(GPU_LOG, model_bytes={"CUDA0": 11 * GIB, "CPU_Mapped": 9 * GIB})


@pytest.mark.parametrize("layers", [None, 999])
def test_experts_left_on_the_cpu_fail_though_all_layers_are_offloaded(layers: int | None) -> None:
    verdict = on_gpu(GPU_LOG, HALF, layers=layers)
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.ENVIRONMENT)
    assert verdict.reason == (
        "start 2: 41/41 layers on GPU, but 9.00 GiB of 20.00 GiB of weights are in host memory, "
        "as when experts stay there"
    )


@pytest.mark.parametrize("flag", ["-ot", "--override-tensor", "--n-cpu-moe", "-ncmoe", "--cpu-moe", "--n-cpu-moe=20"])
def test_experts_left_on_purpose_are_a_finding(flag: str) -> None:
    settings = Settings(context=2048, extra_flags=(flag, "20"))
    (verdict,) = judge(evidence(start(log=HALF)), scenario(settings=settings), profile())
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings == (
        "start 1: 9.00 GiB of 20.00 GiB of weights are in host memory, as when experts stay there: a flag asks for it",
    )


def test_an_embedding_in_host_memory_is_no_matter() -> None:
    """SmolLM2-135M with all its layers on an H200; and layers that were never asked for."""
    tied = LogFacts(offloaded_layers=31, total_layers=31, model_bytes={"CPU_Mapped": 30083645, "CUDA0": 96647250})
    assert on_gpu(tied).outcome is Outcome.PASS
    assert on_gpu(replace(HALF, offloaded_layers=20), layers=20).outcome is Outcome.PASS


def test_unread_device_is_said() -> None:
    (verdict,) = judge(evidence(start(peaks={})), scenario(), profile())
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings == ("start 1: not corroborated by the device: its memory was not read",)


def test_cpu_profile_with_nothing_on_a_gpu_passes() -> None:
    assert on_cpu(CPU_LOG).outcome is Outcome.PASS
    assert on_cpu(replace(CPU_LOG, offloaded_layers=0, total_layers=31)).outcome is Outcome.PASS


def test_cpu_profile_with_something_on_a_gpu_fails() -> None:
    verdict = on_cpu(replace(CPU_LOG, model_bytes={"CPU": MIB, "Vulkan0": 90 * MIB}))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason == "start 1: weights on Vulkan0 90 MiB, expected host memory only"
    assert on_cpu(replace(CPU_LOG, offloaded_layers=3, total_layers=31)).outcome is Outcome.FAILED


def test_cpu_profile_with_a_silent_log_is_inconclusive() -> None:
    assert on_cpu(LogFacts()).outcome is Outcome.INCONCLUSIVE


def test_broken_start_is_an_error_with_its_cause() -> None:
    failure = StartFailure(
        phase=Phase.LOAD, cause="the server exited", exit_code=1, state="loading", log_path="s.log", log_tail=("boom",)
    )
    (verdict,) = judge(evidence(start(1), start(2, failure=failure)), scenario(), profile())
    assert (verdict.outcome, verdict.phase, verdict.reason) == (Outcome.ERROR, Phase.LOAD, "the server exited")
    assert verdict.lines == (("starts", "start 2 of 2 broke"), ("server", "exit code 1; last state: loading"))
    assert (verdict.log_path, verdict.log_tail) == ("s.log", ("boom",))


def test_no_starts_is_an_error() -> None:
    (verdict,) = judge(replace(evidence(), starts=()), scenario(), profile())
    assert verdict.outcome is Outcome.ERROR
    assert verdict.reason == "nothing was measured: the server was never started"
