"""Every shipped rule fires on what it is about, not on a near miss, and never on what is not known."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from pytest_moegpu.catalog.rulebook import Rulebook
from pytest_moegpu.core.rules import Facts, Rule, State, evaluate

RULES = {rule.id: rule for rule in Rulebook.load().rules}
HYBRID = {"model.architecture": "qwen35moe"}
AMPERE = {"gpu.capabilities": ("8.6",), "gpu.names": ("NVIDIA GeForce RTX 3090",), "gpu.count": 1}
BLACKWELL = {"gpu.capabilities": ("12.0",)}

# Rule → facts that make it fire, and what is otherwise in a near miss.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cuda-13-2-iq-kernels": (
        {"engine.toolkit": "13.2.1", "model.tensor_types": ("Q4_K", "IQ3_S"), "driver.cuda": "13.2"},
        {"engine.toolkit": "13.2.2"},
    ),
    "runtime-newer-major-than-driver": (
        {"engine.cuda_runtime": "13.0", "driver.cuda": "12.9", "gpu.family": "GeForce"},
        {"driver.cuda": "13.0"},
    ),
    "runtime-newer-major-than-driver-datacenter": (
        {"engine.cuda_runtime": "13.0", "driver.cuda": "12.9", "gpu.family": "datacenter"},
        {"gpu.family": "GeForce"},
    ),
    "runtime-newer-than-driver": (
        {"engine.cuda_runtime": "13.2", "driver.cuda": "13.0", "gpu.family": "GeForce"},
        {"engine.cuda_runtime": "13.0.88"},
    ),
    "architecture-not-built": (
        {"engine.architectures": ("8.0", "9.0"), "gpu.capabilities": ("12.0",)},
        {"engine.architectures": ("8.0", "9.0+ptx")},
    ),
    "flashinfer-gdn-hang": (
        {"library.flashinfer": "0.6.10.post1", "engine.name": "vllm", **HYBRID},
        {"library.flashinfer": "0.6.15"},
    ),
    "cudnn-torch-pair": ({"library.torch": "2.9.1+cu128", "library.cudnn": "9.10.2"}, {"library.torch": "2.9.0"}),
    "p2p-variable": ({"env.GGML_CUDA_P2P": "0"}, {"env.GGML_CUDA_P2P": None, "env.known": True}),
    "driver-library-mismatch": ({"driver.mismatch": "library 580.95, kernel module 570.86"}, {"driver.mismatch": None}),
    "driver-unusable": ({"driver.problem": "no libnvidia-ml"}, {"driver.problem": None}),
    "xid-79-open-modules": ({"driver.version": "580.159.04", **BLACKWELL}, {"driver.version": "580.159.05"}),
    "xid-79-open-modules-595": ({"driver.version": "595.71.05", **BLACKWELL}, {"gpu.capabilities": ("8.6",)}),
    "gsp-timeout-590": ({"driver.version": "590.48.01", **BLACKWELL}, {"driver.version": "590.44.01"}),
    "gsp-timeout-595": ({"driver.version": "595.58.03", **BLACKWELL}, {"driver.version": "595.58.04"}),
    "driver-545-two-gpus": (
        {"driver.version": "545.23.08", "gpu.count": 2, "os.class": "Linux"},
        {"gpu.count": 1},
    ),
    "driver-570-accounting": ({"driver.version": "570.86.15"}, {"driver.version": "570.133.20"}),
    "windows-memory-spill": ({"os.class": "WSL2", "driver.version": "576.02"}, {"os.class": "Linux"}),
    "windows-decode-regression": ({"os.class": "Windows", "driver.version": "576.40"}, {"driver.version": "576.33"}),
    "windows-prefill-regression": ({"os.class": "Windows", "driver.version": "610.62"}, {"driver.version": "611.00"}),
    "persistence-off": ({"gpu.persistence_off": ("0",), "os.class": "Linux"}, {"gpu.persistence_off": ()}),
    "power-limit-lowered": ({"gpu.power_limited": ("0: 210 W of 350 W",)}, {"gpu.power_limited": ()}),
    "display-attached": ({"gpu.display": ("0",)}, {"gpu.display": ()}),
    "foreign-processes": ({"gpu.foreign": ("pid 12 (python, 3.20 GiB)",)}, {"gpu.foreign": ()}),
    "pcie-below-maximum": ({"gpu.pcie_below": ("0: gen 1 x8 of gen 4 x16",)}, {"gpu.pcie_below": ()}),
    "no-native-fp8": ({**AMPERE, "settings.kv_cache": "fp8_e5m2"}, {"gpu.capabilities": ("8.9",)}),
    "memory-low-on-host": ({"ram.free_bytes": 2**30}, {"ram.free_bytes": 2**33}),
    "vllm-e4m3-triton-ampere": (
        {**AMPERE, "engine.name": "vllm", "settings.kv_cache": "fp8"},
        {"settings.kv_cache": "fp8_e5m2"},
    ),
    "kv-pair-fade": (
        {"engine.name": "llamacpp", "settings.kv_cache": "q8_0", "gpu.names": ("NVIDIA GeForce RTX 5060 Ti",)},
        {"settings.kv_cache": "f16"},
    ),
    "speculative-in-baseline": ({"settings.speculative": True, "run.baseline": True}, {"run.baseline": False}),
    "mtp-flag-in-baseline": (
        {"settings.extra_flags": ("--speculative-config", "{}"), "run.baseline": True},
        {"settings.extra_flags": ("--no-mmap",)},
    ),
    "prefix-cache-with-mtp": (
        {
            "engine.name": "vllm",
            "settings.prefix_cache": True,
            "settings.extra_flags": ("--speculative-config",),
            **HYBRID,
        },
        {"settings.prefix_cache": False},
    ),
    "thinking-nested-wrongly": (
        {"settings.extra_flags": ("--extra-body", "{}")},
        {"settings.extra_flags": ("--default-chat-template-kwargs", "{}")},
    ),
    "sglang-gguf-hybrid": ({"engine.name": "sglang", "model.format": "gguf", **HYBRID}, {"model.format": "hf"}),
    "no-fit-in-silence": (
        {"engine.name": "llamacpp", "settings.extra_flags": ("--fit", "on")},
        {"settings.extra_flags": ("--fit-target", "1")},
    ),
    **{
        f"sglang-{flag}": (
            {"engine.name": "sglang", "settings.extra_flags": (f"--{flag}", "x")},
            {"settings.extra_flags": ("--tp-size", "2")},
        )
        for flag in ("model-format", "enable-radix-cache", "chunked-prefill-enabled", "device-map")
    },
}


def state(rule: Rule, facts: Facts) -> State:
    (finding,) = evaluate([rule], facts)
    return finding.state


def test_every_rule_has_its_case() -> None:
    assert set(CASES) == set(RULES)


@pytest.mark.parametrize("name", CASES)
def test_it_fires_on_its_case_and_not_on_a_near_miss(name: str) -> None:
    fires, other = CASES[name]
    assert state(RULES[name], fires) is State.FIRES
    near = {key: value for key, value in (fires | other).items() if value is not None}
    missing = [key for key, value in other.items() if value is None]
    assert state(RULES[name], near) is (State.UNJUDGED if missing and "env.known" not in near else State.QUIET)


@pytest.mark.parametrize("name", CASES)
def test_it_accuses_nobody_of_what_is_not_known(name: str) -> None:
    rule, (fires, _) = RULES[name], CASES[name]
    for condition in rule.when:
        known = {key: value for key, value in fires.items() if key != condition.fact}
        assert state(rule, known) is State.UNJUDGED


def test_k_quants_and_the_driver_are_innocent_of_cuda_13_2() -> None:
    rule = RULES["cuda-13-2-iq-kernels"]
    facts: Facts = {"engine.toolkit": "13.2.0", "model.tensor_types": ("Q4_K", "Q6_K", "IQ4_XS"), "driver.cuda": "13.2"}
    assert state(rule, facts) is State.QUIET
    assert (
        state(rule, {"engine.toolkit": "13.0.1", "model.tensor_types": ("IQ2_S",), "driver.cuda": "13.2"})
        is State.QUIET
    )
    assert state(rule, {"driver.cuda": "13.2", "model.tensor_types": ("IQ2_S",)}) is State.UNJUDGED


def test_sources_are_addresses_and_dates_are_not_to_come() -> None:
    for rule in RULES.values():
        assert all(source.startswith("https://") for source in rule.sources)
        assert date(2026, 11, 1) <= date.fromisoformat(rule.date) <= date(2026, 12, 31)
        assert rule.do
        assert rule.what.endswith(".")
