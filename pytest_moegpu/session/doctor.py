"""What this machine is, and whether a profile can run on it. Reads only; starts nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pytest_moegpu.backends import BACKENDS, get_backend
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.model import Profile
from pytest_moegpu.core.units import format_bytes
from pytest_moegpu.errors import MoegpuError, ProbeError
from pytest_moegpu.host.nvmlprobe import NvmlProbe
from pytest_moegpu.host.stack import find_program, host_facts, os_class, program_output
from pytest_moegpu.options import Options
from pytest_moegpu.session.chosen import EMBEDDED
from pytest_moegpu.session.device import named, on_device
from pytest_moegpu.session.progress import Silent
from pytest_moegpu.session.target import resolve

__all__ = ["examine", "profile_lines"]


def examine(profile: str | None, catalog: Sequence[Path]) -> tuple[str, int]:
    """Describe the machine, and check a profile against it when one is named; 0 good, 1 the profile cannot run.

    Raises:
        CatalogError: Unknown profile.
    """
    known = Catalog.load(catalog)
    wanted = known.profile(profile) if profile else None
    facts = host_facts()
    lines = [("system", f"{facts['os']} ({os_class()})"), ("python", facts["python"]), *_gpus(), *_programs()]
    problems = _problems(wanted, catalog) if wanted else []
    if wanted:
        lines += [("profile", wanted.name), *(("problem", text) for text in problems)]
        if not problems:
            lines.append(("ready", f"pytest --moegpu={wanted.name}"))
    return "\n".join(f"{label:<10}{text}" for label, text in lines), 1 if problems else 0


def _gpus() -> list[tuple[str, str]]:
    try:
        probe = NvmlProbe((), os.environ.get("CUDA_VISIBLE_DEVICES"))
    except MoegpuError as error:
        return [("GPU", f"none: {error}")]
    try:
        versions = probe.versions()
        lines = [("driver", f"{versions.get('driver')}, CUDA up to {versions.get('cuda_driver')}")]
        for gpu in probe.devices():
            power = f"{gpu.power_limit_watts:.0f} W" if gpu.power_limit_watts else "power limit not known"
            lines.append(
                ("GPU", f"{gpu.index}: {gpu.name}, {format_bytes(gpu.memory_bytes)}, {power}, {gpu.uuid or 'no UUID'}")
            )
        busy = probe.processes()
        lines.append(("in use by", named(busy) or "nobody"))
        return lines
    except ProbeError as error:
        return [("GPU", f"cannot be read: {error}")]
    finally:
        probe.close()


def _programs() -> list[tuple[str, str]]:
    lines = []
    for name in BACKENDS:
        backend = get_backend(name)
        if not backend.program:
            # One that is only attached to has nothing to be found.
            continue
        try:
            ways = (("--moegpu-server", None), (backend.program_variable, os.environ.get(backend.program_variable)))
            program = find_program(backend.program, ways, os.environ.get("PATH"))
            version = backend.read_version(program_output(backend.version_argv(program)))
            lines.append((name, f"{' '.join(program)}, version {version.version or 'not known'}"))
        except MoegpuError as error:
            lines.append((name, str(error)))
    return lines


def _problems(profile: Profile, catalog: Sequence[Path]) -> list[str]:
    """Find everything a run would need, without the network and without starting a server."""
    try:
        target = resolve(Options(profile=profile.name, catalog=tuple(catalog), offline=True), Silent())
    except MoegpuError as error:
        return [str(error)]
    try:
        busy = on_device(target.probe, [])
        return [f"the device is in use by {named(busy)}"] if busy else []
    except ProbeError as error:
        return [str(error)]
    finally:
        target.probe.close()


def profile_lines(catalog: Sequence[Path]) -> list[str]:
    """Return one line per profile: name, GPU and memory it needs, model, scenarios."""
    lines = []
    profiles = Catalog.load(catalog).profiles()
    width = max((len(profile.name) for profile in profiles), default=0) + 2
    for profile in profiles:
        need = " or ".join(profile.gpu.names) or "no GPU"
        program = "embedded server" if profile.program == EMBEDDED else profile.backend
        lines.append(
            f"{profile.name:<{width}}{need}, {format_bytes(profile.gpu.memory_bytes)}; {program}; {profile.model}; "
            f"{', '.join(profile.scenarios)}"
        )
    return lines
