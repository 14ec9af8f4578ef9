"""Stored runs shown, compared and promoted: what may become a baseline, and what is refused with which words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_moegpu.core.evidence import Evidence, LogFacts, Phase, StartEvidence
from pytest_moegpu.core.model import Stack
from pytest_moegpu.core.record import RunRecord
from pytest_moegpu.core.verdict import Outcome, Verdict
from pytest_moegpu.errors import RecordError
from pytest_moegpu.host.store import Bundle, read_baseline, write_baseline
from pytest_moegpu.session.records import check_baselines, compare_runs, promote, show
from tests.unit.builders import answers, baseline, evidence, profile, run_record, scenario, start, stream, watched

STEADY = (99.0, 100.0, 100.5, 101.0, 100.2)
PLACE = Path("rtx3090/balanced-6k/llamacpp.json")


def starts(rates: tuple[float, ...]) -> tuple[StartEvidence, ...]:
    return tuple(watched(i, requests=(*answers(), *(stream(rate),) * 3)) for i, rate in enumerate(rates, 1))


def measured(rates: tuple[float, ...] = STEADY, **changes: Any) -> Evidence:
    return evidence(*starts(rates), **changes)


def verdict(outcome: Outcome, check: str = "output", reason: str = "5 of 6 right") -> Verdict:
    return Verdict(
        outcome=outcome, check=check, scenario="balanced-6k", subject=check, phase=Phase.OUTPUT, reason=reason
    )


GREEN = (verdict(Outcome.PASS), verdict(Outcome.PASS, "throughput"))


class Folders:
    """Runs and baselines below one folder."""

    def __init__(self, root: Path) -> None:
        self.runs, self.baselines = root / "runs", root / "baselines"

    def save(self, name: str, *found: Evidence, **changes: Any) -> RunRecord:
        kept: dict[str, Any] = {"id": name, "verdicts": GREEN, "asked": profile(), "scenarios": (scenario(),)}
        kept |= changes
        record = run_record(*found, **kept)
        Bundle(self.runs / name).write(record)
        return record

    def promote(self, *names: str, add: bool = False) -> list[str]:
        return promote(names, self.runs, self.baselines, add)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


class TestPromote:
    def test_writes_a_baseline_with_every_start(self, folders: Folders) -> None:
        folders.save("run-a", measured(noted={"host": "rig"}, identity={"backend": "llamacpp"}))
        (line,) = folders.promote("run-a")
        path = folders.baselines / PLACE
        assert line == f"{path}: 1 session(s), 5 starts of decode, prefill, ttft, peak_memory"
        kept = read_baseline(path)
        assert kept.values("decode") == pytest.approx(STEADY)
        assert (kept.units["decode"], kept.better["decode"], kept.better["ttft"]) == ("tok/s", "higher", "lower")
        assert kept.sessions[0].run == "run-a"
        assert kept.sessions[0].noted == {"host": "rig"}
        assert kept.identity == {"backend": "llamacpp"}
        assert kept.stack.driver == "580.159"
        assert "load" not in kept.units

    def test_few_starts_are_noted(self, folders: Folders) -> None:
        folders.save("run-a", measured((100.0, 101.0)))
        line, note = folders.promote("run-a")
        assert "2 starts" in line
        assert note.strip().startswith("note: 2 starts can show that nothing changed by 5 %, but hardly a loss")
        assert "--moegpu-starts=5" in note

    def test_replaces_what_was_there(self, folders: Folders) -> None:
        write_baseline(folders.baselines, baseline(1.0))
        folders.save("run-a", measured())
        folders.promote("run-a")
        assert [s.run for s in read_baseline(folders.baselines / PLACE).sessions] == ["run-a"]

    def test_add_keeps_the_earlier_sessions_and_each_run_once(self, folders: Folders) -> None:
        folders.save("run-a", measured())
        folders.save("run-b", measured())
        folders.promote("run-a")
        folders.promote("run-b", "run-b", add=True)
        folders.promote("run-a", add=True)
        assert [s.run for s in read_baseline(folders.baselines / PLACE).sessions] == ["run-a", "run-b"]

    def test_several_runs_become_one_baseline(self, folders: Folders) -> None:
        folders.save("run-a", measured())
        folders.save("run-b", measured())
        (line,) = folders.promote("run-a", "run-b")
        assert "2 session(s), 10 starts" in line

    @pytest.mark.parametrize("status", ["running", "interrupted"])
    def test_an_unfinished_run_is_refused(self, folders: Folders, status: str) -> None:
        folders.save("run-a", measured(), status=status)
        with pytest.raises(RecordError, match=f"run run-a is {status}: only a finished run can be promoted"):
            folders.promote("run-a")
        assert not folders.baselines.exists()

    @pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if not outcome.green])
    @pytest.mark.parametrize("check", ["output", "memory"])
    def test_a_run_that_is_not_green_is_refused(self, folders: Folders, outcome: Outcome, check: str) -> None:
        folders.save("run-a", measured(), verdicts=(*GREEN, verdict(outcome, check)))
        with pytest.raises(RecordError) as caught:
            folders.promote("run-a")
        assert str(caught.value) == (
            f"run run-a, balanced-6k: not good enough for a baseline: {check} {outcome}: 5 of 6 right"
        )

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"requests": (*answers(), stream(text="!" * 300))}, "output FAILED: broken text"),
            ({"event_reasons": {"prefill": 0x40, "decode": 0x40}}, "throttled in prefill: hw_thermal"),
            ({"peaks": {"load": 2**34}}, "memory INCONCLUSIVE"),
        ],
    )
    def test_every_start_is_judged_again_whatever_the_run_said(
        self, folders: Folders, changes: dict[str, Any], says: str
    ) -> None:
        good = starts(STEADY[:4])
        folders.save("run-a", evidence(*good, start(5, **changes)))
        with pytest.raises(RecordError, match="not good enough for a baseline") as caught:
            folders.promote("run-a")
        assert says in str(caught.value)

    def test_a_run_of_before_scenarios_were_kept_is_refused(self, folders: Folders) -> None:
        folders.save("run-a", measured(), scenarios=())
        with pytest.raises(RecordError, match="does not hold balanced-6k as it was asked"):
            folders.promote("run-a")
        assert "balanced-6k decode" in show("run-a", folders.runs)

    def test_verdicts_of_another_scenario_do_not_count(self, folders: Folders) -> None:
        bad = replace(verdict(Outcome.FAILED), scenario="long-8k")
        folders.save("run-a", measured(), verdicts=(*GREEN, bad))
        assert folders.promote("run-a")

    def test_a_regression_against_the_old_baseline_may_replace_it(self, folders: Folders) -> None:
        folders.save("run-a", measured(), verdicts=(*GREEN, verdict(Outcome.REGRESSED, "baseline")))
        assert folders.promote("run-a")

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"identity": {"gpu.name": "RTX 4090"}}, "gpu.name absent → RTX 4090"),
            ({"stack": Stack(driver="590.1", cuda_driver="13.0")}, "driver 580.159 → 590.1"),
        ],
    )
    def test_another_thing_cannot_join(self, folders: Folders, changes: dict[str, Any], says: str) -> None:
        folders.save("run-a", measured())
        folders.save("run-b", measured(**changes))
        folders.promote("run-a")
        before = (folders.baselines / PLACE).read_bytes()
        with pytest.raises(RecordError) as caught:
            folders.promote("run-b", add=True)
        assert str(caught.value) == (
            f"run run-b cannot join the baseline of rtx3090/balanced-6k: {says}. "
            "Promote it alone (without --add) to replace the baseline"
        )
        assert (folders.baselines / PLACE).read_bytes() == before
        with pytest.raises(RecordError, match="cannot join"):
            folders.promote("run-a", "run-b")

    def test_nothing_measured_is_refused(self, folders: Folders) -> None:
        folders.save("run-a")
        with pytest.raises(RecordError, match="run run-a measured nothing that can be compared"):
            folders.promote("run-a")

    def test_one_bad_run_of_several_leaves_everything_as_it_was(self, folders: Folders) -> None:
        folders.save("run-a", measured())
        with pytest.raises(RecordError, match="no run 'run-x'"):
            folders.promote("run-a", "run-x")
        assert not folders.baselines.exists()


class TestCompare:
    def judge(self, folders: Folders, now: tuple[float, ...], **changes: Any) -> tuple[str, int]:
        folders.save("run-a", measured())
        folders.save("run-b", measured(now, **changes))
        return compare_runs("run-a", "run-b", folders.runs)

    def test_the_same_again_is_good(self, folders: Folders) -> None:
        text, code = self.judge(folders, STEADY)
        assert code == 0
        assert text.rpartition("\n")[2].startswith("good: 4 PASS")

    def test_a_loss_is_worse_and_names_what_changed(self, folders: Folders) -> None:
        text, code = self.judge(
            folders, tuple(rate * 0.8 for rate in STEADY), stack=Stack(driver="590.1", cuda_driver="13.0")
        )
        assert code == 1
        assert "REGRESSED  decode 80.2 tok/s, baseline 100.2 (-20.0 %" in text
        assert "driver 580.159 → 590.1" in text

    def test_another_identity_is_no_answer(self, folders: Folders) -> None:
        text, code = self.judge(folders, STEADY, identity={"gpu.name": "x"})
        assert code == 2
        assert "NOT_COMPARABLE" in text
        assert "absent → x" in text

    def test_what_the_second_run_lacks_is_an_error_and_not_left_out(self, folders: Folders) -> None:
        text, code = self.judge(folders, STEADY, scenario="long-8k")
        assert code == 2
        assert text.count("run run-b did not measure balanced-6k") >= 4

    def test_a_run_without_evidence_is_refused(self, folders: Folders) -> None:
        folders.save("run-a")
        with pytest.raises(RecordError, match="run run-a measured nothing that can be compared"):
            compare_runs("run-a", "run-a", folders.runs)

    def test_an_unfinished_run_is_refused(self, folders: Folders) -> None:
        folders.save("run-a", measured())
        folders.save("run-b", measured(), status="interrupted")
        with pytest.raises(RecordError, match="run run-b is interrupted"):
            compare_runs("run-a", "run-b", folders.runs)

    @pytest.mark.parametrize(
        ("changes", "outcome"),
        [
            ({"requests": (*answers(), *(stream(text="!" * 300),) * 3)}, "INCONCLUSIVE"),
            (
                {"requests": (*answers(), *(stream(error="HTTP 500", output_tokens=None, first_token=None),) * 3)},
                "INCONC",
            ),
            ({"telemetry": {}, "event_reasons": {"prefill": 0x40, "decode": 0x40}}, "INCONCLUSIVE"),
            ({"log": LogFacts(offloaded_layers=0, total_layers=41)}, "NOT_COMPARABLE"),
        ],
    )
    def test_a_speed_that_may_not_be_believed_has_no_verdict(
        self, folders: Folders, changes: dict[str, Any], outcome: str
    ) -> None:
        folders.save("run-a", measured())
        slow = tuple(replace(s, **changes) for s in starts(tuple(rate * 0.7 for rate in STEADY)))
        folders.save("run-b", evidence(*slow))
        text, code = compare_runs("run-a", "run-b", folders.runs)
        assert code == 2
        assert outcome in text
        assert "REGRESSED" not in text
        assert " PASS" not in text.partition("decode")[2].partition("\n")[0]

    def test_a_first_run_that_was_bad_is_no_measure(self, folders: Folders) -> None:
        hot = {"prefill": 0x40, "decode": 0x40}
        bad = tuple(replace(s, telemetry={}, event_reasons=hot) for s in starts(STEADY))
        folders.save("run-a", evidence(*bad))
        folders.save("run-b", measured())
        text, code = compare_runs("run-a", "run-b", folders.runs)
        assert code == 2
        assert "run run-a is no measure for others: stability INCONCLUSIVE: " in text
        assert "throttled in prefill: hw_thermal" in text


class TestShow:
    def test_facts_table_and_the_text_of_what_is_not_green(self, folders: Folders) -> None:
        bad = replace(verdict(Outcome.FAILED), lines=(("expected", "'Paris'"),))
        folders.save("run-a", measured((96.0, 97.0)), verdicts=(verdict(Outcome.PASS, "memory", "fits"), bad))
        text = show("latest", folders.runs)
        assert "run                       run-a\nstatus                    finished\n" in text
        assert "command                   pytest --moegpu=rtx3090\n" in text
        assert "NVIDIA GeForce RTX 3090" in text
        assert "driver 580.159, CUDA 13.0" in text
        assert "balanced-6k decode        96.0 tok/s, 97.0 tok/s\n" in text
        assert text.count("'Paris'") == 1
        assert text.index("PASS") < text.index("'Paris'")

    def test_a_scenario_the_catalog_no_longer_has(self, folders: Folders) -> None:
        folders.save("run-a", measured(scenario="of-last-year"))
        assert "of-last-year decode" in show("run-a", folders.runs)

    def test_a_run_that_stopped_before_anything(self, folders: Folders) -> None:
        folders.save("run-a", status="interrupted")
        assert "status                    interrupted" in show("run-a", folders.runs)


class TestCheckBaselines:
    def test_good_ones(self, tmp_path: Path) -> None:
        path = write_baseline(tmp_path, baseline())
        assert check_baselines(tmp_path) == ([f"ok    {path}"], 0)

    def test_none_and_no_folder(self, tmp_path: Path) -> None:
        assert check_baselines(tmp_path) == ([f"no baselines below {tmp_path}"], 0)
        with pytest.raises(RecordError, match="is not a folder"):
            check_baselines(tmp_path / "gone")

    def test_a_damaged_one_is_named_and_the_rest_goes_on(self, tmp_path: Path) -> None:
        good = write_baseline(tmp_path, baseline())
        bad = tmp_path / "a.json"
        bad.write_text('{"schema": 1, ')
        misplaced = tmp_path / "z" / "llamacpp.json"
        misplaced.parent.mkdir()
        misplaced.write_text(json.dumps(json.loads(good.read_text())))
        lines, code = check_baselines(tmp_path)
        assert code == 2
        assert lines[0].startswith(f"BAD   {bad}: damaged baseline: ")
        assert lines[1:] == [f"ok    {good}", f"BAD   {misplaced}: belongs to {good}"]
