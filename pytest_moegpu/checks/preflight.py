"""Is this the GPU the profile is for, is it idle, and is enough of it free?"""

from __future__ import annotations

from pytest_moegpu.checks.common import broken, describe_process, nothing
from pytest_moegpu.core.evidence import Evidence, Phase, StartEvidence
from pytest_moegpu.core.model import DeviceKind, Gpu, GpuRequirement, Profile, Scenario
from pytest_moegpu.core.ruled import Ruled
from pytest_moegpu.core.rules import Severity
from pytest_moegpu.core.units import GIB, MIB, format_bytes
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict

__all__ = ["idle_doubt", "idle_growth", "judge"]

# A desktop takes some hundred MiB of a device and the driver's own share less; a model takes more than this.
_MAX_IDLE_BYTES = 3 * GIB // 2

# As much as may stay after a stop: the driver's own bookkeeping moves the reading by some MiB.
_MAX_GROWTH_BYTES = 64 * MIB


def judge(evidence: Evidence, scenario: Scenario, profile: Profile) -> tuple[Verdict, ...]:
    """Judge the devices as found before the first start.

    FAILED (environment) for a wrong GPU, a foreign process, too little free memory or a rule that blocks; INCONCLUSIVE
    when it is not known whether the device was idle; other rules that fired, and facts the driver does not tell, are
    findings. A server that broke later does not change the answer.
    """
    fault = broken(evidence, scenario, "preflight") if evidence.starts else None
    if not evidence.gpus:
        return (fault or nothing(scenario, "preflight", "no device was identified"),)
    before = evidence.preflight
    faults = (
        *_wrong_devices(evidence.gpus, profile.gpu),
        *(f"in use by {describe_process(p)}" for p in before.processes),
        *_too_little_free(evidence, scenario),
        *(_ruled(each) for each in before.ruled if each.severity is Severity.BLOCKING),
    )
    on_gpu = profile.gpu.kind is DeviceKind.GPU
    outcome, reason = Outcome.PASS, "the device is the right one and idle" if on_gpu else "the right processor"
    if faults:
        outcome, reason = Outcome.FAILED, "; ".join(faults)
    elif fault is not None:
        return (fault,)
    elif doubt := idle_doubt(evidence, profile.gpu):
        outcome, reason = Outcome.INCONCLUSIVE, doubt
    return (
        Verdict(
            outcome=outcome,
            check="preflight",
            scenario=scenario.name,
            subject="GPU" if on_gpu else "processor",
            phase=Phase.PREFLIGHT,
            reason=reason,
            failed_class=FailedClass.ENVIRONMENT if faults else None,
            lines=_facts(evidence),
            findings=_findings(evidence, profile.gpu),
            more={"value": _names(evidence.gpus)},
        ),
    )


def idle_doubt(evidence: Evidence, wanted: GpuRequirement) -> str:
    """Say why it is not known that nobody used the device before the first start; empty when it is known."""
    before = evidence.preflight
    if before.idle_bytes is None:
        return "memory in use before the start could not be read"
    unknown = [note for note in before.notes if note.startswith("processes")]
    if unknown:
        return "; ".join(unknown)
    if wanted.kind is DeviceKind.GPU and before.idle_bytes > _MAX_IDLE_BYTES * max(1, len(evidence.gpus)):
        return f"{format_bytes(before.idle_bytes)} in use before the start, and no process is listed that holds it"
    return ""


def idle_growth(start: StartEvidence, evidence: Evidence) -> str:
    """Say that more memory was in use before a start than before the first, though nobody is listed that holds it."""
    first, now = evidence.preflight.idle_bytes, start.idle_bytes
    if first is None or now is None or start.foreign or now - first <= _MAX_GROWTH_BYTES:
        return ""
    return (
        f"{format_bytes(now - first)} more in use before the start than before the run, "
        "and no process is listed that holds it"
    )


def _ruled(each: Ruled) -> str:
    """Say which rule fired, on what, and what to do; with where that is known from."""
    because = f" ({'; '.join(each.because)})" if each.because else ""
    source = f" [{each.sources[0]}]" if each.sources else ""
    return f"rule {each.id}: {each.title}{because}: {each.what} {each.do}{source}"


def _names(gpus: tuple[Gpu, ...]) -> str:
    names = ", ".join(dict.fromkeys(g.name for g in gpus))
    return names if len(gpus) == 1 else f"{len(gpus)} x {names}"


