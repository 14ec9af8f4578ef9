"""The session without a server: what it says, and that it says it after the device has been let go."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_moegpu.backends import get_backend
from pytest_moegpu.backends.base import EngineVersion
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.model import Gpu, ModelFile, Scenario
from pytest_moegpu.errors import ProbeError, StartError
from pytest_moegpu.options import Options
from pytest_moegpu.session import Session
from pytest_moegpu.session.describe import describe
from pytest_moegpu.session.progress import Silent
from pytest_moegpu.session.target import Target
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


def session(tmp_path: Path, probe: FakeProbe) -> Session:
    return Session(Options(profile="h200", runs=tmp_path / "runs"), Silent(), target(probe))


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
    from pytest_moegpu.core.evidence import DeviceProcess

    busy = DeviceProcess(pid=4242, device=0, name="python", used_bytes=2**30)
    run = session(tmp_path, FakeProbe(gpus=(GPU,), processes=(busy,)))
    with pytest.raises(StartError, match=r"in use by pid 4242 \(python, 1.00 GiB\)"):
        run.live("balanced-6k")
