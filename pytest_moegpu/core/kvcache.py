"""Precision of the KV cache by meaning: one word for what every engine spells in its own way."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_moegpu.errors import UserError, nearest

__all__ = ["KV_WORDS", "kv_meaning", "spell_kv"]

_MEANINGS: dict[str, str] = {
    "f32": "f32",
    "f16": "f16",
    "bf16": "bf16",
    "fp8_e4m3": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
    "int8": "int8",
    "int4": "int4",
    "fp4": "fp4",
    # Other spellings of these.
    "float32": "f32",
    "fp32": "f32",
    "float16": "f16",
    "fp16": "f16",
    "bfloat16": "bf16",
    "fp8": "fp8_e4m3",
    "q8_0": "int8",
    "q4_0": "int4",
    # GGML's own, which no other engine has.
    "q5_1": "q5_1",
    "q5_0": "q5_0",
    "q4_1": "q4_1",
    "iq4_nl": "iq4_nl",
}
KV_WORDS: tuple[str, ...] = tuple(_MEANINGS)
"""Every word that `settings.kv_cache` takes."""

_BITS = {"f32": 32, "f16": 16, "bf16": 16, "fp8_e4m3": 8, "fp8_e5m2": 8, "int8": 8, "q5_1": 5, "q5_0": 5}
_FEWEST_BITS = 4


def kv_meaning(word: str) -> str:
    """Return the meaning of a word: `q8_0` is `int8`, eight bits with a scale for each small block.

    Raises:
        UserError: No such word; says the nearest.
    """
    try:
        return _MEANINGS[word]
    except KeyError:
        raise UserError(f"{word!r} is no KV cache type{nearest(word, KV_WORDS)}: {', '.join(KV_WORDS)}") from None


def spell_kv(engine: str, word: str, spellings: Mapping[str, str], refused: Mapping[str, str] | None = None) -> str:
    """Return how an engine spells a KV cache type.

    Args:
        engine: Name of the backend, for the message.
        word: What the scenario asks for.
        spellings: The engine's word for each meaning that it has.
        refused: Meanings that the engine has and this GPU cannot do, each with the reason.

    Raises:
        UserError: The engine, or the GPU with it, has no such cache; says what has as many bits, and all there are.
    """
    meaning = kv_meaning(word)
    reason = (refused or {}).get(meaning, "")
    if meaning in spellings and not reason:
        return spellings[meaning]
    able = [other for other in spellings if other not in (refused or {})]
    alike = [other for other in able if _bits(other) == _bits(meaning)]
    why = f": {reason}" if reason else ""
    instead = f"; with as many bits: {', '.join(alike)}" if alike else ""
    raise UserError(
        f"settings.kv_cache: {engine} has no KV cache of {word}{why}{instead}; it has {', '.join(able) or 'none'}"
    )


def _bits(meaning: str) -> int:
    return _BITS.get(meaning, _FEWEST_BITS)
