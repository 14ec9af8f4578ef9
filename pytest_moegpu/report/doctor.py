"""A diagnosis as text for people and as JSON for others."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from pytest_moegpu.core.diagnosis import Diagnosis
from pytest_moegpu.core.machine import Driver, FoundEngine, Machine
from pytest_moegpu.core.model import Gpu
from pytest_moegpu.core.ruled import Ruled
from pytest_moegpu.core.rules import Severity
from pytest_moegpu.core.units import format_bytes

__all__ = ["as_json", "as_text"]

_SCHEMA = 1
_LABEL = 12
_WIDTH = 118
_RESULTS = ("clean", "warnings", "something keeps a run from working")
_MACHINE = ("os", "ram", "disk", "driver", "gpu", "toolkit", "env", "container")
"""Families of facts that every machine has, so that a missing one is worth a word."""


def as_text(found: Diagnosis) -> str:
    """Print the machine, the engines, what is wrong with each fact and source, and what could not be known."""
    lines = [*_machine(found.machine), *_engines(found)]
    for ruled in found.findings:
        lines += ["", *_finding(ruled)]
    lines += ["", *_unknown(found), *_result(found)]
    return "\n".join(lines)


def _row(label: str, text: str) -> str:
    return textwrap.fill(
        text,
        width=_WIDTH,
        initial_indent=f"{label:<{_LABEL}}",
        subsequent_indent=" " * _LABEL,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _machine(machine: Machine) -> Iterator[str]:
    host = machine.host
    inside = host.os_class + (f" by {host.runner}" if host.runner else "")
    yield _row("system", f"{host.title or host.kernel} ({inside}), {host.processor}")
    yield _row("memory", f"{_size(host.ram_free_bytes)} free of {_size(host.ram_total_bytes)}")
    yield _row("disk", f"{_size(host.disk_free_bytes)} free at {host.disk_folder or 'a folder that is not known'}")
    yield _row("driver", _driver(machine.driver))
    for gpu in machine.gpus:
        yield _row("GPU", _gpu(gpu, machine))
    toolkits = [f"CUDA {toolkit.version} at {toolkit.place}" for toolkit in machine.toolkits or ()]
    yield _row("toolkits", "; ".join(toolkits) or ("none" if machine.toolkits is not None else "not known"))
    for name, value in (machine.environment or {}).items():
        yield _row("variable", f"{name}={value}")


def _size(size: int | None) -> str:
    return "not known" if size is None else format_bytes(size)


def _driver(driver: Driver) -> str:
    if driver.absent:
        return f"none: {driver.absent}"
    module = "" if driver.open_module is None else ", open kernel module" if driver.open_module else ", closed module"
    if driver.problem:
        loaded = f"; loaded module {driver.loaded}" if driver.loaded and not driver.mismatch else ""
        return f"cannot be used: {driver.problem}{loaded}"
    return f"{driver.version or 'version not known'}, CUDA up to {driver.cuda or 'not known'}{module}"


def _gpu(gpu: Gpu, machine: Machine) -> str:
    limit, default = gpu.power_limit_watts, gpu.power_default_watts
    power = "power limit not known" if limit is None else f"{limit:.0f} W"
    if limit is not None and default is not None and limit != default:
        power += f" of {default:.0f} W"
    words = [gpu.name, format_bytes(gpu.memory_bytes), f"compute {gpu.compute_capability or 'not known'}", power]
    words += ["MIG instance"] if gpu.mig else []
    words += ["drives a display"] if gpu.index in (machine.displays or ()) else []
    return f"{gpu.index}: {', '.join(words)}, {gpu.uuid or 'no UUID'}"


def _engines(found: Diagnosis) -> Iterator[str]:
    for engine in found.engines:
        if engine.program:
            yield _row(engine.backend, f"{_version(engine)}{_built(engine)}")
            yield _row("", f"{shlex.join(engine.program)}{f', from {engine.source}' if engine.source else ''}")
    names = ", ".join(name for name, _ in found.missing)
    if names:
        yield _row("not found", names)


def _version(engine: FoundEngine) -> str:
    build = f" ({engine.build})" if engine.build else ""
    return f"{engine.version or 'version not known'}{build}"


def _built(engine: FoundEngine) -> str:
    built = engine.built
    compilers = ", ".join(built.toolkits) or engine.toolkit
    parts = [f"compiled by CUDA {compilers}"] if compilers else []
    parts += [f"needs CUDA {built.cuda_runtime}"] if built.cuda_runtime else []
    if built.architectures:
        parts.append(f"kernels for {' '.join(built.architectures)}")
    elif built.architectures is not None:
        parts.append("no CUDA kernels in it")
    parts += [f"{name} {version}" for name, version in built.libraries.items()]
    return "".join(f", {part}" for part in parts)


def _finding(ruled: Ruled) -> Iterator[str]:
    about = f" - {ruled.subject}" if ruled.subject else ""
    yield _row(ruled.severity.upper(), f"{ruled.title}{about} [{ruled.id}]")
    yield _row("  what", ruled.what)
    if ruled.because:
        yield _row("  why", "; ".join(ruled.because))
    yield _row("  do", ruled.do)
    if ruled.sources:
        yield _row("  source", f"{' '.join(ruled.sources)} ({ruled.confidence}, {ruled.date})")


def _unknown(found: Diagnosis) -> Iterator[str]:
    for text in (*found.unknown, *_not_judged(found)):
        yield _row("not known", text)
    for text in found.silenced:
        yield _row("silenced", text)


def _not_judged(found: Diagnosis) -> Iterator[str]:
    """Say which rules could not be judged, and for want of what: many at once by the family of their facts."""
    families: Counter[str] = Counter()
    for name, facts in found.unjudged.items():
        family = facts[0].partition(".")[0]
        if family in _MACHINE and found.machine.gpus:
            yield f"whether {name}: {', '.join(facts)} cannot be read"
        else:
            families[family] += 1
    if families:
        listed = ", ".join(f"{family} ({count})" for family, count in families.most_common())
        more = "" if found.profile else "; a profile has some of these: moegpu doctor PROFILE"
        yield f"{families.total()} of {found.rules} rules are about facts that are not here: {listed}{more}"


def _result(found: Diagnosis) -> Iterator[str]:
    counts = Counter(ruled.severity for ruled in found.findings)
    told = ", ".join(f"{counts[severity]} {severity}" for severity in reversed(Severity) if counts[severity])
    yield _row("result", f"{_RESULTS[found.exit_code]}{f' ({told})' if told else ''}")
    if found.profile and found.exit_code < len(_RESULTS) - 1:
        yield _row("ready", f"pytest --moegpu={found.profile}")


def as_json(found: Diagnosis) -> str:
    """Write everything, sizes in bytes; what is not known is null or absent."""
    machine = found.machine
    data: dict[str, Any] = {
        "schema": _SCHEMA,
        "exit_code": found.exit_code,
        "profile": found.profile or None,
        "host": asdict(machine.host),
        "driver": asdict(machine.driver),
        "gpus": [asdict(gpu) for gpu in machine.gpus],
        "processes": None if machine.processes is None else [asdict(process) for process in machine.processes],
        "displays": machine.displays,
        "toolkits": None if machine.toolkits is None else [asdict(toolkit) for toolkit in machine.toolkits],
        "environment": dict(machine.environment or {}),
        "engines": [asdict(engine) for engine in found.engines],
        "not_found": dict(found.missing),
        "findings": [asdict(ruled) for ruled in found.findings],
        "rules": found.rules,
        "not_judged": dict(found.unjudged),
        "silenced": found.silenced,
        "not_known": found.unknown,
        "facts": dict(found.facts),
    }
    return json.dumps(data, indent=1, ensure_ascii=False)
