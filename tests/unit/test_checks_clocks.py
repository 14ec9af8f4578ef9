"""What held clocks down, by device and phase: read often enough to be believed, and lower clocks between starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_moegpu.checks.clocks import clock_drops, reasons_unread
from pytest_moegpu.checks.doubts import valid
from pytest_moegpu.checks.hardware import MEASURED_PHASES
from pytest_moegpu.checks.stability import judge as judge_stability
from pytest_moegpu.checks.throughput import judge as judge_throughput
from pytest_moegpu.core.evidence import Phase, RequestKind, RequestRecord, StartEvidence
from pytest_moegpu.core.health import PhaseTelemetry
from pytest_moegpu.core.model import DeviceKind
from pytest_moegpu.core.phases import event_reasons, label
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.core.telemetry import summarise
from pytest_moegpu.core.verdict import Outcome, Verdict
from tests.unit.builders import answers, evidence, gpu, phase, profile, scenario, stream, watched

GPUS = (gpu(),)
TWO = (gpu(), gpu(index=1, pci_bus_id="00000000:10:00.0"))


def timed(prefill: float, decode: float) -> RequestRecord:
    """A measured request that took these seconds."""
    return stream(sent=0.0, first_token=prefill, last_token=prefill + decode)


def read(prefill: int | None, decode: int | None, seconds: tuple[float, float] = (0.3, 10.0)) -> StartEvidence:
    """A start with so many readings of event reasons in each measured phase, all of them empty."""
    counts = {"prefill": prefill, "decode": decode}
    return watched(
        requests=(*answers(), timed(*seconds)),
        telemetry={name: phase(reason_readings=count, reasons={}) for name, count in counts.items()},
        event_reasons={name: 0 for name, count in counts.items() if count},
        peaks={},
    )


@pytest.mark.parametrize(
    ("seconds", "enough"),
    [(0.05, 1), (0.19, 1), (0.2, 2), (0.39, 2), (0.4, 3), (15.0, 3), (15.1, 4), (60.0, 12)],
)
def test_a_long_phase_needs_more_readings_than_a_short_one(seconds: float, enough: int) -> None:
    assert reasons_unread(read(enough, 3, (seconds, 10.0)), GPUS, MEASURED_PHASES) == ()
    short = reasons_unread(read(enough - 1 or None, 3, (seconds, 10.0)), GPUS, MEASURED_PHASES)
    assert len(short) == 1
    assert short[0].startswith("prefill")


def test_a_single_mask_is_not_called_no_throttling() -> None:
    run = evidence(read(2, 1), read(2, 3))
    decode = judge_throughput(run, scenario(), profile())[0]
    assert decode.findings == ("start 1: throttling not read in decode (1 reading in 10.00 s)",)
    assert decode.more == {"throttling": "not read"}
    assert "no throttling" not in dict(decode.lines)["valid"]
    (device,) = judge_stability(run, scenario(), profile())
    assert "start 1: clock event reasons not read in decode (1 reading in 10.00 s)" in device.findings
    assert device.reason == "no fault in kernel log, ECC counters over 2 starts"


def on_both(first: PhaseTelemetry, other: PhaseTelemetry) -> StartEvidence:
    telemetry = {"load": (first, replace(first, device=1)), "decode": (first, replace(other, device=1))}
    return watched(telemetry={**telemetry, "prefill": telemetry["load"]}, peaks={})


def test_each_device_must_have_told() -> None:
    (told,) = phase(reasons={})
    (silent,) = phase(reason_readings=None, reasons={})
    assert reasons_unread(on_both(told, told), TWO) == ()
    assert reasons_unread(on_both(told, silent), TWO) == ("decode of device 1",)
    one_device = watched(telemetry={"prefill": (told,), "decode": (told,)}, peaks={}, event_reasons={})
    assert reasons_unread(one_device, TWO) == ("prefill of device 1", "decode of device 1")
    decode = judge_throughput(evidence(on_both(told, silent), gpus=TWO), scenario(), profile())[0]
    assert decode.findings[-1] == "start 1: throttling not read in decode of device 1"


def test_the_hotter_of_two_devices_counts() -> None:
    (cool,) = phase(reasons={})
    (hot,) = phase(reasons={"hw_thermal": 0.3})
    run = evidence(on_both(cool, hot), gpus=TWO)
    said = ("start 1: throttled in decode: hw_thermal (30.0 % of the readings)",)
    assert valid(run, scenario(), profile(), "decode") == said


def test_a_short_phase_that_nobody_measures_need_not_be_read() -> None:
    for seconds, said in ((0.19, ()), (0.2, ("warmup",))):
        unread = phase(seconds=seconds, reason_readings=None, reasons={})
        start = read(2, 3)
        start = replace(start, telemetry=start.telemetry | {"warmup": unread})
        assert reasons_unread(start, GPUS) == said


def test_evidence_that_counts_no_readings_is_taken_at_its_word() -> None:
    old = {name: phase(reason_readings=None) for name in ("prefill", "decode")}
    told = watched(telemetry=old, peaks={}, event_reasons={"prefill": 0x4})
    assert reasons_unread(told, GPUS) == ("decode",)
    bare = watched(telemetry={}, peaks={}, event_reasons={"prefill": 0, "decode": 0})
    assert reasons_unread(bare, TWO) == ()
    assert reasons_unread(replace(bare, event_reasons={}), (gpu(kind=DeviceKind.CPU),)) == ("prefill", "decode")


def clocked(number: int, mhz: float, capped: float) -> StartEvidence:
    telemetry = {"prefill": phase(), "decode": phase(sm_clock_mhz=mhz, reasons={"sw_power_cap": capped})}
    return watched(number, telemetry=telemetry)


def verdicts(mhz: float, capped: float) -> tuple[Verdict, tuple[str, ...], tuple[str, ...]]:
    """The verdict on the device, and the doubts on decode and on prefill, when the last of three starts was slower."""
    run = evidence(watched(1), watched(2), clocked(3, mhz, capped))
    (device,) = judge_stability(run, scenario(), profile())
    decode, prefill = (valid(run, scenario(), profile(), name) for name in ("decode", "prefill"))
    return device, decode, prefill


def test_a_slower_clock_concerns_the_speeds_of_its_phase() -> None:
    said = ("start 3: SM clock of device 0 in decode 1709 MHz, median over the starts 1800 MHz",)
    device, decode, prefill = verdicts(1709.0, 0.49)
    assert (device.outcome, decode, prefill) == (Outcome.INCONCLUSIVE, said, ())
    near, decode, prefill = verdicts(1710.0, 0.0)
    assert (near.outcome, decode, prefill) == (Outcome.PASS, (), ())


def test_at_the_power_cap_a_slower_clock_is_how_the_device_drifts() -> None:
    said = "start 3: SM clock of device 0 in decode {} MHz, median over the starts 1800 MHz (at the power cap)"
    device, decode, _ = verdicts(1620.0, 0.5)
    assert (device.outcome, device.findings, decode) == (Outcome.PASS, (said.format(1620),), ())
    device, decode, prefill = verdicts(1619.0, 0.5)
    assert (device.outcome, device.findings) == (Outcome.PASS, (said.format(1619),))
    assert (decode, prefill) == ((said.format(1619),), ())


def test_a_drift_that_is_no_doubt_is_shown_beside_the_speed() -> None:
    run = evidence(watched(1), watched(2), clocked(3, 1700.0, 1.0))
    decode = judge_throughput(run, scenario(), profile())[0]
    assert decode.outcome is Outcome.PASS
    assert decode.findings == (
        "start 3: SM clock of device 0 in decode 1700 MHz, median over the starts 1800 MHz (at the power cap)",
    )
    assert list(clock_drops((watched(1), watched(2)), of_speeds=True)) == []


def sampled(hot: float, **changes: Any) -> StartEvidence:
    """A start sampled at 100 Hz: warm-up request, pause, two measured ones; a thermal reason until `hot` seconds."""
    requests = (
        stream(kind=RequestKind.WARMUP, sent=0.0, first_token=1.0, last_token=3.0),
        stream(sent=4.0, first_token=5.0, last_token=7.0),
        stream(sent=8.0, first_token=9.0, last_token=11.0),
    )
    samples = label(
        (
            Sample(
                time=tick / 100,
                phase=Phase.WARMUP if tick < 390 else Phase.PREFILL,
                device=0,
                event_reasons=0x40 if tick / 100 < hot else 0x4,
            )
            for tick in range(1100)
        ),
        requests,
    )
    whole = watched(
        requests=(*answers(), *requests), telemetry=summarise(samples), event_reasons=event_reasons(samples), peaks={}
    )
    return replace(whole, **changes)


def test_heat_in_the_warm_up_is_no_doubt_of_what_was_measured() -> None:
    cold = evidence(sampled(hot=3.99))
    assert valid(cold, scenario(), profile()) == ()
    (device,) = judge_stability(cold, scenario(), profile())
    assert device.outcome is Outcome.PASS
    # 399 of the 499 readings outside of measured requests: before the first, and between the two.
    assert device.findings == ("start 1: throttled in warmup: hw_thermal (80.0 % of the readings)",)
    hot = evidence(sampled(hot=4.5))
    said = ("start 1: throttled in prefill: hw_thermal (24.8 % of the readings)",)
    assert valid(hot, scenario(), profile(), "prefill") == said
    assert valid(hot, scenario(), profile(), "decode") == ()
