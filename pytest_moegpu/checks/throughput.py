"""How fast is it, one stream at a time, and may that number be believed?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median

from pytest_moegpu.checks import offload, output
from pytest_moegpu.checks.common import broken, grouped, quote, reached, start_phrase, with_log
from pytest_moegpu.checks.offload import layers_text
from pytest_moegpu.checks.preflight import describe_process
from pytest_moegpu.core.evidence import Evidence, Phase, RequestKind, RequestRecord, StartEvidence
from pytest_moegpu.core.model import DeviceKind, Limits, Profile, Scenario
from pytest_moegpu.core.reasons import HARMFUL, reason_names
from pytest_moegpu.core.timing import decode_rate, prefill_rate, ttft
from pytest_moegpu.core.units import format_percent, format_seconds, format_value
from pytest_moegpu.core.verdict import METRICS, Better, FailedClass, Metric, Outcome, Verdict, worst

__all__ = ["judge", "metrics", "valid"]

# A prompt cached in part is prefilled faster than it should be, by about the share that was cached.
_MAX_CACHED_SHARE = 0.05

# Later than this the client, not the server, decides when a token seems to arrive …
_MAX_CLIENT_LAG = 0.005
# … unless it is too small a part of the TTFT, the shortest time measured, to look like a loss (2 % in `core.compare`).
_MAX_LAG_SHARE = 0.02

_MEASURED_PHASES = (Phase.PREFILL, Phase.DECODE)

_RATES: dict[str, tuple[Phase, Callable[[RequestRecord], float | None]]] = {
    "decode": (Phase.DECODE, decode_rate),
    "prefill": (Phase.PREFILL, prefill_rate),
    "ttft": (Phase.PREFILL, ttft),
}


def judge(evidence: Evidence, scenario: Scenario, profile: Profile) -> tuple[Verdict, ...]:
    """Judge decode (tok/s), prefill (tok/s) and TTFT (s) against absolute limits, one verdict each.

    Speed has no verdict (one INCONCLUSIVE) unless the output check is green, and is NOT_COMPARABLE when the model is
    not on the device. Invalid measurements are INCONCLUSIVE; a limit that is not set is not judged, and that is said.
    """
    fault = broken(evidence, scenario, "throughput") or _gate(evidence, scenario, profile)
    if fault is not None:
        return (fault,)
    run = _run(evidence, scenario, profile)
    return tuple(_judge_metric(name, run, scenario) for name in _RATES)


def metrics(evidence: Evidence, _scenario: Scenario) -> dict[str, Metric]:
    """Return what was measured, by metric name; a metric without a single value is left out.

    Each value is one start's: the median over its throughput requests without error (decode and prefill in tok/s,
    ttft in s), the peak above idle (peak_memory, bytes) and the load time (load, s).
    """
    speed, whole = reached(evidence, "throughput"), evidence.good_starts
    found = {name: [_start_median(s, rate) for s in speed] for name, (_, rate) in _RATES.items()}
    # A start that only loaded the model has a lower peak than one that generated.
    found["peak_memory"] = [s.comparable_peak_bytes for s in whole if s.of_kind(RequestKind.THROUGHPUT)]
    found["load"] = [s.load_seconds for s in whole]
    values = {name: tuple(float(v) for v in column if v is not None) for name, column in found.items()}
    return {name: Metric(name=name, values=column) for name, column in values.items() if column}


def valid(evidence: Evidence, scenario: Scenario, profile: Profile) -> tuple[str, ...]:
    """Return the reasons why the speeds of a run may not be believed; none means they may."""
    starts = reached(evidence, "throughput")
    said = grouped((s.number, text) for s in starts for text in (*_request_doubts(s), *_device_doubts(s)))
    placed = offload.judge(evidence, scenario, profile)
    unknown = tuple(v.reason for v in placed if v.outcome is Outcome.INCONCLUSIVE)
    return (*unknown, *said)


def _start_median(start: StartEvidence, rate: Callable[[RequestRecord], float | None]) -> float | None:
    requests = (r for r in start.of_kind(RequestKind.THROUGHPUT) if r.error is None)
    values = [value for r in requests if (value := rate(r)) is not None]
    return median(values) if values else None


def _gate(evidence: Evidence, scenario: Scenario, profile: Profile) -> Verdict | None:
    verdict = Verdict(
        outcome=Outcome.INCONCLUSIVE,
        check="throughput",
        scenario=scenario.name,
        subject="speed",
        phase=Phase.DECODE,
    )
    placed = offload.judge(evidence, scenario, profile)
    if any(v.outcome is Outcome.FAILED for v in placed):
        on_cpu = profile.gpu.kind is DeviceKind.CPU
        where = "the model is not wholly in host memory" if on_cpu else "the model is not wholly on the GPU"
        reason = f"{where}: {placed[0].reason}"
        return replace(verdict, outcome=Outcome.NOT_COMPARABLE, reason=reason, lines=placed[0].lines)
    texts = output.judge(evidence, scenario, profile)
    grade = worst(tuple(v.outcome for v in texts))
    if grade.green:
        return None
    cause = next(v for v in texts if v.outcome is grade)
    word = "failed" if grade is Outcome.FAILED else f"is {grade}"
    return replace(verdict, reason=f"no speed verdict: output {word} ({cause.subject}: {cause.reason})")


def _request_doubts(start: StartEvidence) -> Iterator[str]:
    requests = start.of_kind(RequestKind.THROUGHPUT)
    failed = [r for r in requests if r.error is not None]
    answered = [r for r in requests if r.error is None]
    if failed:
        yield f"{len(failed)} of {len(requests)} requests failed: {quote(failed[0].error or '')}"
    short = [r for r in answered if _is_short(r)]
    if short:
        yield (
            f"output length not reached in {len(short)} of {len(requests)} requests "
            f"({short[0].output_tokens} of {short[0].wanted_output_tokens} tokens, {short[0].finish_reason})"
        )
    cached = max((share for r in answered if (share := _cached_share(r)) is not None), default=0.0)
    if cached > _MAX_CACHED_SHARE:
        yield f"{format_percent(cached, signed=False)} of a prompt came from the cache, which inflates prefill"
    lag, allowed = _lag(start), max(_MAX_CLIENT_LAG, _MAX_LAG_SHARE * (_start_median(start, ttft) or 0))
    if lag is not None and lag > allowed:
        yield f"client too slow: lag {format_seconds(lag)}, allowed {format_seconds(allowed)}"


def _is_short(record: RequestRecord) -> bool:
    wanted, got = record.wanted_output_tokens, record.output_tokens
    return wanted is not None and got is not None and got < wanted


def _cached_share(record: RequestRecord) -> float | None:
    if record.cached_tokens is None or not record.prompt_tokens:
        return None
    return record.cached_tokens / record.prompt_tokens


def _lag(start: StartEvidence) -> float | None:
    """Return the median lag of a start's requests in seconds: one late reading does not move the median speed."""
    lags = [r.client_lag for r in start.of_kind(RequestKind.THROUGHPUT) if r.client_lag is not None]
    return median(lags) if lags else None


