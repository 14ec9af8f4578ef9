"""The session without a server: what it says, and that it says it after the device has been let go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_moegpu.backends import get_backend
from pytest_moegpu.backends.base import EngineVersion
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.evidence import DeviceProcess, Part, Phase, StartEvidence
from pytest_moegpu.core.model import Gpu, ModelFile, Scenario
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.errors import ProbeError, StartError, UserError
from pytest_moegpu.host.store import Bundle, RunStore, read_run
from pytest_moegpu.options import Options
from pytest_moegpu.session import Session
from pytest_moegpu.session.describe import describe
from pytest_moegpu.session.measure import Recorded, StartRun
from pytest_moegpu.session.progress import Silent
from pytest_moegpu.session.question import Question
from pytest_moegpu.session.target import Target
from pytest_moegpu.terminal import TerminalProgress
from tests.fakes.probe import FakeProbe

GPU = Gpu(index=0, name="NVIDIA H200", memory_bytes=150_754_820_096)


class ClosedProbe(FakeProbe):
    """Answers nothing once it is closed, as NVML after its shutdown."""

    def versions(self) -> dict[str, str]:
        if self.closes:
            raise ProbeError("Uninitialized")
        return super().versions()


def target(probe: FakeProbe) -> Target:
    catalog = Catalog.load()
    profile = catalog.profile("h200")

    def load(name: str) -> Scenario:
        return catalog.scenario(name, profile)

    return Target(
        profile=profile,
        scenarios=(load("balanced-6k"),),
        backend=get_backend("llamacpp"),
        program=("/opt/llama-server",),
        engine=EngineVersion(version="1.2", build="GNU"),
        model=catalog.model("smollm2-135m-instruct"),
        file=ModelFile(path="/models/a.gguf", size_bytes=98_362_432, sha256="ab" * 32, quantisation="Q4_1"),
        probe=probe,
        gpus=(GPU,),
        versions=probe.versions(),
        program_sha256="0123456789ab",
        load=load,
    )


def session(tmp_path: Path, probe: FakeProbe, **options: Any) -> Session:
    return Session(Options(profile="h200", runs=tmp_path / "runs", **options), Silent(), target(probe))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let every start be a good one without a server; returns the numbers of the starts made."""
    made: list[int] = []

    def run(self: StartRun) -> Recorded:
        made.append(self.number)
        sample = Sample(time=0.0, phase="load", device=0, used_bytes=1)
        evidence = StartEvidence(number=self.number, started_at="now", parts=tuple(sorted(self.parts)))
        return Recorded(start=evidence, samples=(sample,), libraries={})

    monkeypatch.setattr(StartRun, "run", run)
    return made


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_facts_are_there_after_the_device_was_let_go(tmp_path: Path) -> None:
    probe = ClosedProbe(gpus=(GPU,), versions={"driver": "580.159.04", "cuda_driver": "13.0"})
    run = session(tmp_path, probe)
    run.close("finished")
    assert probe.closes == 1
    facts = dict(run.facts())
    assert facts["GPU"] == "NVIDIA H200, 140.40 GiB"
    assert (facts["driver"], facts["CUDA driver"], facts["engine"]) == ("580.159.04", "13.0", "llamacpp 1.2")


def test_a_run_that_started_nothing_leaves_no_bundle(tmp_path: Path) -> None:
    session(tmp_path, FakeProbe(gpus=(GPU,))).close("finished")
    assert not (tmp_path / "runs").exists()


def test_what_acts_on_the_engine_is_in_the_identity_and_where_a_toolkit_lies_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_VERSION", "NCCL_VERSION", "MY_GGML_CUDA_P2P"):
        monkeypatch.setenv(name, "x")
    for name in ("GGML_CUDA_P2P", "LLAMA_ARG_NO_KV_OFFLOAD"):
        monkeypatch.setenv(name, "0")
    it = target(FakeProbe(gpus=(GPU,), versions={"driver": "1", "cuda_driver": "2"}))
    evidence = describe(it, it.scenarios[0])
    assert "GGML_CUDA_P2P=0, " in evidence.identity["environment"]
    assert "LLAMA_ARG_NO_KV_OFFLOAD=0" in evidence.identity["environment"]
    assert "=x" not in evidence.identity["environment"]
    assert (evidence.stack.driver, evidence.stack.program) == ("1", "0123456789ab")


def test_a_live_server_is_not_started_on_a_device_in_use(tmp_path: Path) -> None:
    busy = DeviceProcess(pid=4242, device=0, name="python", used_bytes=2**30)
    run = session(tmp_path, FakeProbe(gpus=(GPU,), processes=(busy,)))
    with pytest.raises(StartError, match=r"in use by pid 4242 \(python, 1.00 GiB\)"):
        run.live("balanced-6k")


