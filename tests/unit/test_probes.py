"""The generator: the same for the same seed, sound in itself, and every probe is right for its own expectation."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from pytest_moegpu.core.answers import RULES, check_rule, is_right
from pytest_moegpu.core.evidence import Margin, Part, RequestKind, RequestRecord, StartEvidence
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.core.probekinds import KINDS
from pytest_moegpu.core.probemargins import LEAST_MARGIN, calibrated, is_candidate, joined, margin_of, margins_of
from pytest_moegpu.core.probes import LANGUAGES, SEED, TIERS, probes
from pytest_moegpu.core.probewords import CODE, FUNCTIONS


def answer_to(probe: KnownAnswer) -> str:
    """Write what a model without fault may answer."""
    if probe.rule == "order":
        return ", ".join(probe.expect)
    if probe.rule == "code":
        return WRITTEN[probe.expect]
    return probe.expect[0]


WRITTEN = {
    **{holds: f"```python\ndef {head}:\n    return {result}\n```" for head, result, holds in FUNCTIONS},
    CODE[2][0].holds: "def is_even(n):\n    return n % 2 == 0",
    CODE[2][1].holds: "def largest(a, b):\n    return a if a > b else b",
    CODE[2][2].holds: "def last(items):\n    return items[-1]",
    CODE[2][3].holds: "def backwards(text):\n    return text[::-1]",
    CODE[3][
        0
    ].holds: "def factorial(n):\n    result = 1\n    for i in range(2, n + 1):\n        result *= i\n    return result",
    CODE[3][1].holds: "def count_vowels(text):\n    return sum(text.count(v) for v in 'aeiou')",
    CODE[3][2].holds: "def sum_of_evens(numbers):\n    return sum(n for n in numbers if n % 2 == 0)",
    CODE[3][3].holds: "def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a",
    CODE[4][0].holds: "def is_prime(n):\n    return n > 1 and all(n % i for i in range(2, n))",
    CODE[4][1].holds: "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)",
    CODE[4][2].holds: "def second_largest(numbers):\n    return sorted(set(numbers))[-2]",
    CODE[4][3].holds: (
        "def to_binary(n):\n    s = str(n % 2)\n    while n > 1:\n        n = n // 2\n"
        "        s = str(n % 2) + s\n    return s"
    ),
}


def test_at_least_sixty_of_eight_kinds_in_two_languages_and_four_tiers() -> None:
    made = probes()
    assert len(made) >= 60
    assert len({p.name for p in made}) == len({p.prompt for p in made}) == len(made)
    counts = Counter(tuple(p.name.split("-")[:3]) for p in made)
    assert set(counts) == {(kind, str(tier), language) for kind in KINDS for tier in TIERS for language in LANGUAGES}
    assert min(counts.values()) >= 2
    assert {p.rule for p in made} == set(RULES) - {"contains"}
    assert {p.margin for p in made} == {None}


def test_the_same_seed_gives_the_same_and_another_seed_others() -> None:
    assert probes(SEED) == probes(SEED)
    assert len({p.prompt for p in probes(1)} & {p.prompt for p in probes(2)}) < len(probes(1)) / 3


def test_a_tier_does_not_depend_on_which_others_are_asked_for() -> None:
    assert probes(7, (3,)) == tuple(p for p in probes(7) if p.name.split("-")[1] == "3")
    assert probes(7, ()) == probes(7, (9,)) == ()


@pytest.mark.parametrize("seed", [SEED, 1, 2, 3, 4])
def test_every_probe_takes_its_own_right_answer(seed: int) -> None:
    for probe in probes(seed):
        check_rule(probe.rule, probe.expect)
        assert is_right(probe.rule, probe.expect, answer_to(probe)), probe


@pytest.mark.parametrize("seed", [SEED, 1, 2])
def test_no_probe_takes_the_answer_of_another_of_its_kind(seed: int) -> None:
    made = probes(seed)
    for probe in made:
        others = [o for o in made if o.name.split("-")[0] == probe.name.split("-")[0] and o.expect != probe.expect]
        taken = [o.name for o in others if is_right(probe.rule, probe.expect, answer_to(o))]
        assert len(taken) <= len(others) / 5, (probe, taken)


@pytest.mark.parametrize("seed", [SEED, 1, 2])
def test_repeating_the_question_is_only_right_where_that_is_asked(seed: int) -> None:
    echoed = {p.name.split("-")[0] for p in probes(seed) if is_right(p.rule, p.expect, p.prompt)}
    assert echoed <= {"copying"}


@pytest.mark.parametrize(
    "text", ["", " ", "!!!!!!!!!!!!", "GGGGGGGG", "the the the the", "\ufffd\ufffd", "0", "I", "1 2 3 4 5 6 7 8 9"]
)
def test_broken_text_is_right_for_no_probe(text: str) -> None:
    right = [p.name for p in probes() if is_right(p.rule, p.expect, text)]
    # A row of digits holds many a small number.
    assert all(text.startswith("1 2") and name.split("-")[0] in ("arithmetic", "counting", "fact") for name in right)


def test_json_probes_hold_their_types() -> None:
    wanted = [json.loads(p.expect[0]) for p in probes(tiers=(4,)) if p.rule == "json"]
    assert {type(value) for one in wanted for value in one.values()} == {dict, list, bool, type(None)}


def record(name: str, text: str, gap: float | None, **more: object) -> RequestRecord:
    tight = None if gap is None else Margin(index=0, nat=gap, logprob=-0.1, token="a", other="b")
    made = RequestRecord(
        kind=RequestKind.ANSWER, name=name, sent=0.0, text=text, expect=("42",), rule="word", tightest=tight
    )
    return replace(made, **more)  # type: ignore[arg-type]


def start(*records: RequestRecord, parts: tuple[Part, ...] = (Part.OUTPUT,)) -> StartEvidence:
    return StartEvidence(number=1, started_at="", parts=parts, requests=records)


def test_a_margin_is_of_a_right_answer_whose_every_token_has_a_number() -> None:
    assert margin_of(record("a", "42", 2.5)) == 2.5
    assert margin_of(record("a", "41", 2.5)) is None
    assert margin_of(record("a", "42", None)) is None
    assert margin_of(record("a", "42", 2.5, logprobs_missing=1)) is None
    assert margin_of(record("a", "42", 2.5, error="reset")) is None
    assert margin_of(record("a", "42", 2.5, expect=())) is None


def test_margins_are_the_smallest_of_all_starts_and_only_of_answers_right_in_all() -> None:
    first = start(record("a", "42", 2.5), record("b", "42", 3.0), record("c", "42", 9.0), record("d", "42", 1.7))
    second = start(record("a", "is 42.", 1.9), record("b", "43", 3.0), record("d", "42", LEAST_MARGIN - 0.01))
    without = start(parts=(Part.THROUGHPUT,))
    assert margins_of((first, second, without)) == {"a": 1.9}
    assert margins_of((first,)) == {"a": 2.5, "b": 3.0, "c": 9.0, "d": 1.7}
    assert margins_of(()) == margins_of((without,)) == {}


def test_other_kinds_of_request_have_no_part_in_it() -> None:
    again = record("a", "41", 2.5, kind=RequestKind.AXIS)
    assert margins_of((start(record("a", "42", 2.5), again),)) == {"a": 2.5}


def test_a_baseline_calibrates_by_name_and_leaves_ones_own_margin() -> None:
    own = KnownAnswer(prompt="1", expect=("1",), margin=3.0, name="a")
    bare = KnownAnswer(prompt="2", expect=("2",), name="b")
    nameless = KnownAnswer(prompt="3", expect=("3",))
    found = calibrated((own, bare, nameless), {"a": 1.6, "b": 2.0, "": 9.0, "z": 4.0})
    assert [answer.margin for answer in found] == [3.0, 2.0, None]
    assert [answer.prompt for answer in found] == ["1", "2", "3"]


def test_margins_of_two_sessions_are_those_in_both() -> None:
    assert joined({"a": 2.0, "b": 3.0}, {"a": 1.8, "c": 4.0}) == {"a": 1.8}
    assert joined({}, {"a": 1.8}) == {}


def test_a_candidate_is_a_generated_probe_that_nothing_is_known_of() -> None:
    probe = probes()[0]
    assert is_candidate(record(probe.name, "", None))
    assert not is_candidate(record(probe.name, "", None, margin=2.0))
    assert not is_candidate(record("answer-3", "", None))
    assert not is_candidate(record("capital-en", "", None))
    assert all(is_candidate(record(p.name, "", None)) for p in probes())
