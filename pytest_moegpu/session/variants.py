"""What a trial starts in place of the scenario's own server: other settings, fewer devices, or another engine."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from pytest_moegpu.backends import BACKENDS, get_backend
from pytest_moegpu.backends.base import Backend
from pytest_moegpu.core.model import DeviceKind, Scenario
from pytest_moegpu.core.trials import Change, Trial
from pytest_moegpu.errors import ProgramError, UserError
from pytest_moegpu.host.stack import find_program, program_output
from pytest_moegpu.session.chosen import program_checksum
from pytest_moegpu.session.contained import launch_of
from pytest_moegpu.session.daemon import refuse_daemon
from pytest_moegpu.session.server import new_container_name
from pytest_moegpu.session.target import Target

__all__ = ["Variant", "same_launch", "variant_of"]

# What CUDA takes for no device at all; an empty value would be left out of some command lines.
_NO_DEVICE = "-1"
# Engines whose program for a GPU computes on the processor as well.
_ON_PROCESSOR = ("llamacpp", "fastllm", "ollama")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A target and a scenario of it, both for one start."""

    target: Target
    scenario: Scenario


def variant_of(target: Target, scenario: Scenario, trial: Trial) -> Variant:
    """Return what the trial starts; nothing is started.

    Raises:
        UserError: The backend cannot do it, or no other one is here; the message says why.
    """
    changed = replace(scenario, settings=trial.settings)
    found = target
    if trial.change is Change.ONE_GPU:
        found = replace(target, gpus=target.gpus[:1])
    elif trial.change is Change.CPU:
        found = _without_gpu(target, scenario)
    elif trial.change is Change.BACKEND:
        found, changed = _other_engine(target, scenario), replace(changed, container=None)
    launch_of(found.backend, found.launch(changed), new_container_name())
    return Variant(target=found, scenario=changed)


def same_launch(target: Target, scenario: Scenario, variant: Variant) -> bool:
    """Tell whether two launches are the same but for port and key: such a trial would repeat what was measured."""
    return _line(target, scenario) == _line(variant.target, variant.scenario)


def _line(target: Target, scenario: Scenario) -> tuple[object, ...]:
    spec = replace(target.launch(scenario), port=1, api_key="", scratch="")
    launch = launch_of(target.backend, spec, "moegpu")
    return target.backend.name, launch.argv, launch.environment


def _without_gpu(target: Target, scenario: Scenario) -> Target:
    if scenario.container is not None:
        raise UserError("a container is not started without its GPU")
    if target.backend.name not in _ON_PROCESSOR:
        raise UserError(f"{target.backend.name} for a GPU does not compute on the processor")
    none = tuple(replace(gpu, cuda_name=_NO_DEVICE) for gpu in target.gpus[:1])
    on_cpu = replace(target.profile, gpu=replace(target.profile.gpu, kind=DeviceKind.CPU))
    return replace(target, profile=on_cpu, gpus=none)


def _other_engine(target: Target, scenario: Scenario) -> Target:
    """Return the target with the first other engine that is installed and takes the model."""
    if scenario.container is not None:
        raise UserError("another backend is not looked for beside a container")
    for name in BACKENDS:
        backend = get_backend(name)
        if name == target.backend.name or not backend.program or target.file.format not in backend.model_formats:
            continue
        program = _installed(backend)
        if program is None:
            continue
        refuse_daemon(backend)
        engine = backend.read_version(program_output(backend.version_argv(program)))
        return replace(
            target, backend=backend, program=program, engine=engine, program_sha256=program_checksum(program)
        )
    raise UserError(f"no other engine is here (by its variable, or on PATH) that loads a {target.file.format} model")


def _installed(backend: Backend) -> tuple[str, ...] | None:
    way = (backend.program_variable, os.environ.get(backend.program_variable))
    try:
        return find_program(backend.program, (way,), os.environ.get("PATH"))
    except ProgramError:
        return None
