"""The comparison with a baseline over the planned looks: what is asked for, and what each look may believe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_moegpu.core.evidence import Evidence, Phase, RequestKind, StartEvidence, StartFailure
from pytest_moegpu.core.reasons import EVENT_REASONS
from pytest_moegpu.core.verdict import Outcome
from pytest_moegpu.host.store import write_baseline
from pytest_moegpu.session.judge import Comparison
from tests.unit import builders

HW_SLOWDOWN = next(bit for bit, name in EVENT_REASONS.items() if name == "hw_slowdown")
BASE = (100.0, 100.4, 99.7, 100.2, 99.9, 100.1, 100.3)


def start(number: int, rate: float, **changes: object) -> StartEvidence:
    whole = builders.start(number)
    requests = tuple(r for r in whole.requests if r.kind is not RequestKind.THROUGHPUT)
    return replace(whole, requests=(*requests, *(builders.stream(rate) for _ in range(3))), **changes)  # type: ignore[arg-type]


def comparison(folder: Path, looks: tuple[int, ...] = (3, 7)) -> Comparison:
    path = write_baseline(folder, builders.baseline(*BASE))
    return Comparison(
        metric="decode",
        scenario=builders.scenario(),
        profile=builders.profile(),
        path=path,
        looks=looks,
        varying=None,
    )


def evidence(*rates: float) -> Evidence:
    return builders.evidence(*(start(n, rate) for n, rate in enumerate(rates, 1)))


def never(_total: int) -> Evidence:
    raise AssertionError("a clear case must not cost another start")


def test_a_clear_case_stops_at_the_first_look(tmp_path: Path) -> None:
    verdict = comparison(tmp_path).run(evidence(100.1, 100.0, 99.9), never)
    assert verdict.outcome is Outcome.PASS


def test_an_undecided_case_gets_the_starts_of_the_next_look(tmp_path: Path) -> None:
    asked = []

    def more(total: int) -> Evidence:
        asked.append(total)
        return evidence(80.0, 80.1, 80.2, 80.3, 79.9, 79.8, 80.4)

    verdict = comparison(tmp_path).run(evidence(80.0, 108.0, 80.2), more)
    assert asked == [7]
    assert verdict.outcome is Outcome.REGRESSED
    assert len(verdict.values) == 7


def test_starts_that_came_later_must_be_believed_too(tmp_path: Path) -> None:
    def more(_total: int) -> Evidence:
        later = [start(n, 80.0 + n / 10, event_reasons={Phase.DECODE: HW_SLOWDOWN}) for n in range(4, 8)]
        return builders.evidence(start(1, 80.0), start(2, 108.0), start(3, 80.2), *later)

    verdict = comparison(tmp_path).run(evidence(80.0, 108.0, 80.2), more)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "throttled in decode: hw_slowdown" in verdict.reason


def test_a_later_start_that_broke_is_the_verdict(tmp_path: Path) -> None:
    failure = StartFailure(phase=Phase.LOAD, cause="exit code 1")

    def more(_total: int) -> Evidence:
        broken = builders.start(4, failure=failure, requests=())
        return builders.evidence(start(1, 80.0), start(2, 108.0), start(3, 80.2), broken)

    verdict = comparison(tmp_path).run(evidence(80.0, 108.0, 80.2), more)
    assert (verdict.outcome, verdict.phase, verdict.reason) == (Outcome.ERROR, Phase.LOAD, "exit code 1")


def test_no_baseline(tmp_path: Path) -> None:
    nothing = replace(comparison(tmp_path), path=tmp_path / "none.json")
    assert nothing.run(evidence(100.0, 100.0, 100.0), never).outcome is Outcome.NO_BASELINE


def test_a_damaged_baseline_is_named(tmp_path: Path) -> None:
    it = comparison(tmp_path)
    it.path.write_text("{")
    verdict = it.run(evidence(100.0, 100.0, 100.0), never)
    assert verdict.outcome is Outcome.ERROR
    assert str(it.path) in verdict.reason
