"""How often does a fault come? k of n answers, and what n answers can say about it."""

from __future__ import annotations

__all__ = ["LEVEL", "interval", "missed", "say"]

LEVEL = 0.95
"""Confidence of the interval and of the largest rate missed."""


def interval(k: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact interval (Clopper and Pearson, Biometrika 26, 1934) of a rate seen k times in n.

    The bounds are shares of one: quantiles of beta distributions, B(a/2; k, n-k+1) and B(1-a/2; k+1, n-k), with a one
    less the level.

    Raises:
        ValueError: k is not from 0 to n, or n is not above 0.
    """
    from scipy.special import betaincinv  # here, because an idle plugin should not pay for it

    _hold(k, n)
    alpha = 1 - level
    low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, alpha / 2))
    high = 1.0 if k == n else float(betaincinv(k + 1, n - k, 1 - alpha / 2))
    return low, high


def missed(n: int, level: float = LEVEL) -> float:
    """Return the largest rate (share of one) that n answers without a fault could have missed: 1 - (1 - level)^(1/n).

    A fault of that rate shows in none of n independent answers with probability one less the level; for many answers it
    is the rule of three, 3/n. Answers of one server may hang together, and then say less.

    Raises:
        ValueError: n is not above 0.
    """
    _hold(0, n)
    return float(1.0 - (1.0 - level) ** (1.0 / n))


def say(k: int, n: int, what: str = "wrong") -> str:
    """Print k of n with its rate: `3 of 60 wrong: 5.0 % (1.0 … 13.9 %)`, or the largest rate missed where k is 0.

    Raises:
        ValueError: k is not from 0 to n, or n is not above 0.
    """
    _hold(k, n)
    if k == 0:
        return f"0 of {n} {what}: a rate of up to {100 * missed(n):.1f} % could have been missed"
    low, high = interval(k, n)
    return f"{k} of {n} {what}: {100 * k / n:.1f} % ({100 * low:.1f} … {100 * high:.1f} %)"


def _hold(k: int, n: int) -> None:
    if n < 1 or not 0 <= k <= n:
        raise ValueError(f"{k} of {n} is no rate")
