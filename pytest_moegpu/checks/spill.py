"""Did the driver put into host memory what the device had no room for? It looks like a server that is merely slow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from pytest_moegpu.checks.common import start_median, with_log
from pytest_moegpu.checks.doubts import throttled, valid
from pytest_moegpu.checks.findings import Finding, Weight, told
from pytest_moegpu.checks.hardware import LOADED_PHASES
from pytest_moegpu.core.evidence import Evidence, Phase, RequestKind, StartEvidence
from pytest_moegpu.core.model import DeviceKind, Gpu, Limits, Profile, Scenario
from pytest_moegpu.core.timing import decode_rate
from pytest_moegpu.core.units import MIB, format_bytes, format_percent, format_value
from pytest_moegpu.core.verdict import METRICS, FailedClass, Outcome, Verdict

__all__ = ["GROWTH_SLACK_BYTES", "MIN_FREE_SHARE", "host_line", "judge_spill"]

MIN_FREE_SHARE = 0.05
"""A device with a smaller share of its memory free is full: a driver that falls back to host memory does so about here.

On Windows since 536.40: https://nvidia.custhelp.com/app/answers/detail/a_id/5490
"""

GROWTH_SLACK_BYTES = 512 * MIB
"""What the server's host memory may grow by after loading: buffers of requests, and prompts that it keeps there."""

# As in `checks.context`: over fewer tokens one late read decides the rate.
_MIN_TOKENS_FOR_RATE = 8

# There the driver's fallback is not in the memory of any process that can be seen.
_HIDDEN_ON = frozenset({"WSL2", "Windows"})


@dataclass(frozen=True, kw_only=True)
class _Host:
    """The most host memory of the server while it loaded and afterwards, in bytes, and the phase of the latter."""

    before: int
    after: int
    phase: Phase

    @property
    def grew(self) -> bool:
        return self.after - self.before > GROWTH_SLACK_BYTES


def host_line(starts: tuple[StartEvidence, ...]) -> tuple[tuple[str, str], ...]:
    """Return the line on the server's host memory, of the start where it grew most; none when it was not read."""
    known = [host for start in starts if (host := _host(start)) is not None]
    if not known:
        return ()
    host = max(known, key=lambda one: one.after - one.before)
    return (("host", f"host memory {format_bytes(host.before)} (load) → {format_bytes(host.after)} ({host.phase})"),)


def judge_spill(
    starts: tuple[StartEvidence, ...], evidence: Evidence, scenario: Scenario, profile: Profile
) -> tuple[Verdict | None, tuple[str, ...]]:
    """Judge whether a full device made the server use host memory, and return what else is to be said of it.

    FAILED (memory) for a start in which a device was full, decode was too slow by a limit of the scenario with no doubt
    about it, and the server's host memory grew after loading; where growth cannot be seen from inside (WSL2, Windows),
    full and slow is enough. INCONCLUSIVE when it was not read. A model that was put on the CPU on purpose is in host
    memory when loading ends, so that only growth counts. None: nothing to judge.
    """
    if profile.gpu.kind is not DeviceKind.GPU:
        return None, ()
    os_class = evidence.identity.get("os.class", "")
    doubts = valid(evidence, scenario, profile, "decode")
    found = [(f, s) for s in starts for f in _weigh(s, evidence.gpus, scenario.limits, os_class, doubts)]
    notes = told(f for f, _ in found if f.weight is Weight.NOTE)
    for weight, outcome in ((Weight.FAULT, Outcome.FAILED), (Weight.DOUBT, Outcome.INCONCLUSIVE)):
        heavy = [(f, s) for f, s in found if f.weight is weight]
        if heavy:
            verdict = Verdict(
                outcome=outcome,
                check="memory",
                scenario=scenario.name,
                subject="spill to host memory",
                phase=Phase.DECODE,
                reason="; ".join(told(f for f, _ in heavy)),
                failed_class=FailedClass.MEMORY if outcome is Outcome.FAILED else None,
                lines=host_line(starts),
                more={"value": "spilled" if outcome is Outcome.FAILED else "not known"},
            )
            return with_log(verdict, heavy[0][1]), notes
    return None, notes


