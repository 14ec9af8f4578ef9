"""A run against stored sessions, and input that must not become a number."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from pytest_moegpu.core.baseline import Baseline, BaselineSession
from pytest_moegpu.core.compare import compare, wants_more_starts
from pytest_moegpu.core.designs import Design
from pytest_moegpu.core.evidence import Evidence, StartEvidence
from pytest_moegpu.core.model import Limits
from pytest_moegpu.core.units import GIB
from pytest_moegpu.core.verdict import METRICS, Metric, Outcome, Verdict
from tests.unit.test_compare import BASE, EVIDENCE, SCENARIO, baseline, scaled

FIVE = (99.0, 99.6, 100.0, 100.4, 101.0)


def sessions(*values: tuple[float, ...], name: str = "decode", **noted: str) -> Baseline:
    held = tuple(
        BaselineSession(
            run=f"r{k}", recorded_at=f"2026-11-{k:02}T00:00:00+00:00", metrics={name: starts}, noted=dict(noted)
        )
        for k, starts in enumerate(values, 1)
    )
    return replace(baseline(), sessions=held)


def notes(verdict: Verdict) -> list[str]:
    return [said for label, said in verdict.lines if label == "note"]


def judge(values: tuple[float, ...], stored: Baseline, **changes: Any) -> Verdict:
    name = next(iter(stored.sessions[0].metrics))
    return compare(Metric(name=name, values=values), changes.pop("evidence", EVIDENCE), SCENARIO, stored, **changes)


class TestOneSession:
    def test_a_fall_of_a_sixth_is_regressed(self) -> None:
        got = judge(scaled(0.833, FIVE), sessions(FIVE))
        assert got.outcome is Outcome.REGRESSED
        assert got.change == pytest.approx(-0.167)
        assert got.confidence == 0.98
        assert got.interval is not None
        assert got.interval[0] == pytest.approx(-0.217, abs=0.002)
        assert got.interval[1] == pytest.approx(-0.114, abs=0.002)
        assert got.reason == (
            "a loss of 16.7 % is significant (p = 1.5e-05, level 0.01): sessions alone differ by up to 6.0 %"
        )
        assert notes(got)[0] == (
            "baseline holds 1 session: sessions are taken to differ by 1.5 % (CV), which was not measured"
        )

    def test_the_first_look_of_three_starts_is_enough_for_that(self) -> None:
        got = judge(scaled(0.833, FIVE[:3]), sessions(FIVE), look=0, looks=(3, 7))
        assert got.outcome is Outcome.REGRESSED

    def test_the_same_speed_with_noise_of_one_percent_passes(self) -> None:
        got = judge((99.5, 100.8, 99.9, 98.9, 100.2), sessions(FIVE))
        assert got.outcome is Outcome.PASS
        assert got.reason == "a loss beyond 4.1 % is ruled out at 5 %, allowed 5.0 %"

    @pytest.mark.parametrize(("factor", "outcome"), [(0.97, Outcome.INCONCLUSIVE), (0.92, Outcome.REGRESSED)])
    def test_what_sessions_may_differ_by_is_not_blamed_on_the_upgrade(self, factor: float, outcome: Outcome) -> None:
        assert judge(scaled(factor, FIVE), sessions(FIVE)).outcome is outcome

    def test_an_undecided_case_says_how_to_settle_it_and_asks_for_no_starts_in_vain(self) -> None:
        got = judge(scaled(0.96, FIVE), sessions(FIVE))
        assert got.outcome is Outcome.INCONCLUSIVE
        assert got.reason == (
            "interval too wide: a loss of 7.8 % is not ruled out, allowed 5.0 %; a loss of 4.0 % is likely "
            "(p = 0.049, level 0.01). Sessions alone differ by up to 6.0 %: settle it in one session, `moegpu ab`, "
            "or with one before, one after and one back, `moegpu gate`"
        )
        assert not wants_more_starts(got)

    def test_an_undecided_case_that_starts_can_settle_asks_for_them(self) -> None:
        noisy = (90.0, 95.0, 100.0, 105.0, 110.0)
        got = judge(noisy, sessions(noisy))
        assert got.outcome is Outcome.INCONCLUSIVE
        assert wants_more_starts(got)

    def test_memory_hardly_differs_between_sessions(self) -> None:
        held = (21 * GIB + 0.0, 21 * GIB + 1.0, 21 * GIB + 2.0)
        grown = judge(scaled(1.03, held), sessions(held, name="peak_memory"))
        assert grown.outcome is Outcome.REGRESSED
        assert grown.allowed == 0.05
        assert judge(held, sessions(held, name="peak_memory")).outcome is Outcome.PASS

    @pytest.mark.parametrize("name", ["decode", "prefill", "ttft", "peak_memory"])
    def test_direction_is_that_of_the_metric(self, name: str) -> None:
        lower_is_worse = METRICS[name].better == "higher"
        fall = judge(scaled(0.8, FIVE), sessions(FIVE, name=name))
        rise = judge(scaled(1.25, FIVE), sessions(FIVE, name=name))
        assert fall.outcome is (Outcome.REGRESSED if lower_is_worse else Outcome.IMPROVED)
        assert rise.outcome is (Outcome.IMPROVED if lower_is_worse else Outcome.REGRESSED)

    def test_a_spread_that_is_known_may_be_told(self) -> None:
        now, stored = scaled(0.96, FIVE), sessions(FIVE)
        assert judge(now, stored).outcome is Outcome.INCONCLUSIVE
        assert judge(now, stored, session_cv=0.003).outcome is Outcome.REGRESSED
        assert judge(scaled(0.9, FIVE), stored, session_cv=0.05).outcome is Outcome.INCONCLUSIVE


class TestSeveralSessions:
    STEADY = tuple(scaled(1 + d, FIVE) for d in (-0.002, -0.001, 0.0, 0.001, 0.002) * 2)

    def test_ten_that_agree_find_a_loss_that_one_cannot(self) -> None:
        now = scaled(0.965, FIVE)
        assert judge(now, sessions(FIVE)).outcome is Outcome.INCONCLUSIVE
        got = judge(now, sessions(*self.STEADY))
        assert got.outcome is Outcome.REGRESSED
        assert notes(got)[0] == "baseline holds 10 sessions; sessions differ by 0.0 % (CV), 1.0 % is reckoned with"
        assert len(got.baseline_values) == 50

    def test_sessions_that_differ_widen_the_interval(self) -> None:
        apart = sessions(*(scaled(1 + d, FIVE) for d in (-0.05, 0.05, -0.03, 0.03, 0.0)))
        now = scaled(0.935, FIVE)
        assert judge(now, sessions(FIVE)).outcome is Outcome.REGRESSED
        got = judge(now, apart)
        assert got.outcome is Outcome.INCONCLUSIVE
        assert notes(got) == ["baseline holds 5 sessions; sessions differ by 4.1 % (CV), 2.7 % is reckoned with"]

    def test_sessions_of_other_scenarios_tell_of_the_spread_too(self) -> None:
        now, stored = scaled(0.96, FIVE), sessions(FIVE)
        other = replace(sessions(*self.STEADY), scenario="other")
        assert judge(now, stored).outcome is Outcome.INCONCLUSIVE
        assert judge(now, stored, kin=(other,)).outcome is Outcome.REGRESSED

    def test_the_order_of_sessions_and_starts_does_not_matter(self) -> None:
        rng = random.Random(2)
        held = [tuple(rng.sample(values, 5)) for values in self.STEADY]
        rng.shuffle(held)
        mixed, straight = (
            judge(scaled(0.965, FIVE), sessions(*held)),
            judge(scaled(0.965, FIVE), sessions(*self.STEADY)),
        )
        assert mixed.change == pytest.approx(straight.change)
        assert mixed.interval == pytest.approx(straight.interval)
        assert mixed.outcome is straight.outcome

    @pytest.mark.parametrize("exponent", [-20, 10])
    def test_units_do_not_matter(self, exponent: int) -> None:
        now, stored = scaled(0.965, FIVE), self.STEADY
        there = judge(scaled(2.0**exponent, now), sessions(*(scaled(2.0**exponent, v) for v in stored)))
        here = judge(now, sessions(*stored))
        assert there.outcome is here.outcome
        assert there.interval == pytest.approx(here.interval)

    def test_all_metrics_of_a_scenario_are_counted(self) -> None:
        session = replace(baseline().sessions[0], metrics=dict.fromkeys(("decode", "prefill", "ttft"), FIVE))
        stored = replace(baseline(), sessions=(session,))
        now = {name: Metric(name=name, values=FIVE) for name in ("prefill", "ttft")}
        family = now | {"decode": Metric(name="decode", values=scaled(0.935, FIVE))}
        alone = compare(family["decode"], EVIDENCE, SCENARIO, stored)
        among = compare(family["decode"], EVIDENCE, SCENARIO, stored, family=family)
        assert alone.outcome is Outcome.REGRESSED
        assert among.outcome is Outcome.INCONCLUSIVE
        assert "among 3 metrics, level 0.01" in among.reason


def started(at: str, **noted: str) -> Evidence:
    return replace(EVIDENCE, starts=(StartEvidence(number=1, started_at=at),), noted=dict(noted))


class TestBadInput:
    """Each has a verdict by name and shows no change, no interval and no p-value."""

    def nothing_shown(self, got: Verdict) -> None:
        assert not got.outcome.green
        assert (got.change, got.interval, got.confidence, got.smallest_loss) == (None, None, None, None)
        assert (got.baseline, got.baseline_values) == (None, ())

    @pytest.mark.parametrize("design", Design)
    def test_one_start(self, design: Design) -> None:
        got = judge((115.0,), sessions((115.0,)), design=design)
        assert got.outcome is Outcome.INCONCLUSIVE
        assert got.reason == "1 start now, 1 in the baseline: its spread is not known, 3 starts or more are needed"
        assert wants_more_starts(got)
        self.nothing_shown(got)

    def test_one_start_each_of_two_machines(self) -> None:
        stored = sessions((115.0,), host="rig-1")
        got = judge((90.0,), stored, evidence=started("2026-12-01T00:00:00+00:00", host="rig-2"))
        assert got.outcome is Outcome.INCONCLUSIVE
        assert "of another machine (host rig-1 → rig-2)" in got.reason
        self.nothing_shown(got)

    def test_two_machines_cannot_be_interleaved(self) -> None:
        stored = replace(sessions(FIVE), sessions=(replace(sessions(FIVE).sessions[0], noted={"gpu.uuid": "GPU-a"}),))
        evidence = replace(EVIDENCE, noted={"gpu.uuid": "GPU-b"})
        got = judge(FIVE, stored, evidence=evidence, design=Design.INTERLEAVED)
        assert got.outcome is Outcome.NOT_COMPARABLE
        assert got.reason == "not interleaved, of another machine (gpu.uuid GPU-a → GPU-b)"
        self.nothing_shown(got)
        told = judge(FIVE, stored, evidence=evidence)
        assert told.outcome is Outcome.PASS
        said = "baseline, of another machine (gpu.uuid GPU-a → GPU-b): what machines differ by is not reckoned with"
        assert ("note", said) in told.lines

    @pytest.mark.parametrize(
        ("now", "base", "said"),
        [
            (2, 3, "too few starts: 2 now, 3 in the baseline; 3 of each are needed"),
            (3, 2, "too few starts: 3 now, 2 in the baseline; 3 of each are needed; record the baseline again with 5"),
        ],
    )
    def test_two_starts_of_a_side(self, now: int, base: int, said: str) -> None:
        got = judge(FIVE[:now], sessions(FIVE[:base]))
        assert (got.outcome, got.reason) == (Outcome.INCONCLUSIVE, said)
        assert wants_more_starts(got) == (base == 3)
        self.nothing_shown(got)

    @pytest.mark.parametrize("bad", [(), (math.nan,) * 5, (0.0, 1.0, 2.0), (math.inf, 1.0, 2.0)])
    @pytest.mark.parametrize("design", Design)
    def test_what_is_no_positive_number(self, bad: tuple[float, ...], design: Design) -> None:
        got = judge(bad, sessions(FIVE), design=design)
        assert got.outcome is Outcome.INCONCLUSIVE
        assert "decode values of this run" in got.reason
        assert got.value is None
        self.nothing_shown(got)
        if bad:
            damaged = judge(FIVE, sessions(FIVE, bad), design=design)
            assert damaged.outcome is Outcome.ERROR
            assert "decode values of the baseline" in damaged.reason
            self.nothing_shown(damaged)

    def test_a_negative_time_names_the_clock(self) -> None:
        got = judge((0.5, -0.1, 0.5), sessions(FIVE, name="ttft"))
        assert got.outcome is Outcome.INCONCLUSIVE
        assert got.reason == (
            "ttft values of this run must be positive finite numbers, not -0.1 (a clock stepped back?)"
        )
        self.nothing_shown(got)

    @pytest.mark.parametrize("design", Design)
    def test_mixed_units_within_a_run(self, design: Design) -> None:
        got = judge((0.5, 0.51, 512.0), sessions((0.5, 0.5, 0.51), name="ttft"), design=design)
        assert got.outcome is Outcome.INCONCLUSIVE
        assert got.reason == "ttft values of this run go from 0.5 to 512: not of one unit"
        self.nothing_shown(got)

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"units": {"decode": "req/s"}}, "unit.decode req/s → tok/s"),
            ({"better": {"decode": "lower"}}, "better.decode lower → higher"),
            ({"check_version": 0}, "check.version 0 → 1"),
        ],
    )
    def test_another_unit_direction_or_version_of_the_checks(self, changes: dict[str, Any], said: str) -> None:
        stored = replace(sessions(FIVE), **changes)
        evidence = replace(EVIDENCE, identity={k: v for k, v in EVIDENCE.identity.items() if k != "check.version"})
        stored = replace(stored, identity=evidence.identity)
        got = judge(FIVE, stored, evidence=evidence)
        assert got.outcome is Outcome.NOT_COMPARABLE
        assert got.reason == f"must match but differs: {said}"
        self.nothing_shown(got)

    def test_a_baseline_recorded_after_the_run(self) -> None:
        got = judge(FIVE, sessions(FIVE), evidence=started("2026-10-31T23:00:00Z"))
        assert got.outcome is Outcome.INCONCLUSIVE
        assert got.reason == (
            "run r1 of the baseline was recorded at 2026-11-01T00:00:00+00:00, after this run of "
            "2026-10-31T23:00:00+00:00: a clock stepped back, or the runs are in the wrong order"
        )
        assert not wants_more_starts(got)
        self.nothing_shown(got)

    @pytest.mark.parametrize("at", ["2026-11-01T00:00:00", "2026-11-01T01:00:00+01:00", "", "yesterday"])
    def test_a_time_that_is_not_later_or_not_known_stands_in_nobodys_way(self, at: str) -> None:
        assert judge(FIVE, sessions(FIVE), evidence=started(at)).outcome is Outcome.PASS

    def test_a_run_that_the_baseline_holds_twice(self) -> None:
        twice = replace(sessions(FIVE), sessions=sessions(FIVE).sessions * 2)
        got = judge(FIVE, twice)
        assert got.outcome is Outcome.ERROR
        assert got.reason == "the baseline holds a run more than once: r1"
        self.nothing_shown(got)

    @pytest.mark.parametrize("design", Design)
    def test_speeds_without_any_spread_have_no_smallest_loss(self, design: Design) -> None:
        got = judge((98.0,) * 5, sessions((100.0,) * 5), design=design)
        assert got.smallest_loss is None
        assert "all starts gave one value to the last digit: their spread was not measured" in notes(got)
        # An order without exception is one all the same; between sessions 2 % is nothing.
        assert got.outcome is (Outcome.REGRESSED if design is Design.INTERLEAVED else Outcome.INCONCLUSIVE)

    def test_looks_that_do_not_grow(self) -> None:
        with pytest.raises(ValueError, match="looks must grow, not 5, 5"):
            judge(FIVE, sessions(FIVE), look=0, looks=(5, 5))


def test_false_alarms_stay_under_one_percent_where_sessions_differ_as_assumed() -> None:
    rng, trials, alarms, passed = random.Random(6), 300, 0, 0

    def drawn() -> tuple[float, ...]:
        level = rng.gauss(0, 0.015)
        return tuple(100 * math.exp(level + rng.gauss(0, 0.01)) for _ in range(5))

    for _ in range(trials):
        outcome = judge(drawn(), sessions(drawn(), drawn(), drawn())).outcome
        alarms += outcome is Outcome.REGRESSED
        passed += outcome is Outcome.PASS
    assert alarms / trials <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / trials)
    assert passed / trials >= 0.7


def test_a_tolerance_of_the_scenario_goes_before_the_default() -> None:
    wide = replace(SCENARIO, limits=Limits(tolerance={"decode": 0.30}))
    noisy = (90.0, 95.0, 100.0, 105.0, 110.0)
    metric = Metric(name="decode", values=noisy)
    assert compare(metric, EVIDENCE, SCENARIO, sessions(noisy)).outcome is Outcome.INCONCLUSIVE
    assert compare(metric, EVIDENCE, wide, sessions(noisy)).outcome is Outcome.PASS
    assert judge(BASE, sessions(BASE)).outcome is Outcome.PASS