def _device_doubts(start: StartEvidence) -> Iterator[str]:
    for phase in _MEASURED_PHASES:
        harmful = [name for name in reason_names(start.event_reasons.get(phase, 0)) if name in HARMFUL]
        if harmful:
            yield f"throttled in {phase}: {', '.join(harmful)}"
    if start.foreign:
        yield f"GPU shared with {', '.join(describe_process(p) for p in start.foreign)}"


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What the verdicts on all speeds of one run have in common."""

    starts: tuple[StartEvidence, ...]
    doubts: tuple[str, ...]
    findings: tuple[str, ...]
    valid: str


def _run(evidence: Evidence, scenario: Scenario, profile: Profile) -> _Run:
    starts = reached(evidence, "throughput")
    return _Run(
        starts=starts,
        doubts=valid(evidence, scenario, profile),
        findings=tuple(_notes(starts, profile)),
        valid="; ".join(_valid_facts(evidence, starts, profile)),
    )


def _reasons_read(start: StartEvidence) -> bool:
    return any(phase in start.event_reasons for phase in _MEASURED_PHASES)


def _notes(starts: tuple[StartEvidence, ...], profile: Profile) -> Iterator[str]:
    requests = [r for s in starts for r in s.of_kind(RequestKind.THROUGHPUT) if r.error is None]
    if len(starts) == 1:
        yield "1 start: no spread known"
    if any(r.token_source == "events" for r in requests):
        yield "tokens counted as stream events: an engine that sends several in one is faster than it seems"
    if any(r.cached_tokens is None for r in requests):
        yield "the engine does not say how much of a prompt came from its cache"
    blind = [s.number for s in starts if not _reasons_read(s)]
    if blind and profile.gpu.kind is DeviceKind.GPU:
        yield f"{start_phrase(blind)}: throttling not read"


def _valid_facts(evidence: Evidence, starts: tuple[StartEvidence, ...], profile: Profile) -> Iterator[str]:
    if all(_reasons_read(s) for s in starts):
        yield "no throttling"
    if profile.gpu.kind is DeviceKind.GPU:
        if not evidence.preflight.processes and evidence.preflight.idle_bytes is not None:
            yield "GPU idle before start"
        yield layers_text(starts[0].log)
    lags = [lag for s in starts if (lag := _lag(s)) is not None]
    if lags:
        yield f"client lag {format_seconds(max(lags))}"


def _limit(limits: Limits, name: str) -> float | None:
    return {"decode": limits.decode_min, "prefill": limits.prefill_min, "ttft": limits.ttft_max}[name]


def _judge_metric(name: str, run: _Run, scenario: Scenario) -> Verdict:
    kind, limit, (phase, rate) = METRICS[name], _limit(scenario.limits, name), _RATES[name]
    verdict = Verdict(
        outcome=Outcome.PASS,
        check="throughput",
        scenario=scenario.name,
        subject=kind.title,
        phase=phase,
        metric=name,
        limit=limit,
        findings=run.findings,
    )
    found = [(value, s) for s in run.starts if (value := _start_median(s, rate)) is not None]
    if not found:
        why = "; ".join(run.doubts) or "token counts or times are missing"
        reason = f"could not be computed in any start: {why}"
        return with_log(replace(verdict, outcome=Outcome.INCONCLUSIVE, reason=reason), run.starts[0])
    values = tuple(value for value, _ in found)
    verdict = replace(verdict, value=median(values), values=values)
    if run.doubts:
        invalid = replace(verdict, outcome=Outcome.INCONCLUSIVE, reason="; ".join(run.doubts))
        return with_log(invalid, run.starts[0])
    verdict = replace(verdict, lines=(("valid", run.valid),) if run.valid else ())
    if limit is None:
        return replace(verdict, reason="measured; no absolute limit set")
    higher = kind.better is Better.HIGHER
    beyond = [value for value in values if (value < limit if higher else value > limit)]
    if not beyond:
        return replace(verdict, reason="every start within the limit")
    furthest, start = (min if higher else max)(found, key=lambda pair: pair[0])
    reason = f"{len(beyond)} of {len(values)} starts beyond the limit, furthest {format_value(furthest, kind.unit)}"
    failed = replace(verdict, outcome=Outcome.FAILED, failed_class=FailedClass.PERFORMANCE, reason=reason)
    return with_log(failed, start)
