"""Records of other schemas: migrated step by step, the old file kept, a newer one refused with what to do."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_moegpu.core.migrate import BASELINES, RUNS, Chain
from pytest_moegpu.errors import RecordError
from pytest_moegpu.host import store
from pytest_moegpu.host.store import Bundle, baseline_files, baseline_path, read_baseline, read_run, write_baseline
from tests.unit.builders import baseline, evidence, run_record

DATA = Path(__file__).parents[1] / "data/bundles"
REPOSITORY = Path(__file__).parents[2]


def from_0(raw: dict[str, Any]) -> dict[str, Any]:
    """An invented schema 0, which called the scenario a workload and had one session without a list."""
    raw["scenario"] = raw.pop("workload")
    raw["sessions"] = [raw.pop("session")]
    return raw


def from_1(raw: dict[str, Any]) -> dict[str, Any]:
    """An invented step from the schema of today."""
    return raw | {"new": [*raw["units"]]}


OLDER = Chain(what="baseline", current=1, steps={0: from_0})
LATER = Chain(what="baseline", current=2, steps={0: from_0, 1: from_1})


def of_schema_0() -> dict[str, Any]:
    raw: dict[str, Any] = msgspec.to_builtins(baseline())
    raw["workload"] = raw.pop("scenario")
    (raw["session"],) = raw.pop("sessions")
    return raw | {"schema": 0}


def write(path: Path, raw: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(raw))
    return path


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BASELINES", OLDER)


def test_a_record_goes_through_every_step_and_is_itself_not_changed() -> None:
    raw = of_schema_0()
    before = copy.deepcopy(raw)
    done = LATER.migrate(raw)
    assert (done.schema, done.raw["schema"], done.raw["scenario"], done.raw["new"]) == (0, 2, "balanced-6k", ["decode"])
    assert raw == before
    # The same file read twice gives the same record.
    assert LATER.migrate(raw) == done


def test_a_record_of_today_is_taken_as_it_is() -> None:
    raw = {"schema": 1, "x": 1}
    done = RUNS.migrate(raw)
    assert (done.raw, done.schema) == (raw, 1)


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.iterdir() if path.is_dir()))
def test_bundles_of_schema_1_are_read(name: str) -> None:
    record = read_run(DATA / name)
    assert record.schema == 1
    assert record.evidence


def test_baselines_of_schema_1_are_read() -> None:
    files = baseline_files(REPOSITORY / "baselines")
    assert len(files) >= 4
    assert {read_baseline(path).schema for path in files} == {1}


@pytest.mark.usefixtures("older")
def test_a_baseline_of_schema_0_is_read_and_its_file_left_alone(tmp_path: Path) -> None:
    path = write(baseline_path(tmp_path, "rtx3090", "balanced-6k", "llamacpp"), of_schema_0())
    before = path.read_bytes()
    assert read_baseline(path) == baseline()
    assert path.read_bytes() == before
    assert baseline_files(tmp_path) == (path,)


@pytest.mark.usefixtures("older")
def test_what_is_written_in_its_place_keeps_the_old_file_beside(tmp_path: Path) -> None:
    path = write(baseline_path(tmp_path, "rtx3090", "balanced-6k", "llamacpp"), of_schema_0())
    before = path.read_bytes()
    write_baseline(tmp_path, read_baseline(path))
    kept = path.with_name("llamacpp.v0.json")
    assert kept.read_bytes() == before
    assert json.loads(path.read_bytes())["schema"] == 1
    assert read_baseline(path) == baseline()
    # What was kept is no baseline, and a file of today is not kept.
    assert baseline_files(tmp_path) == (path,)
    write_baseline(tmp_path, baseline(50.0, 51.0))
    assert sorted(p.name for p in path.parent.iterdir()) == ["llamacpp.json", "llamacpp.v0.json"]
    assert kept.read_bytes() == before


@pytest.mark.usefixtures("older")
def test_a_file_that_was_kept_before_is_never_overwritten(tmp_path: Path) -> None:
    path = write(baseline_path(tmp_path, "rtx3090", "balanced-6k", "llamacpp"), of_schema_0())
    kept = write(path.with_name("llamacpp.v0.json"), {"mine": True})
    before = path.read_bytes()
    with pytest.raises(RecordError, match=r"llamacpp\.v0\.json, where another file is: move that away"):
        write_baseline(tmp_path, baseline())
    assert path.read_bytes() == before
    assert json.loads(kept.read_bytes()) == {"mine": True}


def test_a_baseline_of_a_newer_version_is_not_replaced(tmp_path: Path) -> None:
    path = write(baseline_path(tmp_path, "rtx3090", "balanced-6k", "llamacpp"), {"schema": 99})
    with pytest.raises(RecordError, match="of schema 99, from a newer pytest-moegpu: not replaced; move it away first"):
        write_baseline(tmp_path, baseline())
    assert json.loads(path.read_bytes()) == {"schema": 99}


READERS: tuple[tuple[Callable[[Path], object], str], ...] = ((read_run, "run"), (read_baseline, "baseline"))


@pytest.mark.parametrize(("reader", "what"), READERS)
def test_a_newer_schema_says_what_to_do(tmp_path: Path, reader: Callable[[Path], object], what: str) -> None:
    path = write(tmp_path / "file.json", {"schema": 99, "moegpu_version": "7.1"})
    with pytest.raises(RecordError) as caught:
        reader(path)
    assert str(caught.value) == (
        f"{path}: {what} of schema 99; this version reads schema 1, and version 7.1 wrote it: update pytest-moegpu to "
        f"the version that wrote it, or make the {what} again with this one"
    )


@pytest.mark.parametrize("schema", [None, "1", True, 1.0, [1]])
def test_what_is_no_schema_is_no_record(schema: object) -> None:
    with pytest.raises(RecordError, match="not a baseline that pytest-moegpu wrote, or a damaged one"):
        BASELINES.migrate({"schema": schema})


def test_a_gap_in_the_chain_is_told() -> None:
    broken = Chain(what="run", current=3, steps={0: from_0, 2: from_1})
    with pytest.raises(RecordError, match=r"run of schema 0; this version reads schema 2 to 3: there is no way from 0"):
        broken.migrate({"schema": 0})


def test_an_old_record_that_lacks_something_is_damaged_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BASELINES", OLDER)
    raw = of_schema_0()
    del raw["session"]
    path = write(tmp_path / "file.json", raw)
    with pytest.raises(RecordError) as caught:
        read_baseline(path)
    assert str(caught.value) == f"{path}: damaged baseline of schema 0: step 0 → 1 failed on KeyError: 'session'"


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b'{\n "schema": 1,\n "profile" "x"\n}', "Expecting ':' delimiter: line 3 column 12 (char 27)"),
        (b'{"schema": 1, "sessions": [1, 2', "Expecting ',' delimiter: line 1 column 32 (char 31)"),
        (b'{"schema": 1, "x": "\xff"}', "invalid start byte"),
        (b"[" * 100_000, "recursion"),
    ],
)
@pytest.mark.parametrize(("reader", "what"), READERS)
def test_damaged_json_is_named_with_file_and_place(
    tmp_path: Path, reader: Callable[[Path], object], what: str, content: bytes, place: str
) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(RecordError) as caught:
        reader(path)
    assert str(caught.value).startswith(f"{path}: damaged {what}: ")
    assert place in str(caught.value)


def test_a_run_of_an_old_schema_is_read_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed(raw: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in raw.items() if key != "state"} | {"status": raw["state"]}

    monkeypatch.setattr(store, "RUNS", Chain(what="run", current=1, steps={0: renamed}))
    record = run_record(evidence())
    Bundle(tmp_path).write(record)
    raw = json.loads((tmp_path / "run.json").read_bytes())
    raw["state"] = raw.pop("status")
    before = write(tmp_path / "run.json", raw | {"schema": 0}).read_bytes()
    assert read_run(tmp_path) == record
    assert (tmp_path / "run.json").read_bytes() == before
