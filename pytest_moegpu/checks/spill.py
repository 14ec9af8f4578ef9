"""Did the driver put into host memory what the device had no room for? It looks like a server that is merely slow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from pytest_moegpu.checks.common import start_median, with_log
from pytest_moegpu.checks.doubts import throttled, valid
from pytest_moegpu.checks.findings import Finding, Weight, told
from pytest_moegpu.checks.hardware import LOADED_PHASES
from pytest_moegpu.core.evidence import Evidence, Phase, RequestKind, StartEvidence
from pytest_moegpu.core.health import PhaseTelemetry
from pytest_moegpu.core.model import DeviceKind, Gpu, Limits, Profile, Scenario
from pytest_moegpu.core.timing import decode_rate
from pytest_moegpu.core.units import GIB, format_bytes, format_percent, format_value
from pytest_moegpu.core.verdict import METRICS, FailedClass, Outcome, Verdict

__all__ = ["GROWTH_SLACK_BYTES", "MIN_FREE_SHARE", "host_line", "judge_spill"]

MIN_FREE_SHARE = 0.05
"""A device with a smaller share of its memory free is full: a driver that falls back to host memory does so about here.

On Windows since 536.40: https://nvidia.custhelp.com/app/answers/detail/a_id/5490
"""

GROWTH_SLACK_BYTES = GIB
"""What the server's host memory may grow by after loading: buffers of requests, and what an engine keeps there itself.

llama.cpp keeps context checkpoints in host memory: 63 MiB each for a model of 30 DeltaNet layers, so 16 of them.
"""

# As in `checks.context`: over fewer tokens one late read decides the rate.
_MIN_TOKENS_FOR_RATE = 8

# There the driver's fallback is not in the memory of any process that can be seen.
_HIDDEN_ON = frozenset({"WSL2", "Windows"})


@dataclass(frozen=True, kw_only=True)
class _Host:
    """Host memory of the server when loading ended and at most in a later phase, in bytes."""

    before: int
    after: int
    phase: Phase

    @property
    def growth(self) -> int:
        return self.after - self.before

    def __str__(self) -> str:
        return (
            f"the server's host memory grew from {format_bytes(self.before)} (load) to {format_bytes(self.after)} "
            f"({self.phase})"
        )


@dataclass(frozen=True, kw_only=True)
class _Part:
    """What one part of a start's workload shows: all of it measured in the same phase. `slow` is empty: it was not."""

    phase: Phase
    full: str
    slow: str
    unsure: str
    host: _Host | None
    unexplained: int | None


def host_line(starts: tuple[StartEvidence, ...]) -> tuple[tuple[str, str], ...]:
    """Return the line on the server's host memory, of the start where it grew most; none when it was not read."""
    known = [host for start in starts if (host := _host(start, LOADED_PHASES[1:])) is not None]
    if not known:
        return ()
    host = max(known, key=lambda one: one.growth)
    return (("host", f"host memory {format_bytes(host.before)} (load) → {format_bytes(host.after)} ({host.phase})"),)


