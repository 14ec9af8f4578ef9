"""Prompts: as long as wanted, the same for the same seed, and unlike each other where a cache must not help."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moegpu.core.prompts import filler, recall, throughput_prompt

PER_SENTENCE = 12.0
SEEDS = st.integers(min_value=0, max_value=2**40)
LENGTHS = st.integers(min_value=100, max_value=8000)
DEPTHS = st.floats(min_value=0, max_value=1, allow_nan=False)


def sentences(text: str) -> int:
    return text.count(".")


@given(tokens=LENGTHS, seed=SEEDS)
def test_throughput_prompt_has_the_wanted_length(tokens: int, seed: int) -> None:
    prompt = throughput_prompt(tokens, PER_SENTENCE, seed)
    # The number in front ends with a full stop as well.
    assert abs((sentences(prompt) - 1) * PER_SENTENCE - tokens) <= PER_SENTENCE / 2


@given(tokens=LENGTHS, depth=DEPTHS, seed=SEEDS)
def test_recall_prompt_has_the_wanted_length_with_its_fact(tokens: int, depth: float, seed: int) -> None:
    prompt = recall(tokens, PER_SENTENCE, depth, seed).prompt
    # The fact says its number twice: two sentences more, which the caller allows for.
    assert abs((sentences(prompt) - 2) * PER_SENTENCE - tokens) <= PER_SENTENCE / 2


@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_the_shortest_prompts_still_say_something(tokens: int) -> None:
    assert sentences(throughput_prompt(tokens, PER_SENTENCE, 1)) == 2
    short = recall(tokens, PER_SENTENCE, 0.5, 1)
    assert short.answer in short.prompt


@given(tokens=LENGTHS, depth=DEPTHS, seed=SEEDS)
def test_same_seed_gives_the_same_prompt(tokens: int, depth: float, seed: int) -> None:
    assert throughput_prompt(tokens, PER_SENTENCE, seed) == throughput_prompt(tokens, PER_SENTENCE, seed)
    assert recall(tokens, PER_SENTENCE, depth, seed) == recall(tokens, PER_SENTENCE, depth, seed)


def test_prompts_do_not_change_from_version_to_version() -> None:
    # A baseline's identity holds the workload, not the text: another text needs a new check version.
    assert throughput_prompt(24, PER_SENTENCE, 20261130) == (
        "816847103. A lantern moved slowly past the library in the winter. "
        "Nobody in the valley noticed the bright clock."
    )
    assert filler(2, 7) == filler(3, 7)[:2]


@given(seed=st.integers(min_value=0, max_value=2**31), tokens=LENGTHS)
def test_throughput_prompts_share_no_prefix(seed: int, tokens: int) -> None:
    a, b = (throughput_prompt(tokens, PER_SENTENCE, s) for s in (seed, seed + 1))
    # At most a few digits of the number in front: less than what an engine's prefix cache works in.
    assert a[:9] != b[:9]


@pytest.mark.parametrize("depth", [0.0, 0.1, 0.25, 0.5, 0.9, 1.0])
def test_fact_stands_at_its_depth(depth: float) -> None:
    made = recall(2400, PER_SENTENCE, depth, 3)
    body = made.prompt.rpartition("\n\n")[0]
    assert body.index(f"{made.prefill} {made.answer}.") / len(body) == pytest.approx(depth, abs=0.02)


@given(tokens=LENGTHS, depth=DEPTHS, seed=SEEDS)
def test_fact_is_the_only_number_and_asked_for(tokens: int, depth: float, seed: int) -> None:
    made = recall(tokens, PER_SENTENCE, depth, seed)
    assert made.prompt.count(made.prefill) == 1
    assert set(re.findall(r"\d+", made.prompt)) == {made.answer}
    assert made.answer not in made.prefill
    hour = made.prefill.split()[4]
    assert made.prompt.endswith(f"What is the number of the {hour} train?")


@given(seed=SEEDS, tokens=LENGTHS)
def test_depths_of_one_length_share_their_filler_up_to_the_fact(seed: int, tokens: int) -> None:
    late, early = (recall(tokens, PER_SENTENCE, depth, seed) for depth in (0.9, 0.1))
    fact = early.prompt.index(early.prefill)
    assert late.prompt[:fact] == early.prompt[:fact]
    assert late.answer != early.answer or late.prefill != early.prefill
