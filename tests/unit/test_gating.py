"""`moegpu gate` on stored runs: the page, the exit code, expected failures, and the steps over a reboot."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pytest_moegpu.core.evidence import StartEvidence
from pytest_moegpu.core.gateargs import GateOrder
from pytest_moegpu.core.gatepage import Expected, GatePage, in_order
from pytest_moegpu.core.model import Stack
from pytest_moegpu.core.verdict import Outcome
from pytest_moegpu.errors import CatalogError, RecordError, UserError
from pytest_moegpu.host import gatestate
from pytest_moegpu.host.gatestate import GATE_FILE, read_gate
from pytest_moegpu.host.store import Bundle
from pytest_moegpu.report.gate import as_markdown, as_text
from pytest_moegpu.session import gate, records
from pytest_moegpu.session.expected import EXPECTED_FILE, read_expected
from pytest_moegpu.session.gating import page_of
from tests.unit.builders import answers, contexts, evidence, gpu, profile, run_record, scenario, stream, watched

TODAY = date(2026, 12, 1)
FAST = (99.0, 100.0, 100.5, 101.0, 100.2)
OLD = Stack(driver="570.86", cuda_driver="12.8")
NEW = Stack(driver="580.95", cuda_driver="13.0")
RUNS = Path(".moegpu/runs")
ENTRY = """
schema = 1

