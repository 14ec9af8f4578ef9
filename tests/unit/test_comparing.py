"""Which stored baselines a run is compared with, and what is told of it before anything starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_moegpu.catalog.values import positive_share
from pytest_moegpu.core.baseline import Baseline
from pytest_moegpu.core.evidence import StartEvidence
from pytest_moegpu.core.model import Scenario
from pytest_moegpu.core.verdict import Outcome
from pytest_moegpu.errors import UserError
from pytest_moegpu.host.store import baseline_path, write_baseline
from pytest_moegpu.options import Options
from pytest_moegpu.session import Session
from pytest_moegpu.session.comparing import StoredComparisons, kin_of
from pytest_moegpu.session.measure import Recorded, StartRun
from pytest_moegpu.session.progress import Silent
from tests.fakes.probe import FakeProbe
from tests.unit.builders import baseline, evidence, scenario
from tests.unit.test_session import GPU, target

MACHINE = {"backend": "llamacpp", "model.sha256": "ab", "gpu.name": "NVIDIA H200", "settings.context": "4096"}


def stored(name: str, folder: Path, **identity: str) -> Baseline:
    made = baseline(profile="h200", scenario=name, identity=MACHINE | identity)
    write_baseline(folder, made)
    return made


def comparisons(folder: Path, session_cv: float | None = None) -> tuple[StoredComparisons, Scenario]:
    it = target(FakeProbe(gpus=(GPU,)))
    mine = replace(scenario(session_cv=session_cv), name="balanced-6k")
    options = Options(profile="h200", baselines=folder, varying="driver", starts=3, max_starts=7)
    return StoredComparisons(options, replace(it, scenarios=(mine,))), mine


def test_kin_are_the_other_scenarios_of_the_same_machine_and_model(tmp_path: Path) -> None:
    own = stored("balanced-6k", tmp_path)
    stored("long-8k", tmp_path, **{"settings.context": "8192"})
    stored("other-model", tmp_path, **{"model.sha256": "cd"})
    stored("other-card", tmp_path, **{"gpu.power_limit": "300 W"})
    stored("other-name", tmp_path, **{"gpu.name": "NVIDIA H100"})
    damaged = baseline_path(tmp_path, "h200", "damaged", "llamacpp")
    damaged.parent.mkdir()
    damaged.write_text("{")
    write_baseline(tmp_path, baseline(profile="h200", scenario="vllm", backend="vllm", identity=MACHINE))
    assert [kin.scenario for kin in kin_of(tmp_path, own)] == ["long-8k"]


def test_a_comparison_is_as_the_options_and_the_scenario_say(tmp_path: Path) -> None:
    stored_ones, _ = comparisons(tmp_path, session_cv=0.03)
    comparison = stored_ones.comparison("decode", "balanced-6k")
    assert comparison.looks == (3, 7)
    assert comparison.varying == frozenset({"driver"})
    assert comparison.session_cv == 0.03


def test_a_baseline_that_cannot_be_read_is_an_error_and_none_is_no_baseline(tmp_path: Path) -> None:
    stored_ones, _ = comparisons(tmp_path)
    comparison = stored_ones.comparison("decode", "balanced-6k")
    found = evidence()
    assert stored_ones.judge(comparison, found, lambda _total: found).outcome is Outcome.NO_BASELINE
    path = baseline_path(tmp_path, "h200", "balanced-6k", "llamacpp")
    path.parent.mkdir(parents=True)
    path.write_text("{")
    verdict = stored_ones.judge(comparison, found, lambda _total: found)
    assert verdict.outcome is Outcome.ERROR
    assert "damaged baseline" in verdict.reason


def test_what_will_be_found_is_told_of_each_metric_that_the_baseline_holds(tmp_path: Path) -> None:
    stored_ones, mine = comparisons(tmp_path)
    assert stored_ones.foretell(["decode"], mine) == ()
    stored("balanced-6k", tmp_path)
    (told,) = stored_ones.foretell(["decode", "ttft"], mine)
    assert told.startswith("balanced-6k: decode: a loss of ")
    assert told.endswith("9 times in 10 (baseline: 5 starts in 1 session)")
    baseline_path(tmp_path, "h200", "balanced-6k", "llamacpp").write_text("{")
    assert stored_ones.foretell(["decode"], mine) == ()


def test_a_larger_spread_between_sessions_needs_a_larger_loss(tmp_path: Path) -> None:
    stored("balanced-6k", tmp_path)
    losses = []
    for cv in (0.005, 0.015, 0.03):
        stored_ones, mine = comparisons(tmp_path, session_cv=cv)
        (told,) = stored_ones.foretell(["decode"], mine)
        losses.append(float(told.split("a loss of ")[1].split(" ")[0]))
    assert losses == sorted(losses)
    assert losses[0] < losses[2] / 2


@pytest.mark.parametrize(("value", "read"), [("3 %", 0.03), (0.015, 0.015), (1, 1.0)])
def test_a_share_above_zero_is_read(value: object, read: float) -> None:
    assert positive_share(value) == read


@pytest.mark.parametrize("value", [0, "0 %", 0.0, -0.1, 1.5, "much", True, None])
def test_a_spread_of_nothing_is_refused(value: object) -> None:
    with pytest.raises(UserError):
        positive_share(value)


class Lines(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def line(self, text: str) -> None:
        self.said.append(text)


def test_a_run_tells_it_before_its_first_start_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored("balanced-6k", tmp_path)
    lines = Lines()

    def run(self: StartRun) -> Recorded:
        lines.line(f"start {self.number}")
        made = StartEvidence(number=self.number, started_at="now", parts=tuple(sorted(self.parts)))
        return Recorded(start=made, samples=(), libraries={})

    monkeypatch.setattr(StartRun, "run", run)
    options = Options(profile="h200", baselines=tmp_path, runs=tmp_path / "runs", starts=2)
    session = Session(options, lines, target(FakeProbe(gpus=(GPU,))))
    session.needs("balanced-6k").compared["decode"] = None
    session.evidence("balanced-6k")
    session.evidence("balanced-6k")
    assert [line.partition(" of ")[0] for line in lines.said] == [
        "balanced-6k: decode: a loss",
        "start 1",
        "start 2",
    ]
    session.close("finished")
