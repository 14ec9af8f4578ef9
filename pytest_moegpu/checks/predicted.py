"""What a start was expected to take, beside what it took: said, and never judged."""

from __future__ import annotations

from pytest_moegpu.core.evidence import Evidence, StartEvidence
from pytest_moegpu.core.model import DeviceKind
from pytest_moegpu.core.predicted import logged_parts
from pytest_moegpu.core.units import format_bytes, format_percent

__all__ = ["predicted_line"]


def predicted_line(evidence: Evidence, start: StartEvidence, kind: DeviceKind) -> tuple[tuple[str, str], ...]:
    """Return the line with the prediction and its parts; none where nothing was predicted.

    On a GPU the device's own peak stands beside it. A process on a processor holds more than a model, of which nothing
    was predicted: there it is what the log names.
    """
    if not evidence.predicted:
        return ()
    total = sum(evidence.predicted.values())
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in evidence.predicted.items())
    if kind is DeviceKind.CPU:
        measured, whose = sum(logged_parts(start.log, kind).values()) or None, "in the log"
    else:
        measured, whose = start.peak_bytes, "measured"
    told = f"; {whose} {format_bytes(measured)} ({format_percent(measured / total - 1)})" if measured and total else ""
    return (("predicted", f"{format_bytes(total)} ({parts}){told}"),)
