"""Interleaved starts, and what holds for every comparison; stored sessions are in test_compare_stored.py."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_moegpu.core.baseline import BASELINE_SCHEMA, Baseline, BaselineSession
from pytest_moegpu.core.compare import compare, wants_more_starts
from pytest_moegpu.core.designs import Design
from pytest_moegpu.core.evidence import Evidence, Phase
from pytest_moegpu.core.model import Limits, Scenario, Settings, Stack, Workload
from pytest_moegpu.core.units import GIB
from pytest_moegpu.core.verdict import FailedClass, Metric, Outcome, Verdict

IDENTITY = {"gpu.name": "NVIDIA GeForce RTX 3090", "gpu.power_limit": "350 W", "check.version": "1"}
STACK = Stack(driver="570", cuda_driver="12.8", engine="llama.cpp", engine_version="b7000", libraries={"cudart": "12"})
EVIDENCE = Evidence(profile="rtx3090", scenario="small", backend="llamacpp", gpus=(), stack=STACK, identity=IDENTITY)
SCENARIO = Scenario(name="small", title="small", settings=Settings(context=4096), workload=Workload(), limits=Limits())
BASE = (114.6, 115.0, 115.2, 115.4, 115.7, 116.0, 116.3)


def baseline(values: tuple[float, ...] = BASE, name: str = "decode") -> Baseline:
    session = BaselineSession(run="r1", recorded_at="2026-11-01T00:00:00Z", metrics={name: values})
    return Baseline(
        schema=BASELINE_SCHEMA,
        profile="rtx3090",
        scenario="small",
        backend="llamacpp",
        check_version=1,
        identity=IDENTITY,
        stack=STACK,
        sessions=(session,),
    )


def judge(values: tuple[float, ...], base: tuple[float, ...] = BASE, name: str = "decode") -> Verdict:
    return compare(
        Metric(name=name, values=values), EVIDENCE, SCENARIO, baseline(base, name), design=Design.INTERLEAVED
    )


def scaled(factor: float, base: tuple[float, ...] = BASE) -> tuple[float, ...]:
    return tuple(v * factor for v in base)


def line(verdict: Verdict, label: str) -> str:
    return dict(verdict.lines)[label]


def test_a_clear_loss_is_regressed_with_all_its_numbers() -> None:
    now = (95.7, 96.0, 96.1, 96.3, 96.8)
    got = compare(
        Metric(name="decode", values=now),
        replace(EVIDENCE, stack=replace(STACK, driver="580", cuda_driver="13.0", libraries={"cudart": "13"})),
        SCENARIO,
        baseline(),
        design=Design.INTERLEAVED,
    )
    assert got.outcome is Outcome.REGRESSED
    assert (got.check, got.phase, got.scenario, got.subject) == ("baseline", Phase.COMPARE, "small", "decode")
    assert got.failed_class is FailedClass.PERFORMANCE
    assert (got.value, got.baseline, got.values, got.baseline_values) == (96.1, 115.4, now, BASE)
    assert got.change == pytest.approx(-0.167, abs=0.001)
    assert got.interval is not None
    assert got.interval[0] < -0.167 < got.interval[1] < -0.15
    assert got.confidence == pytest.approx(0.99, abs=0.005)
    assert got.allowed == -0.05
    assert got.smallest_loss == 0.02
    assert line(got, "starts") == (
        "95.7 96.0 96.1 96.3 96.8 tok/s; baseline 7 starts, CV 0.5 %; smallest loss this run could see: about 2.0 %"
    )
    assert line(got, "changed") == "driver 570 → 580, CUDA driver 12.8 → 13.0, library cudart 12 → 13"
    assert line(got, "same") == "GPU, model, settings, prompts, engine, engine version"
    assert "note" not in dict(got.lines)
    assert got.reason.startswith("a loss of 16.7 % is significant (p = 0.0013")
    assert not wants_more_starts(got)


def test_the_same_numbers_pass_and_say_what_is_ruled_out() -> None:
    got = judge(BASE)
    assert got.outcome is Outcome.PASS
    assert got.failed_class is None
    assert "ruled out at 5 %, allowed 5.0 %" in got.reason
    assert line(got, "changed") == "nothing under test"


@pytest.mark.parametrize(
    ("factor", "outcome"),
    [
        (1.10, Outcome.IMPROVED),
        (1.03, Outcome.PASS),  # a gain inside the tolerance
        (0.985, Outcome.PASS),  # significant, but under 2 %
        (0.97, Outcome.REGRESSED),  # significant and over 2 %, though inside the tolerance
    ],
)
def test_size_and_direction_decide(factor: float, outcome: Outcome) -> None:
    assert judge(scaled(factor)).outcome is outcome


def test_a_loss_of_exactly_two_percent_is_regressed() -> None:
    assert judge((98.0,) * 5, (100.0,) * 5).outcome is Outcome.REGRESSED


def test_a_tolerance_below_two_percent_is_taken_at_its_word() -> None:
    tight = replace(SCENARIO, limits=Limits(tolerance={"decode": 0.01}))
    metric = Metric(name="decode", values=scaled(0.985))
    got = compare(metric, EVIDENCE, tight, baseline(), design=Design.INTERLEAVED)
    assert got.outcome is Outcome.REGRESSED
    assert got.allowed == -0.01


def test_a_wider_tolerance_of_the_scenario_goes_before_the_default() -> None:
    noisy = (90.0, 95.0, 100.0, 105.0, 110.0)
    wide = replace(SCENARIO, limits=Limits(tolerance={"decode": 0.30}))
    assert judge(noisy, noisy).outcome is Outcome.INCONCLUSIVE
    metric = Metric(name="decode", values=noisy)
    assert compare(metric, EVIDENCE, wide, baseline(noisy), design=Design.INTERLEAVED).outcome is Outcome.PASS


@pytest.mark.parametrize(("name", "worse"), [("decode", 0.9), ("prefill", 0.9), ("ttft", 1.1), ("peak_memory", 1.1)])
def test_direction_is_that_of_the_metric(name: str, worse: float) -> None:
    bad, good = judge(scaled(worse), name=name), judge(scaled(1 / worse), name=name)
    assert bad.outcome is Outcome.REGRESSED
    assert good.outcome is Outcome.IMPROVED
    assert bad.failed_class is (FailedClass.MEMORY if name == "peak_memory" else FailedClass.PERFORMANCE)
    assert bad.change == pytest.approx(worse - 1)
    assert bad.allowed == (-0.05 if worse < 1 else 0.05)


def test_values_are_printed_in_their_unit() -> None:
    got = judge((22 * GIB,) * 5, (21 * GIB,) * 5, "peak_memory")
    assert got.outcome is Outcome.REGRESSED
    assert line(got, "starts").startswith("22.00 22.00 22.00 22.00 22.00 GiB; baseline 5 starts, CV 0.0 %")
    mixed = judge((0.999, 1.001, 1.0), (1.0, 1.0, 1.0), "ttft")
    assert line(mixed, "starts").startswith("999.0 ms  1.00 s  1.00 s; ")


@pytest.mark.parametrize("base", [None, replace(baseline(), sessions=()), baseline(name="prefill")])
def test_no_baseline_says_how_to_make_one(base: Baseline | None) -> None:
    got = compare(Metric(name="decode", values=BASE), EVIDENCE, SCENARIO, base)
    assert got.outcome is Outcome.NO_BASELINE
    assert "moegpu promote .moegpu/runs/<id>" in got.reason
    assert got.value == 115.4
    assert got.change is None


def test_all_fields_that_must_match_are_listed() -> None:
    now = {"gpu.name": "NVIDIA GeForce RTX 4090", "gpu.power_limit": "300 W", "check.version": "1", "os.class": "WSL2"}
    got = compare(
        Metric(name="decode", values=scaled(0.5)),
        replace(EVIDENCE, identity=now, check_version=2),
        SCENARIO,
        replace(baseline(), units={"decode": "req/s"}, better={"decode": "lower"}),
    )
    assert got.outcome is Outcome.NOT_COMPARABLE
    assert got.reason == (
        "must match but differs: gpu.name NVIDIA GeForce RTX 3090 → NVIDIA GeForce RTX 4090, "
        "gpu.power_limit 350 W → 300 W, os.class absent → WSL2, "
        "better.decode lower → higher, check.version 1 → 2, unit.decode req/s → tok/s"
    )
    assert (got.change, got.baseline, got.interval) == (None, None, None)
    # A version that the identity holds as well is listed once.
    newer = replace(EVIDENCE, identity={**IDENTITY, "check.version": "2"}, check_version=2)
    got = compare(Metric(name="decode", values=BASE), newer, SCENARIO, baseline())
    assert got.reason == "must match but differs: check.version 1 → 2"


def test_a_part_of_the_stack_that_may_not_vary_makes_it_not_comparable() -> None:
    now = replace(EVIDENCE, stack=replace(STACK, driver="580", engine_version="b7100"))
    metric = Metric(name="decode", values=BASE)
    got = compare(metric, now, SCENARIO, baseline(), varying=frozenset({"driver"}))
    assert got.outcome is Outcome.NOT_COMPARABLE
    assert got.reason == "only driver may vary, but this moved: engine version b7000 → b7100"
    assert line(got, "changed") == "driver 570 → 580, engine version b7000 → b7100"
    assert compare(metric, now, SCENARIO, baseline(), varying=frozenset({"driver", "engine"})).outcome is Outcome.PASS
    assert compare(metric, now, SCENARIO, baseline()).outcome is Outcome.PASS


@pytest.mark.parametrize("bad", [(), (math.nan,) * 5, (0.0, 1.0, 2.0), (-1.0, 1.0, 2.0), (math.inf, 1.0, 2.0)])
def test_bad_values_are_inconclusive_and_show_no_number(bad: tuple[float, ...]) -> None:
    got = judge(bad)
    assert got.outcome is Outcome.INCONCLUSIVE
    assert "decode values of this run" in got.reason
    assert (got.value, got.values, got.change, got.baseline) == (None, (), None, None)
    assert not wants_more_starts(got)


def test_a_damaged_baseline_is_an_error() -> None:
    got = judge(BASE, (115.0, math.nan))
    assert got.outcome is Outcome.ERROR
    assert got.reason == "decode values of the baseline must be positive finite numbers, not nan"


def test_too_few_starts_say_how_many_are_needed() -> None:
    got = judge((115.0, 115.2), (115.0, 115.1, 115.3))
    assert got.outcome is Outcome.INCONCLUSIVE
    assert got.reason == (
        "too few starts: 2 now, 3 in the baseline; 3 are needed to pass, 7 to show a loss (level 0.01)"
    )
    assert got.smallest_loss is None
    assert "smallest loss this run could see: none" in line(got, "starts")
    assert wants_more_starts(got)


def test_a_wide_interval_says_so() -> None:
    noisy = (90.0, 95.0, 100.0, 105.0, 110.0)
    got = judge(noisy, noisy)
    assert got.reason.startswith("interval too wide: a loss of ")
    assert wants_more_starts(got)


def test_a_likely_loss_with_too_few_starts_says_both() -> None:
    got = judge((90.0, 91.0, 92.0), (100.0, 101.0, 102.0))
    assert got.outcome is Outcome.INCONCLUSIVE
    assert "a loss of 9.9 % is likely (p = 0.05, level 0.01), but too few starts to show it: 3 of 7" in got.reason
    assert wants_more_starts(got)


def test_each_look_has_its_own_level() -> None:
    base = (100.0, 101.0, 102.0, 103.0, 104.0, 100.5, 101.5)
    now = (89.0, 90.0, 91.0, 92.0, 90.5, 91.5, 90.2)

    def at(count: int, look: int, looks: tuple[int, ...]) -> Verdict:
        metric = Metric(name="decode", values=now[:count])
        there = baseline(base[:count])
        return compare(metric, EVIDENCE, SCENARIO, there, look=look, looks=looks, design=Design.INTERLEAVED)

    # Four against four reach 1/70 and no more; five against five 1/252, within half of 1 %.
    early = at(4, 0, (4, 6))
    assert early.outcome is Outcome.INCONCLUSIVE
    assert early.smallest_loss is None
    assert wants_more_starts(early)
    assert at(6, 1, (4, 6)).outcome is Outcome.REGRESSED
    assert at(5, 0, (5, 7)).outcome is Outcome.REGRESSED
    assert at(5, 0, (5, 7)).reason.endswith("(p = 0.004, level 0.004)")
    assert at(7, 1, (5, 7)).reason.endswith("(p = 0.00029, level 0.006)")


def test_an_early_look_does_not_wave_through_a_loss_that_later_starts_may_show() -> None:
    """2.2 % with a worst of 2.9 % is within the tolerance; as the only look it passes, as an early one it goes on."""
    base = (100.0, 100.4, 99.7, 100.2, 99.9)
    now = (97.8, 98.0, 97.0, 100.1, 97.5)
    metric = Metric(name="decode", values=now)
    alone = compare(metric, EVIDENCE, SCENARIO, baseline(base), design=Design.INTERLEAVED)
    early = compare(metric, EVIDENCE, SCENARIO, baseline(base), look=0, looks=(5, 7), design=Design.INTERLEAVED)
    assert alone.outcome is Outcome.PASS
    assert early.outcome is Outcome.INCONCLUSIVE
    assert early.reason == "a loss of 2.2 % was seen, and more starts may show whether it is real"
    assert wants_more_starts(early)


FIVE = (100.0, 101.0, 102.0, 103.0, 104.0)


def with_family(design: Design = Design.INTERLEAVED, **now: tuple[float, ...]) -> Verdict:
    """Judge decode among other metrics of the same five starts; the baseline has the same values of each."""
    family = {name: Metric(name=name, values=values) for name, values in now.items()}
    session = replace(baseline().sessions[0], metrics=dict.fromkeys(family, FIVE))
    stored = replace(baseline(), sessions=(session,))
    return compare(family["decode"], EVIDENCE, SCENARIO, stored, design=design, family=family)


def test_the_level_is_kept_for_all_metrics_of_a_scenario_together() -> None:
    slow, even, odd = scaled(0.9, FIVE), (101.5, 100.5, 103.5, 102.5, 99.5), (102.2, 104.5, 100.2, 101.2, 103.2)
    alone = with_family(decode=slow)
    assert alone.reason.endswith("(p = 0.004, level 0.01)")
    among_two = with_family(decode=slow, prefill=even)
    assert among_two.outcome is Outcome.REGRESSED
    assert among_two.reason.endswith("(p = 0.004, 0.0079 among 2 metrics, level 0.01)")
    among_three = with_family(decode=slow, prefill=even, ttft=odd)
    assert among_three.outcome is Outcome.INCONCLUSIVE
    assert "a loss of 10.0 % is likely (p = 0.004, 0.012 among 3 metrics, level 0.01)" in among_three.reason


def test_a_loss_of_all_metrics_is_found_with_five_and_five() -> None:
    slow, late = scaled(0.9, FIVE), scaled(1 / 0.9, FIVE)
    got = with_family(decode=slow, prefill=slow, ttft=late, peak_memory=FIVE)
    assert got.outcome is Outcome.REGRESSED
    assert got.reason.endswith("(p = 0.004, 0.004 among 4 metrics, level 0.01)")


def test_what_is_not_compared_is_not_counted() -> None:
    slow = scaled(0.9, FIVE)
    assert "among" not in with_family(decode=slow, load=scaled(2.0, FIVE)).reason
    assert "among" not in with_family(decode=slow, prefill=(math.nan,) * 5).reason


def notes(verdict: Verdict) -> str:
    return "; ".join(said for label, said in verdict.lines if label == "note")


def test_two_tests_that_contradict_each_other_are_told() -> None:
    got = judge((99.3, 99.2, 99.9, 65.5, 85.0, 40.1), (100.4, 100.4, 100.0, 99.8, 99.7, 100.0))
    assert (
        "look at the single starts, their order differs, their size hardly: "
        "Mann-Whitney p = 0.0043, Yuen's trimmed means p = 0.17"
    ) in notes(got)
    spread = tuple(k / 10 for k in range(8))
    most = judge((*(98 + s for s in spread), 110.0, 111.0), (*(100 + s for s in spread), 80.0, 81.0))
    assert most.outcome is not Outcome.REGRESSED
    assert "look at the single starts, most differ, some lie the other way: Mann-Whitney p = 0.16" in notes(most)
    assert "look at" not in notes(judge(scaled(0.9)))


@pytest.mark.parametrize(("look", "looks"), [(1, ()), (2, (5, 7)), (-1, (5, 7))])
def test_a_look_that_was_not_planned_is_refused(look: int, looks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="is not one of the"):
        compare(Metric(name="decode", values=BASE), EVIDENCE, SCENARIO, baseline(), look=look, looks=looks)


starts = st.lists(st.floats(80, 120), min_size=2, max_size=7).map(tuple)


@settings(deadline=None)
@given(now=starts, base=starts, order=st.randoms())
def test_order_of_starts_does_not_matter(now: tuple[float, ...], base: tuple[float, ...], order: random.Random) -> None:
    mixed = judge(tuple(order.sample(now, len(now))), tuple(order.sample(base, len(base))))
    straight = judge(now, base)
    assert (mixed.outcome, mixed.reason, mixed.change) == (straight.outcome, straight.reason, straight.change)


@settings(deadline=None)
@given(now=starts, base=starts, exponent=st.integers(-6, 6))
def test_units_do_not_matter(now: tuple[float, ...], base: tuple[float, ...], exponent: int) -> None:
    there = judge(scaled(2.0**exponent, now), scaled(2.0**exponent, base))
    assert there.outcome is judge(now, base).outcome
    assert there.change == pytest.approx(judge(now, base).change)


@pytest.mark.parametrize("design", Design)
@pytest.mark.parametrize("name", ["decode", "prefill", "ttft", "peak_memory"])
@settings(deadline=None, max_examples=25)
@given(now=starts, base=starts)
def test_swapping_the_sides_flips_the_sign(
    name: str, design: Design, now: tuple[float, ...], base: tuple[float, ...]
) -> None:
    there, back = (
        compare(Metric(name=name, values=a), EVIDENCE, SCENARIO, baseline(b, name), design=design)
        for a, b in ((now, base), (base, now))
    )
    if there.change is None or back.change is None:
        assert (there.change, back.change) == (None, None)
        return
    assert 1 + there.change == pytest.approx(1 / (1 + back.change))
    pair = {there.outcome, back.outcome}
    assert pair not in ({Outcome.REGRESSED}, {Outcome.IMPROVED})
    if Outcome.IMPROVED in pair:
        # Not the other way round: a loss within the tolerance is a REGRESSED, a gain within it a PASS.
        assert Outcome.REGRESSED in pair


@pytest.mark.parametrize("design", Design)
@settings(deadline=None, max_examples=40)
@given(now=starts, base=starts)
def test_direction_is_data_and_turns_the_verdict(
    design: Design, now: tuple[float, ...], base: tuple[float, ...]
) -> None:
    """1 / x of a metric that is better when lower is x of one that is better when higher."""
    turned = [tuple(1 / v for v in values) for values in (now, base)]
    speed = compare(Metric(name="decode", values=now), EVIDENCE, SCENARIO, baseline(base), design=design)
    time = compare(
        Metric(name="ttft", values=turned[0]), EVIDENCE, SCENARIO, baseline(turned[1], "ttft"), design=design
    )
    # What is allowed is 5 % of each: 5 % fewer tokens a second are 5.3 % more seconds.
    assert {speed.outcome, time.outcome} not in (
        {Outcome.REGRESSED, Outcome.IMPROVED},
        {Outcome.REGRESSED, Outcome.NO_BASELINE},
    )
    if speed.change is not None and time.change is not None:
        assert 1 + speed.change == pytest.approx(1 / (1 + time.change))


@pytest.mark.parametrize("factor", [0.83, 0.9, 1.0])
def test_a_start_far_inside_does_not_turn_the_verdict(factor: float) -> None:
    now = scaled(factor)
    more = (*now, sorted(now)[3] * 1.0001)
    assert judge(more).outcome is judge(now).outcome


def test_each_start_twice_makes_nothing_worse_that_was_good() -> None:
    """Copies are no evidence, and no program can tell them from starts; the direction stays, only certainty grows."""
    for factor, outcome in ((0.9, Outcome.REGRESSED), (1.0, Outcome.PASS), (1.1, Outcome.IMPROVED)):
        once, twice = judge(scaled(factor)), judge(scaled(factor) * 2, BASE * 2)
        assert once.outcome is twice.outcome is outcome
        assert once.change == pytest.approx(twice.change)


@settings(deadline=None)
@given(now=starts, base=starts)
def test_green_is_never_worse_than_allowed(now: tuple[float, ...], base: tuple[float, ...]) -> None:
    got = judge(now, base)
    if got.outcome.green:
        assert got.change is not None
        assert got.change >= -0.05 - 1e-9
        assert min(len(now), len(base)) >= 3 or len(now) + len(base) > 6


def test_false_alarms_stay_under_one_percent() -> None:
    rng, trials, alarms = random.Random(5), 300, 0
    for _ in range(trials):
        now, base = (tuple(rng.gauss(100, 2) for _ in range(6)) for _ in range(2))
        alarms += judge(now, base).outcome is Outcome.REGRESSED
    assert alarms / trials <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / trials)
