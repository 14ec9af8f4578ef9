"""What a model gives to each token of fixed texts: kept from a known-good stack, and held against later ones."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Golden", "ScoreMethod", "TextScore", "Token", "TokenScore"]

Token = int | str
"""A token by its id; by its text where an engine gives no ids."""


class ScoreMethod(StrEnum):
    """How the numbers of a text were had. Only those of one method are like for like."""

    STEPS = "steps"
    """Teacher forcing, one token a request: each is read from the cache of those before it, as in decode."""
    PROMPT = "prompt"
    """Teacher forcing in one prefill: log-probabilities of the prompt."""
    GREEDY = "greedy"
    """The model's own greedy answer, for engines that score no given text."""


@dataclass(frozen=True, kw_only=True)
class TokenScore:
    """The log-probability (nat) of one token, and those of the likeliest there, likeliest first; NaN is no number."""

    token: Token
    logprob: float
    top: tuple[tuple[Token, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class TextScore:
    """The scores of one fixed text; `error` says why there are none."""

    text: str
    method: ScoreMethod
    tokens: tuple[TokenScore, ...] = ()
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Golden:
    """The scores of a known-good stack on one model file. `made_with` names the engine and its version for a person."""

    model_sha256: str
    made_with: str
    texts: tuple[TextScore, ...]
