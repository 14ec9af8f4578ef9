"""Prompts of a wanted length, the same for the same seed: filler of plain sentences, with or without a fact to recall.

A fact is one number behind one phrase, said twice, and asked for with the start of the answer given. SmolLM2-135M then
recalls it at every depth with a margin of 2.2 to 4 nat (12 prompts of 1,946 tokens; said once: 1.6 to 3.1, with a miss
now and then), so a wrong answer says something about the machine and not about the model.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["Recall", "filler", "recall", "throughput_prompt"]

_SENTENCES = (
    "The {a} {n} stood near the {p}.",
    "A {n} moved slowly past the {p} in the {t}.",
    "Nobody in the {p} noticed the {a} {n}.",
    "In the {t}, the {n} seemed {a}.",
    "The road to the {p} was {a} and quiet.",
    "Someone left a {a} {n} by the {p} in the {t}.",
)
_ADJECTIVES = ("old", "bright", "small", "heavy", "quiet", "green", "narrow", "pale", "warm", "broken")
_NOUNS = ("lantern", "wagon", "clock", "bridge", "horse", "kettle", "ladder", "basket", "engine", "garden")
_PLACES = ("harbor", "market", "station", "mill", "valley", "library", "tower", "forest", "village", "square")
_TIMES = ("morning", "evening", "winter", "summer", "afternoon", "night")
_HOURS = ("morning", "noon", "night")


@dataclass(frozen=True, kw_only=True)
class Recall:
    """A prompt that hides a fact, the start of the answer, and the answer."""

    prompt: str
    prefill: str
    answer: str


def filler(sentences: int, seed: int) -> list[str]:
    """Return plain sentences of about 12 tokens each, drawn from a small vocabulary."""
    draw = random.Random(seed)
    return [
        draw.choice(_SENTENCES).format(
            a=draw.choice(_ADJECTIVES), n=draw.choice(_NOUNS), p=draw.choice(_PLACES), t=draw.choice(_TIMES)
        )
        for _ in range(sentences)
    ]


def throughput_prompt(tokens: int, tokens_per_sentence: float, seed: int) -> str:
    """Return a prompt of about `tokens` tokens that shares no prefix with that of another seed."""
    sentences = max(1, round(tokens / tokens_per_sentence))
    # The number comes first, so that no engine's prefix cache can reuse another prompt's start.
    return f"{random.Random(seed).randrange(10**9)}. " + " ".join(filler(sentences, seed))


def recall(tokens: float, tokens_per_sentence: float, depth: float, seed: int) -> Recall:
    """Return about `tokens` tokens of filler with a fact at `depth` (0 start, 1 end) of it, and the question.

    Prompts of one length and seed share their filler, so an engine with a prefix cache only reads on from the fact.
    """
    # The fact takes the room of two and a half sentences, the question and the start of the answer that of the rest.
    sentences = filler(max(1, round(tokens / tokens_per_sentence)), seed)
    draw = random.Random(f"{seed} {depth}")
    answer, hour = str(draw.randint(1000, 9999)), _HOURS[min(int(depth * len(_HOURS)), len(_HOURS) - 1)]
    start = f"The number of the {hour} train is"
    fact = f"{start} {answer}. Remember this: {start[0].lower()}{start[1:]} {answer}."
    sentences.insert(round(len(sentences) * depth), fact)
    prompt = " ".join(sentences) + f"\n\nWhat is the number of the {hour} train?"
    return Recall(prompt=prompt, prefill=start, answer=answer)
