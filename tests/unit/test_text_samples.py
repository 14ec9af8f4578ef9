"""The signs of broken text, on the labelled corpus and on texts of many forms."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from pytest_moegpu.core.text import examine
from pytest_moegpu.core.textfinding import TextVerdict, verdict
from pytest_moegpu.core.textmodel import shipped_model
from pytest_moegpu.core.textsalad import network
from pytest_moegpu.core.textwords import MEASURES
from tests.unit.text_samples import BROKEN, HONEST, PLAIN

CORPUS = Path(__file__).parents[1] / "data/corpora/text-open.jsonl"
NOT_BY_FORM = {"fluent-wrong", "fragment", "empty"}


@pytest.mark.parametrize(("name", "text", "prompt"), HONEST, ids=[name for name, _, _ in HONEST])
@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_an_honest_text_is_not_called_bad(name: str, text: str, prompt: str, finish_reason: str) -> None:
    assert verdict(examine(text, prompt, finish_reason)) is not TextVerdict.BAD


def test_of_the_honest_texts_few_are_suspect() -> None:
    judged = ((name, verdict(examine(text, prompt, "stop"))) for name, text, prompt in HONEST)
    suspects = [name for name, said in judged if said is not TextVerdict.GOOD]
    assert len(HONEST) >= 60
    assert len(suspects) <= 0.05 * len(HONEST), suspects


@pytest.mark.parametrize(("name", "text", "prompt"), BROKEN, ids=[name for name, _, _ in BROKEN])
def test_a_broken_text_is_found(name: str, text: str, prompt: str) -> None:
    assert verdict(examine(text, prompt, "length")) is not TextVerdict.GOOD


def test_most_broken_texts_are_called_bad() -> None:
    bad = [name for name, text, prompt in BROKEN if verdict(examine(text, prompt, "length")) is TextVerdict.BAD]
    assert len(BROKEN) >= 40
    assert len(bad) >= 0.9 * len(BROKEN)


def test_the_corpus_is_judged_within_the_limits() -> None:
    """With the shipped weights, which have seen these rows; `bench/text_classes.py` leaves each kind out in turn."""
    visible, good = Counter[str](), Counter[str]()
    for line in CORPUS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        said = row["prompt"]
        prompt = said if isinstance(said, str) else "\n".join(message["content"] for message in said)
        found = verdict(examine(row["text"], prompt, row["finish_reason"])).value
        if row["label"] == "bad" and row["class"] not in NOT_BY_FORM:
            visible[found] += 1
        elif row["label"] == "good":
            good[found] += 1
    assert (visible.total(), good.total()) == (274, 460)
    assert visible["bad"] >= 0.9 * 274
    assert visible["good"] <= 0.03 * 274
    assert good["bad"] <= 0.005 * 460
    assert good["suspect"] <= 0.03 * 460


LONG = "\n\n".join(
    f"{PLAIN} Chapter {i} tells of year {1700 + i}, when {i * 37} people lived there." for i in range(6700)
)
FAULTS = [
    text for name, text, _ in BROKEN if name in ("sentence loop", "random words", "one letter", "pads", "NUL bytes")
]


@pytest.fixture(scope="module")
def _whole_megabyte() -> None:
    assert len(LONG) >= 1_000_000
    assert verdict(examine(LONG, "Write a chronicle.")) is TextVerdict.GOOD


@pytest.mark.usefixtures("_whole_megabyte")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("shift", [0, 700])
def test_a_fault_of_2000_characters_in_a_million_is_found_where_it_is(fault: str, shift: int) -> None:
    middle = len(LONG) // 2 + shift
    fault = (fault * (2000 // len(fault) + 1))[:2000]
    found = examine(LONG[:middle] + fault + LONG[middle:], "Write a chronicle.")
    assert verdict(found) is TextVerdict.BAD
    assert middle - 1500 <= found[0].position <= middle + len(fault)


@pytest.mark.parametrize("lost", [None, math.nan, math.inf, -math.inf])
def test_a_log_probability_that_is_no_number_is_bad(lost: float | None) -> None:
    found = examine(PLAIN, "Tell me.", "stop", [-0.1, lost, -0.3])
    assert [f.name for f in found] == ["no-number"]
    assert found[0].detail == "1 of 3 log-probabilities are no number"
    assert verdict(found) is TextVerdict.BAD


def test_tokens_that_their_own_model_holds_unlikely_are_suspect() -> None:
    found = examine(PLAIN, "Tell me.", "stop", [-6.0] * 20)
    assert [(f.name, f.strength) for f in found] == [("unlikely-tokens", 0.5)]
    assert examine(PLAIN, "Tell me.", "stop", [-0.4] * 20) == ()


def test_the_shipped_model_fits_its_code_and_is_small() -> None:
    folder = Path(__file__).parents[2] / "pytest_moegpu/core"
    assert sum((folder / name).stat().st_size for name in ("textmodel.bin", "textsalad.json")) < 300_000
    assert {"the", "world", "because"} <= shipped_model().words
    assert network()[0].shape == (len(MEASURES),)
