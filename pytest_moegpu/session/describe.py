"""What is about to be measured, written down before the first start: devices, stack, identity, and the idle reading."""

from __future__ import annotations

import os
import shlex
from datetime import UTC, datetime

from pytest_moegpu.core.evidence import DeviceProcess, Evidence, Phase, Preflight, StartEvidence, StartFailure
from pytest_moegpu.core.identity import identity, prompt_hash
from pytest_moegpu.core.model import Scenario, Stack
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.errors import ProbeError, UserError
from pytest_moegpu.host.stack import host_facts, os_class
from pytest_moegpu.session.contained import examine
from pytest_moegpu.session.device import on_device, used
from pytest_moegpu.session.server import new_container_name
from pytest_moegpu.session.target import Target

__all__ = ["CHECK_VERSION", "describe", "never_started"]

CHECK_VERSION = 1
"""Raised whenever a metric or check changes its meaning; older baselines are then not comparable."""


def describe(target: Target, scenario: Scenario) -> Evidence:
    """Return the evidence of a scenario without any start yet; with a broken one when a device cannot be read."""
    reading: tuple[Sample, ...] = ()
    processes: tuple[DeviceProcess, ...] = ()
    notes: list[str] = []
    starts: tuple[StartEvidence, ...] = ()
    try:
        reading = target.probe.read(0.0, Phase.PREFLIGHT)
        processes = on_device(target.probe, notes)
    except ProbeError as error:
        starts = (never_started(f"the device cannot be read: {error}"),)
    free = [sample.free_bytes for sample in reading if sample.free_bytes is not None]
    versions = target.versions
    facts = host_facts()
    engine, image = target.engine, None
    if scenario.container is not None:
        try:
            found = examine(target.backend, target.launch(scenario), new_container_name())
            engine, image = found.engine, found.image
        except UserError as error:
            starts = starts or (never_started(str(error)),)
        facts |= {"container.image": scenario.container.image, "container.runner": " ".join(scenario.container.runner)}
    return Evidence(
        profile=target.profile.name,
        scenario=scenario.name,
        backend=target.backend.name,
        gpus=target.gpus,
        stack=Stack(
            driver=versions.get("driver"),
            cuda_driver=versions.get("cuda_driver"),
            toolkit=engine.toolkit,
            engine=target.backend.name,
            engine_version=engine.version,
            engine_build=engine.build,
            program=target.program_sha256 if scenario.container is None else None,
            image=image,
            kernel=facts["kernel"],
        ),
        identity=identity(
            gpus=target.gpus,
            backend=target.backend.name,
            model=target.file,
            settings=scenario.settings,
            workload_hash=prompt_hash(scenario.workload, target.model.known_answers),
            memory_version=target.probe.memory_version,
            os_class=os_class() if scenario.container is None else "container",
            check_version=CHECK_VERSION,
            # The caller's variables do not reach a container.
            environment=_environment(target) if scenario.container is None else {},
        )
        | _container_flags(scenario),
        noted=facts
        | {
            "model.path": target.file.path,
            "model.bytes": str(target.file.size_bytes),
            "gpu.uuid": ", ".join(g.uuid or "?" for g in target.gpus),
        },
        preflight=Preflight(
            idle_bytes=used(reading),
            free_bytes=sum(free) if reading and len(free) == len(reading) else None,
            total_bytes=sum(gpu.memory_bytes for gpu in target.gpus),
            processes=processes,
            notes=tuple(notes),
            temperature_c=max((s.temperature_c for s in reading if s.temperature_c is not None), default=None),
        ),
        starts=starts,
        check_version=CHECK_VERSION,
    )


def never_started(cause: str) -> StartEvidence:
    """Return the start that could not even be tried, with its first cause."""
    return StartEvidence(
        number=1,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        failure=StartFailure(phase=Phase.PREFLIGHT, cause=cause),
    )


def _container_flags(scenario: Scenario) -> dict[str, str]:
    """Return the runner's flags: they must match, while the image is under test."""
    flags = scenario.container.flags if scenario.container is not None else ()
    return {"container.flags": shlex.join(flags)} if flags else {}


def _environment(target: Target) -> dict[str, str]:
    """Return the caller's variables that act on the engine.

    Not those that choose devices, which the probe knows, nor those that say where a toolkit is and which: under test.
    """
    chosen = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    places = ("_HOME", "_PATH", "_ROOT", "_VERSION")
    secret = ("_KEY", "_TOKEN")
    prefixes = target.backend.environment_prefixes
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(prefixes) and name not in chosen and not name.endswith((*places, *secret))
    }
