"""May a speed be believed? The reasons why not, each with the metrics it concerns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from statistics import median

from pytest_moegpu.checks import offload
from pytest_moegpu.checks.capacity import preempted
from pytest_moegpu.checks.clocks import clock_drops, slowdowns
from pytest_moegpu.checks.common import grouped, quote, reached, shared_with, start_median
from pytest_moegpu.checks.findings import DECODE, PROMPT, SPEEDS, Finding, Weight, told
from pytest_moegpu.checks.hardware import counter_findings, power_limit_changes
from pytest_moegpu.checks.kernel import kernel_findings
from pytest_moegpu.checks.preflight import idle_growth
from pytest_moegpu.core.evidence import Evidence, Phase, RequestKind, RequestRecord, StartEvidence
from pytest_moegpu.core.model import Profile, Scenario, Workload
from pytest_moegpu.core.timing import decode_rate, decode_seconds, token_events, ttft
from pytest_moegpu.core.units import format_percent, format_seconds, format_value
from pytest_moegpu.core.verdict import METRICS, Outcome

__all__ = ["median_lag", "throttled", "too_late", "valid"]

# A prompt cached in part is prefilled faster than it should be, by about the share that was cached.
_MAX_CACHED_SHARE = 0.05

# Later than this the client, not the server, decides when a token seems to arrive …
_MAX_LAG = {"decode": 0.005, "prefill": 0.0015, "ttft": 0.0015}
# … unless it is too small a part of the time measured to look like a loss (2 % in `core.compare`).
_MAX_LAG_SHARE = 0.02

# Beyond both, the prompt is not the one the scenario asks for. A chat template adds some 40 tokens of its own.
_MAX_LENGTH_SHARE = 0.15
_TEMPLATE_TOKENS = 64

# With fewer reads than this share of the tokens, a buffer on the way decides the rate rather than the engine.
_MIN_EVENT_SHARE = 0.5
# The engine's own figure agrees with ours within 1 % on a quiet machine.
_MAX_ENGINE_DIFFERENCE = 0.1

_Doubt = tuple[frozenset[str], str]


def valid(evidence: Evidence, scenario: Scenario, profile: Profile, metric: str | None = None) -> tuple[str, ...]:
    """Return the reasons why the speeds of a run, or only one metric of them, may not be believed; none: they may."""
    starts = reached(evidence, "throughput")
    said = grouped(
        (start.number, text)
        for start in starts
        for concerned, text in _doubts(start, scenario.workload)
        if metric is None or metric in concerned
    )
    machine = told(
        finding
        for finding in _machine(starts, evidence)
        if finding.weight is not Weight.NOTE and (metric in finding.concerns if metric else finding.concerns)
    )
    placed = offload.judge(evidence, scenario, profile)
    # Where an attached server has its model is not known, and does not change what its speed is.
    unknown = () if evidence.attached else tuple(v.reason for v in placed if v.outcome is Outcome.INCONCLUSIVE)
    return (*unknown, *said, *machine)


def throttled(start: StartEvidence, phase: Phase) -> str:
    """Name what held the clocks down in a phase to the harm of a speed; empty when nothing did but for a moment."""
    return next((f.text for f in slowdowns(start, phase) if f.weight is Weight.DOUBT), "")


def _machine(starts: tuple[StartEvidence, ...], evidence: Evidence) -> Iterator[Finding]:
    """Find what the check `stability` finds as well, where it puts a speed in doubt."""
    for start in starts:
        yield from slowdowns(start)
        yield from kernel_findings(start, evidence.gpus)
        if grown := idle_growth(start, evidence):
            yield Finding(weight=Weight.DOUBT, start=start.number, text=grown)
    yield from clock_drops(starts, of_speeds=True)
    yield from power_limit_changes(starts)
    yield from counter_findings(starts)


def median_lag(records: Iterable[RequestRecord]) -> float | None:
    """Return the median lag of requests in seconds: one late reading does not move the median speed."""
    lags = [r.client_lag for r in records if r.client_lag is not None]
    return median(lags) if lags else None


def too_late(lag: float | None, metric: str, measured: float | None) -> str:
    """Say that the client lagged too much for a time measured in seconds; empty when it did not."""
    allowed = max(_MAX_LAG[metric], _MAX_LAG_SHARE * (measured or 0))
    if lag is None or lag <= allowed:
        return ""
    return f"client too slow: lag {format_seconds(lag)}, allowed {format_seconds(allowed)}"


def _doubts(start: StartEvidence, workload: Workload) -> Iterator[_Doubt]:
    requests = start.of_kind(RequestKind.THROUGHPUT)
    failed = [r for r in requests if r.error is not None]
    answered = [r for r in requests if r.error is None]
    if failed:
        yield SPEEDS, f"{len(failed)} of {len(requests)} requests failed: {quote(failed[0].error or '')}"
    yield from _prompt_doubts(answered, workload)
    yield from _decode_doubts(answered, len(requests))
    yield from _lag_doubts(start)
    if shared := shared_with(start):
        yield SPEEDS, shared
    if said := preempted(start):
        yield SPEEDS, said


def _prompt_doubts(answered: list[RequestRecord], workload: Workload) -> Iterator[_Doubt]:
    cached = max((share for r in answered if (share := _cached_share(r)) is not None), default=0.0)
    if cached > _MAX_CACHED_SHARE:
        yield PROMPT, f"{format_percent(cached, signed=False)} of a prompt came from the cache, which inflates prefill"
    lengths = [r.prompt_tokens for r in answered if r.prompt_tokens is not None]
    if lengths:
        length, wanted = round(median(lengths)), workload.prompt_tokens
        if abs(length - wanted) > max(_MAX_LENGTH_SHARE * wanted, _TEMPLATE_TOKENS):
            yield SPEEDS, f"prompts of {length} tokens instead of {wanted}"


def _cached_share(record: RequestRecord) -> float | None:
    if record.cached_tokens is None or not record.prompt_tokens:
        return None
    return record.cached_tokens / record.prompt_tokens


def _decode_doubts(answered: list[RequestRecord], count: int) -> Iterator[_Doubt]:
    short = [r for r in answered if _is_short(r)]
    if short:
        yield (
            DECODE,
            f"output length not reached in {len(short)} of {count} requests "
            f"({short[0].output_tokens} of {short[0].wanted_output_tokens} tokens, {short[0].finish_reason})",
        )
    lumped = [r for r in answered if token_events(r) < _MIN_EVENT_SHARE * (r.output_tokens or 0)]
    if lumped:
        yield (
            DECODE,
            f"{lumped[0].output_tokens} tokens came in {token_events(lumped[0])} events, "
            "too few to tell when each was decoded",
        )
    pairs = [
        (ours, engine)
        for r in answered
        if (ours := decode_rate(r)) is not None and (engine := r.engine_timings.get("predicted_per_second"))
    ]
    if pairs:
        here, there = (median(side) for side in zip(*pairs, strict=True))
        if abs(here / there - 1) > _MAX_ENGINE_DIFFERENCE:
            unit = METRICS["decode"].unit
            yield DECODE, f"decode {format_value(here, unit)} here, {format_value(there, unit)} by the engine's clock"


def _is_short(record: RequestRecord) -> bool:
    wanted, got = record.wanted_output_tokens, record.output_tokens
    return wanted is not None and got is not None and got < wanted


def _lag_doubts(start: StartEvidence) -> Iterator[_Doubt]:
    lag = median_lag(start.of_kind(RequestKind.THROUGHPUT))
    times: tuple[tuple[str, frozenset[str], Callable[[RequestRecord], float | None]], ...] = (
        ("ttft", PROMPT, ttft),
        ("decode", DECODE, decode_seconds),
    )
    for metric, concerned, measure in times:
        if said := too_late(lag, metric, start_median(start, measure)):
            yield concerned, said
