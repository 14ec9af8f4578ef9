from __future__ import annotations

import pytest

from pytest_moegpu.core.kvcache import KV_WORDS, kv_meaning, spell_kv
from pytest_moegpu.errors import UserError

SPELLINGS = {"f16": "half", "fp8_e4m3": "fp8", "int8": "q8_0"}


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("q8_0", "int8"),
        ("q4_0", "int4"),
        ("fp8", "fp8_e4m3"),
        ("float16", "f16"),
        ("bfloat16", "bf16"),
        ("fp32", "f32"),
        ("iq4_nl", "iq4_nl"),
    ],
)
def test_words_have_one_meaning(word: str, meaning: str) -> None:
    assert kv_meaning(word) == meaning


def test_every_word_means_a_word() -> None:
    assert {kv_meaning(word) for word in KV_WORDS} <= set(KV_WORDS)
    assert all(kv_meaning(kv_meaning(word)) == kv_meaning(word) for word in KV_WORDS)


def test_an_unknown_word_offers_the_nearest() -> None:
    with pytest.raises(UserError, match=r"^'q8_1' is no KV cache type \(did you mean 'q[458]_[01]'\?\): f32, f16"):
        kv_meaning("q8_1")


def test_an_engine_spells_what_it_has() -> None:
    assert spell_kv("x", "float16", SPELLINGS) == "half"
    assert spell_kv("x", "q8_0", SPELLINGS) == "q8_0"
    assert spell_kv("x", "fp8", SPELLINGS) == "fp8"


def test_what_an_engine_lacks_is_refused_with_what_has_as_many_bits() -> None:
    with pytest.raises(UserError) as raised:
        spell_kv("sglang", "int8", {"bf16": "bf16", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"})
    assert str(raised.value) == (
        "settings.kv_cache: sglang has no KV cache of int8; with as many bits: fp8_e4m3, fp8_e5m2; "
        "it has bf16, fp8_e4m3, fp8_e5m2"
    )


def test_what_the_gpu_cannot_do_is_refused_with_the_reason_and_not_offered() -> None:
    refused = {"fp8_e4m3": "this GPU is older than 8.9"}
    with pytest.raises(UserError) as raised:
        spell_kv("x", "fp8", SPELLINGS, refused)
    assert str(raised.value) == (
        "settings.kv_cache: x has no KV cache of fp8: this GPU is older than 8.9; with as many bits: int8; "
        "it has f16, int8"
    )


def test_four_bits_are_compared_too_and_nothing_alike_is_not_made_up() -> None:
    with pytest.raises(UserError, match="with as many bits: fp4; it has f16, fp4"):
        spell_kv("x", "q4_0", {"f16": "a", "fp4": "b"})
    with pytest.raises(UserError) as raised:
        spell_kv("x", "q4_0", {})
    assert str(raised.value) == "settings.kv_cache: x has no KV cache of q4_0; it has none"
