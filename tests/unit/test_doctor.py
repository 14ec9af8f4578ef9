"""`moegpu doctor`: whatever the machine is like, it says so, names what is wrong, and its exit code says how bad."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_moegpu.core.diagnosis import Diagnosis
from pytest_moegpu.core.doctorargs import DoctorOrder, add_doctor
from pytest_moegpu.core.machine import FoundEngine, Host, Machine
from pytest_moegpu.core.ruled import Ruled
from pytest_moegpu.core.rules import Severity
from pytest_moegpu.report.doctor import as_text
from pytest_moegpu.session import doctor, machine
from pytest_moegpu.session.machine import read_gpus
from tests.fakes.pynvml_fake import h200 as card
from tests.fakes.pynvml_fake import install, nvml_error, process

VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave nothing of the machine that runs these tests: no engines, no variables, no toolkits."""
    for name in ("CUDA_VISIBLE_DEVICES", "GGML_CUDA_P2P"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor, "find_engines", lambda _profiles: ((), ()))
    monkeypatch.setattr(machine, "installed_toolkits", lambda _environment: ((), ()))
    monkeypatch.setattr(machine, "nvidia_signs", lambda _root: ())
    monkeypatch.setattr(machine, "loaded_module", lambda _root: ("580.159.04", True))
    monkeypatch.chdir(tmp_path)


def told(**order: Any) -> tuple[int, dict[str, Any]]:
    out, err = io.StringIO(), io.StringIO()
    code = doctor.run(DoctorOrder(json=True, **order), out, err)
    assert err.getvalue() == ""
    said: dict[str, Any] = json.loads(out.getvalue())
    assert said["exit_code"] == code
    return code, said


def text(**order: Any) -> str:
    out = io.StringIO()
    doctor.run(DoctorOrder(**order), out, io.StringIO())
    return out.getvalue()


def fired(said: dict[str, Any]) -> dict[str, str]:
    return {finding["id"]: finding["severity"] for finding in said["findings"]}


class TestMachine:
    def test_a_healthy_gpu_is_clean(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fake = install(monkeypatch, card(nvmlDeviceGetDisplayActive=0, nvmlDeviceGetDisplayMode=1))
        code, said = told()
        assert (code, fired(said), fake.running) == (0, {}, 0)
        assert said["gpus"][0]["name"] == "NVIDIA H200"
        assert (said["driver"]["version"], said["driver"]["cuda"]) == ("580.159.04", "13.0")
        assert (said["facts"]["gpu.display"], said["facts"]["gpu.persistence_off"]) == ([], [])
        # A driver that answers is known to have no problem.
        assert not [name for name in said["not_judged"] if name.startswith("driver-")]

    def test_no_driver_and_no_gpu_is_a_machine_like_any_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, init=nvml_error("LIBRARY_NOT_FOUND"))
        code, said = told()
        assert (code, fired(said)) == (0, {})
        assert "libnvidia-ml is not installed" in said["driver"]["absent"]
        assert "driver      none: NVML does not start" in text()

    def test_a_gpu_without_its_driver_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "nvidia_signs", lambda _root: ("PCI device 0000:01:00.0",))
        install(monkeypatch, init=nvml_error("LIBRARY_NOT_FOUND"))
        code, said = told()
        assert (code, fired(said)) == (2, {"driver-unusable": "blocking"})
        assert "there is an NVIDIA GPU: PCI device 0000:01:00.0" in said["driver"]["problem"]

    def test_no_permission_blocks_and_says_where_to_look(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, card(), init=nvml_error("NO_PERMISSION"))
        code, said = told()
        assert (code, fired(said)) == (2, {"driver-unusable": "blocking"})
        assert "look at the owner and mode of /dev/nvidia*" in said["findings"][0]["because"][0]

    def test_what_is_off_or_in_use_warns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(
            monkeypatch,
            card(
                nvmlDeviceGetPersistenceMode=0,
                nvmlDeviceGetEnforcedPowerLimit=500_000,
                nvmlDeviceGetDisplayActive=1,
                nvmlDeviceGetComputeRunningProcesses_v3=[process(4_194_303, 2**31)],
            ),
        )
        code, said = told()
        assert code == 1
        assert fired(said) == {
            "persistence-off": "warning",
            "foreign-processes": "warning",
            "power-limit-lowered": "note",
            "display-attached": "note",
        }
        assert "500 W of 700 W, drives a display" in text()

    def test_a_list_of_processes_that_is_refused_is_not_known_and_accuses_nobody(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install(monkeypatch, card(nvmlDeviceGetComputeRunningProcesses_v3=None))
        code, said = told()
        assert (code, fired(said), said["processes"]) == (0, {}, None)
        assert said["not_known"][0].startswith("who uses the GPU: ")
        assert "foreign-processes" in said["not_judged"]
        assert "whether foreign-processes: gpu.foreign cannot be read" in text()

    def test_all_gpus_hidden_blocks_and_names_the_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, card())
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        code, said = told()
        assert (code, fired(said)) == (2, {"driver-unusable": "blocking"})
        assert "CUDA_VISIBLE_DEVICES='-1' hides every GPU" in said["driver"]["problem"]

    def test_a_variable_that_is_known_to_be_bad_fires(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, card())
        monkeypatch.setenv("GGML_CUDA_P2P", "0")
        code, said = told()
        assert (code, fired(said)) == (1, {"p2p-variable": "warning"})
        assert said["environment"]["GGML_CUDA_P2P"] == "0"

    def test_a_broken_engine_warns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        broken = FoundEngine(backend="vllm", program=("/x/vllm",), source="PATH", problem="`/x/vllm` died")
        monkeypatch.setattr(doctor, "find_engines", lambda _profiles: ((broken,), ()))
        install(monkeypatch, card())
        code, said = told()
        assert (code, fired(said)) == (1, {"engine-unusable": "warning"})
        assert said["findings"][0]["subject"] == "vllm (PATH)"


