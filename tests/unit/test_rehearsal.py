"""A smaller card rehearsed on a larger one: what is refused, what is marked, and that it never becomes a baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_moegpu.checks import preflight, throughput
from pytest_moegpu.core.evidence import Phase
from pytest_moegpu.core.identity import differences, identity, prompt_hash
from pytest_moegpu.core.model import DeviceKind, Gpu, GpuRequirement, ModelFile, Profile, Settings, Workload
from pytest_moegpu.core.units import GIB, parse_bytes
from pytest_moegpu.core.verdict import Outcome, Verdict
from pytest_moegpu.errors import DeviceError, RecordError
from pytest_moegpu.host.emulated import EmulatedProbe
from pytest_moegpu.host.store import Bundle
from pytest_moegpu.options import Options
from pytest_moegpu.report.junit import properties
from pytest_moegpu.report.terminal import failure_text, rows
from pytest_moegpu.rerun import rerun_line
from pytest_moegpu.session.judge import finish
from pytest_moegpu.session.openprobe import open_probe
from pytest_moegpu.session.records import promote, show
from tests.fakes.pynvml_fake import h200, install
from tests.unit.builders import answers, evidence, gpu, profile, run_record, scenario, start, stream, watched

RTX3090 = Profile(
    name="rtx3090",
    title="one card",
    probe="nvml",
    backend="llamacpp",
    model="m",
    gpu=GpuRequirement(names=("NVIDIA GeForce RTX 3090",), memory_bytes=24 * GIB),
    scenarios=("s",),
)
MARK = "24.00 GiB emulated on NVIDIA H200, 140.40 GiB: not a result of the real card"


@pytest.fixture(autouse=True)
def _all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_any_larger_card_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, h200())
    probe, (found,) = open_probe(RTX3090, (), 24 * GIB)
    assert isinstance(probe, EmulatedProbe)
    assert (found.name, found.memory_bytes) == ("NVIDIA H200", 24 * GIB)
    assert found.emulated_on == "NVIDIA H200, 140.40 GiB"
    probe.close()


def test_without_the_option_another_card_is_refused_and_the_option_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, h200())
    with pytest.raises(DeviceError, match="--moegpu-emulate-vram rehearses the memory of a smaller card"):
        open_probe(RTX3090, ())


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (16 * GIB, r"--moegpu-emulate-vram=16.00 GiB: profile rtx3090 expects at least 24.00 GiB"),
        (141 * GIB, r"--moegpu-emulate-vram=141.00 GiB: GPU 0 NVIDIA H200 has 140.40 GiB; a smaller card can only"),
    ],
)
def test_a_size_that_makes_no_sense(monkeypatch: pytest.MonkeyPatch, size: int, says: str) -> None:
    fake = install(monkeypatch, h200())
    with pytest.raises(DeviceError, match=says):
        open_probe(RTX3090, (), size)
    assert fake.running == 0, "NVML was let go"


def test_a_profile_without_a_gpu_has_nothing_to_hold() -> None:
    host = Profile(
        name="embedded",
        title="",
        probe="host",
        backend="llamacpp",
        model="m",
        gpu=GpuRequirement(names=(), memory_bytes=0, kind=DeviceKind.CPU),
        scenarios=(),
    )
    with pytest.raises(DeviceError, match="--moegpu-emulate-vram: profile embedded uses no GPU"):
        open_probe(host, (), GIB)


def _identity(card: Gpu) -> dict[str, str]:
    load = Workload()
    return identity(
        gpus=(card,),
        backend="llamacpp",
        model=ModelFile(path="m", size_bytes=1, sha256="0", quantisation="Q4_1"),
        settings=Settings(context=1024),
        workload_hash=prompt_hash(load, ()),
        memory_version="nvml-v2",
        os_class="Linux",
        check_version=1,
    )


def test_a_rehearsal_differs_from_the_card_even_where_name_and_memory_agree() -> None:
    real, rehearsed = _identity(gpu()), _identity(gpu(emulated_on="NVIDIA GeForce RTX 5090, 32.00 GiB"))
    assert "gpu.emulated_on" not in real, "baselines of before stay comparable"
    (difference,) = differences(real, rehearsed)
    assert str(difference) == "gpu.emulated_on absent → NVIDIA GeForce RTX 5090, 32.00 GiB"


def test_preflight_takes_any_larger_card_and_says_which_it_is() -> None:
    stand_in = gpu(name="NVIDIA H200", compute_capability="9.0", emulated_on="NVIDIA H200, 140.40 GiB")
    wanted = profile()
    (verdict,) = preflight.judge(evidence(start(1), gpus=(stand_in,)), scenario(), wanted)
    assert verdict.outcome is Outcome.PASS
    assert "device 0: 24.00 GiB emulated on NVIDIA H200, 140.40 GiB, whose speed says nothing" in verdict.findings
    (real,) = preflight.judge(evidence(start(1), gpus=(gpu(name="NVIDIA H200"),)), scenario(), wanted)
    assert real.outcome is Outcome.FAILED


def test_its_speed_is_held_against_nothing() -> None:
    measured = start(1, requests=(*answers(), *(stream(100.0),) * 3))
    stand_in = gpu(emulated_on="NVIDIA H200, 140.40 GiB")
    (verdict,) = throughput.judge(evidence(measured, gpus=(stand_in,)), scenario(), profile())
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    assert verdict.reason == "this is the speed of NVIDIA H200, 140.40 GiB, on which another card is emulated"
    assert len(throughput.judge(evidence(measured), scenario(), profile())) == 3


def _verdict(**changes: Any) -> Verdict:
    given: dict[str, Any] = {
        "outcome": Outcome.FAILED,
        "check": "memory",
        "scenario": "s",
        "subject": "peak memory",
        "phase": Phase.DECODE,
        "reason": "out of memory",
    }
    return Verdict(**(given | changes))


def test_every_form_of_a_verdict_carries_the_mark() -> None:
    marked = finish(_verdict(), Path("runs"), "pytest", MARK)
    assert marked.more["rehearsal"] == MARK
    assert rows((marked,))[0][2] == "peak memory (rehearsal)"
    assert f"rehearsal  {MARK}" in failure_text(marked)
    assert ("moegpu.rehearsal", MARK) in properties((marked,))
    plain = finish(_verdict(), Path("runs"), "pytest")
    assert "rehearsal" not in failure_text(plain) + str(plain.more) + str(properties((plain,)))


@pytest.mark.parametrize("size", ["24GiB", "24000MiB", "25769803777B"])
def test_the_line_that_asks_again_asks_for_the_same_card(size: str) -> None:
    options = Options(profile="rtx3090", emulate_bytes=parse_bytes(size))
    line = rerun_line(None, "s", options, "memory", own_suite=True)  # type: ignore[arg-type]
    assert line == f"pytest --moegpu=rtx3090 --moegpu-scenario=s --moegpu-emulate-vram={size} -k memory"


def test_it_never_becomes_a_baseline(tmp_path: Path) -> None:
    good = tuple(watched(n, requests=(*answers(), *(stream(100.0),) * 3)) for n in range(1, 6))
    kept: dict[str, Any] = {"asked": profile(), "scenarios": (scenario(),)}
    for name, card in (("real", gpu()), ("rehearsed", gpu(emulated_on="NVIDIA H200, 140.40 GiB"))):
        Bundle(tmp_path / "runs" / name).write(run_record(evidence(*good, gpus=(card,)), id=name, **kept))
    assert promote(["real"], tmp_path / "runs", tmp_path / "baselines", add=False)
    shown = show("rehearsed", tmp_path / "runs")
    assert "on NVIDIA H200, 140.40 GiB: not a result of the real card" in shown
    assert "rehearsal" not in show("real", tmp_path / "runs")
    with pytest.raises(RecordError, match=r"a rehearsal on NVIDIA H200, 140.40 GiB .* can never become the baseline"):
        promote(["rehearsed"], tmp_path / "runs", tmp_path / "baselines", add=False)