[[expected]]
scenario = "balanced-6k"
check = "baseline"
metric = "decode"
reason = "the new scheduler is slower with one stream"
link = "https://example.org/issues/7"
expires = 2027-01-31
"""


def starts(rates: tuple[float, ...], at: str) -> tuple[StartEvidence, ...]:
    return tuple(
        watched(n, started_at=at, requests=(*answers(), *(stream(rate) for _ in range(3)), *contexts()))
        for n, rate in enumerate(rates, 1)
    )


def run(number: int, rates: tuple[float, ...] = FAST, stack: Stack = OLD, **changes: Any) -> str:
    """Store a finished run, later than those with lower numbers, and return its id."""
    at = f"2026-11-30T1{number}:00:00+00:00"
    found = evidence(*starts(rates, at), stack=stack, **changes)
    record = run_record(
        found,
        id=f"20261130-1{number}0000-rtx3090-000{number}",
        started_at=at,
        asked=profile(),
        scenarios=(replace(scenario(), name=found.scenario),),
    )
    folder = RUNS / record.id
    folder.mkdir(parents=True)
    Bundle(folder).write(record)
    return record.id


def gated(*words: str, **changes: Any) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = gate.run(GateOrder(runs=words or ("latest",), **changes), out, err)
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def promoted() -> str:
    first = run(0)
    records.promote([first], RUNS, Path("baselines"), add=False)
    return first


def slower(share: float) -> tuple[float, ...]:
    return tuple(rate * (1 - share) for rate in FAST)


@pytest.mark.usefixtures("promoted")
def test_the_same_speed_on_a_new_driver_passes_and_the_change_is_named() -> None:
    run(1, stack=NEW)
    code, page, _ = gated()
    assert code == 0
    assert "changed  driver 570.86 → 580.95, cuda_driver 12.8 → 13.0" in page
    assert page.rstrip().splitlines()[-1].startswith("good: ")
    assert "REGRESSED" not in page


@pytest.mark.usefixtures("promoted")
def test_a_loss_stops_the_upgrade_and_the_markdown_page_says_the_same() -> None:
    run(1, slower(0.167), NEW)
    code, page, _ = gated(markdown=Path("out/gate.md"))
    assert code == 1
    assert "REGRESSED  decode 83.5 tok/s, baseline 100.2 (-16.7 %" in page
    assert page.rstrip().splitlines()[-1].startswith("worse: 1 REGRESSED, ")
    written = Path("out/gate.md").read_text()
    assert written.startswith("# Gate: worse: 1 REGRESSED, ")
    assert "| changed | driver 570.86 → 580.95, cuda_driver 12.8 → 13.0 |" in written


@pytest.mark.usefixtures("promoted")
def test_what_was_not_allowed_to_move_is_no_answer() -> None:
    run(1, stack=replace(NEW, kernel="6.9"))
    code, page, _ = gated(varying="driver,cuda")
    assert code == 2
    assert "only cuda, driver may vary, but this moved: kernel not known → 6.9" in page


def test_without_a_baseline_there_is_no_answer() -> None:
    run(1)
    code, page, _ = gated()
    assert code == 2
    assert "changed  no baseline" in page
    assert page.rstrip().splitlines()[-1].startswith("no answer: 4 NO_BASELINE")


def test_a_run_that_is_the_baseline_itself_compares_nothing(promoted: str) -> None:
    code, page, _ = gated(promoted)
    assert code == 2
    assert f"run {promoted} is part of the baseline itself: nothing was compared" in page


def test_a_run_without_any_check_is_no_answer() -> None:
    folder = RUNS / "20261130-190000-rtx3090-0009"
    folder.mkdir(parents=True)
    Bundle(folder).write(run_record(id=folder.name, asked=profile()))
    code, page, _ = gated()
    assert code == 2
    assert page == f"run {folder.name} measured nothing\nno answer: nothing was judged\n"


@pytest.mark.usefixtures("promoted")
def test_wrong_text_fails_and_has_no_speed_verdict() -> None:
    found = tuple(
        replace(one, requests=tuple(replace(r, text="I cannot tell.") if r.expect else r for r in one.requests))
        for one in starts(slower(0.167), "2026-11-30T11:00:00+00:00")
    )
    name = run(1, stack=NEW)
    record = json.loads((RUNS / name / "run.json").read_text())
    assert record["status"] == "finished"
    broken = run_record(
        evidence(*found, stack=NEW), id=name, started_at=found[0].started_at, asked=profile(), scenarios=(scenario(),)
    )
    Bundle(RUNS / name).write(broken)
    code, page, _ = gated()
    assert code == 1
    assert "class correctness" in page
    assert "REGRESSED" not in page


@pytest.mark.usefixtures("promoted")
def test_an_improvement_passes_and_asks_to_be_promoted() -> None:
    name = run(1, tuple(rate * 1.3 for rate in FAST), NEW)
    code, page, _ = gated()
    assert code == 0
    assert f"keep it, so that it is not lost again: moegpu promote .moegpu/runs/{name}" in page


@pytest.mark.usefixtures("promoted")
def test_a_run_twice_and_two_runs_of_one_scenario_are_refused() -> None:
    one, two = run(1), run(2)
    code, page, told = gated(one, one)
    assert (code, page) == (3, "")
    assert f"run {one} is named twice: rtx3090, balanced-6k, llamacpp can be decided on once" in told
    code, _, told = gated(one, two)
    assert code == 3
    assert f"runs {one} and {two}" in told


@pytest.mark.usefixtures("promoted")
def test_runs_of_two_scenarios_are_grouped_on_one_page() -> None:
    records.promote([run(1, scenario="long-32k")], RUNS, Path("baselines"), add=False)
    code, page, _ = gated(run(2), run(3, slower(0.2), scenario="long-32k"))
    assert code == 1
    assert "rtx3090, balanced-6k, llamacpp\n" in page
    assert "rtx3090, long-32k, llamacpp\n" in page


def test_a_rehearsal_is_no_gate() -> None:
    run(1, gpus=(gpu(emulated_on="NVIDIA H200"),))
    code, _, told = gated()
    assert code == 3
    assert "is a rehearsal" in told


def test_a_run_that_was_interrupted_is_no_answer() -> None:
    name = run(1)
    path = RUNS / name / "run.json"
    path.write_text(path.read_text().replace('"finished"', '"interrupted"'))
    with pytest.raises(RecordError, match="is interrupted: only a finished run"):
        gated()


def test_verdicts_stand_with_correctness_first_then_memory_speed_and_stability(promoted: str) -> None:
    page = page_of(GateOrder(runs=(promoted,)), TODAY)
    checks = [v.check if v.check != "baseline" else f"baseline {v.metric}" for v in page.verdicts]
    order = list(dict.fromkeys(checks))
    assert order == [
        *("output", "offload", "memory", "baseline peak_memory", "throughput"),
        *("baseline decode", "baseline prefill", "baseline ttft", "stability"),
    ]
    assert in_order(page.verdicts[::-1])[0].check == "output"


# Expected failures


def expected_page(entry: Expected) -> GatePage:
    run(1, slower(0.167), NEW)
    return replace(page_of(GateOrder(), TODAY), expected=(entry,))


KNOWN = Expected(
    scenario="balanced-6k",
    check="baseline",
    metric="decode",
    reason="slower on purpose",
    link="https://example.org/7",
    expires=TODAY,
)


@pytest.mark.usefixtures("promoted")
def test_an_expected_failure_is_shown_and_does_not_fail_on_its_last_day() -> None:
    page = expected_page(KNOWN)
    assert page.decision.exit_code == 0
    assert page.expected_lines() == [
        "EXPECTED  balanced-6k baseline decode: REGRESSED, let through: slower on purpose (https://example.org/7), "
        "until 2026-12-01"
    ]
    assert as_text(page).endswith(" PASS, and 1 expected")
    assert as_markdown(page).startswith("# Gate: good: ")


@pytest.mark.usefixtures("promoted")
def test_an_entry_that_has_expired_fails_and_says_so() -> None:
    page = expected_page(replace(KNOWN, expires=date(2026, 11, 30)))
    assert page.decision.exit_code == 1
    assert page.expected_lines()[0].startswith("EXPIRED   balanced-6k baseline decode: still REGRESSED")


@pytest.mark.usefixtures("promoted")
def test_an_entry_lets_nothing_else_through_and_is_noted_when_it_did_not_happen() -> None:
    page = expected_page(replace(KNOWN, metric="prefill"))
    assert page.decision.exit_code == 1
    assert page.expected_lines()[0].startswith("note      balanced-6k baseline prefill: expected to fail and did not")
    page = replace(page, expected=(replace(KNOWN, scenario="other"),))
    assert page.decision.exit_code == 1
    assert "nothing of it was judged" in page.expected_lines()[0]


def test_expected_failures_alone_are_no_success() -> None:
    run(0)
    page = GatePage(groups=(), expected=(KNOWN,), today=TODAY)
    assert page.decision.exit_code == 2


@pytest.mark.usefixtures("promoted")
def test_the_file_of_expected_failures_is_read_from_its_place() -> None:
    run(1, slower(0.167), NEW)
    EXPECTED_FILE.parent.mkdir(exist_ok=True)
    EXPECTED_FILE.write_text(ENTRY)
    (entry,) = read_expected(None)
    assert (entry.what, entry.expires) == ("balanced-6k baseline decode", date(2027, 1, 31))
    assert read_expected(EXPECTED_FILE) == (entry,)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("reason", "raeson", r"expected\[1\].raeson: unknown key \(did you mean 'reason'\?\)"),
        ('"decode"', '"decodes"', r"expected\[1\].metric: 'decodes' is not allowed \(did you mean 'decode'\?\)"),
        ("2027-01-31", '"2027-01-31"', "is not a day: write it without quotes, as 2027-01-31"),
        ('link = "https://example.org/issues/7"\n', "", r"expected\[1\].link: this key is required"),
        ("schema = 1", "schema = 2", "2 is not a known version of the format"),
        ("schema = 1\n", "", "schema: this key is required"),
        ("]]", "]", "cannot be read as TOML"),
    ],
)
def test_a_slip_of_the_pen_in_the_file_is_an_error(old: str, new: str, says: str) -> None:
    file = Path("expected.toml")
    file.write_text(ENTRY.replace(old, new, 1))
    with pytest.raises(CatalogError, match=says):
        read_expected(file)


def test_an_entry_twice_and_a_file_that_is_not_there_are_errors() -> None:
    file = Path("expected.toml")
    with pytest.raises(CatalogError, match="cannot be read"):
        read_expected(file)
    file.write_text(ENTRY + ENTRY.replace("schema = 1", ""))
    with pytest.raises(CatalogError, match="stands twice: balanced-6k baseline decode"):
        read_expected(file)


# Steps


def test_there_and_back_with_a_slower_driver_blames_the_driver() -> None:
    code, told, _ = gated(run(0), step="before", varying="driver,cuda")
    assert code == 0
    assert told.startswith(
        "next: install the new driver,cuda, reboot, pytest --moegpu=rtx3090 --moegpu-starts=7, then:"
    )
    code, told, _ = gated(run(1, slower(0.167), NEW), step="after")
    assert code == 1
    assert "put the old driver,cuda back" in told
    code, told, _ = gated(run(2), step="back")
    assert code == 1
    assert "before and back agree, and after differs from both" in told
    assert "REGRESSED  decode 83.5 tok/s, baseline 100.2" in told
    assert told.rstrip().endswith("the next upgrade begins with: moegpu gate --step before")


def test_a_loss_that_stays_on_the_old_stack_is_the_machine_s_own() -> None:
    gated(run(0), step="before")
    gated(run(1, slower(0.167), NEW), step="after")
    code, told, _ = gated(run(2, slower(0.16)), step="back")
    assert code == 2
    assert "the machine itself moved: back on the old stack it is -16.0 % off before" in told
    assert "REGRESSED  decode" not in told


def test_a_drift_too_small_to_explain_the_loss_leaves_the_blame_where_it_is() -> None:
    gated(run(0), step="before")
    gated(run(1, slower(0.167), NEW), step="after")
    code, told, _ = gated(run(2, slower(0.03)), step="back")
    assert code == 1
    assert "before and back agree, and after differs from both" in told


def test_the_same_speed_there_and_back_passes() -> None:
    gated(run(0), step="before")
    assert gated(run(1, stack=NEW), step="after")[0] == 0
    code, told, _ = gated(run(2), step="back")
    assert (code, "REGRESSED" in told) == (0, False)


def test_steps_out_of_order_are_refused_with_what_comes_next() -> None:
    first = run(0)
    code, _, told = gated(first, step="after")
    assert code == 3
    assert "step after is out of order: nothing is under way" in told
    gated(first, step="before")
    assert "step back is out of order: next: install the new" in gated(first, step="back")[2]
    assert "an upgrade of rtx3090 is under way, after step before" in gated(first, step="before")[2]
    assert gated(step="forget")[1] == "forgotten; the runs are kept\n"
    assert gated(step="forget")[1] == "nothing was under way\n"
    assert gated(first, step="before")[0] == 0


def test_a_stack_that_did_not_move_or_moved_elsewhere_is_refused() -> None:
    gated(run(0), step="before", varying="driver,cuda")
    assert "the stack is still that of step before" in gated(run(1), step="after")[2]
    wrong = run(2, stack=replace(NEW, kernel="6.9"))
    assert "only driver,cuda may have moved, but this did: kernel not known → 6.9" in gated(wrong, step="after")[2]
    assert "--varying kernel: step before said driver,cuda" in gated(wrong, step="after", varying="kernel")[2]
    other = run(3, stack=NEW, identity={"model.sha256": "b"})
    assert "must match but differs: model.sha256 absent → b" in gated(other, step="after")[2]
    assert gated(run(4, stack=NEW), step="after")[0] == 0
    assert "this is not the stack of step before: driver" in gated(run(5, stack=NEW), step="back")[2]


def test_a_run_is_one_step_only_and_must_hold_the_scenarios_of_the_first() -> None:
    first = run(0)
    gated(first, step="before")
    assert f"run {first} was named before already" in gated(first, step="after")[2]
    assert "did not measure balanced-6k" in gated(run(1, stack=NEW, scenario="other"), step="after")[2]


def test_a_run_that_is_not_good_is_no_measure_for_the_steps() -> None:
    name = run(0)
    path = RUNS / name / "run.json"
    path.write_text(path.read_text().replace("is Paris.", "is Rome."))
    code, _, told = gated(name, step="before")
    assert code == 3
    assert "is no measure for others: balanced-6k: output FAILED" in told
    assert not GATE_FILE.exists()


def test_the_state_survives_and_tells_whether_the_machine_was_booted(monkeypatch: pytest.MonkeyPatch) -> None:
    gated(run(0), step="before")
    state = read_gate()
    assert state is not None
    assert state.steps["before"].boot_id == gatestate.boot_id()
    assert "the machine was not booted since the step before" in gated(run(1, stack=NEW), step="after")[1]
    monkeypatch.setattr("pytest_moegpu.session.stepping.boot_id", lambda: "another")
    assert "was not booted" not in gated(run(2), step="back")[1]
    shown = gated(step="show")[1]
    assert [line.split()[0] for line in shown.splitlines()[:3]] == ["before", "after", "back"]


def test_a_damaged_state_is_named_and_kept() -> None:
    GATE_FILE.parent.mkdir(parents=True)
    for text, says in (("{", "damaged state"), ('{"schema": 7}', "schema 7"), ('{"schema": 1}', "damaged state")):
        GATE_FILE.write_text(text)
        with pytest.raises(RecordError, match=says):
            gated(run_once(), step="before")
        assert GATE_FILE.read_text() == text


def run_once() -> str:
    return next((path.name for path in RUNS.glob("*")), None) or run(0)


def test_wrong_words_for_what_may_vary_are_wrong_usage() -> None:
    with pytest.raises(UserError, match="'drivr' cannot vary"):
        page_of(GateOrder(runs=(run(0),), varying="drivr"), TODAY)
    assert gated("20261130", step="before", varying="drivr")[0] == 3


def test_the_outcome_of_a_step_is_never_pass_without_a_comparison() -> None:
    gated(run(0), step="before")
    code, told, _ = gated(run(1, FAST[:1], NEW), step="after")
    assert code == 2
    assert Outcome.INCONCLUSIVE in told
