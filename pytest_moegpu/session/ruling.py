"""The rules of the catalog, held against what a run is about to start."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pytest_moegpu.catalog.rulebook import Rulebook
from pytest_moegpu.core.evidence import Evidence
from pytest_moegpu.core.facts import facts, model_facts, scenario_facts
from pytest_moegpu.core.machine import Built, Driver, FoundEngine, Machine
from pytest_moegpu.core.model import DeviceKind, ModelFile, ModelFormat, Scenario
from pytest_moegpu.core.ruled import Ruled, fired, unjudged
from pytest_moegpu.core.rules import Facts, Rule, Severity, evaluate
from pytest_moegpu.errors import CatalogError, ModelFileError
from pytest_moegpu.host.enginefacts import read_built
from pytest_moegpu.host.hostfacts import loaded_module, read_host
from pytest_moegpu.host.modelfile import read_gguf
from pytest_moegpu.host.nvmldisplay import displays
from pytest_moegpu.session.machine import toolkits_here, variables
from pytest_moegpu.session.target import Target

__all__ = ["concerned", "launch_facts", "tensor_types", "with_rules"]

# The check of the preflight says these in its own words, and telemetry under load says the last one.
_TOLD_ELSEWHERE = {"gpu.foreign", "gpu.persistence_off", "gpu.power_limited", "gpu.pcie_below"}
_OF_GPUS = ("gpu.", "driver.")


def with_rules(evidence: Evidence, target: Target, scenario: Scenario, catalog: Sequence[Path]) -> Evidence:
    """Add what the rules say to the evidence of a scenario that has no start yet.

    An attached server was started by somebody else, in an environment that is not known: no rule is held against it.
    Rules that cannot be read block: what they would have said is not known.
    """
    if target.attached is not None:
        return evidence
    try:
        rules, silenced = Rulebook.load(catalog).heard(datetime.now(UTC).astimezone().date())
    except CatalogError as error:
        broken = Ruled(
            id="rules-unreadable",
            title="the rules cannot be read",
            severity=Severity.BLOCKING,
            what=f"{error}.",
            do="Put the file right; `python -m pytest_moegpu.catalog FOLDER` reads it.",
        )
        return replace(evidence, preflight=replace(evidence.preflight, ruled=(broken,)))
    on_gpu = target.profile.gpu.kind is DeviceKind.GPU
    heard = [rule for rule in concerned(rules, on_gpu=on_gpu) if not _asks(rule) & _TOLD_ELSEWHERE]
    findings = evaluate(heard, launch_facts(evidence, target, scenario))
    preflight = replace(
        evidence.preflight,
        rules=len(heard),
        ruled=fired(findings),
        unjudged=unjudged(findings),
        silenced=silenced,
    )
    return replace(evidence, preflight=preflight)


def concerned(rules: Iterable[Rule], *, on_gpu: bool) -> tuple[Rule, ...]:
    """Return the rules that can be about a launch: without a GPU none on a GPU or its driver."""
    return tuple(rule for rule in rules if on_gpu or not any(name.startswith(_OF_GPUS) for name in _asks(rule)))


def _asks(rule: Rule) -> set[str]:
    return {name for condition in rule.when for name in condition.asks}


def launch_facts(evidence: Evidence, target: Target, scenario: Scenario) -> Facts:
    """Return all that is known of the launch: of this machine only what the target has not read already is read."""
    stack, here = evidence.stack, scenario.container is None
    engine = FoundEngine(
        backend=target.backend.name,
        program=target.program,
        version=stack.engine_version,
        build=stack.engine_build,
        toolkit=stack.toolkit,
        image=stack.image,
        # A container's files are not looked into.
        built=read_built(target.backend.name, target.program, os.environ) if here else Built(),
    )
    more = {
        **model_facts(target.model, target.file, tensor_types(target.file)),
        **scenario_facts(scenario, baseline=True),
        "os.class": evidence.identity["os.class"],
    }
    return facts(_machine(evidence, target, here=here), engine, more)


def _machine(evidence: Evidence, target: Target, *, here: bool) -> Machine:
    on_gpu = target.profile.gpu.kind is DeviceKind.GPU
    loaded, is_open = loaded_module() if on_gpu else (None, None)
    stack = evidence.stack
    toolkits, _ = toolkits_here(os.environ)
    return Machine(
        host=read_host(Path(), os.environ),
        driver=Driver(version=stack.driver, cuda=stack.cuda_driver, loaded=loaded, open_module=is_open),
        gpus=target.gpus if on_gpu else (),
        displays=displays([gpu.index for gpu in target.gpus]) if on_gpu else None,
        toolkits=toolkits,
        # The caller's variables do not reach a container.
        environment=variables(os.environ) if here else None,
    )


def tensor_types(file: ModelFile | None) -> tuple[str, ...] | None:
    """Return the types of the tensors in a GGUF file; None for other forms, or where it cannot be read."""
    if file is None or file.format is not ModelFormat.GGUF:
        return None
    try:
        return tuple(read_gguf(Path(file.path)).tensor_types)
    except (ModelFileError, OSError):
        return None
