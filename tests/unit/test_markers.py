"""Markers read into a record; whatever they do not know is an error that names what is allowed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from pytest_moegpu.core.units import GIB
from pytest_moegpu.errors import MarkerError
from pytest_moegpu.markers import MARKERS, declare
from pytest_moegpu.specs import Spec, ThroughputSpec, read

if TYPE_CHECKING:
    from collections.abc import Iterator

M = pytest.mark


@dataclass
class Item:
    """A test with marks, the closest first, as pytest gives them."""

    marks: tuple[pytest.Mark, ...]
    nodeid: str = "test_a.py::test_b"

    def iter_markers(self, name: str) -> Iterator[pytest.Mark]:
        return (mark for mark in self.marks if mark.name == name)


def spec(*decorators: pytest.MarkDecorator) -> Spec | None:
    return read(cast("pytest.Item", Item(tuple(d.mark for d in decorators))))


def test_a_test_without_our_marks_is_not_ours() -> None:
    assert spec() is None
    assert spec(M.usefixtures("a"), M.parametrize("a", [1])) is None


def test_a_bare_mark_asks_nothing() -> None:
    found = spec(M.moegpu)
    assert found == Spec()
    assert found.checks == ()


def test_everything_at_once() -> None:
    found = spec(
        M.moegpu(scenario="long-8k", level=3, check="offload"),
        M.moegpu_memory(budget="23 GiB"),
        M.moegpu_throughput(metric="decode", min=90),
        M.moegpu_throughput(metric="ttft", max=1.5),
        M.moegpu_context(tokens=4096),
        M.moegpu_output(prompt="Capital of France?", expect="Paris"),
        M.moegpu_output(prompt="2+2?", expect=["4", "four"], max_tokens=8),
    )
    assert found == Spec(
        scenario="long-8k",
        level=3,
        check="offload",
        budget_bytes=23 * GIB,
        throughput=(ThroughputSpec(metric="decode", limit=90.0), ThroughputSpec(metric="ttft", limit=1.5)),
        context_tokens=(4096,),
        answers=(("Capital of France?", ("Paris",), 32), ("2+2?", ("4", "four"), 8)),
    )
    assert set(found.checks) == {"offload", "output", "context", "memory", "throughput"}


def test_output_without_arguments_means_the_known_answers() -> None:
    found = spec(M.moegpu_output)
    assert found is not None
    assert (found.known_answers, found.answers, found.checks) == (True, (), ("output",))
    both = spec(M.moegpu_output, M.moegpu_output(prompt="a", expect="b"))
    assert both is not None
    assert both.known_answers
    assert both.answers


def test_a_check_named_and_asked_by_a_mark_is_there_once() -> None:
    found = spec(M.moegpu(check="output"), M.moegpu_throughput)
    assert found is not None
    assert found.checks == ("output", "throughput")


def test_the_mark_of_a_function_goes_before_that_of_its_class() -> None:
    found = spec(M.moegpu(level=2), M.moegpu(level=3, scenario="long-8k"))
    assert found == Spec(level=2, scenario="long-8k")


def test_the_smallest_budget_counts() -> None:
    found = spec(M.moegpu_memory(budget="8 GiB"), M.moegpu_memory(budget="6 GiB"))
    assert found is not None
    assert found.budget_bytes == 6 * GIB


def test_throughput_without_a_limit_measures() -> None:
    found = spec(M.moegpu_throughput(metric="prefill"))
    assert found is not None
    assert found.throughput == (ThroughputSpec(metric="prefill", limit=None),)


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        (
            M.moegpu(scenari="x"),
            "no argument 'scenari' (did you mean 'scenario'?); allowed: scenario, level, check",
        ),
        (M.moegpu("long-8k"), "@moegpu takes named arguments only: scenario, level, check"),
        (M.moegpu(scenario=5), "@moegpu(scenario=5): the name of a scenario, as text"),
        (M.moegpu(level=4), "@moegpu(level=4): 1 (quick), 2 (medium) or 3 (long)"),
        (M.moegpu(level=True), "@moegpu(level=True): 1 (quick)"),
        (M.moegpu(level="1"), "@moegpu(level='1'): 1 (quick)"),
        (M.moegpu(check="memroy"), "@moegpu(check='memroy'): unknown (did you mean 'memory'?); allowed: preflight, "),
        (M.moegpu_memory, '@moegpu_memory(budget=None): a size with its unit, such as "23 GiB"'),
        (M.moegpu_memory(budget=23), "@moegpu_memory(budget=23): a size with its unit"),
        (M.moegpu_memory(budget="23 GB of it"), "@moegpu_memory(budget='23 GB of it'): "),
        (M.moegpu_memory(limit="1 GiB"), "@moegpu_memory has no argument 'limit'; allowed: budget"),
        (M.moegpu_throughput(metric="decod"), "unknown (did you mean 'decode'?); allowed: decode, prefill, ttft"),
        (M.moegpu_throughput(metric=["decode"]), "@moegpu_throughput(metric=['decode']): unknown"),
        (M.moegpu_throughput(metric="ttft", min=1), "lower ttft is better, so its limit is max=, not min="),
        (M.moegpu_throughput(max=1), "higher decode is better, so its limit is min=, not max="),
        (M.moegpu_throughput(min=0), "@moegpu_throughput(min=0): a number above 0, in tok/s"),
        (M.moegpu_throughput(min="90"), "@moegpu_throughput(min='90'): a number above 0"),
        (M.moegpu_throughput(min=True), "@moegpu_throughput(min=True): a number above 0"),
        (M.moegpu_throughput(min=float("nan")), "a number above 0"),
        (M.moegpu_context, "@moegpu_context(tokens=None): the length of the prompt in tokens, at least 128"),
        (M.moegpu_context(tokens=127), "@moegpu_context(tokens=127)"),
        (M.moegpu_context(tokens=4096.0), "@moegpu_context(tokens=4096.0)"),
        (M.moegpu_output(prompt="a"), "@moegpu_output needs both prompt= and expect="),
        (M.moegpu_output(expect="a"), "@moegpu_output needs both prompt= and expect="),
        (M.moegpu_output(prompt="a", expect=""), "@moegpu_output needs both"),
        (M.moegpu_output(prompt="a", expect=[]), "@moegpu_output needs both"),
        (M.moegpu_output(prompt="a", expect=["b", 4]), "@moegpu_output needs both"),
        (M.moegpu_output(prompt="a", expect=4), "@moegpu_output needs both"),
        (M.moegpu_output(prompt="a", expect="b", max_tokens=0), "@moegpu_output(max_tokens=0): a whole number"),
    ],
)
def test_what_is_not_known_is_told_with_the_test(mark: pytest.MarkDecorator, says: str) -> None:
    with pytest.raises(MarkerError) as caught:
        spec(mark)
    assert str(caught.value).startswith("test_a.py::test_b: @moegpu")
    assert says in str(caught.value)


def test_every_marker_is_declared_to_pytest() -> None:
    @dataclass
    class Config:
        lines: list[tuple[str, str]] = field(default_factory=list)

        def addinivalue_line(self, name: str, line: str) -> None:
            self.lines.append((name, line))

    config = Config()
    declare(cast("pytest.Config", config))
    assert [name for name, _ in config.lines] == ["markers"] * len(MARKERS)
    assert [line.partition("(")[0] for _, line in config.lines] == list(MARKERS)
