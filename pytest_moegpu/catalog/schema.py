"""Which keys the files of profiles and scenarios have, and how the values become a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_moegpu.catalog import values as v
from pytest_moegpu.catalog.tables import HEAD, Key, Sub, Table
from pytest_moegpu.core.axes import AXES
from pytest_moegpu.core.model import (
    Container,
    DeviceKind,
    GpuRequirement,
    Limits,
    Profile,
    Scenario,
    Settings,
    Workload,
)
from pytest_moegpu.core.runner import runner_kind
from pytest_moegpu.core.verdict import METRICS
from pytest_moegpu.errors import UserError

__all__ = ["PROFILES", "SCENARIOS", "profile_of", "scenario_of"]

_LIMITS: Table = {
    "memory_budget": Key(v.size(1), to="memory_budget_bytes"),
    "memory_reserve": Key(v.size(0), to="memory_reserve_bytes"),
    "decode_min": Key(v.rate),
    "prefill_min": Key(v.rate),
    "ttft_max": Key(v.parse_duration),
    "decode_at_depth_min_share": Key(v.share),
    "recall_min_share": Key(v.share),
    "ready": Key(v.parse_duration, to="ready_seconds"),
    "request": Key(v.parse_duration, to="request_seconds"),
    "idle_return": Key(v.parse_duration, to="idle_return_seconds"),
    "tolerance": Sub({metric: Key(v.share) for metric in METRICS}),
    "session_cv": Key(v.positive_share),
    "baseline_age": Key(v.parse_duration, to="baseline_age_seconds"),
}

PROFILES: Table = {
    **HEAD,
    "probe": Key(v.choice("nvml", "host"), required=True),
    "backend": Key(v.name, required=True),
    "model": Key(v.name, required=True),
    "scenarios": Key(v.listed(v.name, least=1), required=True),
    "model_path": Key(v.text),
    "program": Key(v.text),
    "gpu": Sub(
        {
            "names": Key(v.listed(v.text), required=True),
            "memory": Key(v.size(1), required=True, to="memory_bytes"),
            "count": Key(v.whole(1)),
            "kind": Key(v.choice(*(kind.value for kind in DeviceKind))),
            "compute_capability": Key(v.capability),
            "source": Key(v.text),
        },
        optional=False,
    ),
    "limits": Sub(_LIMITS),
}

SCENARIOS: Table = {
    **HEAD,
    "model": Key(v.name),
    "backend": Key(v.name),
    "settings": Sub(
        {
            "context": Key(v.whole(1), required=True),
            "slots": Key(v.whole(1)),
            "kv_cache": Key(v.kv_cache),
            "gpu_layers": Key(v.gpu_layers),
            "flash_attention": Key(v.choice("auto", "on", "off")),
            "batch": Key(v.whole(1)),
            "ubatch": Key(v.whole(1)),
            "threads": Key(v.whole(1)),
            "thinking": Key(v.boolean),
            "prefix_cache": Key(v.boolean),
            "speculative": Key(v.boolean),
            "extra_flags": Key(v.listed(v.text)),
            "memory_share": Key(v.share),
            "cpu_expert_layers": Key(v.expert_layers),
            "host_weights": Key(v.size(0), to="host_weights_bytes"),
            "mmap": Key(v.boolean),
            "prefill_chunk": Key(v.whole(1)),
            "cuda_graphs": Key(v.boolean),
        },
        optional=False,
    ),
    "container": Sub(
        {
            "image": Key(v.text, required=True),
            "runner": Key(v.words),
            "program": Key(v.words),
            "flags": Key(v.listed(v.text)),
        }
    ),
    "workload": Sub(
        {
            "prompt_tokens": Key(v.whole(1)),
            "output_tokens": Key(v.whole(2)),
            "requests": Key(v.whole(1)),
            "warmup_requests": Key(v.whole(0)),
            "context_fills": Key(v.listed(v.share, least=1)),
            "context_depths": Key(v.listed(v.share, least=1)),
            "context_output_tokens": Key(v.whole(1)),
            "seed": Key(v.whole(0)),
            "axes": Key(v.listed(v.choice(*AXES), least=1)),
            "axis_output_tokens": Key(v.whole(1)),
            "axis_prompt_tokens": Key(v.listed(v.whole(1), least=1)),
            "axis_requests": Key(v.whole(1)),
            "axis_idle": Key(v.parse_duration, to="axis_idle_seconds"),
            "known_answers": Key(v.whole(1)),
        }
    ),
    "limits": Sub(_LIMITS),
}


def profile_of(read: Mapping[str, Any]) -> Profile:
    """Make a profile of its values.

    Raises:
        UserError: Values that contradict each other.
    """
    gpu = {key: value for key, value in read["gpu"].items() if key != "source"}
    kind = DeviceKind(gpu.pop("kind", DeviceKind.GPU))
    if kind is DeviceKind.GPU and not gpu["names"]:
        raise UserError("gpu.names: a GPU profile must name at least one GPU, exactly as `nvidia-smi -L` does")
    if (kind is DeviceKind.CPU) != (read["probe"] == "host"):
        raise UserError(f"probe: {read['probe']!r} does not read a {kind}; gpu goes with nvml, cpu with host")
    fields = {key: value for key, value in read.items() if key not in ("schema", "extends")}
    return Profile(**{**fields, "gpu": GpuRequirement(kind=kind, **gpu)})


def scenario_of(read: Mapping[str, Any]) -> Scenario:
    """Make a scenario of its values.

    Raises:
        UserError: Values that contradict each other.
    """
    settings, workload = Settings(**read["settings"]), Workload(**read.get("workload", {}))
    if workload.prompt_tokens + workload.output_tokens > settings.context:
        raise UserError(
            f"workload.prompt_tokens: {workload.prompt_tokens} and {workload.output_tokens} output tokens "
            f"do not fit settings.context = {settings.context}"
        )
    if 0 in workload.context_fills:
        raise UserError("workload.context_fills: 0 is an empty prompt: write shares above 0")
    return Scenario(
        name=read["name"],
        title=read["title"],
        settings=settings,
        workload=workload,
        limits=Limits(**read.get("limits", {})),
        model=read.get("model"),
        backend=read.get("backend"),
        container=_container_of(read["container"]) if "container" in read else None,
    )


def _container_of(read: Mapping[str, Any]) -> Container:
    container = Container(**read)
    runner_kind(container.runner)
    return container