def _weigh(
    start: StartEvidence, gpus: tuple[Gpu, ...], limits: Limits, os_class: str, doubts: tuple[str, ...]
) -> Iterator[Finding]:
    full, host = _full(start, gpus), _host(start)
    if not full:
        return
    grew = "" if host is None else f"the server's host memory grew from {format_bytes(host.before)} (load) to "
    grew += "" if host is None else f"{format_bytes(host.after)} ({host.phase})"
    slow = _slow(start, limits)
    unsure = (*doubts, throttled(start, Phase.CONTEXT)) if slow else ()
    if slow and not any(unsure):
        if os_class in _HIDDEN_ON:
            weight, text = (
                Weight.FAULT,
                f"{full} and {slow}: on {os_class} the driver may use host memory, policy not known",
            )
        elif host is None:
            weight, text = Weight.DOUBT, f"{full} and {slow}, but the server's host memory was not read"
        elif host.grew:
            weight, text = Weight.FAULT, f"{full}, {grew}, and {slow}"
        else:
            weight, text = Weight.NOTE, f"{full} and {slow}, but the server's host memory did not grow after loading"
    elif host is None:
        weight, text = Weight.NOTE, f"{full}; the server's host memory was not read"
    elif host.grew:
        why = (
            f"whether it was slow is not judged: {'; '.join(filter(None, unsure))}"
            if slow
            else "not slow by any limit set"
        )
        weight, text = Weight.NOTE, f"{full}, and {grew}; {why}"
    else:
        return
    yield Finding(weight=weight, start=start.number, text=text)


def _host(start: StartEvidence) -> _Host | None:
    def most(phase: Phase) -> int | None:
        told_of = start.telemetry.get(phase, ())
        return max((t.host_max_bytes for t in told_of if t.host_max_bytes is not None), default=None)

    before = most(Phase.LOAD)
    later = [(size, phase) for phase in LOADED_PHASES[1:] if (size := most(phase)) is not None]
    if before is None or not later:
        return None
    after, phase = max(later)
    return _Host(before=before, after=after, phase=phase)


def _full(start: StartEvidence, gpus: tuple[Gpu, ...]) -> str:
    """Say how full a device was at its fullest; empty when none was full, or nobody said."""
    totals = {gpu.index: gpu.memory_bytes for gpu in gpus if gpu.kind is DeviceKind.GPU}
    shares = []
    for phase in LOADED_PHASES:
        for told_of in start.telemetry.get(phase, ()):
            total = totals.get(told_of.device)
            if total and told_of.free_min_bytes is not None:
                shares.append((told_of.free_min_bytes / total, phase, told_of.device))
            elif total and told_of.used_max_bytes is not None:
                shares.append((1 - told_of.used_max_bytes / total, phase, told_of.device))
    free, phase, device = min(shares, default=(1.0, Phase.LOAD, 0))
    if free >= MIN_FREE_SHARE:
        return ""
    which = "VRAM" if len(totals) == 1 else f"VRAM of device {device}"
    return f"{which} was {format_percent(1 - free, signed=False)} full in {phase}"


def _slow(start: StartEvidence, limits: Limits) -> str:
    """Say in which way decode was too slow by a limit of the scenario; empty when it was not."""
    unit = METRICS["decode"].unit
    short = start_median(start, decode_rate)
    if short is None:
        return ""
    if limits.decode_min is not None and short < limits.decode_min:
        return f"decode was {format_value(short, unit)}, at least {format_value(limits.decode_min, unit)} needed"
    rates: dict[float | None, list[float]] = {}
    for record in start.of_kind(RequestKind.CONTEXT):
        rate = decode_rate(record) if record.error is None else None
        if rate is not None and (record.output_tokens or 0) >= _MIN_TOKENS_FOR_RATE:
            rates.setdefault(record.fill, []).append(rate)
    share = min((median(found) / short for found in rates.values()), default=1.0)
    if share >= limits.decode_at_depth_min_share:
        return ""
    least = format_percent(limits.decode_at_depth_min_share, signed=False)
    return f"decode at depth was {format_percent(share, signed=False)} of short, at least {least} needed"
