"""The spread between sessions, and the interval for a session that comes later."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from scipy.stats import t

from pytest_moegpu.core.between import PRIOR_FREEDOM, SessionSpread, session_difference, session_spread

FIVE = (99.0, 99.5, 100.0, 100.5, 101.0)


def drawn(rng: random.Random, cv: float, starts: int = 5, noise: float = 0.01) -> tuple[float, ...]:
    level = rng.gauss(0, cv)
    return tuple(100 * math.exp(level + rng.gauss(0, noise)) for _ in range(starts))


def test_one_session_shows_nothing_and_the_assumed_spread_stands() -> None:
    assert session_spread([[FIVE]], 0.015) == SessionSpread(cv=0.015, freedom=PRIOR_FREEDOM, measured=None)
    assert session_spread([], 0.002) == SessionSpread(cv=0.002, freedom=PRIOR_FREEDOM, measured=None)


def test_stored_sessions_pull_the_spread_towards_what_they_show() -> None:
    # Sessions without start noise, at logs -1 %, 0 and 1 %: their variance is 1e-4.
    sessions = [(100 * math.exp(level),) * 3 for level in (-0.01, 0.0, 0.01)]
    spread = session_spread([sessions], 0.015)
    assert spread.measured == pytest.approx(0.01)
    assert spread.freedom == PRIOR_FREEDOM + 2
    assert spread.cv == pytest.approx(math.sqrt((PRIOR_FREEDOM * 0.015**2 + 2 * 0.01**2) / (PRIOR_FREEDOM + 2)))


def test_start_noise_is_not_taken_for_a_spread_between_sessions() -> None:
    rng = random.Random(4)
    still = [session_spread([[drawn(rng, 0.0, noise=0.02) for _ in range(6)]], 0.015) for _ in range(200)]
    moved = [session_spread([[drawn(rng, 0.03, noise=0.02) for _ in range(6)]], 0.015) for _ in range(200)]
    assert statistics.median(s.measured or 0.0 for s in still) < 0.006
    assert statistics.median(s.measured or 0.0 for s in moved) == pytest.approx(0.03, abs=0.006)


def test_scenarios_of_one_session_sharpen_the_estimate_without_degrees_of_freedom() -> None:
    sessions = [(100 * math.exp(level),) * 3 for level in (-0.01, 0.0, 0.01)]
    apart = session_spread([sessions, sessions], 0.015)
    together = session_spread([sessions, sessions], 0.015, distinct=3)
    assert (apart.freedom, together.freedom) == (PRIOR_FREEDOM + 4, PRIOR_FREEDOM + 2)
    assert apart.measured == together.measured == pytest.approx(0.01)


def test_the_interval_by_hand() -> None:
    spread = SessionSpread(cv=0.015, freedom=8, measured=None)
    now, base = tuple(v * 0.9 for v in FIVE), FIVE
    found = session_difference(now, [base], spread)
    noise = statistics.variance(map(math.log, FIVE)) * math.pi / 3
    assert found.log_ratio == pytest.approx(math.log(0.9))
    assert found.between == pytest.approx(0.015 * math.sqrt(2))
    assert found.within == pytest.approx(math.sqrt(noise * (1 / 5 + 1 / 5)))
    assert (found.between_freedom, found.within_freedom) == (8, 8)
    wanted = math.hypot(t.isf(0.01, 8) * found.between, t.isf(0.005, 8) * found.within)
    assert found.half_width(0.01, 0.5) == pytest.approx(wanted)
    # 1.5 % between sessions, 0.8 % between starts: a single stored session finds a loss from about 6 % on.
    assert 0.060 < found.half_width(0.01) < 0.065
    assert 0.039 < found.half_width(0.05) < 0.042


def test_tail_is_the_level_whose_interval_ends_at_nothing() -> None:
    spread = SessionSpread(cv=0.015, freedom=8, measured=None)
    for loss in (0.02, 0.05, 0.1):
        found = session_difference(tuple(v * (1 - loss) for v in FIVE), [FIVE], spread)
        assert found.half_width(found.tail()) == pytest.approx(abs(found.log_ratio), rel=1e-6)
        assert found.tail() < found.tail(0.5) < 0.5
    assert session_difference(FIVE, [FIVE], spread).tail() == 0.5


def test_swapping_the_sides_of_two_sessions_flips_the_sign_and_nothing_else() -> None:
    spread = SessionSpread(cv=0.015, freedom=8, measured=None)
    other = (90.0, 91.0, 93.0, 92.0)
    there, back = session_difference(FIVE, [other], spread), session_difference(other, [FIVE], spread)
    assert there.log_ratio == -back.log_ratio
    assert there.within == pytest.approx(back.within)
    assert there.tail() == pytest.approx(back.tail())


def test_more_starts_of_a_session_take_away_their_own_part_only() -> None:
    spread = SessionSpread(cv=0.015, freedom=8, measured=None)
    few = session_difference(FIVE, [FIVE], spread, planned=3)
    many = session_difference(FIVE, [FIVE], spread, planned=1000)
    assert few.half_width(0.01) > many.half_width(0.01) > few.out_of_reach(0.01) * 0.999
    assert many.half_width(0.01) == pytest.approx(few.out_of_reach(0.01), rel=0.01)
    assert few.smallest(0.01, 0.9) > few.half_width(0.01)


@pytest.mark.parametrize("held", [1, 3, 10])
def test_a_loss_of_the_size_promised_is_seen_about_as_often_as_promised(held: int) -> None:
    rng, trials, seen = random.Random(held), 300, 0
    spread = SessionSpread(cv=0.015, freedom=60, measured=None)
    loss = session_difference(FIVE, [FIVE] * held, spread).smallest(0.01, 0.9)
    for _ in range(trials):
        now, sessions = drawn(rng, 0.015, noise=0.0079), [drawn(rng, 0.015, noise=0.0079) for _ in range(held)]
        found = session_difference(tuple(v * math.exp(-loss) for v in now), sessions, spread)
        seen += found.log_ratio <= -found.half_width(0.01)
    assert seen / trials == pytest.approx(0.9, abs=0.07)


def test_what_cannot_be_known_is_refused() -> None:
    spread = SessionSpread(cv=0.015, freedom=8, measured=None)
    with pytest.raises(ValueError, match="no session holds two starts"):
        session_difference((100.0,), [(99.0,), (101.0,)], spread)
    with pytest.raises(ValueError, match="values now"):
        session_difference((math.nan, 1.0), [FIVE], spread)
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="prior_cv must be above 0"):
            session_spread([], bad)