class TestProfile:
    def test_one_of_the_processor_can_run_and_its_rules_are_of_its_launch(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install(monkeypatch, init=nvml_error("UNKNOWN"))
        code, said = told(profile="embedded")
        # A broken driver is nothing to a run that uses no GPU.
        assert (code, fired(said)) == (0, {})
        assert said["facts"]["model.name"] == "smollm2-135m-instruct"
        assert "Q4_1" in said["facts"]["model.tensor_types"]
        assert said["facts"]["settings.context"] == 2048
        assert not [name for name in said["facts"] if name.startswith(("gpu.", "driver."))]
        assert "ready       pytest --moegpu=embedded" in text(profile="embedded")

    def test_one_of_another_gpu_says_all_that_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("MOEGPU_LLAMA_SERVER", raising=False)
        install(monkeypatch, card())
        code, said = told(profile="rtx3090")
        assert code == 2
        assert fired(said) == {"engine-unusable": "blocking", "profile-cannot-run": "blocking"}
        whats = " ".join(finding["what"] for finding in said["findings"])
        assert "server program 'llama-server' is not on PATH" in whats
        assert "found NVIDIA H200 with 140.40 GiB" in whats
        assert "ready" not in text(profile="rtx3090")

    def test_a_rule_that_the_users_catalog_silences_is_said_and_does_not_count(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        install(monkeypatch, card(nvmlDeviceGetPersistenceMode=0))
        (tmp_path / "mine/rules").mkdir(parents=True)
        (tmp_path / "mine/rules/quiet.toml").write_text(
            'schema = 1\nname = "quiet"\ntitle = "mine"\n'
            '[[silence]]\nid = "persistence-off"\nreason = "no root here"\nuntil = 2099-01-01\n'
        )
        code, said = told(catalog=(tmp_path / "mine",))
        assert (code, fired(said)) == (0, {})
        assert said["silenced"] == ["persistence-off is silenced until 2099-01-01: no root here"]


class TestUsage:
    @pytest.mark.parametrize(
        ("order", "words"),
        [({"profile": "rtx309"}, "did you mean 'rtx3090'"), ({"devices": ("7",)}, "no GPU '7'; found: 0 NVIDIA H200")],
    )
    def test_what_is_not_there_is_wrong_usage(
        self, monkeypatch: pytest.MonkeyPatch, order: dict[str, Any], words: str
    ) -> None:
        install(monkeypatch, card())
        out, err = io.StringIO(), io.StringIO()
        assert doctor.run(DoctorOrder(**order), out, err) == 3
        assert words in err.getvalue()
        assert out.getvalue() == ""

    def test_arguments_make_the_order(self) -> None:
        parser = argparse.ArgumentParser()
        add_doctor(parser)
        parser.add_argument("--runs", type=Path, default=Path("r"))
        args = parser.parse_args(["rtx3090", "--device", "1", "--device", "GPU-x", "--json", "--catalog", "c"])
        assert DoctorOrder.of(args) == DoctorOrder(
            profile="rtx3090", devices=("1", "GPU-x"), json=True, catalog=(Path("c"),), runs=Path("r")
        )


@pytest.mark.parametrize(
    ("severities", "code"), [((), 0), ((Severity.NOTE,), 0), ((Severity.WARNING,), 1), ((Severity.BLOCKING,), 2)]
)
def test_the_worst_finding_is_the_exit_code(severities: tuple[Severity, ...], code: int) -> None:
    findings = tuple(Ruled(id="x", title="x", severity=each, what="x", do="x") for each in severities)
    host = Host(os_class="Linux", kernel="6.8")
    assert Diagnosis(machine=Machine(host=host), findings=findings).exit_code == code


def test_a_finding_is_printed_with_what_why_do_and_source() -> None:
    ruled = Ruled(
        id="an-id",
        title="a title",
        severity=Severity.BLOCKING,
        what="It breaks.",
        do="Mend it.",
        because=("driver.version 1",),
        sources=("https://example.org/1",),
        date="2026-12-01",
        subject="llamacpp",
    )
    shown = as_text(Diagnosis(machine=Machine(host=Host(os_class="Linux", kernel="6.8")), findings=(ruled,)))
    lines = [line.split(None, 1) for line in shown.splitlines() if line.startswith(("BLOCKING", "  "))]
    assert lines == [
        ["BLOCKING", "a title - llamacpp [an-id]"],
        ["what", "It breaks."],
        ["why", "driver.version 1"],
        ["do", "Mend it."],
        ["source", "https://example.org/1 (certain, 2026-12-01)"],
    ]
    assert "memory      not known free of not known" in shown


def test_versions_of_a_mismatch_come_from_the_module_and_the_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(VERSION)
    fake = install(monkeypatch, card(), init=nvml_error("LIB_RM_VERSION_MISMATCH"))
    fake.system["nvmlSystemGetNVMLVersion"] = "13.580.95.05"
    found = read_gpus((), None, tmp_path).driver
    assert (found.mismatch, found.loaded, found.open_module) == (True, "570.86.15", True)
    assert "reboot needed" in found.problem
