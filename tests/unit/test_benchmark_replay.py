"""The clock that replays measured times to pytest-benchmark."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moegpu.benchmark import ReplayTimer

SECONDS = st.lists(st.floats(min_value=1e-6, max_value=10, allow_nan=False), max_size=50)


@given(SECONDS)
def test_each_pair_of_calls_passes_its_seconds(seconds: list[float]) -> None:
    timer = ReplayTimer(seconds)
    passed = []
    for _ in seconds:
        began = timer()
        passed.append(timer() - began)
    assert passed == pytest.approx(seconds, abs=1e-9)


@given(SECONDS)
def test_the_clock_never_goes_back_and_stands_still_at_the_end(seconds: list[float]) -> None:
    timer = ReplayTimer(seconds)
    readings = [timer() for _ in range(2 * len(seconds) + 6)]
    assert readings == sorted(readings)
    assert readings[-1] == pytest.approx(sum(seconds))


def test_no_time_passes_between_rounds() -> None:
    timer = ReplayTimer([1.0, 2.0])
    assert [timer() for _ in range(6)] == [0, 1, 1, 3, 3, 3]


def test_pytest_benchmark_shows_a_round_per_start(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from pytest_moegpu.benchmark import replay
        from pytest_moegpu.core.evidence import Phase
        from pytest_moegpu.core.verdict import Outcome, Verdict

        def test_speed(request):
            verdict = Verdict(
                outcome=Outcome.PASS, check="throughput", scenario="s", subject="decode", phase=Phase.DECODE,
                metric="decode", values=(100.0, 50.0, 200.0),
            )
            replay(request, verdict, (("GPU", "RTX 3090"),))
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--benchmark-json=b.json")
    result.assert_outcomes(passed=1)
    (shown,) = json.loads((pytester.path / "b.json").read_text())["benchmarks"]
    assert shown["stats"]["rounds"] == 3
    assert sorted(shown["stats"]["data"]) == pytest.approx([0.005, 0.01, 0.02])
    assert shown["group"] == "moegpu decode, seconds per token"
    assert shown["extra_info"] == {"tokens_per_second": [100.0, 50.0, 200.0], "outcome": "PASS", "GPU": "RTX 3090"}


def test_without_pytest_benchmark_nothing_happens(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from pytest_moegpu.benchmark import replay

        def test_speed(request):
            replay(request, None, ())
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:benchmark").assert_outcomes(passed=1)
