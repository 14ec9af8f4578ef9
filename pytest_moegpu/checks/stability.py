"""Did the hardware, the driver and the server hold through every start, as far as anybody says?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_moegpu.checks.beyond import died_of_it
from pytest_moegpu.checks.clocks import clock_drops, harmful_reasons, reasons_unread, slowdowns
from pytest_moegpu.checks.common import broken, grouped, quote, start_phrase, with_log
from pytest_moegpu.checks.engine import engine_findings
from pytest_moegpu.checks.findings import Finding, Weight, told
from pytest_moegpu.checks.hardware import LOADED_PHASES, counter_findings, link_findings, power_limit_changes
from pytest_moegpu.checks.kernel import device_fault, kernel_findings
from pytest_moegpu.core.evidence import Evidence, Phase, StartEvidence
from pytest_moegpu.core.faults import named
from pytest_moegpu.core.model import DeviceKind, Gpu, Profile, Scenario
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict

__all__ = ["judge"]

_LOST = "gpu-lost"
_ECC = "uncorrectable-ecc"
_OF_DEVICE = (_LOST, _ECC, "nvlink-error")
# How a start is told that broke because the probe lost the device: measured, not read in a log.
_PROBED = "the device cannot be read"

_KERNEL_LOG, _ECC_COUNTERS, _REASONS = "kernel log", "ECC counters", "clock event reasons"
_MOST_LINES = 5


def judge(evidence: Evidence, scenario: Scenario, profile: Profile) -> tuple[Verdict, ...]:
    """Judge the machine over all starts, broken ones included.

    FAILED (stability) for a fault of one of our devices: in the kernel log, in its counters, lost altogether, or an
    uncorrectable memory error that ended the server; for an engine that was dead behind a front that lived on, and for
    a server that a too long prompt ended; and FAILED (memory) when the kernel killed the server for want of
    host memory. INCONCLUSIVE when clocks were held down by heat or hardware while something was measured, when clock or
    power limit were not the same all along, or when nothing of a GPU could be read. PASS says what was read; what was
    not is a finding. With clock event reasons alone a fault could not have been seen, and PASS says that.
    """
    found = tuple(_findings(evidence))
    faults = [f for f in found if f.weight is Weight.FAULT]
    doubts = told(f for f in found if f.weight is Weight.DOUBT)
    notes = told(f for f in found if f.weight is Weight.NOTE)
    read, unread = _read(evidence) if profile.gpu.kind is DeviceKind.GPU else ((), ())
    fault = broken(evidence, scenario, "stability")
    if fault is not None and not faults:
        return (replace(fault, findings=(*fault.findings, *doubts, *notes, *unread)),)
    on_gpu = profile.gpu.kind is DeviceKind.GPU
    verdict = Verdict(
        outcome=Outcome.PASS,
        check="stability",
        scenario=scenario.name,
        subject="device health" if on_gpu else "server life",
        phase=Phase.STOP,
        lines=tuple(_lines(evidence, found, read)),
        findings=(*notes, *unread),
    )
    if faults:
        return (_failed(verdict, evidence, faults, doubts),)
    if doubts:
        return (replace(verdict, outcome=Outcome.INCONCLUSIVE, reason="; ".join(doubts)),)
    count = f"{len(evidence.starts)} start{'' if len(evidence.starts) == 1 else 's'}"
    idle = "" if any(s.requests for s in evidence.starts) else ", while loading only"
    if not on_gpu:
        reason = f"the server lived through {count}{idle}; nothing is said about hardware"
        return (replace(verdict, reason=reason, more={"value": count}),)
    if not read:
        reason = "nothing that tells of the health of the device could be read through all starts"
        return (replace(verdict, outcome=Outcome.INCONCLUSIVE, reason=reason),)
    if read == (_REASONS,):
        reason = (
            "nothing that shows a fault of the device could be read through all starts "
            f"({_KERNEL_LOG}, {_ECC_COUNTERS}); {_clocks(evidence)}{idle}"
        )
        return (replace(verdict, reason=reason, more={"value": "faults not visible"}),)
    return (replace(verdict, reason=f"no fault in {', '.join(read)} over {count}{idle}", more={"value": "no fault"}),)


def _clocks(evidence: Evidence) -> str:
    """Say that clocks were not held down, where no doubt was found; what was is among the notes."""
    held = any(harmful_reasons(start, phase) for start in evidence.starts for phase in LOADED_PHASES)
    return f"clocks were {'' if held else 'not '}held down by heat or hardware{' only as noted' if held else ''}"


def _failed(verdict: Verdict, evidence: Evidence, faults: list[Finding], doubts: tuple[str, ...]) -> Verdict:
    said = told(faults)
    # The kernel's killing of a server is about the host's memory; beside a fault of the device it is the lesser news.
    failed_class = FailedClass.MEMORY if all(f.memory for f in faults) else FailedClass.STABILITY
    told_of = [s for s in evidence.starts if _is_device_fault(s, evidence.gpus) or died_of_it(s)]
    broke = [s for s in evidence.starts if s.failure is not None and s not in told_of]
    causes = grouped((s.number, f"the start broke: {s.failure.cause}") for s in broke if s.failure is not None)
    failed = replace(
        verdict,
        outcome=Outcome.FAILED,
        reason="; ".join(said),
        failed_class=failed_class,
        findings=(*causes, *doubts, *verdict.findings),
        more={"value": f"{len(said)} fault{'' if len(said) == 1 else 's'}"},
    )
    numbers = {f.start for f in faults}
    return with_log(failed, next((s for s in evidence.starts if s.number in numbers), evidence.starts[-1]))


def _findings(evidence: Evidence) -> Iterator[Finding]:
    starts, gpus = evidence.starts, evidence.gpus
    for start in starts:
        yield from engine_findings(start)
        yield from _death(start, gpus)
        yield from kernel_findings(start, gpus)
    yield from counter_findings(starts)
    for start in starts:
        yield from slowdowns(start)
    yield from clock_drops(starts, of_speeds=False)
    yield from power_limit_changes(starts)
    yield from link_findings(starts, gpus)


def _death(start: StartEvidence, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Weigh a failure that is named a fault of the device: a FAULT when it is known, a DOUBT when only a log says it.

    An uncorrectable memory error is known from the server's own log: the driver returned it for the server's own call.
    A lost GPU or NVLink must have been seen by the probe, or stand beside a device's fault in the kernel log.
    """
    failure = start.failure
    if failure is None or failure.kind not in _OF_DEVICE:
        return
    known, fault = _is_device_fault(start, gpus), named(failure.kind)
    words = "the GPU was lost" if failure.kind == _LOST else fault.words if fault else failure.kind
    text = f"{words} in {failure.phase}: {failure.cause}"
    weight = Weight.FAULT if known else Weight.DOUBT
    yield Finding(weight=weight, start=start.number, text=text if known else f"only the server's log says so: {text}")


