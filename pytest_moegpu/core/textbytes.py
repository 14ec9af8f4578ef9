"""Characters that no writer types: what is left of bytes decoded wrongly, and control tokens written as text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from pytest_moegpu.core.textasked import Asked
from pytest_moegpu.core.textfinding import DOUBTFUL, Finding

__all__ = ["byte_noise", "mojibake", "special_tokens"]

# What is not printable, and U+FFFD; found by one pass of the pattern engine, then looked at one by one.
_UNPRINTED = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u0378\u0379\u0600-\u0605\ud800-\udfff\ue000-\uf8ff\ufff0-\ufffb\ufffd-\uffff"
    "\U000e0fff-\U0010ffff]"
)
_RARE = re.compile("[\u0370-\u109f\u1100-\u2bff\ua000-\ud7ff\U00010000-\U000e0fff]")
# UTF-8 read as Latin-1 or Windows-1252: a lead byte's letter and what continuation bytes become.
_MOJIBAKE = re.compile(
    "[ÃÂ][\u0080-\u00bf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]|â[\u0080€][\u0080-\u00bf™œ“”˜¢¦\u2013\u2014‹›]"
    "|[äåæçèéãìëê][\u0080-\u00bf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]{2}|[ÐÑ][\u0080-\u00bf°±²³µ¸¹º»¼½¾¿€‚ƒ„…†‡]|ðŸ"
)
_STRIKE = ("<s>", "</s>")
_TOKEN = re.compile(
    r"<\|[\w/:.-]{1,40}\|>|</?(?:pad|unk|eos|bos|s|mask|think|start_of_turn|end_of_turn)>|<unused\d{1,9}>"
    r"|<0x[0-9A-F]{2}>|\[(?:PAD|UNK|/?INST|SEP|CLS|MASK)\]|<｜[\w▁]{1,40}｜>|<<?/?SYS>>?|[ĠĊ](?=[A-Za-z])"
)


def byte_noise(text: str, prompt: str) -> Iterator[Finding]:
    """Find U+FFFD, controls, lone surrogates, private and unassigned characters."""
    if text.isascii() and text.isprintable():
        return
    allowed = set(prompt)
    noise = [m.start() for m in _UNPRINTED.finditer(text) if m[0] not in allowed]
    if not text.isascii():
        # Most of these are letters and signs; only the unassigned ones count.
        kinds = {c for c in set(_RARE.findall(text)) if unicodedata.category(c) == "Cn" and c not in allowed}
        if kinds:
            noise += [m.start() for m in re.finditer("[" + re.escape("".join(sorted(kinds))) + "]", text)]
    # A stream cut within a character leaves one at the very end.
    if not noise or noise == [len(text) - 1]:
        return
    share, first = len(noise) / len(text), min(noise)
    # In a long text a cluster counts by itself.
    close = len(noise) >= 4 and sorted(noise)[3] - first < 400
    yield Finding(
        name="byte-noise",
        strength=1.0 if len(noise) >= 2 and (share > 0.005 or close) else DOUBTFUL,
        position=first,
        detail=f"{len(noise)} characters that are no text, {share:.1%} of all",
    )


def mojibake(text: str, asked: Asked) -> Iterator[Finding]:
    """Find UTF-8 that was read as a one-byte encoding."""
    if text.isascii() or re.search(r"mojibake|encoding|latin-?1|utf-?8|codec|charset", asked.prompt, re.IGNORECASE):
        return
    hits = [m.start() for m in _MOJIBAKE.finditer(text)]
    if len(hits) >= 2:
        yield Finding(
            name="byte-noise",
            strength=1.0 if len(hits) >= 3 else DOUBTFUL,
            position=hits[0],
            detail=f"{len(hits)} places that look like UTF-8 read in another encoding",
        )


def special_tokens(text: str, prompt: str) -> Iterator[Finding]:
    """Find control tokens of chat templates and tokenizers written as text."""
    hits = [m for m in _TOKEN.finditer(text) if m[0] not in prompt]
    # `<s>` alone is HTML, and one stray token is a template's fault rather than the machine's.
    telling = [m for m in hits if m[0] not in _STRIKE]
    if not telling:
        return
    about = re.search(r"token|template|chatml|prompt format|tokenizer|special", prompt, re.IGNORECASE)
    share = sum(len(m[0]) for m in hits) / len(text.strip())
    strong = (share >= 0.5 or len(telling) >= 4) and not about
    yield Finding(
        name="special-tokens",
        strength=1.0 if strong else DOUBTFUL if not about else 0.3,
        position=hits[0].start(),
        detail=f"{len(hits)} control tokens such as {hits[0][0]}, {share:.0%} of the text",
    )
