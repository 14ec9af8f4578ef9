from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_moegpu.core.evidence import StreamEvent
from pytest_moegpu.core.ndjson import parse_lines


def lines(*chunks: tuple[float, bytes]) -> list[tuple[float, str]]:
    return [(event.time, event.data) for event in parse_lines(chunks)]


def test_a_line_has_the_time_of_the_read_that_ended_it() -> None:
    assert lines((1.0, b'{"a": 1}\n{"b"'), (2.0, b": 2}"), (3.0, b'\n{"c": 3}\n')) == [
        (1.0, '{"a": 1}'),
        (3.0, '{"b": 2}'),
        (3.0, '{"c": 3}'),
    ]


def test_a_last_line_without_its_end_is_kept() -> None:
    assert lines((1.0, b'{"a": 1}\n'), (2.0, b'{"done": true}')) == [(1.0, '{"a": 1}'), (2.0, '{"done": true}')]


def test_empty_lines_and_carriage_returns_are_dropped() -> None:
    assert lines((1.0, b'\n\r\n{"a": 1}\r\n  \n')) == [(1.0, '{"a": 1}')]
    assert lines() == []
    assert lines((1.0, b"")) == []


def test_a_character_may_come_in_two_reads_and_broken_ones_are_marked() -> None:
    whole = '{"a": "茶"}\n'.encode()
    assert lines((1.0, whole[:8]), (2.0, whole[8:])) == [(2.0, '{"a": "茶"}')]
    assert lines((1.0, b"\xff\n")) == [(1.0, "\ufffd")]


@given(st.lists(st.binary(max_size=6)))
def test_where_reads_are_cut_changes_nothing_but_the_times(pieces: list[bytes]) -> None:
    cut = parse_lines([(float(n), piece) for n, piece in enumerate(pieces)])
    whole = parse_lines([(0.0, b"".join(pieces))])
    assert [event.data for event in cut] == [event.data for event in whole]
    assert all(isinstance(event, StreamEvent) for event in cut)
