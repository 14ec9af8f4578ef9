"""`moegpu doctor`: what this machine is, what of it is known to be bad, and whether a profile can run on it.

Reads only; starts nothing but programs that are asked for their version, each for some seconds at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from pytest_moegpu.catalog import Catalog
from pytest_moegpu.catalog.rulebook import Rulebook
from pytest_moegpu.core.diagnosis import Diagnosis
from pytest_moegpu.core.doctorargs import DoctorOrder
from pytest_moegpu.core.facts import facts, model_facts, scenario_facts
from pytest_moegpu.core.machine import FoundEngine, Machine
from pytest_moegpu.core.model import DeviceKind, Profile
from pytest_moegpu.core.ruled import Ruled, fired, together, unjudged
from pytest_moegpu.core.rules import Facts, Rule, Severity, evaluate
from pytest_moegpu.core.units import format_bytes
from pytest_moegpu.errors import DeviceError, MoegpuError, UserError
from pytest_moegpu.options import Options
from pytest_moegpu.report.doctor import as_json, as_text
from pytest_moegpu.session.chosen import EMBEDDED
from pytest_moegpu.session.device import named, on_device
from pytest_moegpu.session.engines import find_engines, profile_engine
from pytest_moegpu.session.machine import examine_machine
from pytest_moegpu.session.openprobe import open_probe
from pytest_moegpu.session.progress import Silent
from pytest_moegpu.session.ruling import concerned, tensor_types
from pytest_moegpu.session.target import Target, resolve

__all__ = ["diagnose", "profile_lines", "run"]

_USAGE = 3
_FOREIGN = "foreign-processes"


def run(order: DoctorOrder, out: TextIO, err: TextIO) -> int:
    """Write what was found; returns 0 when it is clean, 1 for warnings, 2 when a run cannot work, 3 for wrong usage."""
    try:
        found = diagnose(order)
    except UserError as error:
        print(f"moegpu doctor: {error}", file=err)
        return _USAGE
    print(as_json(found) if order.json else as_text(found), file=out)
    return found.exit_code


def diagnose(order: DoctorOrder) -> Diagnosis:
    """Examine the machine, and a profile on it.

    Raises:
        UserError: Unknown profile, a damaged catalog, or a device that does not exist.
    """
    catalog = Catalog.load(order.catalog)
    rules, silenced = Rulebook.load(order.catalog).heard(datetime.now(UTC).astimezone().date())
    profile = catalog.profile(order.profile) if order.profile else None
    machine = examine_machine(order.runs, order.devices)
    # A machine without a GPU is not one whose GPU is not known.
    wants_gpu = not machine.driver.absent if profile is None else profile.gpu.kind is DeviceKind.GPU
    rules = concerned(rules, on_gpu=wants_gpu)
    engines, missing = _engines(catalog, profile)
    subjects, own = _subjects(order, catalog, profile, machine, engines)
    judged = [(name, evaluate(rules, known)) for name, known in subjects]
    common = {ruled.id for ruled in fired(judged[0][1])}
    findings = list(fired(judged[0][1]))
    for name, result in judged[1:]:
        # What is so of the machine is told once, whatever is started on it.
        findings += [ruled for ruled in fired(result, name) if ruled.id not in common]
    if any(ruled.id == "gpu-in-use" for ruled in own):
        findings = [ruled for ruled in findings if ruled.id != _FOREIGN]
    return Diagnosis(
        machine=machine,
        engines=engines,
        missing=missing,
        findings=together((*own, *findings)),
        unjudged=_never_judged(rules, [unjudged(result) for _, result in judged]),
        silenced=silenced,
        facts=subjects[1][1] if profile is not None else subjects[0][1],
        unknown=(
            *machine.unknown,
            *(f"{engine.backend}: {text}" for engine in engines for text in engine.built.unknown),
        ),
        profile=profile.name if profile is not None else "",
        rules=len(rules),
    )


def _engines(catalog: Catalog, profile: Profile | None) -> tuple[tuple[FoundEngine, ...], tuple[tuple[str, str], ...]]:
    """Find the engines of the machine, or only that of the profile."""
    return find_engines(catalog.profiles()) if profile is None else ((profile_engine(profile),), ())


def _subjects(
    order: DoctorOrder,
    catalog: Catalog,
    profile: Profile | None,
    machine: Machine,
    engines: Sequence[FoundEngine],
) -> tuple[list[tuple[str, Facts]], tuple[Ruled, ...]]:
    """Return what rules are held against, each with its name, the machine first; and faults that need no rule."""
    if profile is None:
        base = facts(machine)
        there = [engine for engine in engines if not engine.problem]
        own = tuple(_broken(engine, Severity.WARNING) for engine in engines if engine.problem)
        return [("", base), *((_name(engine), facts(machine, engine)) for engine in there)], own
    if profile.gpu.kind is DeviceKind.CPU:
        # Nothing of its runs is about a GPU or its driver.
        machine = Machine(host=machine.host, toolkits=machine.toolkits, environment=machine.environment)
    (engine,) = engines
    problems, target = _examined(order, profile, engine)
    if target is not None:
        machine = replace(machine, gpus=target.gpus if machine.gpus else ())
        scenarios = target.scenarios
        model = model_facts(target.model, target.file, tensor_types(target.file))
    else:
        scenarios = tuple(catalog.scenario(name, profile) for name in profile.scenarios)
        model = model_facts(catalog.model(profile.model), None, None)
    # One that does not answer is still known by its files.
    base = facts(machine, engine)
    launches = [
        (scenario.name, facts(machine, engine, {**model, **scenario_facts(scenario, baseline=True)}))
        for scenario in scenarios
    ]
    return [("", base), *launches], problems


def _examined(order: DoctorOrder, profile: Profile, engine: FoundEngine) -> tuple[tuple[Ruled, ...], Target | None]:
    """Find everything a run would need, without the network and without starting a server."""
    problems = [_broken(engine, Severity.BLOCKING)] if engine.problem else []
    problems += _device(order, profile)
    if problems:
        return tuple(problems), None
    without = (_no_kernels(engine),) if _lacks_kernels(engine, profile) else ()
    options = Options(profile=profile.name, devices=order.devices, catalog=order.catalog, offline=True, runs=order.runs)
    try:
        target = resolve(options, Silent())
    except MoegpuError as error:
        return (_cannot_run(profile, str(error)),), None
    try:
        busy = on_device(target.probe, [])
        return ((_in_use(profile, named(busy)), *without) if busy else without), target
    except MoegpuError as error:
        return (_cannot_run(profile, str(error)),), target
    finally:
        target.probe.close()


def _device(order: DoctorOrder, profile: Profile) -> Iterator[Ruled]:
    try:
        probe, _ = open_probe(profile, order.devices)
    except DeviceError as error:
        yield _cannot_run(profile, str(error))
    except MoegpuError as error:
        yield _cannot_run(profile, f"the device cannot be read: {error}")
    else:
        probe.close()


def _broken(engine: FoundEngine, severity: Severity) -> Ruled:
    return Ruled(
        id="engine-unusable",
        title="a server program cannot be used",
        severity=severity,
        affects="environment",
        what=engine.problem,
        do=engine.hint or "Start the command by hand and look at what it says; or give another program.",
        subject=_name(engine),
    )


def _lacks_kernels(engine: FoundEngine, profile: Profile) -> bool:
    return profile.gpu.kind is DeviceKind.GPU and engine.built.architectures == ()


def _no_kernels(engine: FoundEngine) -> Ruled:
    return Ruled(
        id="engine-without-kernels",
        title="the server program has no CUDA kernels",
        severity=Severity.WARNING,
        affects="performance",
        what="Neither in it nor in the libraries beside it is there GPU code: it would compute on the processor.",
        do="Take a build for CUDA; if its kernels lie elsewhere, the check `offload` of a run will say so.",
        subject=_name(engine),
    )


def _cannot_run(profile: Profile, what: str) -> Ruled:
    return Ruled(
        id="profile-cannot-run",
        title="the profile cannot run here",
        severity=Severity.BLOCKING,
        affects="environment",
        what=what,
        do="Put right what the line says, or take a profile of this machine: pytest --moegpu=list shows them.",
        subject=profile.name,
    )


def _in_use(profile: Profile, who: str) -> Ruled:
    return Ruled(
        id="gpu-in-use",
        title="the GPU is in use",
        severity=Severity.BLOCKING,
        affects="environment",
        what=f"{who}: a run refuses to start beside them.",
        do="End these processes, or choose another GPU with --device.",
        subject=profile.name,
    )


def _name(engine: FoundEngine) -> str:
    return f"{engine.backend} ({engine.source})" if engine.source else engine.backend


def _never_judged(rules: Sequence[Rule], missing: Sequence[dict[str, tuple[str, ...]]]) -> dict[str, tuple[str, ...]]:
    """Return the rules that no subject could be judged by, with what was missing of the one that is known best."""
    return {
        rule.id: min((each[rule.id] for each in missing), key=len)
        for rule in rules
        if all(rule.id in each for each in missing)
    }


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