def _is_device_fault(start: StartEvidence, gpus: tuple[Gpu, ...]) -> bool:
    """Tell whether a start broke of a fault of the device that is known as such."""
    failure = start.failure
    if failure is None or failure.kind not in _OF_DEVICE:
        return False
    probed = failure.kind == _LOST and failure.cause.startswith(_PROBED)
    return failure.kind == _ECC or probed or device_fault(start, gpus)


def _read(evidence: Evidence) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what was read of every device through all starts, and what was not, with the reason."""
    # A start that was refused before anything ran has nothing to be read.
    starts = [s for s in evidence.starts if s.failure is None or s.failure.phase is not Phase.PREFLIGHT]
    missing = {
        _KERNEL_LOG: [(s.number, said) for s in starts if (said := _log_unread(s))],
        _ECC_COUNTERS: [(s.number, said) for s in starts if (said := _ecc_unread(s, evidence))],
        _REASONS: [
            (s.number, f"{_REASONS} not read in {', '.join(phases)}")
            for s in starts
            if (phases := reasons_unread(s, evidence.gpus) if s.event_reasons else ("any phase",))
        ],
    }
    read = tuple(name for name, said in missing.items() if starts and not said)
    return read, tuple(text for said in missing.values() for text in grouped(said))


def _log_unread(start: StartEvidence) -> str:
    return "the kernel log was not read" if start.kernel is None else start.kernel.problem


def _ecc_unread(start: StartEvidence, evidence: Evidence) -> str:
    wanted = {gpu.index for gpu in evidence.gpus if gpu.kind is DeviceKind.GPU}
    given = [
        {health.device for health in side if health.ecc_uncorrected is not None}
        for side in (start.health_before, start.health_after)
    ]
    silent = sorted(wanted - (given[0] & given[1]))
    return f"ECC counters not given by device {', '.join(map(str, silent))}" if silent else ""


def _lines(evidence: Evidence, found: tuple[Finding, ...], read: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    weighty = [f for f in found if f.line and f.weight is not Weight.NOTE]
    for finding in weighty[:_MOST_LINES]:
        yield "kernel", f"start {finding.start}: {quote(finding.line, 200)}"
    if len(weighty) > _MOST_LINES:
        yield "kernel", f"and {len(weighty) - _MOST_LINES} more kinds of lines"
    if read:
        sources = sorted({s.kernel.source for s in evidence.starts if s.kernel is not None and s.kernel.source})
        yield "read", ", ".join(read) + (f" (kernel log from {', '.join(sources)})" if _KERNEL_LOG in read else "")
    if heat := _heat(evidence):
        yield "heat", heat


def _heat(evidence: Evidence) -> str:
    """Print how warm the devices were before the starts and at most under load; empty when nobody said."""
    cold = [h.temperature_c for s in evidence.starts for h in s.health_before if h.temperature_c is not None]
    hot = [
        (told_of.temperature_max_c, phase, start.number)
        for start in evidence.starts
        for phase in LOADED_PHASES
        for told_of in start.telemetry.get(phase, ())
        if told_of.temperature_max_c is not None
    ]
    parts = []
    if cold:
        low, high = min(cold), max(cold)
        span = f"{low:.0f} °C" if low == high else f"{low:.0f} to {high:.0f} °C"
        parts.append(f"{span} before the start{'' if len(evidence.starts) == 1 else 's'}")
    if hot:
        most, phase, number = max(hot)
        parts.append(f"at most {most:.0f} °C in {phase} of {start_phrase([number])}")
    return ", ".join(parts)
