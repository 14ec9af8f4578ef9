"""How well two sets of scores agree, and whether that is more than sound kernels differ.

The distance of two distributions is a lower bound of the Kullback-Leibler divergence D(golden || now) in nat: over the
tokens listed by both and by the golden alone, and all others as one lump. Putting outcomes together can only lower the
divergence (log sum inequality). What the golden lists and the run does not has at most the run's least listed
probability each; of the shares that this allows the one with the smallest divergence is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_moegpu.core.golden import DIGITS, ScoreMethod, TextScore, Token, TokenScore

__all__ = [
    "FLOOR",
    "LEAST_TOKENS",
    "PRECISION_FLOOR",
    "QUANTISED_FLOOR",
    "Agreement",
    "Divergence",
    "Floor",
    "Grade",
    "agree",
    "grade",
]

LEAST_TOKENS = 64
"""Fewer tokens in common say nothing: one near-tie among them would decide."""

_LEAST_SHARE = 0.5
_NEAR_TIE = 0.5
_TINY = 1e-12
# Both sides are rounded: what differs by less than the last digit is the same number.
_SAME = 0.5 * 10**-DIGITS


class Grade(StrEnum):
    """What an agreement amounts to, best first."""

    IDENTICAL = "identical"
    """To the last digit kept."""
    WITHIN = "within the floor"
    """No further apart than sound kernels are."""
    SHORT = "too little in common"
    """Nothing can be said."""
    BEYOND = "beyond the floor"
    """Further apart than sound kernels are."""
    NO_NUMBER = "no number"
    """Log-probabilities that are NaN, infinite or left out."""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """How far sound kernels may be apart: means and a 99th percentile (nat), the least share of equal first choices."""

    difference: float
    divergence: float
    divergence_p99: float
    top1: float
    what: str


FLOOR = Floor(difference=0.1, divergence=0.01, divergence_p99=0.1, top1=0.93, what="another kernel path")
"""About twice the largest difference between sound paths, and four times its divergence, which grows as its square.

Measured with SmolLM2-135M: 0.049 nat, 0.0022, 0.022 and 0.97 by `bench/golden_noise.py` (flash attention, KV, build);
on a processor. Quantised weights on a GPU have a floor of their own.
"""

QUANTISED_FLOOR = Floor(
    difference=0.2,
    divergence=0.03,
    divergence_p99=0.4,
    top1=0.9,
    what="another kernel path, quantised weights on a GPU",
)
"""About 1.7 times the largest difference there: kernels that multiply integers round the activations as well.

Measured with SmolLM2-135M Q4_1 on an H200 by `bench/golden_noise.py`: flash attention off 0.120 nat, 0.0161, p99 0.138
and 0.945; KV q8_0 0.119, 0.0170, 0.153 and 0.941; ubatch 32 0.104, 0.0128, 0.225 and 0.949; four at once 0.061 nat. In
bf16 there: 0.003 with four at once, 0.025 between llama.cpp and vLLM, far within `FLOOR`.
"""

PRECISION_FLOOR = Floor(difference=0.4, divergence=0.12, divergence_p99=1.2, top1=0.78, what="another precision")
"""Twice what weights rounded to 5 bits by blocks of 32 differ from those before: 0.25 nat, 0.052, 0.58 and 0.87.

