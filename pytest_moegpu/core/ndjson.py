"""Streams of one JSON object a line, as Ollama's own API sends them."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_moegpu.core.evidence import StreamEvent

__all__ = ["parse_lines"]


def parse_lines(chunks: Sequence[tuple[float, bytes]]) -> tuple[StreamEvent, ...]:
    """Split the body of a stream into lines that are not empty. Invalid UTF-8 becomes U+FFFD. Takes linear time.

    Args:
        chunks: Arrival time in seconds and body bytes of each read, in order of arrival.

    Returns:
        The lines, each with the arrival time of the read that completed it; a last one without its end is kept.
    """
    events: list[StreamEvent] = []
    begun: list[bytes] = []
    last = 0.0
    for time, data in chunks:
        last = time
        first, *rest = data.split(b"\n")
        begun.append(first)
        for line in rest:
            _keep(events, time, begun)
            begun = [line]
    _keep(events, last, begun)
    return tuple(events)


def _keep(events: list[StreamEvent], time: float, pieces: list[bytes]) -> None:
    line = b"".join(pieces).strip()
    if line:
        events.append(StreamEvent(time=time, data=line.decode("utf-8", "replace")))
