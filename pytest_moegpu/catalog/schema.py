"""Which keys each kind of file has, how they are read, and how the values become a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_moegpu.catalog import values as v
from pytest_moegpu.catalog.knownanswers import answers_of
from pytest_moegpu.core.answers import RULES
from pytest_moegpu.core.axes import AXES
from pytest_moegpu.core.model import (
    Container,
    DeviceKind,
    GpuRequirement,
    Limits,
    ModelFacts,
    ModelSource,
    Profile,
    Scenario,
    Settings,
    Workload,
)
from pytest_moegpu.core.probes import TIERS
from pytest_moegpu.core.runner import runner_kind
from pytest_moegpu.core.verdict import METRICS
from pytest_moegpu.errors import CatalogError, UserError, nearest

__all__ = [
    "MODELS",
    "PROFILES",
    "SCENARIOS",
    "Key",
    "Rows",
    "Sub",
    "Table",
    "first_missing",
    "model_of",
    "profile_of",
    "read_table",
    "scenario_of",
]


@dataclass(frozen=True)
class Key:
    """One value. `to` is the field of the record where it has another name."""

    read: v.Reader
    required: bool = False
    to: str = ""


@dataclass(frozen=True)
class Sub:
    """A table. An optional one that is not there at all need not have its required keys."""

    table: Table
    optional: bool = True


@dataclass(frozen=True)
class Rows:
    """A list of tables, each complete in itself."""

    table: Table


Table = Mapping[str, Key | Sub | Rows]

_HEAD: Table = {
    "schema": Key(v.version(1), required=True),
    "name": Key(v.name, required=True),
    "title": Key(v.text, required=True),
    "extends": Key(v.name),
}

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
    **_HEAD,
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
    **_HEAD,
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

MODELS: Table = {
    **_HEAD,
    "architecture": Key(v.text, required=True),
    "layers": Key(v.whole(1), required=True),
    "kv_layers": Key(v.whole(0), required=True),
    "kv_heads": Key(v.whole(1), required=True),
    "head_dim": Key(v.whole(1), required=True),
    "vocabulary": Key(v.whole(1), required=True),
    "context_train": Key(v.whole(1), required=True),
    "recall_reach": Key(v.whole(1)),
    "embedding": Key(v.whole(1), required=True),
    "recurrent_bytes_per_slot": Key(v.whole(0)),
    "experts": Key(v.whole(0)),
    "experts_used": Key(v.whole(0)),
    "licence": Key(v.text, required=True),
    "file": Sub(
        {
            "size_bytes": Key(v.whole(1), required=True),
            "sha256": Key(v.sha256, required=True),
            "quantisation": Key(v.text, required=True),
        }
    ),
    "source": Sub(
        {
            "package": Key(v.name, required=True),
            "version": Key(v.text, required=True),
            "member": Key(v.text, required=True),
            "wheel_sha256": Key(v.sha256, required=True),
        }
    ),
    "known_answers": Rows(
        {
            "name": Key(v.name),
            "prompt": Key(v.text, required=True),
            "rule": Key(v.choice(*RULES)),
            "expect": Key(v.listed(v.text, least=1), required=True),
            "margin": Key(v.positive),
            "max_tokens": Key(v.whole(1)),
        }
    ),
    "probe_tiers": Key(v.listed(v.choice_of_numbers(*TIERS))),
    "references": Key(v.listed(v.text)),
}


def read_table(raw: Mapping[str, object], table: Table, file: Path, prefix: str = "") -> dict[str, Any]:
    """Read the keys that are there; which are missing is asked once a file is merged with what it extends.

    Raises:
        CatalogError: Unknown key, or a value that its key does not take.
    """
    read: dict[str, Any] = {}
    for word, value in raw.items():
        where = f"{file}: {prefix}{word}"
        match table.get(word):
            case Key() as key:
                try:
                    read[key.to or word] = key.read(value)
                except UserError as error:
                    raise CatalogError(f"{where}: {error}") from None
            case Sub(table=inner):
                if not isinstance(value, dict):
                    raise CatalogError(f"{where}: {value!r} is not a table: write [{prefix}{word}] and its keys below")
                read[word] = read_table(value, inner, file, f"{prefix}{word}.")
            case Rows(table=inner):
                read[word] = _read_rows(value, inner, file, prefix + word)
            case None:
                raise CatalogError(f"{where}: unknown key{nearest(word, table)}; allowed: {', '.join(table)}")
    return read


def _read_rows(value: object, table: Table, file: Path, where: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise CatalogError(f"{file}: {where}: {value!r} is not a list of tables: write [[{where}]] for each")
    rows = []
    for number, row in enumerate(value, 1):
        place = f"{where}[{number}]."
        rows.append(read_table(row, table, file, place))
        if missing := first_missing(rows[-1], table, place):
            raise CatalogError(f"{file}: {missing}: this key is required")
    return tuple(rows)


def first_missing(read: Mapping[str, Any], table: Table, prefix: str = "") -> str:
    """Return the path of the first required key that is not there, or an empty text."""
    for word, form in table.items():
        if isinstance(form, Key):
            if form.required and (form.to or word) not in read:
                return prefix + word
        elif (isinstance(form, Sub) and (not form.optional or word in read)) and (
            missing := first_missing(read.get(word, {}), form.table, f"{prefix}{word}.")
        ):
            return missing
    return ""


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


def model_of(read: Mapping[str, Any]) -> ModelFacts:
    """Make the facts of a model of their values.

    Raises:
        UserError: Values that contradict each other.
    """
    if read["kv_layers"] > read["layers"]:
        raise UserError(f"kv_layers: {read['kv_layers']} is more than layers = {read['layers']}")
    if read.get("experts_used", 0) > read.get("experts", 0):
        raise UserError(f"experts_used: {read['experts_used']} is more than experts = {read.get('experts', 0)}")
    fields = {key: value for key, value in read.items() if key not in ("schema", "extends", "file", "probe_tiers")}
    made = {"source": ModelSource(**read["source"]) if "source" in read else None, "known_answers": answers_of(read)}
    return ModelFacts(**{**fields, **read.get("file", {}), **made})
