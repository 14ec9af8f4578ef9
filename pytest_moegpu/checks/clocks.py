"""What held the devices' clocks down, where it is not known, and clocks that were lower in one start than in others."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from statistics import median

from pytest_moegpu.checks.findings import DECODE, PROMPT, Finding, Weight
from pytest_moegpu.checks.hardware import LOADED_PHASES, MEASURED_PHASES
from pytest_moegpu.core.evidence import Phase, RequestKind, StartEvidence
from pytest_moegpu.core.model import DeviceKind, Gpu
from pytest_moegpu.core.reasons import HARMFUL, NEGLIGIBLE_SHARE, reason_names
from pytest_moegpu.core.units import format_percent, format_seconds

__all__ = ["clock_drops", "harmful_reasons", "reasons_unread", "slowdowns"]

_CONCERNS = {Phase.PREFILL: PROMPT, Phase.DECODE: DECODE}

# A clock that is lower by this share costs about as much speed where a phase is bound by computing, and 5 % is the
# tolerance of a speed. Between starts of one run a healthy device differs by far less.
_CLOCK_DROP = 0.05

# From this share of the readings on a device works at its power cap, where the clock is what is left to give way …
_CAPPED_SHARE = 0.5
# … and drifts with temperature and the chip by some percent; twice the tolerance of a speed is no drift any more.
_CAPPED_DROP = 0.10

# Heat and power brakes last for seconds. The sampler asks for reasons about every 35 ms, slower probes every second.
_LEAST_READINGS = 3
_SHORT_SECONDS = 0.2
_SECONDS_A_READING = 5.0


def harmful_reasons(start: StartEvidence, phase: Phase) -> dict[str, float | None]:
    """Return what held clocks down to the harm of a speed, with the share of the phase's readings that had it.

    Of several devices the largest share. None: evidence that only says that it was seen at all.
    """
    shares: dict[str, float | None] = {}
    read = [device for device in start.telemetry.get(phase, ()) if device.reason_readings or device.reasons]
    for device in read:
        for word in HARMFUL & device.reasons.keys():
            if device.reasons[word] > 0:
                shares[word] = max(shares.get(word) or 0.0, device.reasons[word])
    if read:
        return dict(sorted(shares.items()))
    return {word: None for word in reason_names(start.event_reasons.get(phase, 0)) if word in HARMFUL}


def slowdowns(start: StartEvidence, *phases: Phase) -> Iterator[Finding]:
    """Find what held clocks down: a DOUBT where speed is measured, a note elsewhere and where it was but for a moment.

    Args:
        start: The start.
        phases: Where to look; by default in all phases of load.
    """
    for phase in phases or LOADED_PHASES:
        by_weight: dict[Weight, list[str]] = {}
        for word, share in harmful_reasons(start, phase).items():
            measured = phase in (*MEASURED_PHASES, Phase.CONTEXT)
            harms = measured and (share is None or share >= NEGLIGIBLE_SHARE)
            much = "" if share is None else f" ({format_percent(share, signed=False)} of the readings)"
            by_weight.setdefault(Weight.DOUBT if harms else Weight.NOTE, []).append(f"{word}{much}")
        for weight, words in by_weight.items():
            yield Finding(
                weight=weight,
                start=start.number,
                text=f"throttled in {phase}: {', '.join(words)}",
                concerns=_CONCERNS.get(phase, frozenset()),
            )


def reasons_unread(
    start: StartEvidence, gpus: tuple[Gpu, ...], phases: tuple[Phase, ...] = LOADED_PHASES
) -> tuple[str, ...]:
    """Name the phases in which it is not known what held the clocks down, with the device when others told.

    Asked for are the phases the start went through for 0.2 s or more, and those of measured requests however short.
    A device has told when it gave at least one reading of every 5 s, and three in a phase of 0.4 s or more (one below
    0.2 s, two between): a single mask does not speak for a long phase, and many phases are short. Evidence that does
    not count readings is taken at its word.
    """
    seen = start.telemetry.keys() | start.peaks.keys() | start.event_reasons.keys()
    measured = MEASURED_PHASES if start.of_kind(RequestKind.THROUGHPUT) else ()
    devices = [gpu.index for gpu in gpus if gpu.kind is DeviceKind.GPU]
    unread = []
    for phase in phases:
        told = start.telemetry.get(phase, ())
        seconds = _seconds(start, phase)
        asked = phase in measured or (phase in seen and (seconds is None or seconds >= _SHORT_SECONDS))
        if not asked:
            continue
        counts = {t.device: t.reason_readings for t in told if t.reason_readings is not None}
        if not devices or not counts:
            unread += [] if phase in start.event_reasons else [str(phase)]
            continue
        needed = _readings_needed(seconds or 0.0)
        silent = [device for device in devices if counts.get(device, 0) < needed]
        if silent == devices:
            most = max(counts.values())
            unread.append(f"{phase} ({most} reading{'' if most == 1 else 's'} in {format_seconds(seconds or 0.0)})")
        else:
            unread += [f"{phase} of device {device}" for device in silent]
    return tuple(unread)


def _readings_needed(seconds: float) -> int:
    return max(min(_LEAST_READINGS, 1 + int(seconds / _SHORT_SECONDS)), ceil(seconds / _SECONDS_A_READING))


def _seconds(start: StartEvidence, phase: Phase) -> float | None:
    """Return how long a phase took: by its requests where it is made of them, else by its readings; None: not known."""
    spans = [
        (r.sent, r.first_token, r.last_token)
        for r in start.of_kind(RequestKind.THROUGHPUT)
        if r.first_token is not None and r.last_token is not None
    ]
    if phase in MEASURED_PHASES and spans:
        return sum(first - sent if phase is Phase.PREFILL else last - first for sent, first, last in spans)
    return max((told.seconds for told in start.telemetry.get(phase, ())), default=None)


def clock_drops(starts: tuple[StartEvidence, ...], *, of_speeds: bool) -> Iterator[Finding]:
    """Find starts whose median SM clock in prefill or decode is more than 5 % below the median over the starts.

    At the power cap, in half of the readings or more, the clock follows the heat of the chip: a lower one is then a
    note, and puts a speed in doubt only when it is more than 10 % below.

    Args:
        starts: The starts.
        of_speeds: Whether speeds are judged, or the device.
    """
    for phase in MEASURED_PHASES:
        clocks: dict[int, list[tuple[int, float, bool]]] = {}
        for start in starts:
            for told in start.telemetry.get(phase, ()):
                if told.sm_clock_mhz is not None:
                    capped = told.reasons.get("sw_power_cap", 0.0) >= _CAPPED_SHARE
                    clocks.setdefault(told.device, []).append((start.number, told.sm_clock_mhz, capped))
        for device, values in clocks.items():
            middle = median(clock for _, clock, _ in values)
            for number, clock, capped in values:
                if clock >= (1 - _CLOCK_DROP) * middle:
                    continue
                drifts = capped and not (of_speeds and clock < (1 - _CAPPED_DROP) * middle)
                yield Finding(
                    weight=Weight.NOTE if drifts else Weight.DOUBT,
                    start=number,
                    text=f"SM clock of device {device} in {phase} {clock:.0f} MHz, "
                    f"median over the starts {middle:.0f} MHz{' (at the power cap)' if capped else ''}",
                    concerns=_CONCERNS[phase],
                )
