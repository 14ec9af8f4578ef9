"""What rules are told: a fact that is not known is absent, and one that is known to be nothing is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.evidence import DeviceProcess
from pytest_moegpu.core.facts import acts_on_engines, facts, model_facts, scenario_facts
from pytest_moegpu.core.machine import Built, Driver, FoundEngine, Host, Machine, Toolkit
from pytest_moegpu.core.model import Container, ModelFile, Settings
from pytest_moegpu.core.rules import is_fact
from pytest_moegpu.core.units import GIB
from tests.unit.builders import gpu, scenario

HOST = Host(os_class="Linux", kernel="6.8", ram_total_bytes=64 * GIB, ram_free_bytes=60 * GIB, disk_free_bytes=GIB)
CARD = gpu(compute_capability="8.6", power_limit_watts=350.0, power_default_watts=350.0, persistence=True, mig=False)
MACHINE = Machine(
    host=HOST,
    driver=Driver(version="580.95.05", cuda="13.0", loaded="580.95.05", open_module=True),
    gpus=(CARD,),
    processes=(),
    displays=(),
    toolkits=(Toolkit(version="13.0.1", place="/usr/local/cuda-13.0"),),
    environment={"GGML_CUDA_P2P": "0"},
)
BUILT = Built(toolkits=("13.2.1",), cuda_runtime="13.2.75", architectures=("8.6",), libraries={"torch": "2.9.1"})


def of(machine: Machine = MACHINE, engine: FoundEngine | None = None, **changes: Any) -> dict[str, Any]:
    return dict(facts(replace(machine, **changes), engine))


def test_a_healthy_machine() -> None:
    known = of()
    assert known["gpu.names"] == ("NVIDIA GeForce RTX 3090",)
    assert (known["gpu.family"], known["gpu.capabilities"], known["gpu.count"]) == ("GeForce", ("8.6",), 1)
    assert (known["driver.version"], known["driver.cuda"]) == ("580.95.05", "13.0")
    assert known["toolkit.versions"] == ("13.0.1",)
    assert (known["env.known"], known["env.GGML_CUDA_P2P"]) == (True, "0")
    # Known to be none of them.
    for name in ("gpu.persistence_off", "gpu.power_limited", "gpu.display", "gpu.foreign"):
        assert known[name] == ()
    assert not {"driver.mismatch", "driver.problem", "engine.name", "container.runner"} & set(known)


def test_state_of_the_hardware_names_the_gpu() -> None:
    limited = replace(CARD, power_limit_watts=250.0, persistence=False)
    tenant = DeviceProcess(pid=12, device=0, name="python", used_bytes=3 * GIB)
    known = of(gpus=(limited,), displays=(0,), processes=(tenant, replace(tenant, pid=13, used_bytes=None)))
    assert known["gpu.power_limited"] == ("0: 250 W of 350 W",)
    assert known["gpu.persistence_off"] == known["gpu.display"] == ("0: NVIDIA GeForce RTX 3090",)
    assert known["gpu.foreign"] == ("pid 12 python 3.00 GiB", "pid 13 python ?")


def test_what_the_driver_does_not_tell_is_absent_and_not_fine() -> None:
    silent = replace(CARD, persistence=None, power_limit_watts=None, compute_capability=None, mig=None)
    known = of(gpus=(CARD, silent), displays=None, processes=None)
    names = ("gpu.persistence_off", "gpu.power_limited", "gpu.display", "gpu.foreign", "gpu.capabilities", "gpu.mig")
    assert not set(names) & set(known)


def test_one_that_is_known_to_be_bad_counts_whatever_is_not_known_of_the_other() -> None:
    off, silent = replace(CARD, persistence=False), replace(CARD, index=1, persistence=None)
    assert of(gpus=(off, silent))["gpu.persistence_off"] == ("0: NVIDIA GeForce RTX 3090",)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("NVIDIA GeForce RTX 5090", "GeForce"),
        ("NVIDIA TITAN RTX", "GeForce"),
        ("NVIDIA RTX A6000", "RTX"),
        ("Quadro RTX 8000", "RTX"),
        ("NVIDIA H200", "datacenter"),
        ("NVIDIA A100-SXM4-80GB", "datacenter"),
        ("NVIDIA L40S", "datacenter"),
        ("NVIDIA GB200", "datacenter"),
        ("Tesla T4", "datacenter"),
        ("Some other card", None),
    ],
)
def test_the_family_decides_about_forward_compatibility(name: str, family: str | None) -> None:
    assert of(gpus=(replace(CARD, name=name),)).get("gpu.family") == family


def test_a_mixed_pair_is_of_no_one_family() -> None:
    assert "gpu.family" not in of(gpus=(CARD, replace(CARD, index=1, name="NVIDIA H200")))


def test_a_mismatch_is_one_cause_with_both_versions() -> None:
    driver = Driver(loaded="570.86.15", library="580.95.05", mismatch=True, problem="NVML does not start")
    known = of(driver=driver, gpus=())
    assert known["driver.mismatch"] == "loaded module 570.86.15, library 580.95.05"
    assert "driver.problem" not in known


def test_an_engine_by_its_files_and_its_own_words() -> None:
    engine = FoundEngine(backend="vllm", version="0.22.1", toolkit="13.0", built=BUILT)
    known = of(engine=engine)
    assert (known["engine.toolkit"], known["engine.cuda_runtime"]) == ("13.2.1", "13.2.75")
    assert (known["engine.architectures"], known["library.torch"], known["library.known"]) == (("8.6",), "2.9.1", True)


def test_two_numbers_are_no_exact_compiler() -> None:
    known = of(engine=FoundEngine(backend="vllm", toolkit="13.2"))
    assert "engine.toolkit" not in known
    assert known["engine.cuda_runtime"] == "13.2"
    assert of(engine=FoundEngine(backend="x", toolkit="13.2.1"))["engine.toolkit"] == "13.2.1"


def test_several_compilers_are_all_told() -> None:
    built = replace(BUILT, toolkits=("12.9.86", "13.2.1"))
    assert of(engine=FoundEngine(backend="x", built=built))["engine.toolkit"] == ("12.9.86", "13.2.1")


def test_a_program_without_kernels_lacks_none_for_this_gpu() -> None:
    assert "engine.architectures" not in of(engine=FoundEngine(backend="x", built=Built(architectures=())))


def test_settings_and_model_of_a_launch() -> None:
    flags = ("--attention-backend=FLASHINFER", "--seed", "1")
    asked = scenario(settings=Settings(context=4096, kv_cache="q8_0", extra_flags=flags))
    known = dict(scenario_facts(asked, baseline=True))
    assert (known["settings.kv_cache"], known["settings.kv_meaning"]) == ("q8_0", "int8")
    assert (known["settings.extra_flags"], known["settings.attention_backend"]) == (flags, "FLASHINFER")
    assert (known["settings.context"], known["run.baseline"]) == (4096, True)
    assert "settings.gpu_layers" not in known
    contained = replace(asked, container=Container(image="x", runner=("podman", "--root", "/x")))
    assert scenario_facts(contained, baseline=False)["container.runner"] == "podman"


def test_tensor_types_that_nobody_read_are_not_known() -> None:
    model = Catalog.load().model("qwen3.6-35b-a3b")
    file = ModelFile(path="/x.gguf", size_bytes=1, sha256="0", quantisation="Q4_K_M")
    known = dict(model_facts(model, file, ("IQ3_S", "Q4_K")))
    assert (known["model.architecture"], known["model.format"], known["model.tensor_types"]) == (
        "qwen35moe",
        "gguf",
        ("IQ3_S", "Q4_K"),
    )
    assert "model.tensor_types" not in model_facts(model, None, None)


def test_every_fact_that_rules_may_ask_for_here_has_a_name_they_know() -> None:
    engine = FoundEngine(backend="vllm", version="1", build="b", image="sha256:1", built=BUILT)
    known = facts(MACHINE, engine, scenario_facts(scenario(), baseline=True))
    only_told = {"driver.known", "driver.loaded", "driver.library", "driver.open_module", "gpu.memory_bytes"}
    only_told |= {"ram.total_bytes", "engine.image", "run.baseline"}
    assert {name for name in known if not is_fact(name)} <= only_told


@pytest.mark.parametrize(
    ("name", "acts"),
    [("GGML_CUDA_P2P", True), ("VLLM_API_KEY", False), ("OLLAMA_HOST", True), ("HOME", False), ("SGL_TOKENS", False)],
)
def test_variables_of_engines_are_told_and_secrets_are_not(name: str, acts: bool) -> None:
    assert acts_on_engines(name) is acts
