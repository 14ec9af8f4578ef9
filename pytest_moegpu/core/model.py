"""Facts about machines and models, and what a run is asked to do. Frozen records, no behaviour beyond derivation.

Sizes are bytes, times seconds, shares fractions of one. `None` always means "not known", never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

__all__ = [
    "ALL_LAYERS",
    "Container",
    "DeviceKind",
    "Gpu",
    "GpuRequirement",
    "LaunchSpec",
    "Limits",
    "ModelFile",
    "ModelFormat",
    "Profile",
    "Scenario",
    "Settings",
    "Stack",
    "Workload",
]


ALL_LAYERS = 999
"""More layers than any model has."""


class ModelFormat(StrEnum):
    """How a model lies on disk."""

    GGUF = "gguf"
    """One file, or the first of a split one."""
    HF = "hf"
    """A folder with `config.json`, tokenizer and safetensors, as Hugging Face's libraries save it."""


class DeviceKind(StrEnum):
    """What kind of device holds the model."""

    GPU = "gpu"
    CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One device as the probe identifies it; for the embedded profile the processor and its memory.

    `cuda_name` is what CUDA_VISIBLE_DEVICES calls it with CUDA_DEVICE_ORDER=PCI_BUS_ID, None for a processor.
    `emulated_on` names the real device when a smaller one is rehearsed on it; `memory_bytes` is then the smaller one's.
    """

    index: int
    name: str
    memory_bytes: int
    kind: DeviceKind = DeviceKind.GPU
    uuid: str | None = None
    compute_capability: str | None = None
    power_limit_watts: float | None = None
    power_default_watts: float | None = None
    mig: bool | None = None
    ecc: bool | None = None
    persistence: bool | None = None
    pci_bus_id: str | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None
    vbios: str | None = None
    cuda_name: str | None = None
    emulated_on: str | None = None


@dataclass(frozen=True, kw_only=True)
class Stack:
    """What an upgrade changes. Printed as "baseline → now"; never part of a path or key.

    `program` is the start of the SHA-256 of the executable: two builds can carry one version. `image` is the digest of
    the container image it runs in.
    """

    driver: str | None = None
    cuda_driver: str | None = None
    toolkit: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    engine_build: str | None = None
    program: str | None = None
    image: str | None = None
    libraries: dict[str, str] = field(default_factory=dict)
    kernel: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A model at hand: a file, or a folder of files."""

    path: str
    size_bytes: int
    sha256: str
    quantisation: str
    format: ModelFormat = ModelFormat.GGUF


