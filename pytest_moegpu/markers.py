"""The markers of this plugin by name. Apart from `specs`, which reads them, so that an idle plugin costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

__all__ = ["MARKERS", "SKIP_REASON", "declare", "marked"]

SKIP_REASON = "needs a GPU server: run with --moegpu=PROFILE (--moegpu=list names the profiles)"

MARKERS: dict[str, tuple[tuple[str, ...], str]] = {
    "moegpu": (
        ("scenario", "level", "check"),
        "moegpu(scenario=None, level=1, check=None): needs a GPU server; runs for one scenario or for all of the run, "
        "at --moegpu-level of at least `level`; `check` is what moegpu_verify() judges",
    ),
    "moegpu_memory": (("budget",), 'moegpu_memory(budget="23 GiB"): peak device memory must stay below the budget'),
    "moegpu_throughput": (
        ("metric", "min", "max"),
        "moegpu_throughput(metric='decode', min=90): a speed (decode or prefill in tok/s, ttft in s) and its limit",
    ),
    "moegpu_context": (("tokens",), "moegpu_context(tokens=32768): a prompt of that length is answered and recalled"),
    "moegpu_output": (
        ("prompt", "expect", "max_tokens"),
        "moegpu_output(prompt='…', expect='…', max_tokens=32): the answer must hold the expected text; "
        "without arguments: the model's known answers",
    ),
}


def declare(config: pytest.Config) -> None:
    """Make the markers known to pytest, so that --strict-markers and --markers show them."""
    for _, text in MARKERS.values():
        config.addinivalue_line("markers", text)


def marked(item: pytest.Item) -> bool:
    """Tell whether a test has one of these markers."""
    return any(item.get_closest_marker(name) for name in MARKERS)
