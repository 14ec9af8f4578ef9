"""The verdict of the word model: a small network over the measures of a stretch, and where it is asked at all."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import islice
from typing import Any

from pytest_moegpu.core.textasked import Asked
from pytest_moegpu.core.textfinding import DOUBTFUL, Finding
from pytest_moegpu.core.textmodel import shipped_model
from pytest_moegpu.core.textwords import MEASURES, Sums, Tokens, blocks, measures, sums

__all__ = ["BAD_FROM", "DOUBTFUL_FROM", "Stretch", "judged", "network", "score", "strangest", "word_salad"]

BAD_FROM = 1.6
"""Log-odds from which a stretch is salad, from the cross-validation of `bench/text_classes.py`."""

DOUBTFUL_FROM = -1.1
"""Log-odds from which it may be salad."""

# Above these lengths a text is judged in pieces, and the end by itself.
_WHOLE = 700
_PIECE = 350
_LONG = 20_000
_LONG_PIECE = 400
# Of a long text one piece in four is read, to keep to 2 MB/s: salad of 2,000 characters always fills one.
_LONG_STEP = 4
_END = 180
_LEAST_LETTERS = 24
_LEAST_WORDS = 8
_FEW_WORDS = 14
# Talk of few words that are all known: exclamations and answers of a word have an order of their own.
_TALK = 20
_FEWEST_SURE = 9
# Salad is of nothing that was asked; of an answer to no prompt less is known, and more must speak against it.
_SHARED = 1.5
_NONE_SHARED = -0.5
_NO_PROMPT = 1.3
_MOST_ALLOWED = 2.0
# A short answer may well use no word of the question.
_ANSWER = 20
# English of small words alone is not written; this much is suspect, whatever the network says.
_SMALL_WORDS = 0.87
_LEAST_SMALL = 25
_SMALL_ODDS = 1.0
_MARKUP = re.compile(
    r"\b(?:SELECT|FROM|WHERE|INSERT INTO|CREATE TABLE|GROUP BY)\b[^.]*\b(?:FROM|WHERE|VALUES|ON|AS|INT|BY|JOIN)\b"
    r"|https?://|apt-get|[├└│]──|</\w+>"
)
_STATEMENT = re.compile(
    r"^\s*(?:from [\w.]+ import|import [\w.{]|#include|using |(?:async )?def |class \w+[(:]|@\w+|"
    r"return\b|const |let |var "
    r"|fn |pub |func |package |if \(|for \(|for \w+ in |raise |public |private |\w+: \w+,?$|[\w.]+ = )",
    re.MULTILINE,
)
_MIXED = re.compile("[a-z][A-Z]|[A-Z]{2}[a-z]")
_FORMULA = re.compile(r"\\[A-Za-z]+")


@cache
def network() -> tuple[Any, ...]:
    """Return the weights that come with the package: mean and scale of the measures, then two layers."""
    import numpy as np

    raw = json.loads((resources.files("pytest_moegpu.core") / "textsalad.json").read_text(encoding="utf-8"))
    if raw["measures"] != list(MEASURES):
        raise ValueError("the weights are of other measures: run `python -m bench.text_classes --fit` again")
    return tuple(np.array(raw[name]) for name in ("mean", "scale", "first", "bias", "second", "offset"))


def score(rows: Any, weights: tuple[Any, ...] | None = None) -> Any:
    """Return the log-odds of salad for rows of measures; the mean of several networks."""
    import numpy as np

    mean, scale, first, bias, second, offset = weights or network()
    x = np.clip((np.asarray(rows) - mean) / scale, -4, 4)
    layers = zip(first, bias, second, offset, strict=True)
    return np.mean([np.tanh(x @ f + b) @ s + o for f, b, s, o in layers], axis=0)


def judged(s: Sums, text: str) -> bool:
    """Tell whether the model can speak of a stretch: Latin words of no other language, no list, title or formula."""
    if s.words < _LEAST_WORDS or s.latin < _LEAST_LETTERS or s.latin < 0.85 * s.letters or s.accented > 0.02 * s.latin:
        return False
    # Capitals amid words are of pieces: no language is written so.
    mixed = len(_MIXED.findall(text))
    language = mixed <= 0.06 * s.words
    if language and s.foreign > 0.14 * s.words and s.foreign > s.english:
        return False
    title = s.capitals > 0.6 * s.words and s.words < 20 and s.kinds > 0.75 * s.words
    if s.upper > 0.8 * s.latin or (language and title):
        return False
    if (s.commas > 0.5 * s.words and s.english < 0.1 * s.words) or len(_FORMULA.findall(text)) >= 3:
        return False
    # A language that is not known here is spaced and punctuated like any other; pieces of words are not.
    odd = s.odd + s.strange + s.single + s.long + mixed + (s.code_marks > 0.01 * s.solid) * s.words
    if s.known < 0.2 * s.latin and s.english < 0.06 * s.words and odd < 0.08 * s.words:
        return False
    longest = max(map(len, text.split()), default=0)
    return not (s.digits > 0.06 * s.solid and longest > 24 and s.upper > 0.2 * s.latin)


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """The stretch of a text that is likest to salad: where, its text and counts, and the log-odds that it is one."""

    position: int
    text: str
    counts: Sums
    odds: float
    faded: bool


def strangest(text: str, asked: Asked) -> Stretch | None:
    """Return the stretch that is likest to salad; None where the model cannot speak of the text."""
    if asked.encoded or asked.many:
        return None
    import numpy as np

    model = shipped_model()
    classes = Tokens()
    pieces: list[tuple[int, str, Sums]] = []
    size = _PIECE if len(text) <= _LONG else _LONG_PIECE
    if len(text) <= _WHOLE:
        pieces.append((0, text, sums(text, model, classes)))
    else:
        step = _LONG_STEP if len(text) > _LONG else 1
        chosen = islice(blocks(text, size), 0, None, step)
        pieces += [(at, piece, sums(piece, model, classes)) for at, piece in chosen]
    if len(text) > 2 * _END:
        at = len(text.rstrip()) - _END
        end = text[at:]
        at += max(end.find(" ") + 1, 0)
        pieces.append((at, text[at:], sums(text[at:], model, classes)))
    pieces = [each for each in pieces if judged(each[2], each[1])]
    if not pieces:
        return None
    scores = score([measures(s) for _, _, s in pieces])
    # Among many pieces the strangest of a whole text is stranger.
    allowance = min(0.4 * math.log2(len(pieces)), _MOST_ALLOWED) if len(pieces) >= 4 else 0.0
    # Few words may be names, statements and queries are what they seem, and clean words that come again are
    # what loops are judged by.
    doubts = [
        (s.words < _FEW_WORDS)
        + 2.0 * (len(_STATEMENT.findall(piece)) >= 2)
        + 1.5 * bool(_MARKUP.search(piece))
        + 2.5 * (s.words < _TALK and s.known > 0.8 * s.latin and s.odd + s.strange == 0)
        + (s.known > 0.7 * s.latin and s.neighbours < 0.8 * s.words and s.odd + s.strange == 0)
        for _, piece, s in pieces
    ]
    scores = scores - np.array(doubts)
    small = [s.words >= _LEAST_SMALL and s.english > _SMALL_WORDS * s.words for _, _, s in pieces]
    scores = np.where(small, np.maximum(scores, _SMALL_ODDS), scores)
    worst = int(scores.argmax())
    # Verse has an order of words of its own.
    position, piece, s = pieces[worst]
    shared = asked.shares(piece)
    strange = _NONE_SHARED if s.words >= _ANSWER else 0.0
    answer = _NO_PROMPT if shared is None else _SHARED * min(shared, 2) if shared else strange
    odds = float(scores[worst]) - allowance - asked.verse - answer
    early = position > 60 and len(pieces) > 1
    return Stretch(
        position=position,
        text=piece,
        counts=s,
        odds=odds,
        faded=early and float(scores[0]) < 0 and position + len(piece) >= len(text.rstrip()),
    )


def word_salad(text: str, asked: Asked) -> Iterator[Finding]:
    """Find stretches that are neither English nor code nor another language of Latin script."""
    worst = strangest(text, asked)
    if worst is None or worst.odds < DOUBTFUL_FROM:
        return
    s = worst.counts
    sure = worst.odds >= BAD_FROM and s.words >= _FEWEST_SURE and not _MARKUP.search(worst.text)
    yield Finding(
        name="fade" if worst.faded else "word-salad",
        strength=min(0.8 + (worst.odds - BAD_FROM) / 20, 1.0) if sure else DOUBTFUL,
        position=worst.position,
        detail=f"{s.words} words, {s.known / max(s.latin, 1):.0%} of the letters in known ones:"
        f" {worst.text.strip()[:40]!r}",
    )
