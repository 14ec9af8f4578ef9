"""Telemetry by phase: what is averaged, what is unknown, and where power comes from."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moegpu.core.health import PhaseTelemetry
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.core.telemetry import energy_used, summarise


def sample(time: float, phase: str = "decode", device: int = 0, **fields: Any) -> Sample:
    return Sample(time=time, phase=phase, device=device, **fields)


def only(*samples: Sample) -> PhaseTelemetry:
    ((found,),) = summarise(samples).values()
    return found


def test_every_field_of_one_phase() -> None:
    found = only(
        sample(1.0, used_bytes=5, free_bytes=9, sm_clock_mhz=1980, event_reasons=0, host_bytes=7),
        sample(1.1, used_bytes=8, free_bytes=6, sm_clock_mhz=1200, event_reasons=0x4, power_watts=300.0),
        sample(1.2, sm_clock_mhz=1700, event_reasons=0x24, power_watts=500.0, temperature_c=61, utilisation=0.5),
        sample(
            1.4,
            memory_clock_mhz=2619,
            event_reasons=0x4,
            temperature_c=58,
            utilisation=1.0,
            pcie_generation=5,
            pcie_width=16,
        ),
        sample(1.5, pcie_generation=1, pcie_width=16, host_bytes=3, memory_clock_mhz=2619),
    )
    assert found == PhaseTelemetry(
        device=0,
        readings=5,
        seconds=0.5,
        gap_seconds=1.4 - 1.2,
        sm_clock_mhz=1700,
        sm_clock_min_mhz=1200,
        sm_clock_max_mhz=1980,
        memory_clock_mhz=2619,
        power_watts=400.0,
        temperature_max_c=61,
        utilisation=0.75,
        pcie_generation=5,
        pcie_width=16,
        used_max_bytes=8,
        free_min_bytes=6,
        host_max_bytes=7,
        host_last_bytes=3,
        reason_readings=4,
        reasons={"sw_power_cap": 0.75, "sw_thermal": 0.25},
    )


def test_what_was_never_read_is_not_known() -> None:
    assert only(sample(1.0), sample(2.0)) == PhaseTelemetry(device=0, readings=2, seconds=1.0, gap_seconds=1.0)


def test_the_longest_gap_of_a_phase_reaches_to_the_first_reading_of_the_next() -> None:
    found = summarise([sample(0.0, "load"), sample(0.01, "load"), sample(0.08, "decode"), sample(0.11, "decode")])
    assert found["load"][0].gap_seconds == pytest.approx(0.07)
    assert found["decode"][0].gap_seconds == pytest.approx(0.03)


def test_a_true_zero_stays_zero() -> None:
    found = only(sample(1.0, used_bytes=0, utilisation=0.0, event_reasons=0))
    assert (found.used_max_bytes, found.utilisation, found.reasons) == (0, 0.0, {})


def test_phases_and_devices_are_kept_apart() -> None:
    found = summarise(
        [
            sample(2.0, "decode", 1, used_bytes=4),
            sample(1.0, "load", 1, used_bytes=3),
            sample(1.0, "load", 0, used_bytes=1),
            sample(2.0, "decode", 0, used_bytes=2),
        ]
    )
    assert {phase: [(t.device, t.used_max_bytes) for t in rows] for phase, rows in found.items()} == {
        "load": [(0, 1), (1, 3)],
        "decode": [(0, 2), (1, 4)],
    }


def test_power_is_from_the_energy_counter_over_the_stretches_of_a_phase() -> None:
    """Prefill at 600 W and decode at 300 W take turns; the readings of power lag behind and are not used."""
    samples, energy = [], 1000.0
    for request in range(4):
        for tick in range(20):
            phase, watts = ("prefill", 600.0) if tick < 8 else ("decode", 300.0)
            samples.append(sample(request + tick * 0.05, phase, energy_joules=energy, power_watts=444.0))
            energy += watts * 0.05
    found = summarise(samples)
    ((prefill,), (decode,)) = found["prefill"], found["decode"]
    assert prefill.power_watts == pytest.approx(600.0)
    # To the first reading of the next phase.
    assert prefill.energy_joules == pytest.approx(600.0 * 4 * 0.4)
    assert prefill.seconds == pytest.approx(4 * 0.35)
    assert decode.power_watts == pytest.approx(300.0)
    assert decode.energy_joules == pytest.approx(300.0 * (3 * 0.6 + 0.55))


def test_a_counter_read_only_as_phases_begin_gives_each_its_sum() -> None:
    begins = {0.0: ("load", 100.0), 2.0: ("output", 500.0), 3.0: ("stop", 800.0)}
    samples = []
    for tick in range(35):
        time = tick / 10
        phase = next(phase for start, (phase, _) in reversed(begins.items()) if start <= time)
        samples.append(sample(time, phase, energy_joules=begins.get(time, ("", None))[1], power_watts=250.0))
    found = summarise(samples)
    ((load,), (output,), (stop,)) = found["load"], found["output"], found["stop"]
    assert (load.energy_joules, load.power_watts) == (400.0, 200.0)
    assert (output.energy_joules, output.power_watts) == (300.0, 300.0)
    assert (stop.energy_joules, stop.power_watts) == (None, 250.0)


@pytest.mark.parametrize(
    "counter",
    [
        [(0.0, 100.0), (0.19, 200.0)],
        [(0.0, 100.0), (1.0, 100.0)],
        [(0.0, 100.0), (1.0, 40.0)],
        [(0.0, 100.0), (1.0, 40.0), (2.0, 500.0)],
        [(0.0, 100.0)],
        [(0.0, None), (1.0, None)],
    ],
    ids=["too short", "did not move", "set back", "set back in between", "read once", "none"],
)
def test_a_counter_that_says_nothing_leaves_the_readings_of_power(counter: list[tuple[float, float | None]]) -> None:
    found = only(*(sample(time, energy_joules=joules, power_watts=250.0) for time, joules in counter))
    assert (found.power_watts, found.energy_joules) == (250.0, None)


def test_a_counter_read_less_often_than_the_rest() -> None:
    found = only(*(sample(n / 10, energy_joules=n * 7.0 if n % 3 == 1 else None) for n in range(12)))
    assert found.power_watts == pytest.approx(70.0)
    assert found.energy_joules == pytest.approx(63.0)
    assert energy_used([]) is None


READINGS = st.lists(
    st.tuples(
        st.sampled_from(["load", "prefill", "decode"]),
        st.integers(0, 2),
        st.none() | st.integers(0, 2**40),
        st.none() | st.integers(0, 0x7FF),
    ),
    max_size=40,
)


@given(READINGS)
def test_summaries_cover_every_reading_once_and_stay_within_what_was_read(
    readings: list[tuple[str, int, int | None, int | None]],
) -> None:
    samples = [
        sample(float(number), phase, device, used_bytes=used, event_reasons=mask)
        for number, (phase, device, used, mask) in enumerate(readings)
    ]
    found = summarise(samples)
    assert sum(row.readings for rows in found.values() for row in rows) == len(samples)
    for phase, rows in found.items():
        assert [row.device for row in rows] == sorted({s.device for s in samples if s.phase == phase})
        for row in rows:
            mine = [s for s in samples if (s.phase, s.device) == (phase, row.device)]
            known = [s.used_bytes for s in mine if s.used_bytes is not None]
            assert row.used_max_bytes == (max(known) if known else None)
            assert all(0 < share <= 1 for share in row.reasons.values())
            assert row.power_watts is None
