"""How near a model was to another word: the gap between the token it chose and the likeliest other one."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pytest_moegpu.core.evidence import Margin, TokenChoice

__all__ = ["missing", "tightest"]


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
            found.append(Margin(index=index, nat=choice.logprob - value, token=choice.token, other=other))
    return min(found, key=lambda margin: margin.nat, default=None)


def missing(choices: Iterable[TokenChoice]) -> int:
    """Count the tokens whose own log-probability is missing, NaN or infinite."""
    return sum(not math.isfinite(choice.logprob) for choice in choices)
