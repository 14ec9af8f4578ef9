"""Telemetry files: written and read back equal, old ones still read, damaged ones named with their line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moegpu.core.sample import Sample
from pytest_moegpu.errors import RecordError
from pytest_moegpu.host.recording import Origin, Recording, read_recording, write_recording
from tests.unit.builders import gpu

ORIGIN = Origin(
    probe="nvml",
    memory_version="nvml-v2",
    interval_seconds=0.01,
    gpus=(gpu(), gpu(index=1, uuid="GPU-b")),
    versions={"driver": "580.159.04", "cuda_driver": "13.0"},
)
HEAD = b'{"schema":2,"columns":["time","phase","device","used_bytes"]}\n'


def written(folder: Path, content: bytes) -> Path:
    path = folder / "telemetry.jsonl"
    path.write_bytes(content)
    return path


def test_the_first_line_says_what_follows(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    write_recording(path, Recording(samples=(Sample(time=1.5, phase="load", device=1, used_bytes=7),), origin=ORIGIN))
    head, row = map(json.loads, path.read_text("utf-8").splitlines())
    assert (head["schema"], head["columns"]) == (2, list(Sample.__struct_fields__))
    assert [head[name] for name in ("probe", "memory_version", "interval_seconds")] == ["nvml", "nvml-v2", 0.01]
    assert head["versions"] == {"driver": "580.159.04", "cuda_driver": "13.0"}
    assert [card["uuid"] for card in head["gpus"]] == [None, "GPU-b"]
    assert dict(zip(head["columns"], row, strict=True)) == {
        **dict.fromkeys(head["columns"]),
        "time": 1.5,
        "phase": "load",
        "device": 1,
        "used_bytes": 7,
    }


SIZES = st.none() | st.integers(0, 2**50)
SHARES = st.none() | st.floats(0, 1)
ROWS = st.lists(st.tuples(st.floats(0, 1e9), st.integers(0, 1), SIZES, SHARES, st.text(max_size=5)), max_size=20)


@given(rows=ROWS, with_origin=st.booleans())
def test_what_is_written_is_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[float, int, int | None, float | None, str]],
    with_origin: bool,
) -> None:
    samples = tuple(
        Sample(time=time, phase=phase, device=device, used_bytes=used, utilisation=load, energy_joules=load)
        for time, device, used, load, phase in sorted(rows, key=lambda row: row[0])
    )
    path = tmp_path_factory.getbasetemp() / "recording.jsonl"
    recording = Recording(samples=samples, origin=ORIGIN if with_origin else Origin())
    write_recording(path, recording)
    assert read_recording(path) == recording


def test_a_file_of_the_first_schema_is_read(tmp_path: Path) -> None:
    path = written(
        tmp_path, b'["time", "phase", "device", "power_watts"]\n[1.5, "load", 0, 101.5]\n[2, "stop", 0, null]\n'
    )
    assert read_recording(path) == Recording(
        samples=(
            Sample(time=1.5, phase="load", device=0, power_watts=101.5),
            Sample(time=2, phase="stop", device=0),
        )
    )


def test_a_recording_without_readings_is_one(tmp_path: Path) -> None:
    assert read_recording(written(tmp_path, HEAD)).samples == ()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "line 1: damaged recording: the file is empty"),
        (b"\xff\xfe\x00\n", "line 1: damaged recording: "),
        (b'{"schema":2,"col', "line 1: damaged recording: "),
        (b"7\n", "line 1: recording of schema None; this version reads schemas 1 and 2"),
        (b'{"schema":3}\n', "line 1: recording of schema 3; this version reads schemas 1 and 2"),
        (b'{"schema":2}\n', "line 1: damaged recording: Object missing required field `columns`"),
        (b'["time","phase"]\n', "line 1: damaged recording: no column 'device'"),
        (b'["time","phase","device","mood"]\n', "line 1: damaged recording: unknown column 'mood'"),
        (b'["time","phase","device","time"]\n', "line 1: damaged recording: a column twice"),
        (b'["time","phase",3]\n', "line 1: damaged recording: Expected `str`, got `int`"),
        (HEAD + b'[1.0,"load",0,5]\n[1.1,"load",0', "line 3: damaged recording: "),
        (HEAD + b'[1.0,"load",0]\n', "line 2: damaged recording: wants an array of 4 values"),
        (HEAD + b'{"time":1.0}\n', "line 2: damaged recording: wants an array of 4 values"),
        (HEAD + b"\n", "line 2: damaged recording: "),
        (HEAD + b'[null,"load",0,5]\n', "line 2: damaged recording: Expected `float`, got `null`"),
        (HEAD + b'[1.0,"load",0,"many"]\n', "line 2: damaged recording: Expected `int | null`, got `str`"),
        (HEAD + b'[1.0,"load",0,NaN]\n', "line 2: damaged recording: "),
        (HEAD + b'[2.0,"load",0,5]\n[1.0,"load",0,5]\n', "line 3: damaged recording: time 1.0 is before"),
    ],
)
def test_damage_is_named_with_its_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(RecordError) as caught:
        read_recording(path)
    assert str(caught.value).startswith(f"{path}, {says}")


def test_a_reading_of_a_device_that_was_not_recorded_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    write_recording(path, Recording(samples=(Sample(time=1.0, phase="load", device=4),), origin=ORIGIN))
    with pytest.raises(RecordError, match=r"line 2: damaged recording: device 4 is not one of \[0, 1\]$"):
        read_recording(path)


def test_a_file_that_is_not_there_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"gone\.jsonl: there is no such recording$"):
        read_recording(tmp_path / "gone.jsonl")
    with pytest.raises(RecordError, match=r"damaged recording: .*directory"):
        read_recording(tmp_path)
