"""What a run expects to take, kept and shown beside what it took."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.plan_truth import Case, Truth, cases, good, row
from pytest_moegpu.backends import get_backend
from pytest_moegpu.backends.base import EngineVersion
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.checks import get_check
from pytest_moegpu.checks.predicted import predicted_line
from pytest_moegpu.core.budget import Reserve, default_reserve
from pytest_moegpu.core.evidence import LogFacts
from pytest_moegpu.core.model import DeviceKind, ModelFile, ModelFormat, Profile, Scenario, Settings
from pytest_moegpu.core.predicted import build_of, logged_parts, predicted_budget
from pytest_moegpu.core.shape import BlockWeights, WeightTable
from pytest_moegpu.core.shapeofmodel import published, shape_of_facts
from pytest_moegpu.core.units import GIB, MIB
from pytest_moegpu.core.verdict import Outcome
from pytest_moegpu.host.store import Bundle, read_run
from pytest_moegpu.session.foretold import foretold
from pytest_moegpu.session.serving import described
from pytest_moegpu.session.target import Target
from tests.fakes.dense_gguf import write_dense
from tests.fakes.probe import FakeProbe
from tests.unit.builders import CPU_LOG, GPU_LOG, evidence, gpu, profile, run_record, scenario, start

_FACTS = Catalog.load().model("smollm2-135m-instruct")
SMALL = shape_of_facts(_FACTS, published(_FACTS, None))
RESERVE = Reserve(size_bytes=600 * MIB, source="told by a test", band_bytes=GIB)
PREDICTED = {"weights": 20 * GIB, "KV cache": 512 * MIB, "compute buffer": 512 * MIB}


@pytest.mark.parametrize(
    ("version", "build"),
    [
        ("11434 (f534da0c0)", 11434),
        ("0.6.0-dev (build 11434, commit f534da0c0)", 11434),
        ("2026.10.11549 (xllamacpp)", 11549),
        ("0.6.0-dev (build 0, commit unknown)", None),
        ("0.2.5 (xllamacpp)", None),
        ("0.5.15", None),
        ("", None),
        (None, None),
    ],
)
def test_the_build_is_read_from_the_version(version: str | None, build: int | None) -> None:
    assert build_of(version) == build


def test_on_a_processor_every_layer_is_in_its_memory_and_the_head_is_no_copy() -> None:
    assert SMALL.weights is not None
    settings = Settings(context=2048, gpu_layers=0, cpu_expert_layers=3)
    budget = predicted_budget(SMALL, settings, DeviceKind.CPU, RESERVE, 11434)
    parts = {part.name: part.size_bytes for part in budget.parts}
    assert parts == {
        "weights": SMALL.weights.total,
        "KV cache": 2048 * 23_040,
        "compute buffer": pytest.approx(16.64 * MIB, rel=0.015),
    }
    assert budget.host_bytes == 0


def test_on_a_gpu_the_reserve_is_a_part() -> None:
    budget = predicted_budget(SMALL, Settings(context=2048), DeviceKind.GPU, RESERVE, 11434)
    assert budget.of("context and driver") == RESERVE.size_bytes


# docs/results/h200.md: SmolLM2-135M Q4_1, build 11434, peaks of five starts each, to the MiB.
@pytest.mark.parametrize(
    ("name", "mib"), [("balanced-6k", 791), ("long-8k", 817), ("speed-4k", 765), ("quality-3k", 785)]
)
def test_the_peaks_measured_on_an_h200_are_those_predicted(name: str, mib: int) -> None:
    catalog = Catalog.load()
    settings = catalog.scenario(name, catalog.profile("h200")).settings
    budget = predicted_budget(SMALL, settings, DeviceKind.GPU, default_reserve(140 * GIB), 11434)
    assert budget.total / MIB == pytest.approx(mib, rel=0.01)


def test_the_weights_of_20_of_31_layers_measured_on_an_h200_are_those_predicted() -> None:
    # Of the same file: 28.69 MiB of embeddings, and 92.17 MiB with all layers on the GPU.
    embedding, block = round(28.69 * MIB), round((92.17 - 28.69) / 30 * MIB)
    blocks = tuple(BlockWeights(other=block) for _ in range(30))
    exact = replace(SMALL, weights=WeightTable(embedding=embedding, output=0, blocks=blocks, tied=True))
    budget = predicted_budget(exact, Settings(context=6144, gpu_layers=20), DeviceKind.GPU, RESERVE, 11434)
    assert budget.of("weights") / MIB == pytest.approx(69, abs=0.5)


def test_the_log_is_read_for_the_device_asked_for() -> None:
    assert logged_parts(GPU_LOG, DeviceKind.GPU) == {
        "weights": 20 * GIB,
        "KV cache": 500 * MIB,
        "compute buffer": 400 * MIB,
    }
    assert logged_parts(GPU_LOG, DeviceKind.CPU) == {
        "weights": 300 * MIB,
        "KV cache": 0,
        "compute buffer": 20 * MIB,
    }
    assert logged_parts(LogFacts(), DeviceKind.GPU) == {}


def test_the_prediction_stands_beside_the_peak_and_is_never_judged() -> None:
    healthy = start(idle_bytes=GIB, peaks={"decode": 22 * GIB})
    told = evidence(healthy, predicted=PREDICTED)
    assert predicted_line(told, healthy, DeviceKind.GPU) == (
        (
            "predicted",
            "21.00 GiB (weights 20.00 GiB, KV cache 512 MiB, compute buffer 512 MiB); measured 21.00 GiB (+0.0 %)",
        ),
    )
    assert predicted_line(evidence(healthy), healthy, DeviceKind.GPU) == ()
    blind = replace(healthy, peaks={})
    ((_, text),) = predicted_line(told, blind, DeviceKind.GPU)
    assert text.endswith("512 MiB)")


def test_a_wrong_prediction_changes_no_verdict() -> None:
    right, wrong = (
        get_check("memory").judge(evidence(predicted=told), scenario(), profile()) for told in ({}, {"weights": 1})
    )
    assert [v.outcome for v in wrong] == [v.outcome for v in right]
    assert right[0].outcome is Outcome.PASS
    assert [line for line in wrong[0].lines if line not in right[0].lines] == [
        line for line in wrong[0].lines if line[0] == "predicted"
    ]


def test_on_a_processor_the_prediction_stands_beside_the_log() -> None:
    told = evidence(predicted={"weights": 92 * MIB, "KV cache": 45 * MIB})
    ((_, text),) = predicted_line(told, start(log=CPU_LOG), DeviceKind.CPU)
    assert text == "137 MiB (weights 92 MiB, KV cache 45 MiB); in the log 138 MiB (+0.7 %)"


def target(file: Path, **changes: object) -> Target:
    catalog = Catalog.load()
    chosen: Profile = catalog.profile("h200")

    def load(name: str) -> Scenario:
        return catalog.scenario(name, chosen)

    found = Target(
        profile=chosen,
        scenarios=(load("balanced-6k"),),
        backend=get_backend("llamacpp"),
        program=("/opt/llama-server",),
        engine=EngineVersion(version="11434 (abc)", build="GNU"),
        model=catalog.model("smollm2-135m-instruct"),
        file=ModelFile(path=str(file), size_bytes=1, sha256="ab" * 32, quantisation="Q4_1"),
        probe=FakeProbe(),
        gpus=(gpu(name="NVIDIA H200", memory_bytes=140 * GIB),),
        versions={},
        program_sha256=None,
        load=load,
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def test_a_run_expects_what_the_plan_says_and_learns_from_the_runs_before(tmp_path: Path) -> None:
    write_dense(tmp_path / "a.gguf")
    asked = target(tmp_path / "a.gguf")
    first = foretold(asked, asked.scenarios[0], "11434 (abc)", tmp_path / "runs")
    assert first["context and driver"] == 609 * MIB
    assert first["weights"] > 0
    device = gpu(name="NVIDIA H200", memory_bytes=140 * GIB)
    named = LogFacts(model_bytes={"CUDA0": 100 * MIB}, compute_bytes={"CUDA0": 20 * MIB})
    starts = [start(number=n, idle_bytes=0, peaks={"decode": (720 + n) * MIB}, log=named) for n in (1, 2, 3)]
    found = evidence(*starts, gpus=(device,))
    Bundle(tmp_path / "runs" / "20260101-000000-h200-0000").write(replace(run_record(), evidence=(found,)))
    later = foretold(asked, asked.scenarios[0], "11434 (abc)", tmp_path / "runs")
    assert later == first | {"context and driver": 602 * MIB}


def test_what_is_expected_is_kept_with_the_run(tmp_path: Path) -> None:
    write_dense(tmp_path / "a.gguf")
    asked = target(tmp_path / "a.gguf")
    found = described(asked, asked.scenarios[0], tmp_path / "runs")
    assert found.predicted == foretold(asked, asked.scenarios[0], "11434 (abc)", tmp_path / "runs")
    assert set(found.predicted) == {"weights", "KV cache", "compute buffer", "context and driver"}
    folder = tmp_path / "runs" / "20260101-000000-h200-0000"
    Bundle(folder).write(replace(run_record(), evidence=(found,)))
    assert read_run(folder).evidence[0].predicted == found.predicted


def test_nothing_is_expected_of_what_is_not_planned_or_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    write_dense(file)
    known = target(file)
    there = known.scenarios[0]
    many = replace(known, gpus=(*known.gpus, *known.gpus))
    others = (
        replace(known, backend=get_backend("vllm")),
        replace(known, file=replace(known.file, format=ModelFormat.HF)),
        many,
        target(tmp_path / "missing.gguf"),
    )
    assert [foretold(other, there, None, tmp_path) for other in others] == [{}] * 4
    file.write_bytes(file.read_bytes()[:40])
    assert foretold(known, there, None, tmp_path) == {}


def measured(peak: int | None, weights: int, cache: int, buffer: int, failed: str = "") -> Truth:
    return Truth(peak=peak, logged={"weights": weights, "KV cache": cache, "compute buffer": buffer}, failed=failed)


def test_the_bench_of_truth_is_good_only_within_3_per_cent_of_what_was_measured() -> None:
    case = Case(name="8K", settings=Settings(context=8192))
    learned = replace(RESERVE, size_bytes=500 * MIB)
    budget = predicted_budget(SMALL, case.settings, DeviceKind.GPU, learned, 11434)
    weights, cache, buffer = (budget.of(part) for part in ("weights", "KV cache", "compute buffer"))

    def holds(truth: Truth, kind: DeviceKind = DeviceKind.GPU) -> bool:
        return good(row(case, SMALL, kind, (RESERVE, learned), 11434, truth), kind)

    assert holds(measured(round(budget.total * 1.02), weights, cache, buffer))
    assert not holds(measured(round(budget.total * 1.04), weights, cache, buffer))
    assert not holds(measured(budget.total, weights, round(cache * 0.96), buffer))
    assert not holds(measured(budget.total, weights, cache, buffer, "connection lost"))
    assert not holds(measured(None, weights, cache, buffer))
    assert not holds(Truth(peak=budget.total, logged={}))
    # 1 MiB of a small buffer is no error; of a process on a processor only the parts are predicted.
    assert holds(measured(budget.total, weights, cache, buffer - MIB))
    assert holds(measured(budget.total * 3, weights, cache, buffer), DeviceKind.CPU)


def test_the_bench_of_truth_starts_what_was_asked_for() -> None:
    launches = [case.settings for case in cases(SMALL, experts=True)]
    assert {s.kv_cache for s in launches} == {"f16", "q8_0", "q4_0"}
    assert {s.slots for s in launches} == {1, 4}
    assert {s.gpu_layers for s in launches} == {None, 0, 1, 15, 29, 30}
    assert {s.context for s in launches} == {2048, 8192, 16_384, 32_768}
    assert {s.cpu_expert_layers for s in launches} == {0, 15, 30}
    assert not any(case.mixture for case in cases(SMALL, experts=False))
