"""One question per module, and the table that names them."""

from __future__ import annotations

from pytest_moegpu.checks import (
    axes,
    context,
    crosscheck,
    golden,
    memory,
    offload,
    output,
    preflight,
    stability,
    throughput,
)
from pytest_moegpu.checks.base import Check
from pytest_moegpu.core.evidence import Part
from pytest_moegpu.errors import UserError, nearest

__all__ = ["CHECKS", "get_check"]

# In rank order: correctness is judged before speed.
CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        Check(
            name="preflight",
            title="right GPU, idle, enough of it free",
            rank=0,
            level=1,
            needs=frozenset(),
            judge=preflight.judge,
        ),
        Check(
            name="offload",
            title="the model is where it should be",
            rank=1,
            level=1,
            needs=frozenset(),
            judge=offload.judge,
        ),
        Check(
            name="output",
            title="known answers, and no sign of broken text",
            rank=2,
            level=1,
            needs=frozenset({Part.OUTPUT}),
            judge=output.judge,
        ),
        Check(
            name="golden",
            title="the same log-probabilities as on the known-good stack",
            rank=3,
            level=2,
            needs=frozenset({Part.SCORES}),
            judge=golden.judge,
        ),
        # A condition judges what was right when asked plainly.
        Check(
            name="axes",
            title="known answers under other conditions",
            rank=4,
            level=3,
            needs=frozenset({Part.OUTPUT, Part.AXES}),
            judge=axes.judge,
        ),
        Check(
            name="context",
            title="long contexts answered, recalled, fast enough",
            rank=4,
            level=3,
            needs=frozenset({Part.CONTEXT}),
            judge=context.judge,
        ),
        # The peak counts through prefill and decode, so load alone is not enough; the text does not matter to it.
        Check(
            name="memory",
            title="peak within budget, and back to idle",
            rank=5,
            level=2,
            needs=frozenset({Part.THROUGHPUT}),
            judge=memory.judge,
        ),
        # A device that only holds the weights shows few of its faults.
        Check(
            name="stability",
            title="no fault of hardware, driver or server",
            rank=6,
            level=1,
            needs=frozenset({Part.OUTPUT}),
            judge=stability.judge,
        ),
        Check(
            name="throughput",
            title="TTFT, prefill and decode, one stream",
            rank=7,
            level=2,
            needs=frozenset({Part.THROUGHPUT, Part.OUTPUT}),
            judge=throughput.judge,
        ),
        Check(
            name="crosscheck",
            title="the same answer without a server, when asked for",
            rank=8,
            level=3,
            needs=frozenset({Part.OUTPUT}),
            judge=crosscheck.judge,
        ),
    )
}


def get_check(name: str) -> Check:
    """Return the check of that name.

    Raises:
        UserError: There is none; the nearest name is offered.
    """
    try:
        return CHECKS[name]
    except KeyError:
        raise UserError(f"unknown check {name!r}{nearest(name, CHECKS)}; known: {', '.join(CHECKS)}") from None
