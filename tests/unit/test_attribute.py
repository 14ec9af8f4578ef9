"""Trials of wrong text: what fails closed, what is kept, and that a second question needs no further start."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_moegpu.checks import get_check
from pytest_moegpu.core.evidence import Evidence, Part, Phase, StartEvidence, StartFailure
from pytest_moegpu.core.model import Settings
from pytest_moegpu.core.trials import Change, Result
from pytest_moegpu.core.verdict import Verdict
from pytest_moegpu.host.store import Bundle, read_attribution
from pytest_moegpu.session import attribute
from pytest_moegpu.session.attribute import ATTRIBUTION, Attributor
from pytest_moegpu.session.progress import Silent
from pytest_moegpu.session.reference import References
from pytest_moegpu.session.target import Target
from pytest_moegpu.session.variants import Variant
from tests.unit.builders import answers, evidence, gpu, profile, scenario, start

WRONG = tuple(r if n else r.__class__(**{**vars(r), "text": "No idea."}) for n, r in enumerate(answers()))
SCENARIO = scenario(settings=Settings(context=2048, kv_cache="q8_0"))


@dataclass
class Bench:
    """An attributor whose trials end as told: by the change, the start that it gives."""

    folder: Path
    ends: dict[Change, StartEvidence]
    budget: int = 5
    made: list[Change] = field(default_factory=list)
    unusable: str = ""
    spoilt_by: Change | None = None

    def attributor(self, monkeypatch: pytest.MonkeyPatch) -> Attributor:
        target: Any = type("Fixed", (), {"gpus": (gpu(),), "profile": profile()})()
        known: Target = target
        monkeypatch.setattr(attribute, "_variant", lambda *_: Variant(target=known, scenario=SCENARIO))
        monkeypatch.setattr(attribute, "answers_of", lambda *_: ())

        def begin(_self: object, _variant: Variant, trial: Any, _number: int) -> StartEvidence:
            self.made.append(trial.change)
            return self.ends[trial.change]

        monkeypatch.setattr(attribute._Trials, "_start", begin)
        references = References(folder=self.folder, profile="rtx3090", backend="llamacpp", model_sha256="")
        return Attributor(known, references, Silent(), self.budget, lambda: self.unusable, self.guard)

    def guard(self, _start: StartEvidence) -> None:
        if self.made[-1] is self.spoilt_by:
            self.unusable = "start 3 left pids 7 behind"

    def run(self, attributor: Attributor, found: Evidence) -> tuple[Verdict, ...]:
        def judge(of: Evidence) -> tuple[Verdict, ...]:
            return get_check("output").judge(of, SCENARIO, profile())

        return attributor.attributed(judge(found), found, SCENARIO, judge, Bundle(self.folder), ())


def wrong(number: int) -> StartEvidence:
    return start(number, requests=WRONG)


BROKEN = evidence(wrong(1), wrong(2))
RIGHT = start(9, parts=(Part.OUTPUT,))


def lines(verdicts: tuple[Verdict, ...]) -> list[str]:
    (told,) = [text for v in verdicts for label, text in v.lines if label == ATTRIBUTION]
    return told.splitlines()


def test_every_trial_is_told_with_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = start(5, failure=StartFailure(phase=Phase.LOAD, cause="no such device"))
    ends = {Change.KV_CACHE: wrong(3), Change.FLASH_ATTENTION: RIGHT, Change.CPU: dead, Change.BACKEND: wrong(6)}
    bench = Bench(tmp_path, ends)
    told = bench.run(bench.attributor(monkeypatch), BROKEN)
    assert bench.made == [Change.KV_CACHE, Change.FLASH_ATTENTION, Change.CPU, Change.BACKEND]
    assert [line.split(", 0 s ")[0] for line in lines(told)[:4]] == [
        "kv_cache f16: still wrong",
        "flash_attention off, kv_cache f16: right again",
        "the processor alone: no answer",
        "another backend: still wrong",
    ]
    assert "load: no such device" in lines(told)[2]
    assert lines(told)[4] == (
        "flash_attention off, kv_cache f16: right again: the flash attention kernel is the suspect"
    )
    kept = read_attribution(tmp_path, SCENARIO.name)
    assert [each.result for each in kept.tried] == [Result.WRONG, Result.CURED, Result.NO_ANSWER, Result.WRONG]
    assert kept.tried[1].start == RIGHT


def test_after_a_start_that_left_something_behind_no_other_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, {Change.KV_CACHE: wrong(3)}, spoilt_by=Change.KV_CACHE)
    told = lines(bench.run(bench.attributor(monkeypatch), BROKEN))
    assert bench.made == [Change.KV_CACHE]
    assert [line.partition(": ")[2] for line in told[1:4]] == ["not tried (start 3 left pids 7 behind)"] * 3


def test_a_device_that_is_not_clean_gets_no_trial_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, {}, unusable="start 2 left 3 GiB")
    told = lines(bench.run(bench.attributor(monkeypatch), BROKEN))
    assert bench.made == []
    assert told[-1] == "no trial gave an answer: nothing can be said about the cause"


def test_where_only_some_starts_were_wrong_the_first_trial_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, {Change.NOTHING: RIGHT})
    told = lines(bench.run(bench.attributor(monkeypatch), evidence(wrong(1), start(2))))
    assert bench.made == [Change.NOTHING]
    assert told[-1].startswith("the same start is right this time: the fault comes and goes")


def test_a_second_question_is_judged_from_the_same_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = dict.fromkeys((Change.KV_CACHE, Change.FLASH_ATTENTION, Change.CPU, Change.BACKEND), wrong(3))
    bench = Bench(tmp_path, every)
    attributor = bench.attributor(monkeypatch)
    first = lines(bench.run(attributor, BROKEN))
    assert len(bench.made) == 4
    assert lines(bench.run(attributor, BROKEN)) == first
    assert len(bench.made) == 4


def test_right_text_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, {})
    told = bench.run(bench.attributor(monkeypatch), evidence(start(1), start(2)))
    assert all(verdict.outcome.green for verdict in told)
    assert [label for v in told for label, _ in v.lines if label == ATTRIBUTION] == []
    assert bench.made == []


def test_a_result_that_cannot_be_written_is_told_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = dict.fromkeys((Change.KV_CACHE, Change.FLASH_ATTENTION, Change.CPU, Change.BACKEND), wrong(3))
    bench = Bench(tmp_path, every)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Bundle, "write_attribution", full)
    told = lines(bench.run(bench.attributor(monkeypatch), BROKEN))
    assert told[-1] == "NOT KEPT: [Errno 28] No space left on device"
    assert told[-2].startswith("none of them cured it")
