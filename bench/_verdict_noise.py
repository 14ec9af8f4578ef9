"""Simulated starts, sessions and requests, for `bench/verdicts.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Spread by level, each a CV; `slow_share` of starts are slower by `slow_by`; `drift` is over a whole session."""

    start: float = 0.01
    session: float = 0.015
    request: float = 0.03
    requests: int = 30
    slow_share: float = 0.0
    slow_by: float = 0.08
    drift: float = 0.0


def start_levels(rng: np.random.Generator, shape: tuple[int, ...], noise: Noise) -> Array:
    """Draw the log level of starts, the slow ones among them."""
    slow = rng.random(shape) < noise.slow_share
    return rng.normal(0, noise.start, shape) + slow * math.log1p(-noise.slow_by)


def requests(rng: np.random.Generator, levels: Array, noise: Noise) -> Array:
    """Add requests to starts, as a last axis."""
    return levels[..., None] + rng.normal(0, noise.request, (*levels.shape, noise.requests))


def one_session(
    rng: np.random.Generator, trials: int, count: int, noise: Noise, *, in_turn: bool = True
) -> tuple[Array, Array]:
    """Draw both sides of one session, `count` starts each, of equal speed: (trials, starts, requests)."""
    places = np.arange(2 * count)
    order = np.zeros((trials, 2 * count), bool)
    if in_turn:
        first = rng.random((trials, (count + 1) // 2)) < 0.5
        blocks = np.where(first[..., None], [False, True, True, False], [True, False, False, True])
        order = blocks.reshape(trials, -1)[:, : 2 * count]
        # An odd number of starts ends in half a block, one start of each side.
    else:
        order[:, count:] = True
    drift = noise.drift * places / max(2 * count - 1, 1)
    turns = np.argsort(order, axis=1, kind="stable")
    drifts = drift[turns]
    levels = start_levels(rng, (trials, 2 * count), noise) - drifts
    drawn = requests(rng, levels, noise)
    return drawn[:, count:], drawn[:, :count]


def sessions(
    rng: np.random.Generator, trials: int, held: int, count: int, now: int, noise: Noise
) -> tuple[Array, Array]:
    """Draw a new session and `held` stored ones, requests and all; (trials, now, …) and (trials, held, count, …)."""
    new = start_levels(rng, (trials, now), noise) + rng.normal(0, noise.session, (trials, 1))
    old = start_levels(rng, (trials, held, count), noise) + rng.normal(0, noise.session, (trials, held, 1))
    for side in (new, old):
        side -= noise.drift * np.arange(side.shape[-1]) / max(side.shape[-1] - 1, 1)
    return requests(rng, new, noise), requests(rng, old, noise)