def test_a_device_that_cannot_be_read_is_the_first_cause_and_read_once(tmp_path: Path, measured: list[int]) -> None:
    probe = FakeProbe(ProbeError("the GPU is lost"), gpus=(GPU,))
    run = session(tmp_path, probe)
    evidence = run.evidence("balanced-6k", frozenset({Part.OUTPUT}))
    assert evidence.failure is not None
    assert (evidence.failure.phase, evidence.failure.cause) == (
        Phase.PREFLIGHT,
        "the device cannot be read: the GPU is lost",
    )
    assert (evidence.preflight.idle_bytes, evidence.preflight.free_bytes) == (None, None)
    assert run.evidence("balanced-6k", frozenset({Part.CONTEXT})) is evidence
    assert run.failure("balanced-6k") is evidence.failure
    assert (probe.reads, measured) == (1, [])
    (verdict,) = run.judge(Question(check="output"), "balanced-6k", "pytest")
    assert (verdict.phase, verdict.reason) == (Phase.PREFLIGHT, "the device cannot be read: the GPU is lost")


def test_a_live_server_is_not_started_on_a_device_that_cannot_be_read(tmp_path: Path) -> None:
    run = session(tmp_path, FakeProbe(ProbeError("the GPU is lost"), gpus=(GPU,)))
    with pytest.raises(StartError, match="preflight: the device cannot be read: the GPU is lost"):
        run.live("balanced-6k")


@pytest.mark.parametrize("what", ["write", "write_telemetry"])
def test_a_full_disk_is_remembered_and_nothing_is_measured_again(
    tmp_path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    probe = FakeProbe(gpus=(GPU,))
    run = session(tmp_path, probe, starts=2)
    written = run.bundle
    tried: list[int] = []

    def refuse(*_: object) -> None:
        tried.append(1)
        full()

    with monkeypatch.context() as patch:
        patch.setattr(Bundle, what, refuse)
        for _ in range(3):
            evidence = run.evidence("balanced-6k", frozenset({Part.OUTPUT}))
            assert len(evidence.starts) == 2
    assert measured == [1, 2]
    assert len(tried) == 2, "further writes are still tried"
    assert run.store_problem == "the run could not be written completely: [Errno 28] No space left on device"
    run.close("finished")
    assert probe.closes == 1
    # There was room again at the end.
    assert read_run(written.folder).status == "finished"


def test_close_on_a_full_disk_lets_go_of_the_device(
    tmp_path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = FakeProbe(gpus=(GPU,))
    run = session(tmp_path, probe, starts=1)
    run.evidence("balanced-6k", frozenset({Part.OUTPUT}))
    monkeypatch.setattr(Bundle, "write", full)
    run.close("finished")
    assert probe.closes == 1
    assert "No space left on device" in run.store_problem


def test_close_lets_go_of_the_device_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = FakeProbe(gpus=(GPU,))
    run = session(tmp_path, probe)

    def broken(_status: str) -> None:
        raise TypeError("unforeseen")

    monkeypatch.setattr(run, "save", broken)
    with pytest.raises(TypeError, match="unforeseen"):
        run.close("finished")
    assert probe.closes == 1


def test_a_bundle_that_cannot_be_made_starts_nothing(
    tmp_path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = FakeProbe(gpus=(GPU,))
    run = session(tmp_path, probe)
    monkeypatch.setattr(RunStore, "create", full)
    first = run.evidence("balanced-6k", frozenset({Part.OUTPUT}))
    assert first.failure is not None
    problem = f"the run cannot be kept in {tmp_path / 'runs'}: [Errno 28] No space left on device"
    assert (first.failure.phase, first.failure.cause) == (Phase.PREFLIGHT, problem)
    assert run.evidence("balanced-6k", frozenset({Part.CONTEXT})) is first
    with pytest.raises(StartError, match="No space left on device"):
        run.live("balanced-6k")
    (verdict,) = run.judge(Question(check="output"), "balanced-6k", "pytest")
    assert verdict.reason == problem
    run.close("finished")
    assert (measured, run.store_problem, probe.closes) == ([], problem, 1)


def test_runs_that_cannot_be_kept_are_refused_before_anything_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(UserError, match=r"--moegpu-runs: .*runs is not a folder"):
        Session(Options(profile="no-such-profile", runs=tmp_path / "runs"), Silent())


class Broken:
    """A terminal that is gone."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        raise self.error

    def flush(self) -> None:
        raise self.error


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ValueError("I/O operation on closed file")])
def test_a_terminal_that_is_gone_stops_nobody(error: Exception) -> None:
    progress = TerminalProgress(Broken(error))  # type: ignore[arg-type]
    progress.live("loading")
    progress.line("ready")
    progress.done()
