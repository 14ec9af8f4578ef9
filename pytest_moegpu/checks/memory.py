"""Does it fit, and is the memory given back?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pytest_moegpu.checks.capacity import judge_kv_cache, kv_line, kv_notes
from pytest_moegpu.checks.common import broken, broken_start, grouped, is_host_device, reached, shared_with, with_log
from pytest_moegpu.checks.hardware import LOADED_PHASES
from pytest_moegpu.checks.predicted import predicted_line
from pytest_moegpu.checks.spill import host_line, judge_spill
from pytest_moegpu.core.evidence import Evidence, LogFacts, Phase, RequestKind, StartEvidence, StartFailure
from pytest_moegpu.core.model import DeviceKind, Profile, Scenario
from pytest_moegpu.core.timing import decode_seconds
from pytest_moegpu.core.units import MIB, format_bytes, format_seconds
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict

__all__ = ["RETURN_SLACK_BYTES", "judge"]

# The driver's own bookkeeping moves `used` by some MiB, while the smallest context left behind holds well over 100 MiB.
RETURN_SLACK_BYTES = 64 * MIB

# At the 10 readings a second asked of the sampler this is one second: with fewer, a peak can pass unseen.
_MIN_SAMPLES = 10

# Engines hold a buffer for tens of milliseconds: readings further apart than this may step over one.
_MAX_GAP_SECONDS = 0.02

# Much more happens in this time than in the 0.1 s for which a driver answers nobody while a context is made.
_BLIND_SECONDS = 1.0

# The log counts to the MiB what it puts on a device; with less than this in use there, another device was read.
_LEAST_SHARE_OF_WEIGHTS = 0.9

# A decode of less may fall between two readings of a slow probe.
_LEAST_DECODE_SECONDS = 1.0


def judge(evidence: Evidence, scenario: Scenario, profile: Profile) -> tuple[Verdict, ...]:
    """Judge the peak against the budget, the return to the idle reading after every start, and what was spilled.

    The return is judged after broken starts too. A fault at the stop is told there, as ERROR, and does not hide the
    peak. Whether host memory took what the device had no room for has a verdict only where there is something to say;
    so has a KV cache that is smaller than the context. Of a server that was there before nothing but that is known.
    """
    kv = judge_kv_cache(evidence, scenario)
    if evidence.attached and broken(evidence, scenario, "memory") is None:
        return (*kv, _not_known(evidence, scenario))
    return (*kv, *_measured(evidence, scenario, profile))


def _not_known(evidence: Evidence, scenario: Scenario) -> Verdict:
    return Verdict(
        outcome=Outcome.INCONCLUSIVE,
        check="memory",
        scenario=scenario.name,
        subject="memory",
        phase=Phase.PREFLIGHT,
        reason=f"attached to {evidence.attached}, which was there before: what the device held without it is not known",
        lines=(("next", "leave this check away: -k 'not memory'"),),
        more={"value": "not known"},
    )


def _measured(evidence: Evidence, scenario: Scenario, profile: Profile) -> tuple[Verdict, ...]:
    fault = broken(evidence, scenario, "memory")
    spilled, notes = (None, ()) if fault else judge_spill(reached(evidence, "memory"), evidence, scenario, profile)
    peak = fault or _peak(evidence, scenario, profile, notes)
    stopped = tuple(s for s in evidence.starts if s.after_bytes is not None or s.left_over or _stop_failure(s))
    if fault is not None and not stopped:
        return (peak,)
    between = () if spilled is None else (spilled,)
    return (peak, *between, _return_to_idle(evidence, stopped, scenario))


def _stop_failure(start: StartEvidence) -> StartFailure | None:
    return start.failure if start.failure is not None and start.failure.phase is Phase.STOP else None


def _peak(evidence: Evidence, scenario: Scenario, profile: Profile, notes: tuple[str, ...]) -> Verdict:
    starts = reached(evidence, "memory")
    read = [(s, s.peak_bytes) for s in starts if s.peak_bytes is not None]
    if not read:
        return Verdict(
            outcome=Outcome.INCONCLUSIVE,
            check="memory",
            scenario=scenario.name,
            subject="peak memory",
            phase=Phase.DECODE,
            reason="the device's memory was not read in any start",
        )
    # A stranger's memory is in the reading, so a start of our own alone is the one to judge where there is one.
    own = [pair for pair in read if not pair[0].foreign]
    start, highest = max(own or read, key=lambda pair: pair[1])
    budget, source = _budget(evidence, start, scenario)
    on_gpu = profile.gpu.kind is DeviceKind.GPU
    doubts = _doubts(starts, budget, on_gpu)
    over = budget is not None and highest > budget and not start.foreign
    if over and budget is not None:
        outcome, reason = Outcome.FAILED, f"{format_bytes(highest - budget)} over {source}"
    elif doubts:
        outcome, reason = Outcome.INCONCLUSIVE, "; ".join(doubts)
    else:
        outcome, reason = Outcome.PASS, f"within {source}"
    phase = max(start.peaks, key=lambda name: start.peaks[name])
    verdict = Verdict(
        outcome=outcome,
        check="memory",
        scenario=scenario.name,
        subject="peak memory",
        phase=Phase(phase) if phase in tuple(Phase) else Phase.DECODE,
        reason=reason,
        failed_class=FailedClass.MEMORY if over else None,
        metric="peak_memory",
        value=float(highest),
        values=tuple(float(peak) for _, peak in read),
        limit=None if budget is None else float(budget),
        lines=(
            ("peak", f"start {start.number}, phase {phase}"),
            *_parts(start.log, profile.gpu.kind),
            *predicted_line(evidence, start, profile.gpu.kind),
            *kv_line(start, scenario.settings),
            *(host_line(starts) if on_gpu else ()),
        ),
        findings=(
            *(doubts if over else ()),
            *notes,
            *kv_notes(starts, scenario.settings),
            *(_gaps(starts) if on_gpu else ()),
        ),
    )
    return with_log(verdict, start)


def _budget(evidence: Evidence, start: StartEvidence, scenario: Scenario) -> tuple[int | None, str]:
    """Return what the peak above idle may be, and how that came about."""
    if scenario.limits.memory_budget_bytes is not None:
        return scenario.limits.memory_budget_bytes, "the budget of the scenario"
    before = evidence.preflight
    if before.free_bytes is not None and before.idle_bytes is not None:
        # The total holds what the driver keeps for itself (0.6 GiB of an H200), which no engine can have.
        usable, what = before.free_bytes + before.idle_bytes, "usable"
    else:
        usable, what = before.total_bytes or sum(g.memory_bytes for g in evidence.gpus), "whole"
    if not usable:
        return None, "no budget"
    reserve, idle = scenario.limits.memory_reserve_bytes, start.idle_bytes or 0
    source = (
        f"the device's {what} {format_bytes(usable)} less {format_bytes(reserve)} reserve and {format_bytes(idle)} idle"
    )
    return usable - reserve - idle, source


def _doubts(starts: tuple[StartEvidence, ...], budget: int | None, on_gpu: bool) -> tuple[str, ...]:
    said = []
    for start in starts:
        if start.foreign:
            said.append((start.number, shared_with(start)))
        if start.peak_bytes is None:
            said.append((start.number, "memory was not read"))
        elif start.samples < _MIN_SAMPLES:
            said.append((start.number, f"only {start.samples} memory readings, at least {_MIN_SAMPLES} needed"))
        elif not {Phase.PREFILL, Phase.DECODE} & start.peaks.keys():
            said.append((start.number, "memory was read in neither prefill nor decode"))
        elif Phase.DECODE not in start.peaks and _decode_seconds(start) >= _LEAST_DECODE_SECONDS:
            said.append((start.number, "memory was not read in decode"))
        elif on_gpu and start.sampler_gap is not None and start.sampler_gap >= _BLIND_SECONDS:
            said.append((start.number, f"memory was not read for {format_seconds(start.sampler_gap)}"))
        elif on_gpu and start.peak_bytes < _LEAST_SHARE_OF_WEIGHTS * _weights(start.log):
            size = format_bytes(_weights(start.log))
            said.append((start.number, f"the device grew by less than the {size} of weights the log puts on it"))
        elif _stop_failure(start) and Phase.STOP not in start.peaks:
            said.append((start.number, "memory was not read to the end"))
    unknown = () if budget is not None else ("no budget set and the size of the device is not known",)
    return (*grouped(said), *unknown)


def _decode_seconds(start: StartEvidence) -> float:
    return sum(decode_seconds(r) or 0.0 for r in start.of_kind(RequestKind.THROUGHPUT))


def _weights(log: LogFacts) -> int:
    return sum(size for name, size in log.model_bytes.items() if not is_host_device(name))


def _gaps(starts: tuple[StartEvidence, ...]) -> tuple[str, ...]:
    """Say how short a peak may have passed unseen, where readings were further apart than they should be."""
    longest: dict[Phase, float] = {}
    for phase in LOADED_PHASES:
        gaps = (told.gap_seconds for s in starts for told in s.telemetry.get(phase, ()))
        longest[phase] = max((gap for gap in gaps if gap is not None), default=0.0)
    apart = [f"{format_seconds(gap)} in {phase}" for phase, gap in longest.items() if gap > _MAX_GAP_SECONDS]
    return (f"readings up to {', '.join(apart)} apart: a shorter peak there could have passed unseen",) if apart else ()


def _parts(log: LogFacts, kind: DeviceKind) -> tuple[tuple[str, str], ...]:
    """Return the line that says what the engine's log puts on the device."""

    def there(sizes: Mapping[str, int]) -> int:
        return sum(size for name, size in sizes.items() if kind is DeviceKind.CPU or not is_host_device(name))

    parts = (("weights", log.model_bytes), ("KV", log.kv_bytes), ("compute", log.compute_bytes))
    told = [f"{label} {format_bytes(there(sizes))}" for label, sizes in parts if sizes]
    return (("parts", ", ".join(told)),) if told else ()


