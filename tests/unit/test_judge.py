"""The comparison with a baseline over the planned looks: what is asked for, and what each look may believe."""

from __future__ import annotations

from dataclasses import replace

from pytest_moegpu.core.evidence import Evidence, LogFacts, Phase, RequestKind, StartEvidence, StartFailure
from pytest_moegpu.core.reasons import EVENT_REASONS
from pytest_moegpu.core.verdict import Outcome
from pytest_moegpu.session.judge import Comparison
from tests.unit import builders

HW_SLOWDOWN = next(bit for bit, name in EVENT_REASONS.items() if name == "hw_slowdown")
BASE = (100.0, 100.4, 99.7, 100.2, 99.9, 100.1, 100.3)


def start(number: int, rate: float, **changes: object) -> StartEvidence:
    whole = builders.start(number)
    requests = tuple(r for r in whole.requests if r.kind is not RequestKind.THROUGHPUT)
    return replace(whole, requests=(*requests, *(builders.stream(rate) for _ in range(3))), **changes)  # type: ignore[arg-type]


BASELINE = builders.baseline(*BASE)


def comparison(metric: str = "decode", looks: tuple[int, ...] = (3, 7)) -> Comparison:
    return Comparison(metric=metric, scenario=builders.scenario(), profile=builders.profile(), looks=looks)


def evidence(*rates: float) -> Evidence:
    return builders.evidence(*(start(n, rate) for n, rate in enumerate(rates, 1)))


def never(_total: int) -> Evidence:
    raise AssertionError("a clear case must not cost another start")


def test_a_clear_case_stops_at_the_first_look() -> None:
    verdict = comparison().run(evidence(100.1, 100.0, 99.9), BASELINE, never)
    assert verdict.outcome is Outcome.PASS


def test_an_undecided_case_gets_the_starts_of_the_next_look() -> None:
    asked = []

    def more(total: int) -> Evidence:
        asked.append(total)
        return evidence(80.0, 80.1, 80.2, 80.3, 79.9, 79.8, 80.4)

    verdict = comparison().run(evidence(80.0, 108.0, 80.2), BASELINE, more)
    assert asked == [7]
    assert verdict.outcome is Outcome.REGRESSED
    assert len(verdict.values) == 7


def test_starts_that_came_later_must_be_believed_too() -> None:
    def more(_total: int) -> Evidence:
        later = [start(n, 80.0 + n / 10, event_reasons={Phase.DECODE: HW_SLOWDOWN}) for n in range(4, 8)]
        return builders.evidence(start(1, 80.0), start(2, 108.0), start(3, 80.2), *later)

    verdict = comparison().run(evidence(80.0, 108.0, 80.2), BASELINE, more)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "throttled in decode: hw_slowdown" in verdict.reason


def test_a_later_start_that_broke_is_the_verdict() -> None:
    failure = StartFailure(phase=Phase.LOAD, cause="exit code 1")

    def more(_total: int) -> Evidence:
        broken = builders.start(4, failure=failure, requests=())
        return builders.evidence(start(1, 80.0), start(2, 108.0), start(3, 80.2), broken)

    verdict = comparison().run(evidence(80.0, 108.0, 80.2), BASELINE, more)
    assert (verdict.outcome, verdict.phase, verdict.reason) == (Outcome.ERROR, Phase.LOAD, "exit code 1")


def test_no_baseline() -> None:
    assert comparison().run(evidence(100.0, 100.0, 100.0), None, never).outcome is Outcome.NO_BASELINE


def test_starts_that_another_metric_asked_for_are_looked_at_as_well() -> None:
    """Seven starts stand there because another metric was undecided; three would do here, but the others are broken."""
    whole = [start(n, 100.0 + n / 10) for n in range(1, 8)]
    broken = [replace(s, requests=tuple(replace(r, text="!" * 200) for r in s.requests)) for s in whole[3:]]
    found = builders.evidence(*whole[:3], *broken)
    for metric in ("decode", "peak_memory"):
        verdict = comparison(metric).run(found, BASELINE, never)
        assert verdict.outcome is Outcome.INCONCLUSIVE, metric
        assert not verdict.outcome.green


def test_wrong_answers_take_the_speed_verdict_and_leave_that_on_memory() -> None:
    good = (start(1, 100), start(2, 100))
    wrong = builders.evidence(*(replace(s, requests=tuple(replace(r, text="no") for r in s.requests)) for s in good))
    speed = comparison(looks=(2,)).look(wrong, BASELINE)
    assert (speed.outcome, speed.check, speed.metric) == (Outcome.INCONCLUSIVE, "baseline", "decode")
    assert comparison("peak_memory", looks=(2,)).look(wrong, BASELINE).outcome is Outcome.NO_BASELINE


def test_a_model_in_the_wrong_place_has_no_verdict_on_memory_either() -> None:
    placed = builders.evidence(start(1, 100, log=LogFacts(offloaded_layers=0, total_layers=41)))
    verdict = comparison("peak_memory", looks=(1,)).look(placed, BASELINE)
    assert (verdict.outcome, verdict.failed_class) == (Outcome.INCONCLUSIVE, None)
