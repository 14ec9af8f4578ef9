"""The facts that rules are held against, flat: what is known of a machine, an engine, a model and a scenario."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise

from pytest_moegpu.core.kvcache import kv_meaning
from pytest_moegpu.core.machine import Driver, FoundEngine, Host, Machine
from pytest_moegpu.core.model import DeviceKind, Gpu, ModelFile, Scenario, Settings
from pytest_moegpu.core.modelfacts import ModelFacts
from pytest_moegpu.core.rules import Fact, Facts
from pytest_moegpu.core.units import format_bytes

__all__ = ["ENGINE_VARIABLES", "acts_on_engines", "facts", "model_facts", "scenario_facts"]

ENGINE_VARIABLES = (
    *("CUDA_", "CUBLAS_", "NCCL_", "GGML_", "LLAMA_", "VLLM_", "SGLANG_", "SGL_", "FLASHINFER_", "TRITON_"),
    *("PYTORCH_", "TORCH_", "OLLAMA_", "FASTLLM_", "FTLLM_", "MLX_"),
)
"""Beginnings of the names of variables that engines act on."""
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)S?$")
# No forward compatibility: https://docs.nvidia.com/deploy/cuda-compatibility/. TITAN cards are sold beside GeForce.
_FAMILIES = (
    ("GeForce", re.compile(r"GeForce|TITAN", re.IGNORECASE)),
    ("RTX", re.compile(r"\bRTX\b|Quadro")),
    ("datacenter", re.compile(r"\b(?:Tesla|[ABHLPTV]\d{1,3}[A-Z]?|G[BH]\d{3})\b")),
)
_ATTENTION = ("--attention-backend", "--decode-attention-backend")
_EXACT = re.compile(r"\d+\.\d+\.\d+")


def acts_on_engines(name: str) -> bool:
    """Tell whether a variable of this name changes what an engine does; a secret is never looked at."""
    return name.startswith(ENGINE_VARIABLES) and _SECRET.search(name) is None


def facts(machine: Machine, engine: FoundEngine | None = None, more: Facts | None = None) -> Facts:
    """Return what is known, by the names of `core.rules`; what is not known is absent.

    A `….known` says that a family was looked at as a whole, so that what is absent there is not so.
    """
    found: dict[str, Fact | None] = {**_host(machine.host), **_driver(machine.driver), **_gpus(machine)}
    if machine.toolkits is not None:
        found["toolkit.versions"] = tuple(toolkit.version for toolkit in machine.toolkits)
    if machine.environment is not None:
        found["env.known"] = True
        found |= {f"env.{name}": value for name, value in machine.environment.items()}
    found |= _engine(engine) if engine is not None else {}
    return {name: value for name, value in {**found, **(more or {})}.items() if value is not None}


def _host(host: Host) -> dict[str, Fact | None]:
    return {
        "os.class": host.os_class,
        "os.kernel": host.kernel,
        "container.runner": host.runner,
        "ram.total_bytes": host.ram_total_bytes,
        "ram.free_bytes": host.ram_free_bytes,
        "disk.free_bytes": host.disk_free_bytes,
    }


def _driver(driver: Driver) -> dict[str, Fact | None]:
    both = f"loaded module {driver.loaded or 'not known'}, library {driver.library or 'not known'}"
    return {
        "driver.known": True if driver.version else None,
        "driver.version": driver.version,
        "driver.cuda": driver.cuda,
        "driver.loaded": driver.loaded,
        "driver.library": driver.library,
        "driver.open_module": driver.open_module,
        "driver.mismatch": both if driver.mismatch else None,
        # One cause, told once.
        "driver.problem": driver.problem if driver.problem and not driver.mismatch else None,
    }


def _gpus(machine: Machine) -> dict[str, Fact | None]:
    gpus = [gpu for gpu in machine.gpus if gpu.kind is DeviceKind.GPU]
    if not gpus:
        return {}
    capabilities = [gpu.compute_capability for gpu in gpus if gpu.compute_capability is not None]
    families = {_family(gpu.name) for gpu in gpus}
    displays, processes = machine.displays, machine.processes
    return {
        "gpu.count": len(gpus),
        "gpu.names": tuple(gpu.name for gpu in gpus),
        "gpu.memory_bytes": min(gpu.memory_bytes for gpu in gpus),
        "gpu.capabilities": tuple(capabilities) if len(capabilities) == len(gpus) else None,
        "gpu.family": families.pop() if len(families) == 1 else None,
        "gpu.mig": _any(gpu.mig for gpu in gpus),
        "gpu.persistence_off": _where(
            [(gpu, None if gpu.persistence is None else not gpu.persistence, "") for gpu in gpus]
        ),
        "gpu.power_limited": _where([_limited(gpu) for gpu in gpus]),
        "gpu.display": None if displays is None else _where([(gpu, gpu.index in displays, "") for gpu in gpus]),
        "gpu.foreign": None
        if processes is None
        else tuple(
            f"pid {p.pid} {p.name or 'unknown'} {'?' if p.used_bytes is None else format_bytes(p.used_bytes)}"
            for p in processes
        ),
    }


def _family(name: str) -> str | None:
    return next((family for family, pattern in _FAMILIES if pattern.search(name)), None)


def _any(values: Iterable[bool | None]) -> bool | None:
    known = list(values)
    return True if True in known else None if None in known else False


def _where(told: Sequence[tuple[Gpu, bool | None, str]]) -> tuple[str, ...] | None:
    """Name the GPUs of which something holds; None when of none it does and of one it is not known."""
    named = tuple(f"{gpu.index}: {words or gpu.name}" for gpu, holds, words in told if holds)
    return named or (None if any(holds is None for _, holds, _ in told) else ())


def _limited(gpu: Gpu) -> tuple[Gpu, bool | None, str]:
    limit, default = gpu.power_limit_watts, gpu.power_default_watts
    if limit is None or default is None:
        return gpu, None, ""
    return gpu, limit < default, f"{limit:.0f} W of {default:.0f} W"


def _engine(engine: FoundEngine) -> dict[str, Fact | None]:
    built = engine.built
    told = (engine.toolkit,) if engine.toolkit and _EXACT.match(engine.toolkit) else ()
    toolkits = built.toolkits or told
    # A build of which only the first two numbers are known is no exact one: it says which runtime it needs.
    runtime = built.cuda_runtime or engine.toolkit
    found: dict[str, Fact | None] = {
        "engine.name": engine.backend,
        "engine.version": engine.version,
        "engine.build": engine.build,
        "engine.image": engine.image,
        # Several: one of them is enough for a rule on compilers.
        "engine.toolkit": (toolkits[0] if len(toolkits) == 1 else toolkits) if toolkits else None,
        "engine.cuda_runtime": runtime,
        "engine.architectures": built.architectures or None,
    }
    if built.package is not None or built.architectures is not None:
        # Its files were read, so that a library which is not among them is not there.
        found["library.known"] = True
    return found | {f"library.{name}": version for name, version in built.libraries.items()}


def model_facts(model: ModelFacts, file: ModelFile | None, tensor_types: tuple[str, ...] | None) -> Facts:
    """Return what is known of a model; `tensor_types` are those in its file, None where nobody read them."""
    found: dict[str, Fact | None] = {
        "model.name": model.name,
        "model.architecture": model.architecture or None,
        "model.quantisation": file.quantisation if file is not None else None,
        "model.format": str(file.format) if file is not None else None,
        "model.tensor_types": tensor_types,
        "model.mtp": bool(model.mtp_layers),
    }
    return {name: value for name, value in found.items() if value is not None}


def scenario_facts(scenario: Scenario, *, baseline: bool) -> Facts:
    """Return the launch settings; `baseline` when the run is to be a baseline, or compared with one."""
    settings: Mapping[str, Fact | None] = asdict(scenario.settings)
    known = {f"settings.{name}": value for name, value in settings.items() if value is not None}
    known |= {"settings.kv_meaning": kv_meaning(scenario.settings.kv_cache), "run.baseline": baseline}
    if (attention := _attention(scenario.settings)) is not None:
        known["settings.attention_backend"] = attention
    if scenario.container is not None:
        known["container.runner"] = scenario.container.runner[0]
    return known


def _attention(settings: Settings) -> str | None:
    """Return the attention backend among the user's own flags, written as two words or with a `=`."""
    words = [part for word in settings.extra_flags for part in word.split("=", 1)]
    return next((value for flag, value in pairwise(words) if flag in _ATTENTION), None)