def _wrong_devices(gpus: tuple[Gpu, ...], wanted: GpuRequirement) -> tuple[str, ...]:
    faults = []
    if len(gpus) != wanted.count:
        faults.append(f"found {len(gpus)} devices, expected {wanted.count}")
    for gpu in gpus:
        where = f"device {gpu.index}"
        if gpu.kind is not wanted.kind:
            faults.append(f"{where} is a {gpu.kind}, expected a {wanted.kind}")
        # In a rehearsal any larger card stands in; what it really is, every result says.
        if wanted.names and gpu.name not in wanted.names and gpu.emulated_on is None:
            faults.append(f"{where} is {gpu.name}, expected {' or '.join(wanted.names)}")
        if gpu.memory_bytes < wanted.memory_bytes:
            have, need = format_bytes(gpu.memory_bytes), format_bytes(wanted.memory_bytes)
            faults.append(f"{where} has {have} of memory, expected at least {need}")
        known = gpu.compute_capability is not None and gpu.emulated_on is None
        if wanted.compute_capability and known and gpu.compute_capability != wanted.compute_capability:
            faults.append(
                f"{where} has compute capability {gpu.compute_capability}, expected {wanted.compute_capability}"
            )
    return tuple(faults)


def _too_little_free(evidence: Evidence, scenario: Scenario) -> tuple[str, ...]:
    free, need = evidence.preflight.free_bytes, scenario.limits.memory_reserve_bytes
    if free is None or free >= need:
        return ()
    return (f"only {format_bytes(free)} free, at least {format_bytes(need)} must be",)


def _facts(evidence: Evidence) -> tuple[tuple[str, str], ...]:
    before, stack = evidence.preflight, evidence.stack
    versions = [
        f"{label} {version}"
        for label, version in (("driver", stack.driver), ("CUDA driver", stack.cuda_driver), ("kernel", stack.kernel))
        if version
    ]
    memory = [
        f"{format_bytes(size)} {label}"
        for label, size in (("in use", before.idle_bytes), ("free", before.free_bytes), ("total", before.total_bytes))
        if size is not None
    ]
    found = [f"device {g.index} {g.name}, {format_bytes(g.memory_bytes)}" for g in evidence.gpus]
    rules = []
    if before.rules:
        unjudged = f"{len(before.unjudged)} of them not judged: facts not known" if before.unjudged else ""
        rules = [f"{before.rules} held against this launch, {len(before.ruled)} fired", *filter(None, (unjudged,))]
    lines = (("found", found), ("memory", memory), ("stack", versions), ("rules", rules))
    return tuple((label, "; ".join(parts)) for label, parts in lines if parts)


def _findings(evidence: Evidence, wanted: GpuRequirement) -> tuple[str, ...]:
    findings = []
    unknown = [label for label, value in _expected_facts(evidence, wanted) if value is None]
    if unknown:
        findings.append(f"not known: {', '.join(unknown)}")
    for gpu in evidence.gpus:
        if gpu.emulated_on is not None:
            size = format_bytes(gpu.memory_bytes)
            findings.append(f"device {gpu.index}: {size} emulated on {gpu.emulated_on}, whose speed says nothing")
        limit, default = gpu.power_limit_watts, gpu.power_default_watts
        if limit is not None and default is not None and limit < default:
            findings.append(f"device {gpu.index}: power limit {limit:.0f} W, default {default:.0f} W")
        if gpu.persistence is False:
            findings.append(
                f"device {gpu.index}: persistence mode is off; a power limit is lost when the driver unloads"
            )
    before = evidence.preflight
    told = [f"{each.severity}, {_ruled(each)}" for each in before.ruled if each.severity is not Severity.BLOCKING]
    return (*findings, *told, *before.silenced)


def _expected_facts(evidence: Evidence, wanted: GpuRequirement) -> tuple[tuple[str, object], ...]:
    facts: tuple[tuple[str, object], ...] = (("free memory", evidence.preflight.free_bytes),)
    if wanted.kind is DeviceKind.CPU:
        return facts
    limits = [g.power_limit_watts for g in evidence.gpus]
    return (
        *facts,
        ("driver", evidence.stack.driver),
        ("CUDA driver", evidence.stack.cuda_driver),
        ("power limit", None if None in limits else limits),
    )
