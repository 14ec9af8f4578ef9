"""Which phase a telemetry sample belongs to, once the requests are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from pytest_moegpu.core.evidence import Phase, RequestKind, RequestRecord
from pytest_moegpu.core.sample import Sample

__all__ = ["event_reasons", "label", "peaks"]


def label(samples: Iterable[Sample], requests: Sequence[RequestRecord]) -> tuple[Sample, ...]:
    """Mark samples taken during a throughput request as prefill (sent … first token) or decode (… last token).

    Samples outside keep the phase the sampler gave them, but for the moments before, between and after measured
    requests that the sampler took for prefill: they count as warm-up. Stamps of both are of one monotonic clock.
    """
    spans = [
        (start, end, phase)
        for r in requests
        if r.kind is RequestKind.THROUGHPUT and r.first_token is not None and r.last_token is not None
        for start, end, phase in (
            (r.sent, r.first_token, Phase.PREFILL),
            (r.first_token, r.last_token, Phase.DECODE),
        )
    ]
    spans.sort()
    labelled: list[Sample] = []
    at = 0
    for sample in sorted(samples, key=lambda s: s.time):
        while at < len(spans) and spans[at][1] < sample.time:
            at += 1
        inside = at < len(spans) and spans[at][0] <= sample.time
        phase = spans[at][2] if inside else Phase.WARMUP if spans and sample.phase == Phase.PREFILL else sample.phase
        labelled.append(sample if phase == sample.phase else structs.replace(sample, phase=phase))
    return tuple(labelled)


def peaks(samples: Iterable[Sample]) -> dict[str, int]:
    """Return the highest reading of each phase in bytes, all devices of one reading added up; unread ones left out."""
    readings: dict[tuple[str, float], list[int | None]] = {}
    for sample in samples:
        readings.setdefault((sample.phase, sample.time), []).append(sample.used_bytes)
    found: dict[str, int] = {}
    for (phase, _), used in readings.items():
        known = [value for value in used if value is not None]
        # A reading that misses one device would be a sum too small.
        if len(known) == len(used):
            found[phase] = max(found.get(phase, 0), sum(known))
    return found


def event_reasons(samples: Iterable[Sample]) -> dict[str, int]:
    """Return, for each phase, the union of the clock event reason bits seen in it."""
    found: dict[str, int] = {}
    for sample in samples:
        if sample.event_reasons is not None:
            found[sample.phase] = found.get(sample.phase, 0) | sample.event_reasons
    return found
