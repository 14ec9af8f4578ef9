"""Clock event reasons as words."""

from __future__ import annotations

import pynvml
import pytest

from pytest_moegpu.core.reasons import EVENT_REASONS, HARMFUL, reason_names


@pytest.mark.parametrize(
    ("constant", "word"),
    [
        ("nvmlClocksEventReasonGpuIdle", "idle"),
        ("nvmlClocksEventReasonApplicationsClocksSetting", "applications_clocks"),
        ("nvmlClocksEventReasonSwPowerCap", "sw_power_cap"),
        ("nvmlClocksEventReasonHwSlowdown", "hw_slowdown"),
        ("nvmlClocksEventReasonSyncBoost", "sync_boost"),
        ("nvmlClocksEventReasonSwThermalSlowdown", "sw_thermal"),
        ("nvmlClocksEventReasonHwThermalSlowdown", "hw_thermal"),
        ("nvmlClocksEventReasonHwPowerBrakeSlowdown", "hw_power_brake"),
        ("nvmlClocksEventReasonDisplayClockSetting", "display_clocks"),
    ],
)
def test_bits_are_those_of_the_binding(constant: str, word: str) -> None:
    assert EVENT_REASONS[getattr(pynvml, constant)] == word


def test_mask_is_read_from_the_lowest_bit() -> None:
    assert reason_names(0) == ()
    assert reason_names(0x20 | 0x4) == ("sw_power_cap", "sw_thermal")


def test_unknown_bit_is_not_lost() -> None:
    assert reason_names(0x1 | 0x8000) == ("idle", "bit_0x8000")


def test_every_known_word_comes_back() -> None:
    assert reason_names(sum(EVENT_REASONS)) == tuple(EVENT_REASONS.values())


def test_power_cap_and_idle_are_not_harmful() -> None:
    assert {"hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"} == HARMFUL
    assert HARMFUL.issubset(EVENT_REASONS.values())
