"""What a test's markers ask for, read into one frozen record. An argument they do not know is an error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_moegpu.core.units import parse_bytes
from pytest_moegpu.core.verdict import METRICS, Better
from pytest_moegpu.errors import MarkerError, UserError, nearest
from pytest_moegpu.markers import MARKERS

if TYPE_CHECKING:
    import pytest

__all__ = ["CHECK_NAMES", "Spec", "ThroughputSpec", "named_scenarios", "read"]

CHECK_NAMES = (
    *("preflight", "offload", "output", "golden", "axes", "context", "memory", "stability", "throughput"),
    "crosscheck",
)
_SPEEDS = ("decode", "prefill", "ttft")


@dataclass(frozen=True, kw_only=True)
class ThroughputSpec:
    """One speed and its limit, both as the marker gives them."""

    metric: str
    limit: float | None


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a test's markers ask for."""

    scenario: str | None = None
    level: int = 1
    check: str | None = None
    budget_bytes: int | None = None
    throughput: tuple[ThroughputSpec, ...] = ()
    context_tokens: tuple[int, ...] = ()
    answers: tuple[tuple[str, tuple[str, ...], int], ...] = ()
    known_answers: bool = False

    @property
    def checks(self) -> tuple[str, ...]:
        """Names of the checks that these markers stand for."""
        wanted = {
            "output": bool(self.answers) or self.known_answers,
            "context": bool(self.context_tokens),
            "memory": self.budget_bytes is not None,
            "throughput": bool(self.throughput),
        }
        if self.check is not None:
            wanted[self.check] = True
        return tuple(name for name, asked in wanted.items() if asked)


def read(item: pytest.Item) -> Spec | None:
    """Read the markers of a test; None when it has none of ours.

    Raises:
        MarkerError: An unknown argument or an impossible value; names the test, the marker and what is allowed.
    """
    found = {name: list(item.iter_markers(name)) for name in MARKERS}
    if not any(found.values()):
        return None
    try:
        return _spec({name: [_arguments(m, *MARKERS[name][:1]) for m in marks] for name, marks in found.items()})
    except UserError as error:
        raise MarkerError(f"{item.nodeid}: {error}") from error


def named_scenarios(node: pytest.Item) -> tuple[str | None, tuple[str, ...]]:
    """Return the scenario that the closest marker with one names, and those that only some parameters of a test name.

    Read while tests are made, so anything that is no name is left to `read`, which names the test.
    """
    own = [_scenario(mark) for mark in node.iter_markers("moegpu")]
    values = [value for mark in node.iter_markers("parametrize") for value in _values(mark)]
    marks = [mark for value in values for mark in getattr(value, "marks", ())]
    # A decorator, such as pytest.mark.moegpu(…), holds the mark it stands for.
    found = [_scenario(getattr(mark, "mark", mark)) for mark in marks]
    return next((name for name in own if name), None), tuple(dict.fromkeys(name for name in found if name))


def _values(mark: pytest.Mark) -> tuple[Any, ...]:
    values = mark.kwargs.get("argvalues", mark.args[1] if len(mark.args) > 1 else ())
    return tuple(values) if isinstance(values, list | tuple) else ()


def _scenario(mark: pytest.Mark) -> str | None:
    name = mark.kwargs.get("scenario") if mark.name == "moegpu" else None
    return name if isinstance(name, str) else None


def _arguments(mark: pytest.Mark, allowed: tuple[str, ...]) -> dict[str, Any]:
    if mark.args:
        raise MarkerError(f"@{mark.name} takes named arguments only: {', '.join(allowed)}")
    for name in mark.kwargs:
        if name not in allowed:
            raise MarkerError(
                f"@{mark.name} has no argument {name!r}{nearest(name, allowed)}; allowed: {', '.join(allowed)}"
            )
    return dict(mark.kwargs)


def _spec(marks: dict[str, list[dict[str, Any]]]) -> Spec:
    """Build the record. The closest mark comes first in each list, so a function's own goes before its class's."""
    main = {key: value for found in reversed(marks["moegpu"]) for key, value in found.items()}
    scenario, level = main.get("scenario"), main.get("level", 1)
    if scenario is not None and not isinstance(scenario, str):
        raise MarkerError(f"@moegpu(scenario={scenario!r}): the name of a scenario, as text")
    if level not in (1, 2, 3) or isinstance(level, bool):
        raise MarkerError(f"@moegpu(level={level!r}): 1 (quick), 2 (medium) or 3 (long)")
    check = main.get("check")
    if check is not None and check not in CHECK_NAMES:
        hint = nearest(str(check), CHECK_NAMES)
        raise MarkerError(f"@moegpu(check={check!r}): unknown{hint}; allowed: {', '.join(CHECK_NAMES)}")
    answers = [_answer(found) for found in marks["moegpu_output"] if found]
    return Spec(
        scenario=scenario,
        level=level,
        check=check,
        budget_bytes=min((_budget(found) for found in marks["moegpu_memory"]), default=None),
        throughput=tuple(_throughput(found) for found in marks["moegpu_throughput"]),
        context_tokens=tuple(_tokens(found) for found in marks["moegpu_context"]),
        answers=tuple(answers),
        known_answers=len(answers) < len(marks["moegpu_output"]),
    )


def _budget(found: dict[str, Any]) -> int:
    budget = found.get("budget")
    if not isinstance(budget, str):
        raise MarkerError(f'@moegpu_memory(budget={budget!r}): a size with its unit, such as "23 GiB"')
    try:
        return parse_bytes(budget)
    except UserError as error:
        raise MarkerError(f"@moegpu_memory(budget={budget!r}): {error}") from error


def _throughput(found: dict[str, Any]) -> ThroughputSpec:
    metric = found.get("metric", "decode")
    if metric not in _SPEEDS:
        hint = nearest(str(metric), _SPEEDS)
        raise MarkerError(f"@moegpu_throughput(metric={metric!r}): unknown{hint}; allowed: {', '.join(_SPEEDS)}")
    right, wrong = ("min", "max") if METRICS[metric].better is Better.HIGHER else ("max", "min")
    if wrong in found:
        raise MarkerError(
            f"@moegpu_throughput: {METRICS[metric].better} {metric} is better, so its limit is {right}=, not {wrong}="
        )
    limit = found.get(right)
    if limit is not None and (
        isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < math.inf
    ):
        raise MarkerError(f"@moegpu_throughput({right}={limit!r}): a number above 0, in {METRICS[metric].unit}")
    return ThroughputSpec(metric=metric, limit=None if limit is None else float(limit))


def _tokens(found: dict[str, Any]) -> int:
    tokens = found.get("tokens")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 128:
        raise MarkerError(f"@moegpu_context(tokens={tokens!r}): the length of the prompt in tokens, at least 128")
    return tokens


def _answer(found: dict[str, Any]) -> tuple[str, tuple[str, ...], int]:
    prompt, expect = found.get("prompt"), found.get("expect")
    wanted = tuple(expect) if isinstance(expect, list | tuple) else (expect,)
    if not isinstance(prompt, str) or not prompt or not wanted or not all(isinstance(w, str) and w for w in wanted):
        raise MarkerError(
            "@moegpu_output needs both prompt= and expect= (a text or a list of alternatives), or neither"
        )
    tokens = found.get("max_tokens", 32)
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise MarkerError(f"@moegpu_output(max_tokens={tokens!r}): a whole number of at least 1")
    return prompt, wanted, tokens