A KV cache of q4_0 against f16 has 0.19 nat, 0.038, 0.50 and 0.89. Both with SmolLM2-135M.
"""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first place where the likeliest token is another. `gap` (nat) is what parted both in the golden."""

    text: str
    position: int
    golden: Token
    now: Token
    gap: float | None

    @property
    def near_tie(self) -> bool:
        """Whether sound kernels may take either."""
        return self.gap is not None and self.gap <= _NEAR_TIE


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Figures over all tokens in common. Differences are of the known token's log-probability, in nat.

    `expected` is how many the golden has, `uncertain` how many of those in common the engine only gave a bound for;
    `no_numbers` names the places without a number.
    """

    tokens: int
    expected: int
    top1: float
    difference: float
    difference_max: float
    divergence: float
    divergence_p99: float
    uncertain: int = 0
    first: Divergence | None = None
    no_numbers: tuple[str, ...] = ()
    identical: bool = False
    worst_text: str = ""

    @property
    def covered(self) -> bool:
        """Whether enough was compared to say anything."""
        return self.tokens >= LEAST_TOKENS and self.tokens >= _LEAST_SHARE * self.expected


def agree(golden: Sequence[TextScore], now: Sequence[TextScore]) -> Agreement:
    """Compare the texts that both have, token by token.

    Texts of one method, or one read in steps and one as a prompt, are compared at the same tokens. Greedy answers are
    compared up to the first token at which they part, and there by what the golden took.
    """
    found = {score.text: score for score in now}
    pairs: list[tuple[str, int, TokenScore, TokenScore]] = []
    expected = 0
    missing: list[str] = []
    for old in golden:
        expected += len(old.rows)
        new = found.get(old.text)
        if new is None or (ScoreMethod.GREEDY in (old.method, new.method) and old.method is not new.method):
            continue
        for place, a, b in _paired(old, new):
            if b.is_number:
                pairs.append((old.text, place, a, b))
            else:
                missing.append(f"{old.text}, token {place}")
    return _figures(pairs, expected, tuple(missing))


def grade(agreement: Agreement, floor: Floor) -> Grade:
    """Say what an agreement amounts to; a number that is none comes before all else."""
    if agreement.no_numbers:
        return Grade.NO_NUMBER
    if not agreement.covered:
        return Grade.SHORT
    if agreement.identical:
        return Grade.IDENTICAL
    beyond = (
        agreement.difference > floor.difference
        or agreement.divergence > floor.divergence
        or agreement.divergence_p99 > floor.divergence_p99
        or agreement.top1 < floor.top1
    )
    return Grade.BEYOND if beyond else Grade.WITHIN


def _paired(old: TextScore, new: TextScore) -> Iterator[tuple[int, TokenScore, TokenScore]]:
    """Yield the places in common, counted from the first scored token."""
    if old.method is not ScoreMethod.GREEDY and old.context != new.context:
        return
    for place, (a, b) in enumerate(zip(old.tokens, new.tokens, strict=False)):
        if a.token == b.token:
            yield place, a, b
            continue
        if old.method is ScoreMethod.GREEDY:
            # What is before this token is still the same, so the two distributions are of the same place.
            yield place, a, _of(a.token, b)
        return


def _of(token: Token, score: TokenScore) -> TokenScore:
    """Return the score of another token of the same place."""
    known = dict(score.top)
    if token in known:
        return TokenScore(token=token, logprob=known[token], top=score.top)
    least = min((number for _, number in score.top), default=score.logprob)
    return TokenScore(token=token, logprob=least, top=score.top, below=True)


def _figures(
    pairs: list[tuple[str, int, TokenScore, TokenScore]], expected: int, missing: tuple[str, ...]
) -> Agreement:
    if not pairs:
        nan = math.nan
        return Agreement(
            tokens=0,
            expected=expected,
            top1=nan,
            difference=nan,
            difference_max=nan,
            divergence=nan,
            divergence_p99=nan,
            no_numbers=missing,
        )
    differences = [_difference(a, b) for _, _, a, b in pairs]
    divergences = [_divergence(a, b) for _, _, a, b in pairs]
    same = [_first(a) == _first(b) for _, _, a, b in pairs]
    by_text: dict[str, list[float]] = {}
    for (text, *_), value in zip(pairs, divergences, strict=True):
        by_text.setdefault(text, []).append(value)
    parted = next((pair for pair, alike in zip(pairs, same, strict=True) if not alike), None)
    return Agreement(
        tokens=len(pairs),
        expected=expected,
        top1=sum(same) / len(same),
        difference=_mean(differences),
        difference_max=max(differences),
        divergence=_mean(divergences),
        divergence_p99=_percentile(divergences, 0.99),
        uncertain=sum(a.below or b.below for _, _, a, b in pairs),
        first=None if parted is None else _parting(*parted),
        no_numbers=missing,
        identical=all(_identical(a, b) for _, _, a, b in pairs),
        worst_text=max(by_text, key=lambda text: _mean(by_text[text])),
    )


def _identical(a: TokenScore, b: TokenScore) -> bool:
    """Tell whether two scores are the same to the last digit; the lists as far as both go."""
    if a.below != b.below or abs(a.logprob - b.logprob) > _SAME:
        return False
    return all(one == other and abs(p - q) <= _SAME for (one, p), (other, q) in zip(a.top, b.top, strict=False))


def _difference(a: TokenScore, b: TokenScore) -> float:
    """Return how far the known token's log-probabilities are apart; of a bound, what is surely between them."""
    if a.below and b.below:
        return 0.0
    if a.below:
        return max(0.0, b.logprob - a.logprob)
    if b.below:
        return max(0.0, a.logprob - b.logprob)
    return abs(a.logprob - b.logprob)


def _first(score: TokenScore) -> Token | None:
    return score.top[0][0] if score.top else None


def _listed(score: TokenScore) -> dict[Token, float]:
    known = {token: math.exp(logprob) for token, logprob in score.top}
    return known if score.below else known | {score.token: math.exp(score.logprob)}


def _divergence(a: TokenScore, b: TokenScore) -> float:
    """Return the lower bound of D(a || b) that this module's docstring gives."""
    p, q = _listed(a), _listed(b)
    both = p.keys() & q.keys()
    only = p.keys() - q.keys()
    total = sum(_term(p[token], q[token]) for token in both)
    p_only = sum(p[token] for token in only)
    p_rest = max(0.0, 1.0 - sum(p.values()))
    q_left = max(0.0, 1.0 - sum(q[token] for token in both))
    most = min(q_left, len(only) * min((math.exp(logprob) for _, logprob in b.top), default=1.0))
    p_left = p_only + p_rest
    kindest = q_left * p_only / p_left if p_left > _TINY else 0.0
    q_only = min(most, kindest)
    total += _term(p_only, q_only) + _term(p_rest, q_left - q_only)
    return max(0.0, total)


def _term(p: float, q: float) -> float:
    # Shares of a ten-thousandth are what the rounding of the others leaves.
    return p * math.log(p / max(q, _TINY)) if p > _SAME else 0.0


def _parting(text: str, place: int, a: TokenScore, b: TokenScore) -> Divergence | None:
    old, new = _first(a), _first(b)
    if old is None or new is None:
        return None
    known = dict(a.top) | ({} if a.below else {a.token: a.logprob})
    gap = a.top[0][1] - known[new] if new in known else None
    return Divergence(text=text, position=place, golden=old, now=new, gap=gap)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of them does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