def _return_to_idle(evidence: Evidence, stopped: tuple[StartEvidence, ...], scenario: Scenario) -> Verdict:
    for start in stopped:
        if failure := _stop_failure(start):
            told = broken_start(start, failure, len(evidence.starts), scenario, "memory")
            others = ((s.number, text) for s in stopped if s is not start and (text := _leak(s)))
            return replace(told, subject="return to idle", findings=grouped(others), more={"value": "not returned"})
    leaks = [(s, text) for s in stopped if (text := _leak(s))]
    doubts = [(s.number, shared_with(s)) for s in evidence.starts if s.foreign]
    doubts += [
        (s.number, "memory after the stop or before the start was not read")
        for s in evidence.starts
        if not s.left_over and (s.after_bytes is None or s.idle_bytes is None)
    ]
    if leaks:
        outcome, reason = Outcome.FAILED, "; ".join(grouped((s.number, text) for s, text in leaks))
    elif doubts:
        outcome, reason = Outcome.INCONCLUSIVE, "; ".join(grouped(doubts))
    else:
        outcome, reason = Outcome.PASS, f"within {format_bytes(RETURN_SLACK_BYTES)} of idle, no process left"
    verdict = Verdict(
        outcome=outcome,
        check="memory",
        scenario=scenario.name,
        subject="return to idle",
        phase=Phase.STOP,
        reason=reason,
        failed_class=FailedClass.STABILITY if leaks else None,
        lines=_after_lines(stopped),
        more={"value": "returned" if outcome is Outcome.PASS else "not returned" if leaks else "not known"},
    )
    return with_log(verdict, leaks[0][0]) if leaks else verdict


def _leak(start: StartEvidence) -> str:
    faults = []
    if start.left_over:
        faults.append(f"processes left over: pid {', '.join(map(str, start.left_over))}")
    # Beside a stranger nobody can say whose memory it is.
    if start.after_bytes is not None and start.idle_bytes is not None and not start.foreign:
        kept = start.after_bytes - start.idle_bytes
        if kept > RETURN_SLACK_BYTES:
            faults.append(f"{format_bytes(kept)} not given back")
    return ", ".join(faults)


def _after_lines(stopped: tuple[StartEvidence, ...]) -> tuple[tuple[str, str], ...]:
    seconds = [s.return_seconds for s in stopped if s.return_seconds is not None]
    return (("after", f"memory back after at most {max(seconds):.1f} s"),) if seconds else ()
