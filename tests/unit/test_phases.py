"""Samples put into phases once the requests are known, and what each phase then shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from pytest_moegpu.core.evidence import Phase, RequestKind, RequestRecord
from pytest_moegpu.core.phases import event_reasons, label, peaks
from pytest_moegpu.core.sample import Sample
from tests.unit.builders import stream


def sample(
    time: float, used: int | None = 1, phase: str = "load", device: int = 0, reasons: int | None = None
) -> Sample:
    return Sample(time=time, phase=phase, device=device, used_bytes=used, event_reasons=reasons)


def request(
    sent: float, first: float | None, last: float | None, kind: RequestKind = RequestKind.THROUGHPUT
) -> RequestRecord:
    return stream(kind=kind, sent=sent, first_token=first, last_token=last)


def phases_at(times: list[float], *requests: RequestRecord) -> list[str]:
    return [s.phase for s in label([sample(t) for t in times], requests)]


def test_prefill_until_the_first_token_then_decode() -> None:
    assert phases_at([9.9, 10, 10.5, 11, 11.1, 13, 13.1], request(10, 11, 13)) == [
        "load",
        Phase.PREFILL,
        Phase.PREFILL,
        Phase.PREFILL,
        Phase.DECODE,
        Phase.DECODE,
        "load",
    ]


def test_between_requests_the_phase_of_the_sampler_stands() -> None:
    found = phases_at([1.5, 2.5, 3.5, 4.5], request(1, 1.2, 2), request(3, 3.2, 4))
    assert found == [Phase.DECODE, "load", Phase.DECODE, "load"]


def test_what_the_sampler_took_for_prefill_and_is_no_measured_request_is_warm_up() -> None:
    warm_up = request(1, 2, 3, RequestKind.WARMUP)
    cut = request(7.5, None, None)
    times = {
        1.5: "warmup",
        2.5: "warmup",
        3.9: "prefill",
        4.5: "prefill",
        5.0: "prefill",
        6.2: "prefill",
        8.0: "prefill",
    }
    samples = [sample(time, phase=phase) for time, phase in times.items()]
    found = label([*samples, sample(9.5, phase="context")], [warm_up, request(4, 4.8, 6), cut, request(8.5, 8.6, 9)])
    assert [(s.time, s.phase) for s in found] == [
        (1.5, Phase.WARMUP),
        (2.5, Phase.WARMUP),
        (3.9, Phase.WARMUP),
        (4.5, Phase.PREFILL),
        (5.0, Phase.DECODE),
        (6.2, Phase.WARMUP),
        (8.0, Phase.WARMUP),
        (9.5, Phase.CONTEXT),
    ]


def test_without_a_measured_request_the_phase_of_the_sampler_stands() -> None:
    found = label([sample(2.5, phase="prefill")], [request(2, None, None), request(1, 2, 3, RequestKind.WARMUP)])
    assert [s.phase for s in found] == [Phase.PREFILL]


@pytest.mark.parametrize("kind", [kind for kind in RequestKind if kind is not RequestKind.THROUGHPUT])
def test_other_requests_mark_nothing(kind: RequestKind) -> None:
    assert phases_at([1.5], request(1, 2, 3, kind)) == ["load"]


@pytest.mark.parametrize(("first", "last"), [(None, None), (2, None)])
def test_a_request_without_tokens_marks_nothing(first: float | None, last: float | None) -> None:
    assert phases_at([1.5], request(1, first, last)) == ["load"]


def test_order_of_samples_and_requests_does_not_matter() -> None:
    requests = (request(3, 3.5, 4), request(1, 1.5, 2))
    found = label([sample(3.2), sample(1.7)], requests)
    assert [(s.time, s.phase) for s in found] == [(1.7, Phase.DECODE), (3.2, Phase.PREFILL)]


def test_nothing_sampled_and_nothing_sent() -> None:
    assert label([], [request(1, 2, 3)]) == ()
    assert label([sample(1)], []) == (sample(1),)


TIMES = st.floats(min_value=0, max_value=100, allow_nan=False)
REQUESTS = st.lists(st.tuples(*[st.floats(min_value=0, max_value=5, allow_nan=False)] * 3), max_size=6)


@given(times=st.lists(TIMES, max_size=30), lengths=REQUESTS)
def test_labelling_agrees_with_its_definition(times: list[float], lengths: list[tuple[float, float, float]]) -> None:
    now, requests = 0.0, []
    for wait, prefill, decode in lengths:
        sent = now + wait + 0.01
        requests.append(request(sent, sent + prefill, sent + prefill + decode))
        now = sent + prefill + decode
    found = label([sample(t) for t in times], requests)
    assert [s.time for s in found] == sorted(times)
    for s in found:
        spans = [
            phase
            for r in requests
            if r.first_token is not None and r.last_token is not None
            for low, high, phase in ((r.sent, r.first_token, "prefill"), (r.first_token, r.last_token, "decode"))
            if low <= s.time <= high
        ]
        assert s.phase in (spans or ["load"])
        assert structs.replace(s, phase="load") == sample(s.time)


def test_peaks_by_phase() -> None:
    readings = [sample(1, 7), sample(2, 9), sample(3, 8, "decode"), sample(4, 2, "decode"), sample(0, 0, "preflight")]
    assert peaks(readings) == {"load": 9, "decode": 8, "preflight": 0}


def test_peak_is_of_one_reading_over_all_devices() -> None:
    assert peaks([sample(1, 10), sample(1, 1, device=1), sample(2, 2), sample(2, 8, device=1)]) == {"load": 11}


def test_unknown_readings_are_left_out_and_never_zero() -> None:
    first = [sample(1, 10), sample(1, None, device=1), sample(2, 2), sample(2, 3, device=1)]
    assert peaks([*first, sample(3, None, "decode"), sample(3, None, "decode", device=1)]) == {"load": 5}


@given(st.lists(st.tuples(TIMES, st.sampled_from(["load", "decode"]), st.none() | st.integers(0, 2**40)), max_size=30))
def test_peak_is_never_below_a_reading_and_is_one_of_them(readings: list[tuple[float, str, int | None]]) -> None:
    by_time = {time: sample(time, used, phase) for time, phase, used in readings}
    found = peaks(by_time.values())
    known = [(s.phase, s.used_bytes) for s in by_time.values() if s.used_bytes is not None]
    assert set(found.items()) <= set(known)
    assert all(used <= found[phase] for phase, used in known)


def test_reasons_are_added_up_by_phase() -> None:
    read = [
        sample(1, phase="decode", reasons=0x4),
        sample(2, phase="decode", reasons=0x20),
        sample(3, phase="load", reasons=None),
        sample(4, phase="stop", reasons=0),
    ]
    assert event_reasons(read) == {"decode": 0x24, "stop": 0}


def test_reasons_of_any_device_count() -> None:
    assert event_reasons([sample(1, reasons=0x8), sample(1, device=1, reasons=0x40)]) == {"load": 0x48}


def test_nothing_read_says_nothing() -> None:
    assert (peaks([]), event_reasons([])) == ({}, {})