@dataclass(frozen=True, kw_only=True)
class GpuRequirement:
    """What GPU a profile must find. `names` are exact NVML product names."""

    names: tuple[str, ...]
    memory_bytes: int
    count: int = 1
    kind: DeviceKind = DeviceKind.GPU
    compute_capability: str | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Launch settings by meaning; a backend turns them into its own flags, or refuses what it cannot do.

    Args:
        context: Tokens one request may have, prompt and answer together.
        slots: Requests served at the same time.
        kv_cache: Precision of the KV cache, a word of `core.kvcache`.
        gpu_layers: Layers on the GPU; None all of them, 0 none.
        flash_attention: auto, on or off.
        batch: Tokens of all prompts computed at once, for engines with two such sizes.
        ubatch: Tokens computed in one go on the device, at most `batch`.
        threads: Threads of the processor; None leaves it to the engine.
        thinking: Whether the model may think before it answers.
        prefix_cache: Whether the cache of a common prefix is used again.
        speculative: Whether a draft model is used.
        extra_flags: Flags in the engine's own spelling, after all others; part of the identity like the rest.
        memory_share: Share of the GPU memory the engine may take for itself; None leaves it to the engine.
        cpu_expert_layers: Layers whose experts stay in host memory, from the first one; `ALL_LAYERS` all of them.
        host_weights_bytes: Weights that stay in host memory, in bytes, for engines that stream them.
        mmap: Whether the file is mapped rather than read.
        prefill_chunk: Tokens of a prompt computed at once, for engines with one such size; None: the engine chooses.
        cuda_graphs: Whether the engine may record CUDA graphs.
    """

    context: int
    slots: int = 1
    kv_cache: str = "f16"
    gpu_layers: int | None = None
    flash_attention: str = "auto"
    batch: int = 2048
    ubatch: int = 512
    threads: int | None = None
    thinking: bool = False
    prefix_cache: bool = True
    speculative: bool = False
    extra_flags: tuple[str, ...] = ()
    memory_share: float | None = None
    cpu_expert_layers: int = 0
    host_weights_bytes: int = 0
    mmap: bool = True
    prefill_chunk: int | None = None
    cuda_graphs: bool = True


@dataclass(frozen=True, kw_only=True)
class Container:
    """The image a server runs in, and what starts it.

    Args:
        image: Name and tag, or digest.
        runner: Command that starts containers: docker, podman or apptainer, with arguments of its own before the verb.
        program: Server program inside the image; empty for the backend's own name on its PATH.
        flags: Arguments for the runner's `run`, as they are.
        digest: The image's content, as the runner tells it before a start; empty where it does not.
    """

    image: str
    runner: tuple[str, ...] = ("docker",)
    program: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    digest: str = ""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is sent in one start: fills as shares of the context, depths of the fact (0 start), axes: `core.axes`."""

    prompt_tokens: int = 1024
    output_tokens: int = 256
    requests: int = 5
    warmup_requests: int = 1
    context_fills: tuple[float, ...] = (0.25, 0.5, 0.75, 0.95)
    context_depths: tuple[float, ...] = (0.9, 0.5, 0.1)
    context_output_tokens: int = 32
    seed: int = 20261130
    axes: tuple[str, ...] | None = None
    axis_output_tokens: int | None = None
    axis_prompt_tokens: tuple[int, ...] | None = None
    axis_requests: int | None = None
    axis_idle_seconds: float | None = None
    known_answers: int | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Absolute limits; one of None is not judged, and the report says so. `session_cv`: see `core.compare`."""

    memory_budget_bytes: int | None = None
    memory_reserve_bytes: int = 0
    decode_min: float | None = None
    prefill_min: float | None = None
    ttft_max: float | None = None
    decode_at_depth_min_share: float = 0.25
    recall_min_share: float = 1.0
    ready_seconds: float = 600.0
    request_seconds: float = 600.0
    idle_return_seconds: float = 30.0
    tolerance: dict[str, float] = field(default_factory=dict)
    session_cv: float | None = None
    baseline_age_seconds: float = 180 * 86_400.0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Model, launch settings, workload and limits: one thing to measure."""

    name: str
    title: str
    settings: Settings
    workload: Workload
    limits: Limits
    model: str | None = None
    backend: str | None = None
    container: Container | None = None


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One class of machine: the GPU it must be, the backend and model it serves, the scenarios it runs."""

    name: str
    title: str
    probe: str
    backend: str
    model: str
    gpu: GpuRequirement
    scenarios: tuple[str, ...]
    model_path: str | None = None
    program: str | None = None
    limits: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """Everything a backend needs to write a command line.

    `devices` are indexes in PCI bus order, or UUIDs (MIG). `scratch` is a folder of this start alone, which is there.
    `compute_capability` is the lowest of the devices, such as 8.6. `flags` are those it has; empty when not known.
    """

    program: tuple[str, ...]
    model_path: str
    model_name: str
    settings: Settings
    host: str
    port: int
    api_key: str
    devices: tuple[str, ...] = ()
    device_kind: DeviceKind = DeviceKind.GPU
    model_format: ModelFormat = ModelFormat.GGUF
    scratch: str = ""
    compute_capability: str | None = None
    container: Container | None = None
    flags: frozenset[str] = frozenset()
