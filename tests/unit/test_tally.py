"""What `moegpu watch` keeps: the latest of every field, the highest, and power from the energy counter."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_moegpu.core.sample import Sample
from pytest_moegpu.report.watch import DeviceView
from pytest_moegpu.session.tally import Tally
from tests.unit.builders import gpu


def sample(time: float, device: int = 0, **fields: Any) -> Sample:
    return Sample(time=time, phase="watch", device=device, **fields)


def test_the_latest_value_of_each_field_and_the_highest() -> None:
    tally = Tally()
    tally.add(
        [
            sample(1.0, used_bytes=5, utilisation=0.5, temperature_c=70, pcie_generation=4, pcie_width=16),
            sample(1.1, used_bytes=9, sm_clock_mhz=1800, memory_clock_mhz=9501, power_watts=200.0),
        ]
    )
    tally.add([sample(1.2, used_bytes=7, temperature_c=65, sm_clock_mhz=1700)])
    assert tally.view(gpu()) == DeviceView(
        gpu=gpu(),
        used_bytes=7,
        peak_bytes=9,
        utilisation=0.5,
        sm_clock_mhz=1700,
        memory_clock_mhz=9501,
        power_watts=200.0,
        temperature_c=65,
        temperature_max_c=70,
        pcie_generation=4,
        pcie_width=16,
    )
    assert tally.readings == 3


def test_devices_are_kept_apart_and_one_never_read_is_not_known() -> None:
    tally = Tally()
    tally.add([sample(1.0, 0, used_bytes=1), sample(1.0, 1, used_bytes=2)])
    assert [tally.view(gpu(index=index)).used_bytes for index in (0, 1, 2)] == [1, 2, None]
    assert tally.readings == 1


def test_reasons_are_those_since_the_last_look_and_those_ever() -> None:
    tally = Tally()
    found = []
    for samples in (
        [sample(1.0, event_reasons=0x4), sample(1.1, event_reasons=0x20)],
        [sample(2.0, event_reasons=0)],
        [],
    ):
        tally.add(samples)
        view = tally.view(gpu())
        found.append((view.reasons, view.reasons_ever))
    ever = ("sw_power_cap", "sw_thermal")
    assert found == [(ever, ever), ((), ever), (None, ever)]


def test_power_is_that_of_the_last_second_and_energy_that_of_all() -> None:
    tally = Tally()
    tally.add(sample(n / 10, energy_joules=1000.0 + n * 10, power_watts=1.0) for n in range(20))
    tally.add(sample(2 + n / 10, energy_joules=1200.0 + n * 30) for n in range(20))
    view = tally.view(gpu())
    assert view.power_watts == pytest.approx(300.0)
    assert view.energy_joules == pytest.approx(190 + 10 + 570)


def test_a_counter_that_was_set_back_takes_nothing_off() -> None:
    tally = Tally()
    tally.add([sample(1.0, energy_joules=100.0), sample(1.5, energy_joules=160.0), sample(2.0, energy_joules=0.0)])
    tally.add([sample(2.4, energy_joules=40.0, power_watts=77.0)])
    view = tally.view(gpu())
    assert (view.energy_joules, view.power_watts) == (100.0, 77.0)


def test_host_memory_and_its_peak() -> None:
    tally = Tally()
    assert (tally.host_bytes, tally.host_peak_bytes) == (None, None)
    tally.add([sample(1.0, host_bytes=5), sample(1.1), sample(1.2, host_bytes=3)])
    assert (tally.host_bytes, tally.host_peak_bytes) == (3, 5)
