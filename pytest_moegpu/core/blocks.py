"""The order of interleaved starts: random blocks of ABBA and BAAB, so that a drift falls on both sides alike."""

from __future__ import annotations

import random

__all__ = ["BLOCK_STARTS", "DEFAULT_LOOKS", "looks_up_to", "order"]

BLOCK_STARTS = 2
"""Starts of each side in one block."""
DEFAULT_LOOKS = (6, 8, 10)
"""Starts of each side after which is judged; what they find is in docs/reference/judging.md."""


def order(starts: int, seed: int) -> str:
    """Return the sides of all starts in turn, such as `ABBABAAB`: a drift in a straight line cancels in each block.

    Args:
        starts: Starts of each side, even.
        seed: The same one gives the same order.

    Raises:
        ValueError: `starts` is not an even number above 0.
    """
    if starts < BLOCK_STARTS or starts % BLOCK_STARTS:
        raise ValueError(f"starts must be an even number above 0, not {starts}: a block holds 2 of each side")
    chosen = random.Random(seed)
    return "".join(chosen.choice(("ABBA", "BAAB")) for _ in range(starts // BLOCK_STARTS))


def looks_up_to(starts: int) -> tuple[int, ...]:
    """Return the planned looks of a comparison that goes on to `starts` starts of each side.

    Raises:
        ValueError: `starts` is odd, or below the first look, which could then find nothing.
    """
    if starts < DEFAULT_LOOKS[0] or starts % BLOCK_STARTS:
        raise ValueError(f"{starts} starts of each side: an even number of at least {DEFAULT_LOOKS[0]} is needed")
    return (*(look for look in DEFAULT_LOOKS if look < starts), starts)