def judge_spill(
    starts: tuple[StartEvidence, ...], evidence: Evidence, scenario: Scenario, profile: Profile
) -> tuple[Verdict | None, tuple[str, ...]]:
    """Judge whether a full device made the server use host memory, and return what else is to be said of it.

    The short decode and long contexts are judged each by its own readings. FAILED (memory) for a part in which a device
    was full, decode was too slow by a limit of the scenario with no doubt about it, and the server's host memory had
    grown since loading ended; where growth cannot be seen from inside (WSL2, Windows), full and slow is enough.
    INCONCLUSIVE when it was not read, or when the system lost memory that no process of the server holds: pinned and
    managed pages are in none, and another program may have taken it. On native Linux the driver has no such fallback
    for plain allocations, so that growth there is mostly the engine's own.
    A model that was put on the CPU on purpose is in host memory when loading ends, so that only growth counts.
    None: nothing to judge.
    """
    if profile.gpu.kind is not DeviceKind.GPU:
        return None, ()
    os_class = evidence.identity.get("os.class", "")
    doubts = valid(evidence, scenario, profile, "decode")
    found = [
        (finding, phase, start)
        for start in starts
        for finding, phase in _weigh(start, evidence.gpus, scenario.limits, os_class, doubts)
    ]
    notes = told(finding for finding, _, _ in found if finding.weight is Weight.NOTE)
    for weight, outcome in ((Weight.FAULT, Outcome.FAILED), (Weight.DOUBT, Outcome.INCONCLUSIVE)):
        heavy = [one for one in found if one[0].weight is weight]
        if heavy:
            _, phase, start = heavy[0]
            verdict = Verdict(
                outcome=outcome,
                check="memory",
                scenario=scenario.name,
                subject="spill to host memory",
                phase=phase,
                reason="; ".join(told(finding for finding, _, _ in heavy)),
                failed_class=FailedClass.MEMORY if outcome is Outcome.FAILED else None,
                lines=host_line(starts),
                more={"value": "spilled" if outcome is Outcome.FAILED else "not known"},
            )
            return with_log(verdict, start), notes
    return None, notes


def _weigh(
    start: StartEvidence, gpus: tuple[Gpu, ...], limits: Limits, os_class: str, doubts: tuple[str, ...]
) -> Iterator[tuple[Finding, Phase]]:
    parts = tuple(_parts(start, gpus, limits, doubts))
    policy = f"on {os_class} the driver may use host memory, policy not known" if os_class in _HIDDEN_ON else ""
    said = False
    for part in parts:
        judged = (_judge_hidden(part, policy) if policy else _judge(part)) if part.full else None
        if judged is not None:
            said = True
            yield Finding(weight=judged[0], start=start.number, text=judged[1]), part.phase
    full = _full(start, gpus, LOADED_PHASES)
    if policy and full and not said:
        text = "; ".join((full, policy, *_not_judged(parts, limits)))
        yield Finding(weight=Weight.NOTE, start=start.number, text=text), Phase.DECODE


def _not_judged(parts: tuple[_Part, ...], limits: Limits) -> Iterator[str]:
    """Say why a full device is held against nobody where the driver may use host memory unseen."""
    unsure = next((part.unsure for part in parts if part.full and part.slow), "")
    if unsure:
        yield f"whether it was slow is not judged: {unsure}"
    if limits.decode_min is None:
        yield "set decode_min to have it judged"
    elif not any(part.slow for part in parts):
        yield "not slow by any limit set"


def _judge(part: _Part) -> tuple[Weight, str] | None:
    """Weigh a part in which a device was full, where the server's host memory can be seen; None: nothing to say."""
    full, slow, host, lost = part.full, part.slow, part.host, part.unexplained
    grew = host is not None and host.growth > GROWTH_SLACK_BYTES
    if slow and not part.unsure:
        if host is None:
            return Weight.DOUBT, f"{full} and {slow}, but the server's host memory was not read"
        if grew:
            return Weight.FAULT, f"{full}, {host}, and {slow}"
        if lost is not None and lost > GROWTH_SLACK_BYTES:
            fell = f"the system's free memory fell by {format_bytes(lost)}, which no process of the server holds"
            return Weight.DOUBT, f"{full} and {slow}, and {fell}"
        return Weight.NOTE, f"{full} and {slow}, but the server's host memory did not grow after loading"
    if host is None:
        return Weight.NOTE, f"{full}; the server's host memory was not read"
    if not grew:
        return None
    why = f"whether it was slow is not judged: {part.unsure}" if slow else "not slow there by any limit set"
    return Weight.NOTE, f"{full}, and {host}; {why}"


def _judge_hidden(part: _Part, policy: str) -> tuple[Weight, str] | None:
    """Weigh a part in which a device was full, where what the driver does is in no process."""
    if part.slow and not part.unsure:
        return Weight.FAULT, f"{part.full} and {part.slow}: {policy}"
    return None


