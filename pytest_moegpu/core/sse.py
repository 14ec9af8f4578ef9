"""Streams of server-sent events, as most servers send them."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_moegpu.core.evidence import StreamEvent

__all__ = ["parse_events"]

_BOM = b"\xef\xbb\xbf"


def parse_events(chunks: Sequence[tuple[float, bytes]]) -> tuple[StreamEvent, ...]:
    """Split the body of a stream into server-sent events.

    Follows the WHATWG HTML standard, section "Server-sent events", with two differences: a last event without its blank
    line is kept, and a field named `error` (older llama.cpp servers) reads as data `{"error": …}`. Comments, pings,
    and events without data are dropped. Invalid UTF-8 becomes U+FFFD. Takes linear time.

    Args:
        chunks: Arrival time in seconds and body bytes of each read, in order of arrival.

    Returns:
        The events, each with the arrival time of the read that completed it. `[DONE]` is returned like any other event.
    """
    body = b"".join(data for _, data in chunks)
    position = len(_BOM) if body.startswith(_BOM) else 0
    ends: list[tuple[int, float]] = []
    total = 0
    for time, data in chunks:
        total += len(data)
        ends.append((total, time))
    events: list[StreamEvent] = []
    lines: list[bytes] = []
    read = 0
    for raw in [*body[position:].splitlines(keepends=True), b""]:
        line = raw.rstrip(b"\r\n")
        if line:
            _take(line, lines)
        elif any(lines):
            # The event is complete at the first byte of its blank line, so a CRLF cut in two does not delay it.
            done = position + 1 if raw else position
            while ends[read][0] < done:
                read += 1
            events.append(StreamEvent(time=ends[read][1], data=b"\n".join(lines).decode("utf-8", "replace")))
        if not line:
            lines = []
        position += len(raw)
    return tuple(events)


def _take(line: bytes, lines: list[bytes]) -> None:
    """Add the value of a data or error field to `lines`; other fields and comments carry no data."""
    name, _, value = line.partition(b":")
    if name == b"data":
        lines.append(value.removeprefix(b" "))
    elif name == b"error":
        lines.append(b'{"error": ' + value.strip() + b"}")
