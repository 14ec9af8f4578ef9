"""What makes two results comparable: fields that must match, fields under test, and how they differ.

Must-match fields are flat readable text, so that a difference can be printed as it is stored.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from pytest_moegpu.core.margins import is_witness
from pytest_moegpu.core.model import DeviceKind, Gpu, ModelFile, Settings, Stack, Workload
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.core.probemargins import few
from pytest_moegpu.core.prompts import recall, throughput_prompt
from pytest_moegpu.core.units import GIB, format_bytes
from pytest_moegpu.errors import UserError, nearest

__all__ = [
    "ABSENT",
    "NOT_KNOWN",
    "STACK_FIELDS",
    "VARYING_WORDS",
    "Difference",
    "differences",
    "identity",
    "in_words",
    "label",
    "not_allowed_to_vary",
    "parse_varying",
    "prompt_hash",
    "refusal",
    "stack_changes",
]

NOT_KNOWN = "not known"
ABSENT = "absent"

STACK_FIELDS: dict[str, str] = {
    "driver": "driver",
    "cuda_driver": "cuda",
    "toolkit": "cuda",
    "engine": "engine",
    "engine_version": "engine",
    "engine_build": "engine",
    "program": "engine",
    "image": "engine",
    "libraries": "libraries",
    "kernel": "kernel",
}
"""Fields of `Stack`, each with the word of `--moegpu-varying` that lets it move."""

VARYING_WORDS: tuple[str, ...] = tuple(dict.fromkeys(STACK_FIELDS.values()))

# Where None in Settings has a meaning of its own.
_LATER_SETTINGS = frozenset(
    ("memory_share", "cpu_expert_layers", "host_weights_bytes", "mmap", "prefill_chunk", "cuda_graphs")
)
_SETTING_DEFAULTS = {"gpu_layers": "all", "threads": "chosen by the engine"}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One field with its text in the baseline and now."""

    field: str
    base: str
    now: str

    def __str__(self) -> str:
        return f"{self.field} {self.base} → {self.now}"


def identity(
    *,
    gpus: tuple[Gpu, ...],
    backend: str,
    model: ModelFile,
    settings: Settings,
    workload_hash: str,
    memory_version: str,
    os_class: str,
    check_version: int,
    environment: dict[str, str] | None = None,
) -> dict[str, str]:
    """Return the must-match fields of a result as readable text, sorted by key.

    Args:
        gpus: Devices of the run; of several each one is listed, in the order of their index.
        backend: Name of the backend.
        model: The model file that is served; its path is not part of the identity.
        settings: Launch settings; every field counts.
        workload_hash: What `prompt_hash` returns.
        memory_version: How memory is read, e.g. `NVML v2`.
        os_class: Linux, Windows, WSL2 or container.
        check_version: Version of the checks' definitions.
        environment: Variables of the caller that change what the engine does; they act like flags.
    """
    ordered = sorted(gpus, key=lambda gpu: gpu.index)
    result = {
        "backend": backend,
        "check.version": str(check_version),
        "environment": _listed([f"{name}={value}" for name, value in sorted((environment or {}).items())], "none"),
        "gpu.count": str(len(ordered)),
        "gpu.ecc": _listed(_text(gpu.ecc) for gpu in ordered),
        "gpu.memory": _listed(_memory(gpu) for gpu in ordered),
        "gpu.mig": _listed(_text(gpu.mig) for gpu in ordered),
        "gpu.name": _listed(gpu.name for gpu in ordered),
        "gpu.power_limit": _listed(_watts(gpu.power_limit_watts) for gpu in ordered),
        "memory.version": memory_version,
        "model.quantisation": model.quantisation,
        "model.sha256": model.sha256,
        "os.class": os_class,
        "workload.prompts": workload_hash,
    }
    if any(gpu.emulated_on for gpu in ordered):
        # Only where it is so, which keeps baselines from before comparable.
        result["gpu.emulated_on"] = _listed(gpu.emulated_on or "itself" for gpu in ordered)
    for setting in fields(settings):
        value = getattr(settings, setting.name)
        if setting.name in _LATER_SETTINGS and value == setting.default:
            # Left out as long as it is not used, which keeps baselines from before comparable.
            continue
        text = _SETTING_DEFAULTS.get(setting.name, NOT_KNOWN) if value is None else _text(value)
        result[f"settings.{setting.name}"] = text
    return dict(sorted(result.items()))


