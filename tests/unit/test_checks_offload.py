from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_moegpu.checks.offload import judge
from pytest_moegpu.core.evidence import DeviceProcess, LogFacts, Phase, StartFailure
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


@pytest.mark.parametrize(("setting", "said"), [("cpu_expert_layers", 20), ("host_weights_bytes", 9 * GIB)])
def test_experts_left_by_a_setting_are_a_finding(setting: str, said: int) -> None:
    settings = replace(Settings(context=2048), **{setting: said})  # type: ignore[arg-type]
    (verdict,) = judge(evidence(start(log=HALF)), scenario(settings=settings), profile())
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings[0].endswith("as when experts stay there: a setting asks for it")


SILENT = LogFacts()
WEIGHTS = LogFacts(model_bytes={"CUDA0": 15 * GIB})


def without_layers(
    log: LogFacts = SILENT,
    kind: DeviceKind = DeviceKind.GPU,
    settings: Settings | None = None,
    size: str = str(20 * GIB),
    attached: str = "",
    **changes: Any,
) -> Verdict:
    """An engine whose log has no layers, with a model of 20 GiB; the device grows by 20.99 GiB unless changed."""
    run = evidence(start(log=log, **changes), backend="fastllm", noted={"model.bytes": size}, attached=attached)
    (verdict,) = judge(run, scenario(settings=settings), profile(kind))
    return verdict


LITTLE = {"load": 500 * MIB}


def test_weights_that_the_log_places_on_a_gpu_pass() -> None:
    verdict = without_layers(WEIGHTS)
    assert (verdict.outcome, verdict.reason) == (Outcome.PASS, "start 1: 15.00 GiB of weights on GPU")
    assert verdict.more == {"value": "15.00 GiB of weights on GPU"}


def test_weights_in_host_memory_fail() -> None:
    verdict = without_layers(LogFacts(model_bytes={"CPU": 15 * GIB}))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.ENVIRONMENT)
    assert verdict.reason == "start 1: all weights are in host memory"
    part = LogFacts(model_bytes={"CUDA0": 11 * GIB, "CPU": 9 * GIB})
    assert "but 9.00 GiB of 20.00 GiB of weights are in host memory" in without_layers(part).reason


def test_weights_that_the_device_does_not_hold_fail() -> None:
    verdict = without_layers(WEIGHTS, peaks=LITTLE)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.endswith("with 15.00 GiB of weights, but the device grew by 490 MiB only")


def test_a_silent_fall_back_to_the_processor_fails_by_the_device_alone() -> None:
    verdict = without_layers(peaks=LITTLE)
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.ENVIRONMENT)
    assert verdict.reason == (
        "start 1: the log does not say where the weights are, and the device grew by 490 MiB only, "
        "for a model of 20.00 GiB"
    )
    grown = without_layers()
    assert (grown.outcome, grown.reason) == (
        Outcome.PASS,
        "start 1: the device grew by 20.99 GiB for a model of 20.00 GiB",
    )


@pytest.mark.parametrize(
    "changes", [{"peaks": {}}, {"size": ""}, {"size": "0"}, {"foreign": (DeviceProcess(pid=7, device=0),)}]
)
def test_what_neither_log_nor_device_tell_is_inconclusive(changes: dict[str, Any]) -> None:
    verdict = without_layers(**changes)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason.endswith("the log does not say where the weights are, and the device does not tell")


def test_weights_that_flags_may_have_made_smaller_are_inconclusive() -> None:
    settings = Settings(context=2048, extra_flags=("--dtype", "int4"))
    assert without_layers(settings=settings, peaks=LITTLE).outcome is Outcome.INCONCLUSIVE
    assert without_layers(settings=settings).outcome is Outcome.PASS


