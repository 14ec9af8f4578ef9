"""Signs of broken text: what a damaged model, a bad kernel or a wrong setting writes. Form only, never meaning.

The classes are those of public bug reports: one character for ever, closed loops, bytes that are no text, scripts at
random, control tokens, salad of words. Good language with wrong content shows no sign here; that takes known answers
and goldens. Time is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite

from pytest_moegpu.core.textasked import Asked
from pytest_moegpu.core.textbytes import byte_noise, mojibake, special_tokens
from pytest_moegpu.core.textfinding import DOUBTFUL, Finding, TextVerdict, verdict
from pytest_moegpu.core.textforms import ascii_noise, decay, glued, han_salad, random_pieces, script_salad
from pytest_moegpu.core.textloops import echoes, inner_loops, periodic_tail, repetition
from pytest_moegpu.core.textruns import RULER, in_place, run_strength
from pytest_moegpu.core.textsalad import word_salad

__all__ = ["examine"]

_LEAST_RUN = 12
_RUN = re.compile(r"(.)\1+", re.DOTALL)
_THINK = re.compile(r"\s*<think>\s*</think>\s*")
# Samples of a healthy model average above -2 nat a token; salad of a temperature fault lies far below.
_UNLIKELY = -4.0
_LEAST_TOKENS = 8


def examine(
    text: str,
    prompt: str = "",
    finish_reason: str | None = None,
    logprobs: Sequence[float | None] | None = None,
) -> tuple[Finding, ...]:
    """Look for signs of broken text.

    Args:
        text: What the model wrote.
        prompt: What it was asked; a run, repetition, script or token that it asks for is no sign.
        finish_reason: `length` makes an endless tail likelier, `tool_calls` excuses an empty text.
        logprobs: Of each token (natural log), None where the server had no finite number; None: not recorded.

    Returns:
        The findings, the strongest first; empty when there is no sign. Names: `empty`, `whitespace`,
        `one-character-run`, `periodic-tail`, `inner-loop`, `distinct-n-grams`, `byte-noise`, `script-salad`,
        `special-tokens`, `ascii-noise`, `glued-identifiers`, `structural-decay`, `word-salad`, `fade`, `no-number`,
        `unlikely-tokens`.
    """
    # A model told not to think may still open and close its thoughts.
    empty = _THINK.match(text)
    skipped = empty.end() if empty else 0
    text = text[skipped:]
    numbers = tuple(_numbers(logprobs))
    if not text.strip():
        if finish_reason == "tool_calls":
            return numbers
        name, detail = ("whitespace", f"{len(text)} blank characters only") if text else ("empty", "no text at all")
        return (Finding(name=name, strength=1.0, position=skipped, detail=detail), *numbers)
    asked = Asked(prompt)
    found = [
        *_runs(text, asked, finish_reason),
        *periodic_tail(text, asked, finish_reason),
        *echoes(text, asked),
        *inner_loops(text, asked),
        *byte_noise(text, prompt),
        *mojibake(text, asked),
        *script_salad(text, asked),
        *special_tokens(text, prompt),
        *ascii_noise(text, asked),
        *glued(text, asked),
        *decay(text),
    ]
    # What follows are shares and likelihoods, which add nothing to a clear sign.
    if verdict(found) is not TextVerdict.BAD:
        found += [
            *repetition(text, asked, finish_reason),
            *random_pieces(text, asked),
            *han_salad(text, asked),
            *word_salad(text, asked),
        ]
    placed = [*(replace(f, position=f.position + skipped) for f in found), *numbers]
    return tuple(sorted(placed, key=lambda f: -f.strength))


def _numbers(logprobs: Sequence[float | None] | None) -> Iterator[Finding]:
    """Find log-probabilities that are no numbers, and a text that its own model holds to be very unlikely."""
    if not logprobs:
        return
    finite = [p for p in logprobs if p is not None and isfinite(p)]
    lost = len(logprobs) - len(finite)
    if lost:
        yield Finding(
            name="no-number",
            strength=1.0,
            position=0,
            detail=f"{lost} of {len(logprobs)} log-probabilities are no number",
        )
    if len(finite) >= _LEAST_TOKENS and (mean := sum(finite) / len(finite)) < _UNLIKELY:
        yield Finding(
            name="unlikely-tokens", strength=DOUBTFUL, position=0, detail=f"{mean:.1f} nat a token in the mean"
        )


def _matches(text: str) -> Iterator[re.Match[str]]:
    """Find the runs by comparing every character with the next one at once."""
    import numpy as np

    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    changes = np.concatenate(([-1], np.flatnonzero(points[1:] != points[:-1]), [len(points) - 1]))
    for at in changes[:-1][np.diff(changes) >= _LEAST_RUN]:
        match = _RUN.match(text, int(at) + 1)
        if match:
            yield match


def _runs(text: str, asked: Asked, finish_reason: str | None) -> Iterator[Finding]:
    """Find the worst run of one character that the prompt does not ask for."""
    begin, end = len(text) - len(text.lstrip()), len(text.rstrip())
    wordy = re.search(r"[^\W_]{3}", text) is not None
    excused: dict[str, bool] = {}
    worst: Finding | None = None
    for match in _matches(text):
        character, length = match[1], match.end() - match.start()
        share, at_end = length / max(1, end - begin), match.end() >= end
        endless = at_end and finish_reason == "length"
        strength = run_strength(text, match, share, endless=endless)
        if character.isdigit() and not asked.numbers:
            strength = max(strength, DOUBTFUL)
        if strength <= (worst.strength if worst else 0.0):
            continue
        if wordy and in_place(text, match, share, endless=endless, at_end=at_end):
            continue
        if character not in excused:
            excused[character] = (asked.draw and character in RULER) or asked.repeats(character) == 1.0
        if not excused[character]:
            shown = (
                repr(character) if character.isprintable() and not character.isspace() else f"U+{ord(character):04X}"
            )
            worst = Finding(
                name="one-character-run", strength=strength, position=match.start(), detail=f"{length} times {shown}"
            )
    if worst:
        yield worst
