"""Histories: like with like, what moved, dated change points, drift, and what is said when there is too little."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pytest_moegpu.cli import main
from pytest_moegpu.core.evidence import Evidence
from pytest_moegpu.core.history import Apart, History, Key, Session, history
from pytest_moegpu.core.identity import Difference
from pytest_moegpu.core.model import Stack
from pytest_moegpu.core.trend import Level, drift, levels
from pytest_moegpu.errors import UserError
from pytest_moegpu.host.store import Bundle, write_baseline
from pytest_moegpu.report.history import as_json, as_text, chart
from tests.unit.builders import answers, baseline, evidence, profile, run_record, scenario, stream, watched

KEY = Key(profile="rtx3090", scenario="balanced-6k", backend="llamacpp", metric="decode")
OLD = Stack(driver="570.86", cuda_driver="12.8", engine="llamacpp", engine_version="1")
NEW = replace(OLD, driver="580.159", cuda_driver="13.0")
FIRST = datetime(2026, 9, 1, 10, tzinfo=UTC)
# About 1 % of noise, with no trend in it.
NOISE = (0.4, -0.9, 0.7, 1.1, -0.3, -1.2, 0.2, 0.9, -0.6, 0.1, -1.0, 0.8, 0.5, -0.4, 1.0, -0.7)


def session(
    number: int, *values: float, days: float = 3.0, stack: Stack = OLD, power: str = "350 W", context: str | None = None
) -> Session:
    return Session(
        run=f"run-{number:02}",
        recorded_at=(FIRST + timedelta(days=days * number)).isoformat(),
        values=values,
        identity={"gpu.power_limit": power} | ({} if context is None else {"settings.context": context}),
        stack=stack,
        noted={"host": "rig"},
    )


def steady(centres: Sequence[float], stacks: Sequence[Stack] = ()) -> list[Session]:
    given = stacks or [OLD] * len(centres)
    return [
        session(n, centre * (1 + noise / 100), stack=stack)
        for n, (centre, noise, stack) in enumerate(zip(centres, NOISE, given, strict=False))
    ]


STEPPED = steady([100.0] * 8 + [90.0] * 8, [OLD] * 8 + [NEW] * 8)


def test_sessions_are_put_in_order_and_counted_once() -> None:
    given = [session(2, 98.0, 99.0, 100.0), session(0, 101.0), session(1, 5.0, 7.0), session(0, 3.0)]
    found = history(KEY, given)
    assert [s.run for s in found.sessions] == ["run-00", "run-01", "run-02"]
    assert found.medians == (101.0, 6.0, 99.0)


def test_a_change_of_the_stack_is_marked_where_it_was() -> None:
    found = history(KEY, [session(0, 1.0), session(1, 1.0), session(2, 1.0, stack=NEW)])
    (mark,) = found.marks
    assert (mark.index, mark.date) == (2, "2026-09-07")
    assert [str(c) for c in mark.changes] == ["driver 570.86 → 580.159", "cuda_driver 12.8 → 13.0"]


def test_another_machine_is_marked_too() -> None:
    moved = replace(session(1, 1.0), noted={"host": "other"})
    (mark,) = history(KEY, [session(0, 1.0), moved]).marks
    assert mark.changes == (Difference(field="host", base="rig", now="other"),)


def test_only_like_is_drawn_with_like() -> None:
    capped = [session(0, 80.0, power="250 W"), session(1, 81.0, power="250 W")]
    other = session(2, 70.0, power="250 W", context="1024")
    found = history(KEY, [*capped, other, session(3, 100.0), session(4, 101.0)])
    assert found.medians == (100.0, 101.0)
    power = Difference(field="gpu.power_limit", base="250 W", now="350 W")
    context = Difference(field="settings.context", base="1024", now="absent")
    assert found.apart == (
        Apart(sessions=tuple(capped), differing=(power,)),
        Apart(sessions=(other,), differing=(power, context)),
    )


def test_too_few_sessions_are_said() -> None:
    found = history(KEY, [session(n, 100.0 + n) for n in range(5)])
    assert (found.shifts, found.drift) == ((), None)
    assert found.notes == ("drift: too few sessions: 5 of 6", "change points: too few sessions: 5 of 8")
    quick = history(KEY, [session(n, 100.0 + n, days=0.1) for n in range(6)])
    assert quick.notes[0] == "drift: too short a time: 0.5 of 7 days"


def test_a_time_that_cannot_be_read_leaves_a_session_out_and_says_so() -> None:
    found = history(KEY, [session(0, 1.0), replace(session(1, 2.0), recorded_at="yesterday")])
    assert found.medians == (1.0,)
    assert found.notes[0] == "run-01: left out, its time 'yesterday' cannot be read"
    with pytest.raises(ValueError, match="no session of decode has a time"):
        history(KEY, [replace(session(1, 2.0), recorded_at="yesterday")])


def test_a_step_is_dated_and_put_beside_what_moved_there() -> None:
    found = history(KEY, STEPPED)
    (shift,) = found.shifts
    assert (shift.index, shift.after, shift.date) == (8, "2026-09-22", "2026-09-25")
    assert shift.change == pytest.approx(-0.10, abs=0.008)
    assert shift.cause == "only the driver moved (driver 570.86 → 580.159, CUDA driver 12.8 → 13.0): the suspect"
    assert found.drift is not None
    assert found.drift.sessions == 8, "the drift is that of the level of now, without the step"
    assert not found.drift.shown


def test_a_step_with_nothing_recorded_beside_it_accuses_nothing() -> None:
    found = history(KEY, steady([100.0] * 8 + [90.0] * 8))
    assert [shift.cause for shift in found.shifts] == ["nothing under test moved"]


def test_steady_sessions_have_no_change_point_and_no_drift() -> None:
    found = history(KEY, steady([100.0] * 16))
    assert found.shifts == ()
    assert found.drift is not None
    assert found.drift.low < 0 < found.drift.high


@pytest.mark.parametrize("slow", [0, 1, 7, 14, 15])
def test_one_slow_session_is_no_change_of_level(slow: int) -> None:
    centres = [100.0] * 16
    centres[slow] = 80.0
    assert history(KEY, steady(centres)).shifts == ()


@pytest.mark.parametrize("first", [2, 14])
def test_two_sessions_make_a_level(first: int) -> None:
    centres = [100.0] * first + [90.0] * (16 - first)
    assert [shift.index for shift in history(KEY, steady(centres)).shifts] == [first]


def test_slow_drift_is_told_for_30_days_and_is_no_step() -> None:
    centres = [100.0 * math.exp(-0.03 * 3.0 * n / 30) for n in range(16)]
    found = history(KEY, steady(centres))
    assert found.shifts == ()
    assert found.drift is not None
    assert found.drift.shown
    assert found.drift.low <= math.expm1(-0.03) <= found.drift.high
    assert found.drift.change == pytest.approx(-0.03, abs=0.012)
    assert (found.drift.days, found.drift.sessions) == (45.0, 16)


def test_values_that_repeat_to_the_last_digit_have_one_level() -> None:
    (only,) = levels(range(8), [100.0] * 8)
    assert only == Level(first=0, last=7, value=only.value)
    assert only.value == pytest.approx(100.0)
    found = drift(range(8), [100.0] * 8)
    assert found is not None
    assert (found.change, found.low, found.high) == (0.0, 0.0, 0.0)
    assert not found.shown


def test_the_level_is_the_same_in_any_unit() -> None:
    days, values = list(range(16)), [s.values[0] for s in STEPPED]
    small = [(level.first, level.last) for level in levels(days, [v / 1e9 for v in values])]
    assert small == [(level.first, level.last) for level in levels(days, values)] == [(0, 7), (8, 15)]


def test_without_the_library_the_rest_is_told_and_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ruptures", None)
    found = history(KEY, STEPPED)
    assert found.shifts == ()
    assert found.drift is not None
    assert found.notes[-1].startswith("change points: not looked for: change points need the library ruptures (")
    assert found.notes[-1].endswith("pip install 'pytest-moegpu[history]'")
    with pytest.raises(UserError, match="ruptures"):
        levels(range(8), [1.0] * 8)


def test_fewer_sessions_than_needed_are_refused() -> None:
    with pytest.raises(ValueError, match="7 sessions: a change point is looked for from 8 on"):
        levels(range(7), [1.0] * 7)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_chart_keeps_to_the_width(width: int) -> None:
    lines = chart(history(KEY, STEPPED), width)
    assert max(map(len, lines)) <= width
    assert len(lines) == 10


def test_the_chart_shows_sessions_moves_and_change_points() -> None:
    lines = chart(history(KEY, STEPPED), 80)
    body = "\n".join(lines[:8])
    assert body.count("*") == 16
    assert lines[0].startswith(" 101.1 tok/s |")
    assert lines[7].startswith("  89.1 tok/s |")
    # The session that begins the new level stands in the column of what moved.
    foot, marks = lines[8], [line for line in lines[:8] if line.count("|") == 2]
    assert foot.count("^") == 1
    assert len(marks) == 7
    assert {line.rindex("|") for line in marks} == {foot.index("^")}
    assert lines[9].split() == ["2026-09-01", "2026-10-16"]


def test_a_level_line_is_drawn_where_nothing_moves() -> None:
    lines = chart(history(KEY, [session(0, 100.0), session(1, 100.0)]), 60)
    assert lines[0].startswith(" 100.0 tok/s |*")
    assert lines[0].endswith("*")
    assert not any("*" in line for line in lines[1:])


def test_the_text_says_what_happened() -> None:
    text = as_text(history(KEY, STEPPED), 80)
    assert text.startswith(
        "decode (higher is better)  rtx3090/balanced-6k/llamacpp  16 sessions, 2026-09-01 … 2026-10-16\n"
    )
    assert "\n  changed   2026-09-25  driver 570.86 → 580.159, CUDA driver 12.8 → 13.0\n" in text
    assert (
        "\n  step      2026-09-25  100.3 tok/s → 89.9 tok/s (-10.4 %, worse) after 2026-09-22: only the driver" in text
    )
    assert "): none shown; 8 sessions in 21 days since 2026-09-25" in text
    assert text.endswith("  latest    89.4 tok/s of run run-15")


def test_a_gain_is_called_better_by_the_direction_of_the_metric() -> None:
    memory = replace(KEY, metric="peak_memory")
    fewer = [replace(s, values=tuple(v * 2**30 for v in s.values)) for s in STEPPED]
    assert ", better) after" in as_text(history(memory, fewer), 80)


def test_the_json_holds_every_value() -> None:
    written = json.loads(json.dumps(as_json([history(KEY, STEPPED)], ["run x: interrupted"])))
    (one,) = written["histories"]
    assert (written["schema"], written["left_out"]) == (1, ["run x: interrupted"])
    assert (one["profile"], one["metric"], one["unit"], one["better"]) == ("rtx3090", "decode", "tok/s", "higher")
    assert one["sessions"][0] == {
        "run": "run-00",
        "recorded_at": "2026-09-01T10:00:00+00:00",
        "median": pytest.approx(100.4),
        "values": [pytest.approx(100.4)],
        "source": "",
    }
    assert one["changes"][0]["fields"][0] == {"field": "driver", "from": "570.86", "to": "580.159"}
    assert one["change_points"][0]["date"] == "2026-09-25"
    assert one["drift"]["sessions"] == 8


def measured(rate: float, **changes: object) -> Evidence:
    starts = [watched(n, requests=(*answers(), *(stream(rate + n / 10),) * 3)) for n in range(1, 4)]
    return evidence(*starts, **changes)


def keep(root: Path, number: int, found: Evidence, **changes: object) -> None:
    name = f"202609{number:02}-100000-rtx3090-0000"
    record = run_record(
        found, id=name, started_at=f"2026-09-{number:02}T10:00:00+00:00", asked=profile(), scenarios=(scenario(),)
    )
    Bundle(root / name).write(replace(record, **changes))  # type: ignore[arg-type]


def command(tmp_path: Path, *words: str) -> int:
    return main(["history", *words, "--runs", str(tmp_path / "runs"), "--baselines", str(tmp_path / "baselines")])


def test_the_verb_reads_bundles_and_baselines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path / "runs", 1, measured(100.0))
    keep(tmp_path / "runs", 2, measured(101.0))
    keep(tmp_path / "runs", 3, measured(50.0), status="interrupted")
    wrong = tuple(replace(r, text="No idea.") for r in answers())
    broken = evidence(*(watched(n, requests=(*wrong, *(stream(),) * 3)) for n in (1, 2)))
    keep(tmp_path / "runs", 4, broken)
    (tmp_path / "runs/20260905-100000-rtx3090-0000").mkdir()
    (tmp_path / "runs/20260905-100000-rtx3090-0000/run.json").write_text("{")
    # One of its sessions is a bundle that is here as well.
    held = baseline(90.0, 91.0)
    (first,) = held.sessions
    again = replace(first, run="20260902-100000-rtx3090-0000", metrics={"decode": (1.0, 1.0)})
    write_baseline(tmp_path / "baselines", replace(held, sessions=(first, again)))

    assert command(tmp_path, "--metric", "decode", "--json") == 0
    written = json.loads(capsys.readouterr().out)
    (one,) = written["histories"]
    assert [(s["run"], s["median"]) for s in one["sessions"]] == [
        ("20260901-100000-rtx3090-0000", pytest.approx(100.2)),
        ("20260902-100000-rtx3090-0000", pytest.approx(101.2)),
        ("20261129-100000-rtx3090-0000", 90.5),
    ]
    left_out = "\n".join(written["left_out"])
    assert "run 20260903-100000-rtx3090-0000: interrupted, not finished" in left_out
    assert "run 20260904-100000-rtx3090-0000, balanced-6k decode: throughput INCONCLUSIVE" in left_out
    assert "20260905-100000-rtx3090-0000/run.json: damaged run: Expecting property name" in left_out

    assert command(tmp_path, "rtx3090") == 0
    text = capsys.readouterr().out
    assert text.startswith(
        "decode (higher is better)  rtx3090/balanced-6k/llamacpp  3 sessions, 2026-09-01 … 2026-11-30\n"
    )
    assert "left out: run 20260903" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("rtx3080",), "no session of rtx3080 (did you mean 'rtx3090'?) in "),
        (("--scenario", "balanced"), "no session of balanced (did you mean 'balanced-6k'?) in "),
        (("rtx3090", "--metric", "peak_memory"), "no session of rtx3090 peak_memory in "),
    ],
)
def test_what_was_never_measured_is_named_with_what_was(
    words: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_baseline(tmp_path / "baselines", baseline())
    assert command(tmp_path, *words) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"moegpu history: {says}")
    assert "there are rtx3090 with balanced-6k" in err


def test_an_empty_store_is_no_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path) == 2
    assert "nothing was measured there" in capsys.readouterr().err


def test_an_unknown_metric_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command(tmp_path, "--metric", "speed")
    assert caught.value.code == 3
    assert "decode" in capsys.readouterr().err


def test_histories_of_other_values_than_numbers_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = baseline(100.0, -1.0)
    write_baseline(
        tmp_path / "baselines",
        replace(held, sessions=(*held.sessions, replace(held.sessions[0], run="b", metrics={"decode": (5.0,)}))),
    )
    assert command(tmp_path, "--json") == 0
    written = json.loads(capsys.readouterr().out)
    assert [s["run"] for s in written["histories"][0]["sessions"]] == ["b"]
    assert "a clock stepped back?" in written["left_out"][0]


def test_a_history_of_one_session_has_no_chart() -> None:
    one: History = history(KEY, [session(0, 100.0)])
    assert "|" not in as_text(one, 80)
    assert "1 session, 2026-09-01" in as_text(one, 80)
