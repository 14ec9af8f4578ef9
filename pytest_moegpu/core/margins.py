"""How near a model was to another word: the gap between the token it chose and the likeliest other one."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pytest_moegpu.core.evidence import Margin, TokenChoice

__all__ = ["GAP_FLOOR", "LABEL", "LOGPROB_FLOOR", "NEAR_TIE", "is_near_tie", "is_witness", "missing", "tightest"]

LABEL = "near-tie"
"""Label of the lines of a verdict that tell of them."""
LOGPROB_FLOOR = 0.53
"""How far a sound change of path moved one log-probability at most, in nat.

SmolLM2-135M on an H200: other slots, KV precision, flash attention off, experts laid out otherwise; the 99th percentile
was 0.19 to 0.34 (docs/reference/outcomes.md). With everything held alike nothing moved.
"""
GAP_FLOOR = 2 * LOGPROB_FLOOR
"""How far it may move a gap (nat): the difference of two of them."""
NEAR_TIE = 0.5
"""Below this gap (nat) sound engines may choose either token; about as far as one log-probability was seen to move."""


def tightest(choices: Iterable[TokenChoice]) -> Margin | None:
    """Return the smallest gap (nat) on the way; None where no token has a finite number for itself and another.

    A gap below 0, where another token was likelier than the one chosen, is the smallest of all: greedy choosing never
    does that.
    """
    found: list[Margin] = []
    for index, choice in enumerate(choices):
        others = [(name, value) for name, value in choice.top if name != choice.token and math.isfinite(value)]
        if others and math.isfinite(choice.logprob):
            other, value = max(others, key=lambda pair: pair[1])
            gap, own = choice.logprob - value, choice.logprob
            found.append(Margin(index=index, nat=gap, logprob=own, token=choice.token, other=other))
    return min(found, key=lambda margin: margin.nat, default=None)


def is_near_tie(margin: Margin | None) -> bool:
    """Tell whether two tokens were so near that either is sound. Another one likelier by more is no tie but a fault."""
    return margin is not None and abs(margin.nat) < NEAR_TIE


def is_witness(margin: float | None) -> bool:
    """Tell whether a known answer is nearly tied in the healthy model: it shows which way is taken, and judges none."""
    return margin is not None and margin < NEAR_TIE


def missing(choices: Iterable[TokenChoice]) -> int:
    """Count the tokens whose own log-probability is missing, NaN or infinite."""
    return sum(not math.isfinite(choice.logprob) for choice in choices)
