"""The replay probe: the reading of the moment, and a recording all the way to its summary."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_moegpu.core.sample import Sample
from pytest_moegpu.core.telemetry import summarise
from pytest_moegpu.errors import ProbeError, RecordError, UserError
from pytest_moegpu.host.probe import Probe
from pytest_moegpu.host.recording import Origin, Recording, read_recording, write_recording
from pytest_moegpu.host.replay import ReplayProbe
from pytest_moegpu.host.sampler import Sampler
from tests.fakes.waiting import wait_for
from tests.unit.builders import gpu

CARDS = (gpu(), gpu(index=1))
ORIGIN = Origin(
    probe="nvml", memory_version="nvml-v1", interval_seconds=0.01, gpus=CARDS, versions={"driver": "580.159.04"}
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def recorded(folder: Path, *readings: tuple[float, int, int], origin: Origin = ORIGIN) -> Path:
    """Write readings of two devices: time, used bytes of each."""
    path = folder / "telemetry.jsonl"
    samples = [
        Sample(time=time, phase="load", device=device, used_bytes=used)
        for time, *both in readings
        for device, used in enumerate(both)
    ]
    write_recording(path, Recording(samples=tuple(samples), origin=origin))
    return path


def test_it_is_what_was_recorded(tmp_path: Path) -> None:
    probe: Probe = ReplayProbe(recorded(tmp_path, (5.0, 1, 2)))
    assert (probe.name, probe.memory_version, probe.interval_seconds) == ("replay", "nvml-v1", 0.01)
    assert (probe.devices(), probe.versions()) == (CARDS, {"driver": "580.159.04"})
    assert (probe.health(), probe.processes()) == ((), ())
    probe.follow(7)
    probe.close()
    probe.close()


def test_the_reading_of_the_moment_with_the_time_and_phase_of_the_caller(tmp_path: Path) -> None:
    clock = Clock()
    probe = ReplayProbe(recorded(tmp_path, (5.0, 1, 10), (6.0, 2, 20), (6.5, 3, 30)), clock=clock)
    assert probe.read(77.0, "decode") == (
        Sample(time=77.0, phase="decode", device=0, used_bytes=1),
        Sample(time=77.0, phase="decode", device=1, used_bytes=10),
    )
    found = []
    for second in (0.0, 0.99, 1.0, 1.49, 1.5, 99.0):
        clock.now = 1000.0 + second
        found.append((probe.read(0.0, "x")[0].used_bytes, probe.finished))
    assert found == [(1, False), (1, False), (2, False), (2, False), (3, True), (3, True)]


def test_a_faster_replay_asks_to_be_read_more_often(tmp_path: Path) -> None:
    clock = Clock()
    probe = ReplayProbe(recorded(tmp_path, (5.0, 1, 1), (15.0, 2, 2)), speed=4.0, clock=clock)
    assert probe.interval_seconds == 0.0025
    clock.now += 2.4
    assert probe.read(0.0, "x")[0].used_bytes == 1
    clock.now += 0.1
    assert probe.read(0.0, "x")[0].used_bytes == 2
    assert ReplayProbe(recorded(tmp_path, (5.0, 1, 1)), speed=1e6).interval_seconds == 0.001


def test_stepping_gives_every_reading_once_and_then_the_last(tmp_path: Path) -> None:
    probe = ReplayProbe(recorded(tmp_path, (5.0, 1, 1), (6.0, 2, 2), (60.0, 3, 3)), step=True)
    found = [(probe.finished, probe.read(0.0, "x")[1].used_bytes) for _ in range(5)]
    assert found == [(False, 1), (False, 2), (False, 3), (True, 3), (True, 3)]


def test_an_old_file_does_not_say_what_it_is_of(tmp_path: Path) -> None:
    probe = ReplayProbe(recorded(tmp_path, (5.0, 1, 2), origin=Origin()))
    assert (probe.memory_version, probe.interval_seconds, probe.versions()) == ("unknown", 0.02, {})
    with pytest.raises(ProbeError, match=r"telemetry\.jsonl does not say which devices it is of"):
        probe.devices()


def test_a_recording_without_a_reading_and_a_speed_that_stands_still(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="the recording holds no reading"):
        ReplayProbe(recorded(tmp_path))
    path = recorded(tmp_path, (5.0, 1, 2))
    for speed in (0.0, -1.0, float("nan")):
        with pytest.raises(UserError, match="at a speed above 0"):
            ReplayProbe(path, speed=speed)


def replayed(path: Path) -> Sampler:
    """Step a recording through a sampler as it would be sampled from a device."""
    probe = ReplayProbe(path, step=True)
    sampler = Sampler(probe)
    sampler.enter("decode")
    sampler.start()
    wait_for(lambda: probe.finished, "the end of the recording")
    sampler.stop()
    assert sampler.error is None
    return sampler


def test_a_recording_goes_through_the_sampler_into_its_summary(tmp_path: Path) -> None:
    readings = [(n / 100, 10 + (7 if n == 20 else 0), 100 - n) for n in range(40)]
    ((first, second),) = summarise(replayed(recorded(tmp_path, *readings)).samples).values()
    assert (first.used_max_bytes, second.used_max_bytes) == (17, 100)
    assert first.readings == second.readings >= 40


STORED = sorted((Path(__file__).parents[1] / "data").glob("telemetry-*.jsonl"))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name)
def test_a_stored_recording_of_a_real_device_has_the_peaks_it_was_recorded_with(path: Path) -> None:
    recording = read_recording(path)
    assert recording.origin.gpus
    rows = summarise(replayed(path).samples)["decode"]
    assert [row.device for row in rows] == [card.index for card in recording.origin.gpus]
    for row in rows:
        mine = [s for s in recording.samples if s.device == row.device]
        assert row.used_max_bytes == max(s.used_bytes for s in mine if s.used_bytes is not None)
        temperatures = [s.temperature_c for s in mine if s.temperature_c is not None]
        assert row.temperature_max_c == max(temperatures, default=None)