def prompt_hash(workload: Workload, known_answers: tuple[KnownAnswer, ...]) -> str:
    """Return the SHA-256 (hex) of everything that is sent to the server to be judged, and of the answers expected.

    The margin of a known answer is left out: it is a note about the model, and changes nothing that is sent. So are
    witnesses, which judge nothing: one more of them keeps baselines from before comparable.
    """
    judged = (a for a in few(known_answers, workload.known_answers) if not is_witness(a.margin))
    answers = [
        {"prompt": a.prompt, "expect": a.expect, "max_tokens": a.max_tokens}
        | ({"rule": a.rule} if a.rule != KnownAnswer.rule else {})
        for a in judged
    ]
    # A sample of what the generator writes, so that a change of its sentences is a change of the prompts.
    written = (throughput_prompt(512, 12.0, workload.seed), asdict(recall(512, 12.0, 0.5, workload.seed)))
    # What is asked under other conditions is judged by itself, and changes no speed.
    left_out = ("axes", "known_answers")
    measured = {k: value for k, value in asdict(workload).items() if k not in left_out and not k.startswith("axis_")}
    sent = {"workload": measured, "known_answers": answers, "written": written}
    text = json.dumps(sent, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def differences(base: dict[str, str], now: dict[str, str]) -> tuple[Difference, ...]:
    """Return all fields whose text differs, sorted; a field that one side lacks is `absent` there."""
    pairs = ((key, base.get(key, ABSENT), now.get(key, ABSENT)) for key in sorted(base.keys() | now.keys()))
    return tuple(Difference(field=key, base=old, now=new) for key, old, new in pairs if old != new)


def stack_changes(base: Stack, now: Stack) -> tuple[Difference, ...]:
    """Return what moved in the stack, in the order of `STACK_FIELDS`; libraries as `libraries.<name>`.

    A field that only one side knows counts as moved: that it stayed the same was not measured.
    """
    changes: list[Difference] = []
    for name in STACK_FIELDS:
        if name == "libraries":
            found = differences(base.libraries, now.libraries)
            changes += (Difference(field=f"libraries.{d.field}", base=d.base, now=d.now) for d in found)
        elif getattr(base, name) != getattr(now, name):
            changes.append(Difference(field=name, base=_text(getattr(base, name)), now=_text(getattr(now, name))))
    return tuple(changes)


def not_allowed_to_vary(changes: tuple[Difference, ...], varying: frozenset[str] | None) -> tuple[Difference, ...]:
    """Return the stack changes that `varying` does not cover.

    Args:
        changes: What `stack_changes` returns.
        varying: Words of `VARYING_WORDS`; None lets everything under test move.
    """
    if varying is None:
        return ()
    return tuple(c for c in changes if STACK_FIELDS[c.field.partition(".")[0]] not in varying)


def label(field: str) -> str:
    """Return a stack field as words; a must-match field stays the key it is stored under."""
    head, _, library = field.partition(".")
    if head not in STACK_FIELDS:
        return field
    return f"library {library}" if library else field.replace("cuda", "CUDA").replace("_", " ")


def in_words(changes: Iterable[Difference]) -> str:
    """Print differences in one line, each with both sides."""
    return ", ".join(f"{label(c.field)} {c.base} → {c.now}" for c in changes)


def refusal(
    differing: tuple[Difference, ...], forbidden: tuple[Difference, ...], varying: frozenset[str] | None
) -> str:
    """Say everything that forbids a comparison; empty when nothing does.

    Args:
        differing: Must-match fields that differ.
        forbidden: What `not_allowed_to_vary` returns.
        varying: The words that let a part of the stack move.
    """
    reasons = [f"must match but differs: {in_words(differing)}"] if differing else []
    if forbidden:
        allowed = ", ".join(sorted(varying or ())) or "nothing"
        reasons.append(f"only {allowed} may vary, but this moved: {in_words(forbidden)}")
    return "; ".join(reasons)


def parse_varying(text: str) -> frozenset[str]:
    """Read the value of `--moegpu-varying`, e.g. `driver,cuda`.

    Raises:
        UserError: It names nothing, or something that is not under test.
    """
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in VARYING_WORDS:
            allowed = ", ".join(VARYING_WORDS)
            raise UserError(f"{word!r} cannot vary{nearest(word, VARYING_WORDS)}: choose from {allowed}")
    return frozenset(words)


def _listed(texts: Iterable[str], nothing: str = NOT_KNOWN) -> str:
    return ", ".join(texts) or nothing


def _text(value: object) -> str:
    if value is None:
        return NOT_KNOWN
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return shlex.join(value) or "none"
    return str(value)


def _watts(watts: float | None) -> str:
    return NOT_KNOWN if watts is None else f"{watts:.0f} W"


def _memory(gpu: Gpu) -> str:
    # A host's total moves by some MiB with its kernel, and the kernel is under test.
    return f"{gpu.memory_bytes / GIB:.0f} GiB" if gpu.kind is DeviceKind.CPU else format_bytes(gpu.memory_bytes)
