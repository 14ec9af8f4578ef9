"""Run bundles and baselines on disk: what is written is read back equal, what is damaged is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from pytest_moegpu.core.baseline import Baseline
from pytest_moegpu.core.evidence import Phase, StartFailure
from pytest_moegpu.core.record import RunRecord
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from pytest_moegpu.errors import RecordError, UserError
from pytest_moegpu.host.recording import Origin, Recording, read_recording
from pytest_moegpu.host.store import Bundle, RunStore, baseline_path, read_baseline, read_run, write_baseline
from tests.unit.builders import baseline, evidence, gpu, run_record, start, stream

NOW = datetime(2026, 11, 30, 10, 0, 0)


def full_record() -> RunRecord:
    """A record that uses what records can hold."""
    verdict = Verdict(
        outcome=Outcome.REGRESSED,
        check="baseline",
        scenario="balanced-6k",
        subject="decode",
        phase=Phase.COMPARE,
        reason="slower → worse",
        failed_class=FailedClass.PERFORMANCE,
        metric="decode",
        value=96.1,
        values=(95.7, 96.1),
        baseline=115.4,
        baseline_values=(115.0, 115.8),
        change=-0.167,
        interval=(-0.179, -0.152),
        confidence=0.99,
        allowed=-0.05,
        smallest_loss=0.024,
        lines=(("changed", "driver 570 → 580"),),
        findings=("note: 1",),
        log_tail=("a", "b"),
        more={"value": "x"},
    )
    failure = StartFailure(phase=Phase.LOAD, cause="died", exit_code=-9, log_tail=("x",), out_of_memory=True)
    broken = start(2, failure=failure, requests=(stream(text="Größe 茶\n\0", gaps=(0.1, 0.2)),), peaks={})
    return run_record(evidence(start(1), broken), verdicts=(verdict,))


def test_a_full_record_is_read_back_equal(tmp_path: Path) -> None:
    record = full_record()
    Bundle(tmp_path).write(record)
    assert read_run(tmp_path) == record
    assert read_run(tmp_path / "run.json") == record


def test_a_baseline_is_read_back_equal_from_its_place(tmp_path: Path) -> None:
    path = write_baseline(tmp_path, baseline())
    assert path == tmp_path / "rtx3090" / "balanced-6k" / "llamacpp.json"
    assert path == baseline_path(tmp_path, "rtx3090", "balanced-6k", "llamacpp")
    assert read_baseline(path) == baseline()


def test_files_are_sorted_and_readable_as_a_diff(tmp_path: Path) -> None:
    text = write_baseline(tmp_path, baseline()).read_text("utf-8")
    assert text.endswith("}\n")
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert '\n      "recorded_at": "2026-11-30T10:00:00+00:00",\n' in text


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle(tmp_path)
    old = full_record()
    bundle.write(old)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        bundle.write(replace(old, status="interrupted"))
    assert read_run(tmp_path) == old
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_record_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    bundle = Bundle(tmp_path)
    old = full_record()
    bundle.write(old)
    with pytest.raises((TypeError, ValueError)):
        bundle.write(replace(old, host={"x": object()}))  # type: ignore[dict-item]
    assert read_run(tmp_path) == old


def test_telemetry_of_a_start_has_its_own_place_and_says_what_it_is_of(tmp_path: Path) -> None:
    samples = (
        Sample(time=1.5, phase="load", device=0, used_bytes=7, power_watts=101.5),
        Sample(time=1.6, phase="decode", device=1, event_reasons=4),
    )
    origin = Origin(
        probe="nvml",
        memory_version="nvml-v2",
        interval_seconds=0.01,
        gpus=(gpu(), gpu(index=1)),
        versions={"driver": "1"},
    )
    path = Bundle(tmp_path).write_telemetry("balanced-6k", 2, samples, origin)
    assert path == tmp_path / "telemetry-balanced-6k-2.jsonl"
    assert read_recording(path) == Recording(samples=samples, origin=origin)
    assert read_recording(Bundle(tmp_path).write_telemetry("balanced-6k", 3, samples)) == Recording(samples=samples)


def test_log_of_a_start_has_its_own_place(tmp_path: Path) -> None:
    assert Bundle(tmp_path).log_path("long-8k", 3) == tmp_path / "server-long-8k-3.log"


READERS: tuple[tuple[Callable[[Path], object], str], ...] = ((read_run, "run"), (read_baseline, "baseline"))


@pytest.mark.parametrize(("reader", "what"), READERS)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "damaged"),
        (b'{"schema": 1, "id": "x', "damaged"),
        (b"\xff\xfe\x00", "damaged"),
        (b'{"schema": 1}', "damaged"),
        (b'{"schema": 1, "profile": 5}', "damaged"),
        (b"[]", "of schema None; this version reads schema 1"),
        (b'{"schema": 99}', "of schema 99; this version reads schema 1"),
        (b'{"schema": "1"}', "of schema '1'; this version reads schema 1"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, reader: Callable[[Path], object], what: str, content: bytes, says: str
) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(RecordError) as caught:
        reader(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert says in str(caught.value)
    assert what in str(caught.value)


@pytest.mark.parametrize(("reader", "what"), READERS)
def test_what_is_not_there_is_named(tmp_path: Path, reader: Callable[[Path], object], what: str) -> None:
    with pytest.raises(RecordError, match=rf"gone\.json: there is no such {what}"):
        reader(tmp_path / "gone.json")


def test_a_wrong_type_deep_inside_is_told_with_its_place(tmp_path: Path) -> None:
    path = write_baseline(tmp_path, baseline())
    raw = json.loads(path.read_bytes())
    raw["sessions"][0]["metrics"]["decode"][1] = "fast"
    path.write_text(json.dumps(raw))
    with pytest.raises(RecordError, match=r"Expected `float`, got `str` - at `\$\.sessions\[0\]\.metrics"):
        read_baseline(path)


class TestRunStore:
    @staticmethod
    def store(root: Path, *ids: str) -> RunStore:
        for name in ids:
            Bundle(root / name).write(run_record(evidence(), id=name))
        return RunStore(root)

    def test_new_bundles_sort_by_time_and_never_collide(self, tmp_path: Path) -> None:
        store = RunStore(tmp_path / "deep" / "runs")
        made = [store.create("rtx3090", NOW) for _ in range(50)]
        assert len({bundle.id for bundle in made}) == 50
        assert all(bundle.id.startswith("20261130-100000-rtx3090-") and bundle.folder.is_dir() for bundle in made)
        assert store.create("rtx3090", NOW.replace(second=1)).id > max(bundle.id for bundle in made)

    def test_ids_are_those_with_a_record_oldest_first(self, tmp_path: Path) -> None:
        store = self.store(tmp_path, "20261130-2", "20261129-1")
        (tmp_path / "20261128-empty").mkdir()
        (tmp_path / "notes.txt").touch()
        assert store.ids() == ("20261129-1", "20261130-2")
        assert RunStore(tmp_path / "none").ids() == ()

    def test_runs_of_one_second_are_in_the_order_they_were_written(self, tmp_path: Path) -> None:
        names = ("20261130-100000-h200-ffff", "20261130-100000-h200-0000", "20261130-100000-a-8888")
        store = self.store(tmp_path, "20261130-100001-h200-0000", *names)
        for number, name in enumerate(names):
            os.utime(tmp_path / name / "run.json", ns=(number, 10**18 + number))
        # The second of the id goes first, however late an older run was copied here.
        os.utime(tmp_path / "20261130-100001-h200-0000/run.json", ns=(0, 0))
        assert store.ids() == (*names, "20261130-100001-h200-0000")
        assert store.find("latest").name == "20261130-100001-h200-0000"

    def test_two_quick_runs(self, tmp_path: Path) -> None:
        store = RunStore(tmp_path)
        for number in range(8):
            bundle = store.create("h200", NOW)
            bundle.write(run_record(evidence(), id=bundle.id))
            os.utime(bundle.folder / "run.json", ns=(0, 10**18 + number))
            assert store.find("latest") == bundle.folder

    def test_check_leaves_no_trace(self, tmp_path: Path) -> None:
        RunStore(tmp_path / "deep" / "runs").check()
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("below", [".", "runs", "deep/runs"])
    def test_check_names_a_file_in_the_way(self, tmp_path: Path, below: str) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(UserError, match=r"^--moegpu-runs: no run can be kept in .*file.* is not a folder$"):
            RunStore(tmp_path / "file" / below).check()

    def test_check_names_a_link_to_nowhere(self, tmp_path: Path) -> None:
        (tmp_path / "runs").symlink_to(tmp_path / "gone")
        with pytest.raises(UserError, match="is not a folder"):
            RunStore(tmp_path / "runs").check()

    def test_check_names_a_folder_that_may_not_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Root may write everywhere, so the answer of the system is given here.
        monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
        with pytest.raises(UserError, match=rf"{tmp_path} may not be written$"):
            RunStore(tmp_path / "deep" / "runs").check()

    def test_find_by_id_start_latest_and_path(self, tmp_path: Path) -> None:
        store = self.store(tmp_path, "20261129-100000-a", "20261130-100000-b")
        first, last = tmp_path / "20261129-100000-a", tmp_path / "20261130-100000-b"
        assert store.find("20261129-100000-a") == first
        assert store.find("20261129") == first
        assert store.find("latest") == last
        assert store.find(str(first)) == first
        assert store.find(str(first / "run.json")) == first

    def test_a_start_that_fits_several_is_refused(self, tmp_path: Path) -> None:
        store = self.store(tmp_path, "20261130-1", "20261130-2")
        with pytest.raises(RecordError, match="'2026' fits 2 runs: 20261130-1, 20261130-2"):
            store.find("2026")

    def test_an_unknown_run_offers_the_nearest(self, tmp_path: Path) -> None:
        store = self.store(tmp_path, "20261130-1")
        with pytest.raises(RecordError, match=r"no run '20261131-1' in .* \(did you mean '20261130-1'\?\); there"):
            store.find("20261131-1")

    def test_latest_of_none(self, tmp_path: Path) -> None:
        with pytest.raises(RecordError, match=r"no run 'latest' in .*; there are 0"):
            RunStore(tmp_path).find("latest")


def test_a_baseline_gives_all_starts_of_all_sessions_in_order() -> None:
    one = baseline()
    two: Baseline = replace(one, sessions=(one.sessions[0], replace(one.sessions[0], metrics={"decode": (1.0,)})))
    assert two.values("decode") == (*one.values("decode"), 1.0)
    assert two.values("unheard") == ()
