"""Rules held against a launch: what they say is in the evidence, and the preflight judges by it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_moegpu.backends import get_backend
from pytest_moegpu.backends.base import EngineVersion
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.checks.preflight import judge
from pytest_moegpu.core.evidence import Evidence, Preflight
from pytest_moegpu.core.model import Container, ModelFile
from pytest_moegpu.core.ruled import Ruled, together, worst_severity
from pytest_moegpu.core.rules import Severity
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from pytest_moegpu.session.describe import describe
from pytest_moegpu.session.ruling import launch_facts, with_rules
from pytest_moegpu.session.target import Target
from tests.fakes.cuda_program import cubin, elf, fatbin
from tests.fakes.gguf import write_gguf
from tests.fakes.probe import FakeProbe
from tests.unit.builders import evidence, gpu, profile, scenario

CARD = gpu(compute_capability="8.6", power_default_watts=350.0, persistence=False)
RULED = Ruled(
    id="cuda-13-2-iq-kernels",
    title="IQ kernels compiled by CUDA 13.2.0 or 13.2.1",
    severity=Severity.BLOCKING,
    what="Random text.",
    do="Take another build.",
    because=("engine.toolkit 13.2.1",),
    sources=("https://example.org/4849", "https://example.org/2"),
    date="2026-12-01",
)


def target(folder: Path, build: str = "13.2, V13.2.78", **changes: Any) -> Target:
    """Return a target with a program by a compiler, for an RTX 3090, and a small model file."""
    catalog = Catalog.load()
    wanted = catalog.profile("rtx3090")
    program = elf(
        folder / "llama-server", fatbin(cubin(86, code=f"Cuda compilation tools, release {build}\0".encode()))
    )
    probe = FakeProbe(gpus=(CARD,), versions={"driver": "580.95.05", "cuda_driver": "13.2"})
    base = Target(
        profile=wanted,
        scenarios=(catalog.scenario(wanted.scenarios[0], wanted),),
        backend=get_backend("llamacpp"),
        program=(str(program),),
        engine=EngineVersion(version="11434"),
        model=catalog.model("qwen3.6-35b-a3b"),
        file=ModelFile(path=str(folder / "m.gguf"), size_bytes=1, sha256="ab" * 32, quantisation="IQ3_S"),
        probe=probe,
        gpus=(CARD,),
        versions=probe.versions(),
        program_sha256="0123456789ab",
        load=lambda name: catalog.scenario(name, wanted),
    )
    return replace(base, **changes)


def ruled(it: Target, catalog: tuple[Path, ...] = (), **settings: Any) -> Evidence:
    asked = it.scenarios[0]
    asked = replace(asked, settings=replace(asked.settings, **settings))
    return with_rules(describe(it, asked), it, asked, catalog)


def severities(found: Evidence) -> dict[str, Severity]:
    return {each.id: each.severity for each in found.preflight.ruled}


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GGML_CUDA_P2P", raising=False)


class TestRun:
    def test_a_compiler_that_breaks_the_types_in_the_file_blocks(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        it = target(tmp_path)
        monkeypatch.setattr("pytest_moegpu.session.ruling.tensor_types", lambda _file: ("IQ3_S", "Q4_K"))
        assert severities(ruled(it))["cuda-13-2-iq-kernels"] is Severity.BLOCKING
        good = target(tmp_path / "good", build="13.2, V13.2.86")
        assert "cuda-13-2-iq-kernels" not in severities(ruled(good))

    def test_a_build_without_kernels_for_the_gpu_blocks(self, tmp_path: Path) -> None:
        it = target(tmp_path)
        elf(Path(it.program[0]), fatbin(cubin(120)))
        assert severities(ruled(it))["architecture-not-built"] is Severity.BLOCKING

    def test_what_the_preflight_says_itself_is_not_said_twice(self, tmp_path: Path) -> None:
        found = ruled(target(tmp_path))
        assert CARD.persistence is False
        assert "persistence-off" not in severities(found)
        assert "persistence-off" not in found.preflight.unjudged

    def test_settings_of_the_scenario_count(self, tmp_path: Path) -> None:
        assert "no-fit-in-silence" in severities(ruled(target(tmp_path), extra_flags=("--fit", "on")))
        assert "no-fit-in-silence" not in severities(ruled(target(tmp_path)))

    def test_rules_that_lack_a_fact_are_recorded_with_it(self, tmp_path: Path) -> None:
        it = target(tmp_path)
        found = ruled(replace(it, gpus=(replace(CARD, compute_capability=None),)))
        assert found.preflight.rules > len(found.preflight.unjudged) > 0
        assert "gpu.capabilities" in found.preflight.unjudged["architecture-not-built"]

    def test_a_container_has_neither_the_callers_variables_nor_this_machines_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GGML_CUDA_P2P", "0")
        it = target(tmp_path)
        asked = it.scenarios[0]
        assert launch_facts(describe(it, asked), it, asked)["env.GGML_CUDA_P2P"] == "0"
        contained = replace(asked, container=Container(image="x", runner=("no-such-runner",)))
        known = launch_facts(describe(it, contained), it, contained)
        assert not {"env.known", "env.GGML_CUDA_P2P", "engine.architectures"} & set(known)
        assert (known["os.class"], known["container.runner"]) == ("container", "no-such-runner")

    def test_a_run_on_the_processor_is_judged_by_no_rule_on_a_driver(self, tmp_path: Path) -> None:
        catalog = Catalog.load()
        wanted = catalog.profile("embedded")
        it = target(tmp_path, profile=wanted, scenarios=(catalog.scenario(wanted.scenarios[0], wanted),), versions={})
        known = launch_facts(describe(it, it.scenarios[0]), it, it.scenarios[0])
        assert not [name for name in known if name.startswith(("gpu.", "driver."))]
        found = ruled(it).preflight
        assert not [name for names in found.unjudged.values() for name in names if name.startswith(("gpu.", "driver."))]
        assert 0 < found.rules < ruled(target(tmp_path)).preflight.rules

    def test_rules_that_cannot_be_read_block(self, tmp_path: Path) -> None:
        (tmp_path / "mine/rules").mkdir(parents=True)
        (tmp_path / "mine/rules/bad.toml").write_text("schema = 1\nname = ")
        found = ruled(target(tmp_path), catalog=(tmp_path / "mine",))
        assert severities(found) == {"rules-unreadable": Severity.BLOCKING}
        assert "bad.toml" in found.preflight.ruled[0].what

    def test_a_rule_of_the_users_own_counts_and_a_silence_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "mine/rules").mkdir(parents=True)
        (tmp_path / "mine/rules/own.toml").write_text(
            'schema = 1\nname = "own"\ntitle = "mine"\n'
            '[[rule]]\nid = "my-build"\ntitle = "t"\nwhat = "W."\ndo = "D."\nseverity = "warning"\n'
            'confidence = "certain"\naffects = "stability"\nsources = ["https://example.org"]\ndate = 2026-12-01\n'
            'when = [{ fact = "engine.version", is = "11434" }]\n'
            '[[silence]]\nid = "persistence-off"\nreason = "no root"\nuntil = 2099-01-01\n'
        )
        found = ruled(target(tmp_path), catalog=(tmp_path / "mine",))
        assert severities(found)["my-build"] is Severity.WARNING
        assert found.preflight.silenced == ("persistence-off is silenced until 2099-01-01: no root",)

    def test_tensor_types_are_read_from_the_file(self, tmp_path: Path) -> None:
        it = target(tmp_path)
        write_gguf(Path(it.file.path))
        known = launch_facts(describe(it, it.scenarios[0]), it, it.scenarios[0])
        assert isinstance(known["model.tensor_types"], tuple)
        assert known["model.tensor_types"]


class TestPreflight:
    @staticmethod
    def verdict(*told: Ruled, **more: Any) -> Verdict:
        before = Preflight(idle_bytes=0, free_bytes=2**34, rules=30, ruled=told, **more)
        (verdict,) = judge(evidence(preflight=before), scenario(), profile())
        return verdict

    def test_a_rule_that_blocks_fails_with_id_cause_cure_and_source(self) -> None:
        verdict = self.verdict(RULED)
        assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.ENVIRONMENT)
        assert verdict.reason == (
            "rule cuda-13-2-iq-kernels: IQ kernels compiled by CUDA 13.2.0 or 13.2.1 (engine.toolkit 13.2.1): "
            "Random text. Take another build. [https://example.org/4849]"
        )
        assert verdict.findings == ()

    @pytest.mark.parametrize("severity", [Severity.WARNING, Severity.NOTE])
    def test_a_lesser_one_is_a_finding_and_passes(self, severity: Severity) -> None:
        verdict = self.verdict(replace(RULED, severity=severity))
        assert verdict.outcome is Outcome.PASS
        assert verdict.findings[0].startswith(f"{severity}, rule cuda-13-2-iq-kernels: ")

    def test_how_many_were_held_and_not_judged_is_said(self) -> None:
        verdict = self.verdict(unjudged={"a": ("gpu.names",), "b": ("gpu.names",)}, silenced=("c is silenced",))
        told = "30 held against this launch, 0 fired; 2 of them not judged: facts not known"
        assert ("rules", told) in verdict.lines
        assert verdict.findings == ("c is silenced",)

    def test_bundles_of_before_have_no_rules_and_say_nothing_of_them(self) -> None:
        old = msgspec.convert({"idle_bytes": 0, "free_bytes": 2**34}, Preflight)
        (verdict,) = judge(evidence(preflight=old), scenario(), profile())
        assert verdict.outcome is Outcome.PASS
        assert "rules" not in dict(verdict.lines)

    def test_what_was_recorded_is_read_again(self) -> None:
        before = Preflight(rules=30, ruled=(RULED,), unjudged={"a": ("gpu.names",)}, silenced=("x",))
        assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(before)), Preflight) == before


def test_one_rule_on_several_things_is_told_once_with_all_of_them() -> None:
    note = replace(RULED, id="n", severity=Severity.NOTE)
    told = together((note, replace(RULED, subject="a"), replace(RULED, subject="b"), replace(RULED, subject="a")))
    assert [(each.id, each.subject) for each in told] == [("cuda-13-2-iq-kernels", "a, b"), ("n", "")]
    assert worst_severity(told) is Severity.BLOCKING
    assert worst_severity(()) is None
