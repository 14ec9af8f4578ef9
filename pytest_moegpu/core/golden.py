"""What a model gives to each token of fixed texts: kept from a known-good stack, and held against later ones."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["DIGITS", "TOP", "Golden", "ScoreMethod", "TextScore", "Token", "TokenScore"]

Token = int | str
"""A token by its id; by its text where an engine gives no ids."""

DIGITS = 4
"""Decimals of a log-probability that are kept: a tenth of a thousandth of a nat."""

TOP = 5
"""The likeliest tokens kept at each place."""

_BELOW = "<"


class ScoreMethod(StrEnum):
    """How the numbers of a text were had. The first two score the same tokens, with the same before them."""

    STEPS = "steps"
    """Teacher forcing, one token a request: each is read from the cache of those before it, as in decode."""
    PROMPT = "prompt"
    """Teacher forcing in one prefill: log-probabilities of the prompt."""
    GREEDY = "greedy"
    """The model's own greedy answer, for engines that score no given text."""


@dataclass(frozen=True, kw_only=True)
class TokenScore:
    """The log-probability (nat) of one token, and those of the likeliest there, likeliest first; NaN is no number.

    `below` when the engine did not list the token: its log-probability is then at most `logprob`, the least listed.
    """

    token: Token
    logprob: float
    top: tuple[tuple[Token, float], ...] = ()
    below: bool = False

    @property
    def is_number(self) -> bool:
        """Whether every number of it is one; minus infinity is none either."""
        return all(math.isfinite(number) for number in (self.logprob, *(number for _, number in self.top)))


@dataclass(frozen=True, kw_only=True)
class TextScore:
    """The scores of one fixed text; `error` says why there are none.

    `context` are the tokens before the first scored one. `rows` hold the scores in little room, a JSON list for each
    token: the token, its log-probability (as text with `<` before it where it is below that), then the likeliest and
    theirs in turn.
    """

    text: str
    method: ScoreMethod
    context: tuple[Token, ...] = ()
    rows: tuple[str, ...] = ()
    error: str = ""

    @classmethod
    def of(
        cls, *, text: str, method: ScoreMethod, tokens: Iterable[TokenScore], context: tuple[Token, ...] = ()
    ) -> TextScore:
        """Keep these scores: `DIGITS` decimals, and no more than the `TOP` likeliest tokens."""
        return cls(text=text, method=method, context=context, rows=tuple(_row(score) for score in tokens))

    @property
    def tokens(self) -> tuple[TokenScore, ...]:
        """The scores, as they are kept.

        Raises:
            ValueError: A row is damaged.
        """
        return tuple(_score(row) for row in self.rows)

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of the whole text, for an engine that takes them; empty where not all are known.

        Raises:
            ValueError: A row is damaged.
        """
        found = [t for t in (*self.context, *(score.token for score in self.tokens)) if isinstance(t, int)]
        return tuple(found) if len(found) == len(self.context) + len(self.rows) else ()


@dataclass(frozen=True, kw_only=True)
class Golden:
    """The scores of a known-good stack on one model file. `made_with` names the engine and its version for a person."""

    model_sha256: str
    made_with: str
    texts: tuple[TextScore, ...]
    texts_version: int = 1


def _row(score: TokenScore) -> str:
    number = _rounded(score.logprob)
    flat: list[Any] = [score.token, f"{_BELOW}{number}" if score.below else number]
    for token, logprob in score.top[:TOP]:
        flat += [token, _rounded(logprob)]
    return json.dumps(flat, ensure_ascii=False, separators=(",", ":"))


def _rounded(number: float) -> float:
    # Adding zero leaves no minus before a zero, which a text would show.
    return round(number, DIGITS) + 0.0 if math.isfinite(number) else number


def _score(row: str) -> TokenScore:
    flat = json.loads(row)
    if not isinstance(flat, list) or len(flat) < 2 or len(flat) % 2:
        raise ValueError(f"damaged scores: {row[:80]!r}")
    token, number = flat[0], flat[1]
    below = isinstance(number, str)
    pairs = zip(flat[2::2], flat[3::2], strict=True)
    try:
        return TokenScore(
            token=_token(token),
            logprob=float(number.removeprefix(_BELOW) if below else number),
            top=tuple((_token(other), float(logprob)) for other, logprob in pairs),
            below=below,
        )
    except TypeError as error:
        raise ValueError(f"damaged scores: {row[:80]!r}") from error


def _token(value: Any) -> Token:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"not a token: {value!r}")  # noqa: TRY004 - damaged data, as text that is not JSON
    return value