def _parts(start: StartEvidence, gpus: tuple[Gpu, ...], limits: Limits, doubts: tuple[str, ...]) -> Iterator[_Part]:
    speeds = (
        (Phase.DECODE, _slow_short(start, limits), ""),
        (Phase.CONTEXT, _slow_at_depth(start, limits), throttled(start, Phase.CONTEXT)),
    )
    for phase, slow, hot in speeds:
        host = _host(start, (phase,))
        yield _Part(
            phase=phase,
            full=_full(start, gpus, (phase,)),
            slow=slow,
            unsure="; ".join(filter(None, (*doubts, hot))),
            host=host,
            unexplained=_unexplained(start, phase, host),
        )


def _host(start: StartEvidence, phases: tuple[Phase, ...]) -> _Host | None:
    """Return host memory when loading ended and at most in the phases; None when either was not read.

    While it loads a server may hold the whole model in host memory for a while: the last reading counts, the highest
    only in evidence that has no last one.
    """
    before = _read(start, Phase.LOAD, lambda t: t.host_last_bytes)
    before = _read(start, Phase.LOAD, lambda t: t.host_max_bytes) if before is None else before
    later = [(size, phase) for phase in phases if (size := _read(start, phase, lambda t: t.host_max_bytes)) is not None]
    if before is None or not later:
        return None
    after, phase = max(later, key=lambda pair: pair[0])
    return _Host(before=before, after=after, phase=phase)


def _unexplained(start: StartEvidence, phase: Phase, host: _Host | None) -> int | None:
    """Return by how much the system's free memory fell after loading beyond what the server grew by, in bytes."""
    before = _read(start, Phase.LOAD, lambda t: t.host_free_last_bytes)
    least = _read(start, phase, lambda t: t.host_free_min_bytes)
    if before is None or least is None or host is None:
        return None
    return before - least - max(0, host.growth)


def _read(start: StartEvidence, phase: Phase, field: Callable[[PhaseTelemetry], int | None]) -> int | None:
    """Return what the telemetry of a phase says of the host, which only one of its devices has."""
    return next((size for told_of in start.telemetry.get(phase, ()) if (size := field(told_of)) is not None), None)


def _full(start: StartEvidence, gpus: tuple[Gpu, ...], phases: tuple[Phase, ...]) -> str:
    """Say how full a device was at its fullest in the phases; empty when none was full, or nobody said."""
    totals = {gpu.index: gpu.memory_bytes for gpu in gpus if gpu.kind is DeviceKind.GPU}
    shares = []
    for phase in phases:
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


def _slow_short(start: StartEvidence, limits: Limits) -> str:
    """Say that the short decode was slower than the scenario allows; empty when it was not, or nothing is set."""
    unit, short = METRICS["decode"].unit, start_median(start, decode_rate)
    if short is None or limits.decode_min is None or short >= limits.decode_min:
        return ""
    return f"decode was {format_value(short, unit)}, at least {format_value(limits.decode_min, unit)} needed"


def _slow_at_depth(start: StartEvidence, limits: Limits) -> str:
    """Say that decode in a long context was too small a share of the short one; empty when it was not."""
    short = start_median(start, decode_rate)
    rates: dict[float | None, list[float]] = {}
    for record in start.of_kind(RequestKind.CONTEXT):
        rate = decode_rate(record) if record.error is None else None
        if rate is not None and (record.output_tokens or 0) >= _MIN_TOKENS_FOR_RATE:
            rates.setdefault(record.fill, []).append(rate)
    if short is None or not rates:
        return ""
    share = min(median(found) for found in rates.values()) / short
    if share >= limits.decode_at_depth_min_share:
        return ""
    least = format_percent(limits.decode_at_depth_min_share, signed=False)
    return f"decode at depth was {format_percent(share, signed=False)} of short, at least {least} needed"
