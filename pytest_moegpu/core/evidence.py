"""What was recorded, before anyone judges it. Frozen records; times are seconds on one monotonic clock of the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pytest_moegpu.core.golden import TextScore
from pytest_moegpu.core.health import DeviceHealth, KernelLog, PhaseTelemetry
from pytest_moegpu.core.model import Gpu, Stack
from pytest_moegpu.core.oneshot import OneShot
from pytest_moegpu.core.ruled import Ruled

__all__ = [
    "DeviceProcess",
    "Evidence",
    "LogFacts",
    "Margin",
    "Part",
    "Phase",
    "Preflight",
    "RequestKind",
    "RequestRecord",
    "StartEvidence",
    "StartFailure",
    "StreamEvent",
    "TokenChoice",
]


class Phase(StrEnum):
    """Where in a start something happened. A failure names one of these."""

    PREFLIGHT = "preflight"
    LAUNCH = "launch"
    LOAD = "load"
    READY = "ready"
    OUTPUT = "output"
    WARMUP = "warmup"
    PREFILL = "prefill"
    DECODE = "decode"
    AXES = "axes"
    CONTEXT = "context"
    BEYOND = "beyond"
    STOP = "stop"
    COMPARE = "compare"


class Part(StrEnum):
    """A part of the workload that checks need; loading and stopping are always measured."""

    OUTPUT = "output"
    THROUGHPUT = "throughput"
    CONTEXT = "context"
    SCORES = "scores"
    AXES = "axes"


class RequestKind(StrEnum):
    """Why a request was sent."""

    READY = "ready"
    WARMUP = "warmup"
    ANSWER = "answer"
    THROUGHPUT = "throughput"
    CONTEXT = "context"
    BEYOND = "beyond"
    AXIS = "axis"


@dataclass(frozen=True, kw_only=True)
class DeviceProcess:
    """A process that holds memory on a device; `used_bytes` is None where the driver does not say."""

    pid: int
    device: int
    name: str = ""
    used_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class StreamEvent:
    """One server-sent event with the arrival time of the read that completed it."""

    time: float
    data: str


@dataclass(frozen=True, kw_only=True)
class TokenChoice:
    """What the model chose from at one token: its log-probability (nat) and those of the likeliest, itself included.

    A number that the engine left out or that was none is NaN.
    """

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Margin:
    """The gap (nat) between the token chosen and the likeliest other one, at token `index` (from 0) of an answer.

    `logprob` (nat) is that of the token chosen; that of the other is `nat` below it.
    """

    index: int
    nat: float
    logprob: float
    token: str
    other: str


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """One request and its measured stream. Token times are of content or reasoning, never of empty role deltas.

    `margin` is that of the known answer asked for (nat); None when it was never calibrated for the model. `tightest` is
    the smallest one on the way to this answer, None where the engine gave no log-probabilities; `logprobs_missing`
    counts tokens without a finite one, where others were given. `too_long` when the server refused the prompt in words
    that say it is longer than the context. `rule` is how `expect` is held against the answer, a word of `core.answers`;
    `axis` the condition it was asked under, a word of `core.axes`, empty for the plain one.
    """

    kind: RequestKind
    name: str
    sent: float
    first_event: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    token_source: str = "none"
    gaps: tuple[float, ...] = ()
    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    status: int | None = None
    error: str | None = None
    wanted_output_tokens: int | None = None
    expect: tuple[str, ...] = ()
    margin: float | None = None
    prompt: str = ""
    fill: float | None = None
    depth: float | None = None
    client_lag: float | None = None
    engine_timings: dict[str, float] = field(default_factory=dict)
    tightest: Margin | None = None
    logprobs_missing: int = 0
    too_long: bool = False
    rule: str = "contains"
    axis: str = ""


@dataclass(frozen=True, kw_only=True)
class LogFacts:
    """What a server's own log says. Byte maps are keyed by the engine's device name, e.g. `CUDA0` or `CPU`.

    `kv_tokens` is how many tokens the KV cache of all requests together holds, `kv_type` the engine's word for its
    type.
    """

    offloaded_layers: int | None = None
    total_layers: int | None = None
    model_bytes: dict[str, int] = field(default_factory=dict)
    kv_bytes: dict[str, int] = field(default_factory=dict)
    compute_bytes: dict[str, int] = field(default_factory=dict)
    context: int | None = None
    slots: int | None = None
    kv_tokens: int | None = None
    kv_type: str | None = None
    devices: tuple[str, ...] = ()
    oom_lines: tuple[str, ...] = ()
    fatal_lines: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StartFailure:
    """Why a start broke: the first cause, with what a person needs to look further.

    `kind` is a name of `core.faults` when the cause is a known one, such as `no-kernel-image`; else empty.
    """

    phase: Phase
    cause: str
    exit_code: int | None = None
    state: str = ""
    log_path: str = ""
    log_tail: tuple[str, ...] = ()
    out_of_memory: bool = False
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class StartEvidence:
    """One server start, the unit of replication.

    `idle_bytes` is the device reading before the start, `after_bytes` the one after the server was gone;
    `peaks` maps a phase to the highest reading in it (device `used`, all devices of the run added up);
    `counters` are the server's own, read after the workload; `sampler_gap` is the longest time between two readings
    in seconds, so that a shorter peak may have passed unseen; `telemetry` maps a phase to one summary per device.
    `kv_tokens` is the capacity of its KV cache in tokens, by its own description or its log; `kv_use` (share of one)
    and `preemptions` are of its counters at the end; `gpu_share` is how much of the model it says is on a GPU (share of
    one, by bytes); `health_at_end` is empty when it was still healthy then.
    `scores` are what the model gave to every token of the fixed texts.
    `pids` are the server and all it was seen to start; `stopped_at` is the kernel's clock (seconds since boot, as in
    `KernelMessage.seconds`) when the order to stop was given.
    """

    number: int
    started_at: str
    parts: tuple[Part, ...] = ()
    argv: tuple[str, ...] = ()
    pid: int | None = None
    load_seconds: float | None = None
    idle_bytes: int | None = None
    after_bytes: int | None = None
    return_seconds: float | None = None
    peaks: dict[str, int] = field(default_factory=dict)
    samples: int = 0
    sampler_hz: float | None = None
    sampler_gap: float | None = None
    telemetry: dict[str, tuple[PhaseTelemetry, ...]] = field(default_factory=dict)
    health_before: tuple[DeviceHealth, ...] = ()
    health_after: tuple[DeviceHealth, ...] = ()
    kernel: KernelLog | None = None
    pids: tuple[int, ...] = ()
    stopped_at: float | None = None
    requests: tuple[RequestRecord, ...] = ()
    scores: tuple[TextScore, ...] = ()
    log: LogFacts = LogFacts()
    served_model: str | None = None
    served_context: int | None = None
    kv_tokens: int | None = None
    kv_use: float | None = None
    gpu_share: float | None = None
    preemptions: float | None = None
    health_at_end: str = ""
    processes: tuple[DeviceProcess, ...] = ()
    foreign: tuple[DeviceProcess, ...] = ()
    event_reasons: dict[str, int] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    left_over: tuple[int, ...] = ()
    exit_code: int | None = None
    log_path: str = ""
    log_tail: tuple[str, ...] = ()
    failure: StartFailure | None = None

    @property
    def peak_bytes(self) -> int | None:
        """Highest device reading of any phase, minus the idle reading; None when nothing was read."""
        if not self.peaks or self.idle_bytes is None:
            return None
        return max(self.peaks.values()) - self.idle_bytes

    @property
    def comparable_peak_bytes(self) -> int | None:
        """Like `peak_bytes`, of the phases that every start goes through.

        Long contexts and other conditions are tried in the first only.
        """
        first_only = (Phase.AXES, Phase.CONTEXT, Phase.BEYOND, Phase.STOP)
        own = [peak for phase, peak in self.peaks.items() if phase not in first_only]
        return max(own) - self.idle_bytes if own and self.idle_bytes is not None else None

    def of_kind(self, kind: RequestKind) -> tuple[RequestRecord, ...]:
        """Return the requests of one kind, in the order they were sent."""
        return tuple(r for r in self.requests if r.kind is kind)


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """The devices as they were found before the first start of a scenario, and what rules said of it.

    `rules` is how many rules were held against the facts, `ruled` are those that fired, `unjudged` the facts that were
    missing by the id of a rule, `silenced` what is to be said of the rules that a person silenced.
    """

    idle_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    processes: tuple[DeviceProcess, ...] = ()
    notes: tuple[str, ...] = ()
    temperature_c: float | None = None
    rules: int = 0
    ruled: tuple[Ruled, ...] = ()
    unjudged: dict[str, tuple[str, ...]] = field(default_factory=dict)
    silenced: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that was recorded for one scenario of one run.

    `identity` holds the must-match fields as text; see `core.identity`. `attached` is empty when this run started the
    server; else the address of a server that was there before, of which load time and memory are not known. `oneshot`
    is the cross-check of the text without a server, where it was asked for. `predicted` maps a part of memory to the
    bytes that each start should take for it on the device; empty where nothing was predicted.
    """

    profile: str
    scenario: str
    backend: str
    gpus: tuple[Gpu, ...]
    stack: Stack
    identity: dict[str, str]
    noted: dict[str, str] = field(default_factory=dict)
    preflight: Preflight = Preflight()
    starts: tuple[StartEvidence, ...] = ()
    check_version: int = 1
    attached: str = ""
    oneshot: OneShot | None = None
    predicted: dict[str, int] = field(default_factory=dict)

    @property
    def good_starts(self) -> tuple[StartEvidence, ...]:
        """Starts that did not break."""
        return tuple(s for s in self.starts if s.failure is None)

    @property
    def failure(self) -> StartFailure | None:
        """The first cause of a broken state, if any start broke."""
        return next((s.failure for s in self.starts if s.failure is not None), None)
