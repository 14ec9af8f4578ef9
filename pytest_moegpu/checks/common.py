"""Rules that every check shares: which starts count, what nothing measured means, how a broken start is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import median

from pytest_moegpu.core.evidence import (
    DeviceProcess,
    Evidence,
    Phase,
    RequestKind,
    RequestRecord,
    StartEvidence,
    StartFailure,
)
from pytest_moegpu.core.faults import named
from pytest_moegpu.core.model import Scenario
from pytest_moegpu.core.units import format_bytes
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict

__all__ = [
    "broken",
    "broken_start",
    "describe_process",
    "grouped",
    "is_host_device",
    "nothing",
    "quote",
    "reached",
    "shared_with",
    "start_median",
    "start_phrase",
    "with_log",
]

_ORDER = tuple(Phase)

# The last phase a check looks at, and the requests without which it has nothing to judge.
_SCOPE: dict[str, tuple[Phase, RequestKind | None]] = {
    "preflight": (Phase.PREFLIGHT, None),
    "offload": (Phase.READY, None),
    "output": (Phase.OUTPUT, RequestKind.ANSWER),
    "crosscheck": (Phase.OUTPUT, RequestKind.ANSWER),
    # The fixed texts are scored after all else, so that no other figure is of a server warmed by them.
    "golden": (Phase.BEYOND, None),
    "axes": (Phase.AXES, RequestKind.AXIS),
    "throughput": (Phase.DECODE, RequestKind.THROUGHPUT),
    "context": (Phase.CONTEXT, RequestKind.CONTEXT),
    # Memory tells of a fault at the stop by itself, beside the peak, which such a fault does not spoil.
    "memory": (Phase.CONTEXT, RequestKind.THROUGHPUT),
    "stability": (Phase.STOP, None),
}


def _touches(failure: StartFailure, check: str) -> bool:
    last = _SCOPE[check][0]
    return _ORDER.index(failure.phase) <= _ORDER.index(last)


def reached(evidence: Evidence, check: str) -> tuple[StartEvidence, ...]:
    """Return the starts that got through the last phase the check looks at; a fault after it does not spoil them."""
    return tuple(s for s in evidence.starts if s.failure is None or not _touches(s.failure, check))


def nothing(scenario: Scenario, check: str, what: str, subject: str | None = None) -> Verdict:
    """Return the verdict for a check that has nothing to judge: ERROR, never green."""
    return Verdict(
        outcome=Outcome.ERROR,
        check=check,
        scenario=scenario.name,
        subject=subject or check,
        phase=_SCOPE[check][0],
        reason=f"nothing was measured: {what}",
    )


def broken(evidence: Evidence, scenario: Scenario, check: str) -> Verdict | None:
    """Return the verdict that stands in for a check's own, or None when there is something to judge.

    A start that broke no later than the check's last phase gives ERROR with the first cause, or FAILED of class
    memory when the server ran out of memory. No starts, or none of the requests the check needs, gives ERROR.
    """
    for start in evidence.starts:
        if start.failure is not None and _touches(start.failure, check):
            return broken_start(start, start.failure, len(evidence.starts), scenario, check)
    starts, kind = reached(evidence, check), _SCOPE[check][1]
    if not starts:
        return nothing(scenario, check, "the server was never started")
    if kind is not None and not any(s.of_kind(kind) for s in starts):
        return nothing(scenario, check, f"no {kind} request was sent in any start")
    return None


def broken_start(start: StartEvidence, failure: StartFailure, count: int, scenario: Scenario, check: str) -> Verdict:
    """Return ERROR with the cause of one broken start of `count`, or FAILED (memory) when the server ran out of it."""
    server = []
    if failure.exit_code is not None:
        server.append(f"exit code {failure.exit_code}")
    if failure.state:
        server.append(f"last state: {failure.state}")
    memory, fault = failure.out_of_memory, named(failure.kind)
    told = memory and "out of memory" not in failure.cause
    return Verdict(
        outcome=Outcome.FAILED if memory else Outcome.ERROR,
        check=check,
        scenario=scenario.name,
        subject=check,
        phase=failure.phase,
        reason=f"out of memory: {failure.cause}" if told else failure.cause,
        failed_class=FailedClass.MEMORY if memory else None,
        lines=(
            ("starts", f"start {start.number} of {count} broke"),
            *((("server", "; ".join(server)),) if server else ()),
            *((("next", fault.advice),) if fault is not None else ()),
        ),
        findings=tuple(f"log: {line}" for line in start.log.oom_lines) if memory else (),
        log_path=failure.log_path or start.log_path,
        log_tail=failure.log_tail or start.log_tail,
    )


def with_log(verdict: Verdict, start: StartEvidence) -> Verdict:
    """Return the verdict pointing at the server log of the start it is about, unless it is green."""
    if verdict.outcome.green:
        return verdict
    return replace(verdict, log_path=start.log_path, log_tail=start.log_tail)


def grouped(said: Iterable[tuple[int, str]]) -> tuple[str, ...]:
    """Join (start number, text) pairs so that a text said of several starts appears once, naming them."""
    numbers: dict[str, list[int]] = {}
    for number, text in said:
        numbers.setdefault(text, []).append(number)
    return tuple(f"{start_phrase(of)}: {text}" for text, of in numbers.items())


def start_phrase(numbers: Iterable[int]) -> str:
    """Print start numbers as `start 2` or `starts 1, 3`."""
    unique = sorted(set(numbers))
    return f"start{'s' if len(unique) > 1 else ''} {', '.join(map(str, unique))}"


def start_median(start: StartEvidence, rate: Callable[[RequestRecord], float | None]) -> float | None:
    """Return one start's value: the median over its throughput requests without error; None without a single value."""
    requests = (r for r in start.of_kind(RequestKind.THROUGHPUT) if r.error is None)
    values = [value for r in requests if (value := rate(r)) is not None]
    return median(values) if values else None


def shared_with(start: StartEvidence) -> str:
    """Name the strangers seen on the device during a start; empty when there were none."""
    return f"GPU shared with {', '.join(describe_process(p) for p in start.foreign)}" if start.foreign else ""


def describe_process(process: DeviceProcess) -> str:
    """Print a process with name, pid and the memory it holds, as far as they are known."""
    size = "size not known" if process.used_bytes is None else format_bytes(process.used_bytes)
    return f"{process.name or 'a process'} (pid {process.pid}, {size})"


def quote(text: str, width: int = 120) -> str:
    """Print a text in quotes on one line, cut to `width` characters before quoting."""
    return repr(text if len(text) <= width else text[: width - 1] + "…")


def is_host_device(name: str) -> bool:
    """Tell whether a buffer of an engine's log lies in host memory.

    llama.cpp calls such buffers `CPU`, `CPU_Mapped`, `CPU_REPACK` and the like, `CUDA_Host` (pinned), or `AMX`.
    """
    return name.startswith(("CPU", "AMX")) or name.endswith("Host")
