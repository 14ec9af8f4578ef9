"""The simulated proof in a short form, and that what is simulated is what `core.compare` does."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench import _verdict_rules as rules
from bench import verdicts
from bench._verdict_noise import Noise, one_session, sessions
from pytest_moegpu.core.compare import compare
from pytest_moegpu.core.designs import Design
from pytest_moegpu.core.stats import mann_whitney
from pytest_moegpu.core.verdict import Metric, Outcome
from tests.unit.test_compare import EVIDENCE, SCENARIO, baseline
from tests.unit.test_compare_stored import sessions as stored_sessions

TRIALS = 1000


def most(level: float) -> float:
    """Three standard errors of a share above it."""
    return level + 3 * math.sqrt(level * (1 - level) / TRIALS)


def values(logs: rules.Array) -> tuple[float, ...]:
    return tuple(float(v) for v in 100 * np.exp(logs))


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 5), (5, 5), (7, 5), (10, 10)])
def test_the_simulated_p_value_is_the_exact_one(n: int, m: int) -> None:
    rng = np.random.default_rng(n)
    now, base = rng.normal(size=(20, n)), rng.normal(size=(20, m))
    wanted = [mann_whitney(values(a), values(b), "less") for a, b in zip(now, base, strict=True)]
    assert rules.u_loss(now, base) == pytest.approx(wanted)


@pytest.mark.parametrize("loss", [0.0, 0.025, 0.05])
def test_the_simulated_rule_of_interleaved_starts_is_that_of_compare(loss: float) -> None:
    rng, looks = np.random.default_rng(3), (5, 7)
    now, base = (rules.starts_of(side) for side in one_session(rng, 60, 7, Noise(slow_share=0.08)))
    now = now + math.log1p(-loss)
    alone = rules.interleaved(now, base)
    staged, taken = rules.in_looks(now, base, looks)
    for k in range(len(now)):
        metric, there = Metric(name="decode", values=values(now[k])), baseline(values(base[k]))
        got = compare(metric, EVIDENCE, SCENARIO, there, design=Design.INTERLEAVED).outcome
        assert (got is Outcome.REGRESSED, got.green) == (alone.alarm[k], alone.passed[k])
        for look, count in enumerate(looks):
            metric, there = Metric(name="decode", values=values(now[k][:count])), baseline(values(base[k][:count]))
            verdict = compare(metric, EVIDENCE, SCENARIO, there, look=look, looks=looks, design=Design.INTERLEAVED)
            if verdict.outcome is not Outcome.INCONCLUSIVE:
                break
        assert (verdict.outcome is Outcome.REGRESSED, count) == (staged.alarm[k], taken[k])
        assert verdict.outcome.green == staged.passed[k]


@pytest.mark.parametrize("held", [1, 4])
@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_the_simulated_rule_of_stored_sessions_is_that_of_compare(held: int, loss: float) -> None:
    rng, looks = np.random.default_rng(held), (3, 7)
    now, old = (rules.starts_of(side) for side in sessions(rng, 60, held, 5, 7, Noise()))
    now = now + math.log1p(-loss)
    staged = rules.stored_looks(now, old, 0.015, looks)
    for k in range(len(now)):
        there = stored_sessions(*map(values, old[k]))
        for look, count in enumerate(looks):
            metric = Metric(name="decode", values=values(now[k][:count]))
            verdict = compare(metric, EVIDENCE, SCENARIO, there, look=look, looks=looks)
            if verdict.outcome is not Outcome.INCONCLUSIVE:
                break
        assert verdict.outcome is not Outcome.IMPROVED or staged.passed[k]
        assert (verdict.outcome is Outcome.REGRESSED, verdict.outcome.green) == (staged.alarm[k], staged.passed[k])


def test_interleaved_starts_keep_the_level_whatever_the_noise() -> None:
    rng = np.random.default_rng(1)
    for noise in (Noise(), Noise(slow_share=0.08), Noise(drift=0.02)):
        now, base = one_session(rng, TRIALS, 6, noise)
        assert rules.ours(now, base).alarm.mean() <= most(0.01)
        now, base = (rules.starts_of(side) for side in one_session(rng, TRIALS, 10, noise))
        staged, _ = rules.in_looks(now, base, (6, 8, 10))
        assert staged.alarm.mean() <= most(0.01)


def test_a_loss_of_three_percent_is_seen_with_six_and_six() -> None:
    now, base = one_session(np.random.default_rng(2), TRIALS, 6, Noise(request=0.0))
    assert rules.ours(now + math.log1p(-0.03), base).alarm.mean() >= 0.9 - 3 * math.sqrt(0.09 / TRIALS)


def test_a_clear_loss_stops_at_the_first_look() -> None:
    now, base = (rules.starts_of(s) for s in one_session(np.random.default_rng(4), TRIALS, 10, Noise()))
    answer, taken = rules.in_looks(now + math.log1p(-0.05), base, (5, 7, 10))
    assert answer.alarm.mean() >= 0.99
    assert taken.mean() <= 0.6 * 10


@pytest.mark.parametrize("held", [1, 3, 10])
def test_stored_sessions_keep_their_levels_where_they_differ_as_assumed(held: int) -> None:
    now, old = (rules.starts_of(s) for s in sessions(np.random.default_rng(held), TRIALS, held, 5, 7, Noise()))
    assert rules.stored_looks(now, old, 0.015, (3, 7)).alarm.mean() <= most(0.01)
    assert rules.stored_looks(now + math.log1p(-0.05), old, 0.015, (3, 7)).passed.mean() <= most(0.05)
    assert rules.stored_looks(now + math.log1p(-0.167), old, 0.015, (3, 7)).alarm.mean() >= 0.99


def test_the_naive_rules_fail_where_it_is_said_that_they_do() -> None:
    now, base = one_session(np.random.default_rng(5), TRIALS, 5, Noise())
    assert rules.pooled_welch(now, base).alarm.mean() >= 0.08
    assert rules.bootstrap(now, base).alarm.mean() >= 0.02
    lost = now + math.log1p(-0.08)
    assert rules.brunner_munzel(lost, base).alarm.mean() <= 0.02
    assert rules.ours(lost, base).alarm.mean() >= 0.99
    assert rules.inference_doctor(now + math.log1p(-0.05), base).passed.mean() >= 0.95
    new, old = sessions(np.random.default_rng(6), TRIALS, 1, 5, 5, Noise())
    assert rules.ours(new, old.reshape(TRIALS, 5, -1)).alarm.mean() >= 0.10


def test_a_target_that_is_missed_is_not_met() -> None:
    kept = verdicts.Target(name="x", figure=0.012, limit=0.01, margin=0.005)
    assert kept.met
    assert not verdicts.Target(name="x", figure=0.02, limit=0.01, margin=0.005).met
    assert not verdicts.Target(name="x", figure=0.8, limit=0.9, margin=0.05, at_most=False).met