def test_a_part_on_purpose_needs_a_part_on_the_device() -> None:
    settings = Settings(context=2048, cpu_expert_layers=999)
    assert without_layers(settings=settings, peaks={"load": 2 * GIB}).outcome is Outcome.PASS
    assert without_layers(settings=settings, peaks=LITTLE).outcome is Outcome.FAILED
    assert without_layers(settings=Settings(context=2048, gpu_layers=0), peaks=LITTLE).outcome is Outcome.PASS


def test_an_engine_with_layers_is_not_believed_by_its_growth() -> None:
    """Half of the layers on the GPU would look the same."""
    for backend in ("llamacpp", "ollama"):
        run = evidence(start(log=LogFacts()), backend=backend, noted={"model.bytes": str(20 * GIB)})
        (verdict,) = judge(run, scenario(), profile())
        assert verdict.reason == "start 1: the log does not say how many layers are on the GPU"
        assert verdict.outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("share", "layers", "outcome", "reason"),
    [
        (1.0, None, Outcome.PASS, "100.0 % of the model on GPU"),
        (0.62, None, Outcome.FAILED, "62.0 % of the model on GPU, expected all of it"),
        (0.0, None, Outcome.FAILED, "0.0 % of the model on GPU, expected all of it"),
        (0.62, 20, Outcome.PASS, "62.0 % of the model on GPU"),
        (0.0, 20, Outcome.FAILED, "0.0 % of the model on GPU, expected a part of it"),
        (0.62, 999, Outcome.FAILED, "62.0 % of the model on GPU, expected all of it"),
        (0.0, 0, Outcome.PASS, "no layers were asked for on the GPU"),
    ],
)
def test_a_share_that_the_server_gives_is_judged(
    share: float, layers: int | None, outcome: Outcome, reason: str
) -> None:
    verdict = without_layers(gpu_share=share, settings=Settings(context=2048, gpu_layers=layers))
    assert (verdict.outcome, verdict.reason) == (outcome, f"start 1: {reason}")


def test_a_share_that_the_device_contradicts_fails() -> None:
    verdict = without_layers(gpu_share=1.0, peaks=LITTLE)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.endswith("with 20.00 GiB of weights, but the device grew by 490 MiB only")


def test_of_an_attached_server_only_its_word_is_known() -> None:
    address = "http://127.0.0.1:8000"
    verdict = without_layers(attached=address, peaks=LITTLE)
    assert (verdict.outcome, verdict.reason) == (
        Outcome.INCONCLUSIVE,
        "start 1: the log does not say where the weights are, and the server was there before this run",
    )
    told = without_layers(attached=address, peaks=LITTLE, gpu_share=1.0)
    assert told.outcome is Outcome.PASS
    assert told.findings == ("start 1: not corroborated by the device: the server was there before this run",)
    host = without_layers(kind=DeviceKind.CPU, attached=address)
    assert host.outcome is Outcome.INCONCLUSIVE


def test_cpu_profile_of_an_engine_that_says_nothing() -> None:
    verdict = without_layers(kind=DeviceKind.CPU)
    assert (verdict.outcome, verdict.reason) == (
        Outcome.PASS,
        "start 1: nothing on a GPU: no device is named, and its processes hold 20.99 GiB",
    )
    assert verdict.more == {"value": "nothing on a GPU"}
    assert without_layers(kind=DeviceKind.CPU, size="").outcome is Outcome.PASS
    assert without_layers(LogFacts(devices=("CPU",)), kind=DeviceKind.CPU).outcome is Outcome.PASS
    doubted: tuple[dict[str, Any], ...] = (
        {"peaks": LITTLE},
        {"peaks": {}},
        {"log": LogFacts(devices=("NVIDIA H200",))},
    )
    for changes in doubted:
        assert without_layers(kind=DeviceKind.CPU, **changes).outcome is Outcome.INCONCLUSIVE
    assert without_layers(kind=DeviceKind.CPU, gpu_share=0.2).outcome is Outcome.FAILED
    assert without_layers(kind=DeviceKind.CPU, gpu_share=0.0, peaks={}).outcome is Outcome.PASS
