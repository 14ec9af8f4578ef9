"""How fast is it, one stream at a time, and may that number be believed?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median

from pytest_moegpu.checks import offload, output
from pytest_moegpu.checks.clocks import clock_drops, harmful_reasons, reasons_unread, slowdowns
from pytest_moegpu.checks.common import broken, grouped, reached, start_median, start_phrase, with_log
from pytest_moegpu.checks.doubts import median_lag, valid
from pytest_moegpu.checks.findings import Weight, told
from pytest_moegpu.checks.hardware import MEASURED_PHASES
from pytest_moegpu.checks.offload import placement
from pytest_moegpu.checks.preflight import idle_doubt
from pytest_moegpu.core.evidence import Evidence, Phase, RequestKind, RequestRecord, StartEvidence
from pytest_moegpu.core.model import DeviceKind, Limits, Profile, Scenario
from pytest_moegpu.core.reasons import BY_HAND, reason_names
from pytest_moegpu.core.timing import decode_rate, prefill_rate, ttft
from pytest_moegpu.core.units import format_seconds, format_value
from pytest_moegpu.core.verdict import METRICS, Better, FailedClass, Metric, Outcome, Verdict, worst

__all__ = ["judge", "metrics"]

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


def metrics(evidence: Evidence) -> dict[str, Metric]:
    """Return what was measured, by metric name; a metric without a single value is left out.

    Each value is one start's: the median over its throughput requests without error (decode and prefill in tok/s,
    ttft in s), the peak above idle (peak_memory, bytes) and the load time (load, s).
    """
    speed, whole = reached(evidence, "throughput"), evidence.good_starts
    found = {name: [start_median(s, rate) for s in speed] for name, (_, rate) in _RATES.items()}
    # A start that only loaded the model has a lower peak than one that generated.
    found["peak_memory"] = [s.comparable_peak_bytes for s in whole if s.of_kind(RequestKind.THROUGHPUT)]
    found["load"] = [s.load_seconds for s in whole]
    values = {name: tuple(float(v) for v in column if v is not None) for name, column in found.items()}
    return {name: Metric(name=name, values=column) for name, column in values.items() if column}


def _gate(evidence: Evidence, scenario: Scenario, profile: Profile) -> Verdict | None:
    verdict = Verdict(
        outcome=Outcome.INCONCLUSIVE,
        check="throughput",
        scenario=scenario.name,
        subject="speed",
        phase=Phase.DECODE,
    )
    if real := next((gpu.emulated_on for gpu in evidence.gpus if gpu.emulated_on), None):
        reason = f"this is the speed of {real}, on which another card is emulated"
        return replace(verdict, outcome=Outcome.NOT_COMPARABLE, reason=reason)
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


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What the verdicts on all speeds of one run have in common."""

    starts: tuple[StartEvidence, ...]
    doubts: dict[str, tuple[str, ...]]
    findings: tuple[str, ...]
    valid: str
    more: dict[str, str] = field(default_factory=dict)


def _run(evidence: Evidence, scenario: Scenario, profile: Profile) -> _Run:
    starts = reached(evidence, "throughput")
    blind = profile.gpu.kind is DeviceKind.GPU and any(_unread(s, evidence) for s in starts)
    return _Run(
        starts=starts,
        doubts={name: valid(evidence, scenario, profile, name) for name in _RATES},
        findings=tuple(_notes(evidence, starts, profile)),
        valid="; ".join(_valid_facts(evidence, starts, profile)),
        more={"throttling": "not read"} if blind else {},
    )


def _unread(start: StartEvidence, evidence: Evidence) -> str:
    """Name the measured phases in which event reasons were not read, or too seldom."""
    return " and ".join(reasons_unread(start, evidence.gpus, MEASURED_PHASES))


def _notes(evidence: Evidence, starts: tuple[StartEvidence, ...], profile: Profile) -> Iterator[str]:
    requests = [r for s in starts for r in s.of_kind(RequestKind.THROUGHPUT) if r.error is None]
    if len(starts) == 1:
        yield "1 start: no spread known"
    if evidence.attached:
        yield "attached: how the server was started, and where it has the model, is not known"
    if any(r.token_source == "events" for r in requests):
        yield "tokens counted as stream events: an engine that sends several in one is faster than it seems"
    if any(r.cached_tokens is None for r in requests):
        yield "the engine does not say how much of a prompt came from its cache"
    moments = (f for s in starts for f in slowdowns(s, *MEASURED_PHASES))
    yield from told(f for f in (*moments, *clock_drops(starts, of_speeds=True)) if f.weight is Weight.NOTE)
    if profile.gpu.kind is DeviceKind.GPU:
        unread = ((s.number, _unread(s, evidence)) for s in starts)
        yield from grouped((number, f"throttling not read in {phases}") for number, phases in unread if phases)


def _valid_facts(evidence: Evidence, starts: tuple[StartEvidence, ...], profile: Profile) -> Iterator[str]:
    if not any(_unread(s, evidence) or any(harmful_reasons(s, phase) for phase in MEASURED_PHASES) for s in starts):
        yield "no throttling"
    seen = {name for s in starts for phase in MEASURED_PHASES for name in reason_names(s.event_reasons.get(phase, 0))}
    if seen & BY_HAND:
        yield "clocks set by hand"
    if profile.gpu.kind is DeviceKind.GPU:
        if not evidence.preflight.processes and not idle_doubt(evidence, profile.gpu):
            yield "GPU idle before start"
        yield placement(starts[0])
    lags = [lag for s in starts if (lag := median_lag(s.of_kind(RequestKind.THROUGHPUT))) is not None]
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
        more=run.more,
    )
    doubts = run.doubts[name]
    found = [(value, s) for s in run.starts if (value := start_median(s, rate)) is not None]
    if not found:
        why = "; ".join(doubts) or "token counts or times are missing"
        reason = f"could not be computed in any start: {why}"
        return with_log(replace(verdict, outcome=Outcome.INCONCLUSIVE, reason=reason), run.starts[0])
    values = tuple(value for value, _ in found)
    verdict = replace(verdict, value=median(values), values=values)
    empty = [s.number for s in run.starts if s.number not in {of.number for _, of in found}]
    if empty:
        doubts = (f"{start_phrase(empty)}: could not be computed: token counts or times are missing", *doubts)
    if doubts:
        invalid = replace(verdict, outcome=Outcome.INCONCLUSIVE, reason="; ".join(doubts))
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
