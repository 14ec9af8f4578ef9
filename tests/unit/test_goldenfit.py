"""Scores kept in little room, and how two sets of them agree: figures that were worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from pytest_moegpu.core.golden import ScoreMethod, TextScore, TokenScore
from pytest_moegpu.core.goldenfit import FLOOR, PRECISION_FLOOR, Agreement, Grade, agree, grade
from pytest_moegpu.core.goldentexts import CONTEXT_TOKENS, SCORED_TOKENS, TEXTS, split

NAN = math.nan


def score(token: int | str, logprob: float, *top: tuple[int | str, float], below: bool = False) -> TokenScore:
    return TokenScore(token=token, logprob=logprob, top=top, below=below)


def text(*scores: TokenScore, name: str = "prose", method: ScoreMethod = ScoreMethod.STEPS) -> TextScore:
    return TextScore.of(text=name, method=method, tokens=scores, context=(7, 8))


def fair(shift: float = 0.0) -> TokenScore:
    """A token of probability a half beside another; the shift moves it and leaves the other."""
    return score(1, math.log(0.5) + shift, (1, math.log(0.5) + shift), (2, math.log(0.4)))


def many(token: TokenScore, count: int = 100) -> tuple[TextScore, ...]:
    return (text(*[token] * count),)


class TestKept:
    def test_a_row_is_read_as_it_was_written_but_for_the_digits(self) -> None:
        kept = text(score(5, -0.123456, (5, -0.123456), (9, -2.5)), score(3, -9.1, (5, -0.1), below=True))
        assert kept.rows == ("[5,-0.1235,5,-0.1235,9,-2.5]", '[3,"<-9.1",5,-0.1]')
        assert kept.tokens == (score(5, -0.1235, (5, -0.1235), (9, -2.5)), score(3, -9.1, (5, -0.1), below=True))
        assert kept.ids == (7, 8, 5, 3)

    def test_tokens_may_be_texts_and_have_no_ids_then(self) -> None:
        kept = text(score(' "中', -1.0, (' "中', -1.0)))
        assert kept.tokens == (score(' "中', -1.0, (' "中', -1.0)),)
        assert kept.ids == ()

    def test_a_number_that_is_none_stays_one(self) -> None:
        (read,) = text(score(5, NAN, (6, -math.inf))).tokens
        assert math.isnan(read.logprob)
        assert not read.is_number
        assert not score(5, -1.0, (6, -math.inf)).is_number
        assert score(5, -1.0, (6, -2.0)).is_number

    def test_five_likeliest_are_kept(self) -> None:
        assert len(text(score(1, -1.0, *((n, -float(n)) for n in range(1, 9)))).tokens[0].top) == 5

    @pytest.mark.parametrize(
        "row", ["[1]", "[1,2,3]", "{}", "no JSON", "[1,null]", "[true,-1.0]", "[1,-1.0,null,-2.0]"]
    )
    def test_a_damaged_row_is_a_value_error(self, row: str) -> None:
        with pytest.raises(ValueError, match=r"damaged|token|Expecting"):
            _ = TextScore(text="prose", method=ScoreMethod.STEPS, rows=(row,)).tokens

    def test_a_golden_of_all_texts_stays_below_60_kb(self) -> None:
        wide = score(123456, -12.3456, *((123450 + n, -12.3456) for n in range(5)))
        kept = [
            TextScore.of(text=name, method=ScoreMethod.STEPS, tokens=[wide] * 48, context=(123456,) * 40)
            for name in TEXTS
        ]
        size = sum(len(json.dumps([t.rows, t.context], indent=2)) for t in kept)
        assert 20_000 < size < 60_000


class TestTexts:
    def test_there_are_eight_kinds_of_some_length(self) -> None:
        assert set(TEXTS) == {"prose", "facts", "code", "json", "chinese", "arithmetic", "list", "letter"}
        assert all(len(body.encode()) >= 150 for body in TEXTS.values())

    def test_the_head_is_context_and_a_short_text_is_halved(self) -> None:
        assert split(500) == (CONTEXT_TOKENS, CONTEXT_TOKENS + SCORED_TOKENS)
        assert split(60) == (30, 60)
        assert split(1) == (0, 1)


class TestAgreement:
    def test_the_same_scores_are_identical(self) -> None:
        fit = agree(many(fair()), many(fair()))
        assert (fit.tokens, fit.expected, fit.top1, fit.identical) == (100, 100, 1.0, True)
        assert (fit.difference, fit.difference_max, fit.divergence, fit.divergence_p99) == (0.0, 0.0, 0.0, 0.0)
        assert grade(fit, FLOOR) is Grade.IDENTICAL

    def test_the_last_digit_is_a_difference(self) -> None:
        fit = agree(many(fair()), many(fair(0.0002)))
        assert not fit.identical
        assert grade(fit, FLOOR) is Grade.WITHIN

    def test_difference_and_divergence_are_those_worked_out(self) -> None:
        """0.5, 0.4, 0.1 against 0.4, 0.4, 0.2: 0.5 ln(0.5/0.4) + 0.1 ln(0.1/0.2) = 0.0423."""
        fit = agree(many(fair()), many(score(1, math.log(0.4), (2, math.log(0.4)), (1, math.log(0.4)))))
        assert fit.difference == pytest.approx(math.log(0.5 / 0.4), abs=1e-4)
        assert fit.divergence == pytest.approx(0.5 * math.log(1.25) - 0.1 * math.log(2), abs=2e-4)
        assert fit.top1 == 0.0

    def test_what_only_the_golden_lists_has_at_most_the_least_listed_share(self) -> None:
        """The golden puts 0.9 on one token that the run does not list, whose least listed has 0.01."""
        old = score(1, math.log(0.9), (1, math.log(0.9)))
        new = score(1, math.log(0.01), (2, math.log(0.8)), (3, math.log(0.01)), below=True)
        fit = agree(many(old), many(new))
        assert fit.divergence == pytest.approx(0.9 * math.log(0.9 / 0.01) + 0.1 * math.log(0.1 / 0.99), abs=1e-3)
        assert fit.difference == pytest.approx(math.log(90), abs=1e-3)
        assert fit.uncertain == 100

    def test_a_bound_says_no_more_than_is_sure(self) -> None:
        bounded = score(1, -8.0, (2, -0.1), below=True)
        assert agree(many(bounded), many(bounded)).difference == 0.0
        assert agree(many(bounded), many(score(1, -9.0, (2, -0.1)))).difference == 0.0
        assert agree(many(bounded), many(score(1, -7.5, (2, -0.1)))).difference == 0.5

    @pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
    def test_one_number_that_is_none_comes_before_all_else(self, bad: float) -> None:
        fit = agree(many(fair()), (text(*[fair()] * 99, score(1, bad)),))
        assert fit.no_numbers == ("prose, token 99",)
        assert grade(fit, FLOOR) is Grade.NO_NUMBER

    def test_few_tokens_and_other_texts_say_nothing(self) -> None:
        assert grade(agree(many(fair(), 63), many(fair(), 63)), FLOOR) is Grade.SHORT
        assert grade(agree(many(fair(), 200), many(fair(), 99)), FLOOR) is Grade.SHORT
        assert grade(agree(many(fair(), 200), many(fair(), 100)), FLOOR) is Grade.IDENTICAL
        other = (text(*[fair()] * 100, name="code"),)
        assert agree(many(fair()), other).tokens == 0
        assert grade(agree(many(fair()), other), FLOOR) is Grade.SHORT

    def test_other_tokens_before_are_another_text(self) -> None:
        other = TextScore.of(text="prose", method=ScoreMethod.STEPS, tokens=[fair()] * 100, context=(7, 9))
        assert agree(many(fair()), (other,)).tokens == 0

    def test_steps_and_prompt_are_compared_and_greedy_is_not(self) -> None:
        prompt = (text(*[fair()] * 100, method=ScoreMethod.PROMPT),)
        greedy = (text(*[fair()] * 100, method=ScoreMethod.GREEDY),)
        assert agree(many(fair()), prompt).tokens == 100
        assert agree(many(fair()), greedy).tokens == 0

    def test_greedy_answers_are_compared_up_to_where_they_part_and_there(self) -> None:
        a, b = score("a", -0.1, ("a", -0.1), ("b", -2.6)), score("b", -0.2, ("b", -0.2), ("a", -1.9))
        old = (text(a, a, a, method=ScoreMethod.GREEDY),)
        new = (text(a, b, a, method=ScoreMethod.GREEDY),)
        fit = agree(old, new)
        assert (fit.tokens, fit.expected) == (2, 3)
        assert fit.difference_max == pytest.approx(1.8)
        assert fit.first is not None
        assert (fit.first.position, fit.first.golden, fit.first.now) == (1, "a", "b")

    @pytest.mark.parametrize(("gap", "near"), [(0.1, True), (0.5, True), (0.7, False)])
    def test_the_first_other_token_says_how_near_it_was(self, gap: float, near: bool) -> None:
        old = score(1, -1.0, (1, -1.0), (2, -1.0 - gap))
        new = score(1, -1.1, (2, -1.0), (1, -1.1))
        first = agree(many(old), many(new)).first
        assert first is not None
        assert first.gap == pytest.approx(gap)
        assert first.near_tie is near

    def test_a_first_choice_that_the_golden_did_not_list_is_no_near_tie(self) -> None:
        first = agree(many(fair()), many(score(1, -1.0, (77, -0.6), (1, -1.0)))).first
        assert first is not None
        assert first.gap is None
        assert not first.near_tie

    @pytest.mark.parametrize(
        ("change", "beyond"),
        [
            ({}, False),
            ({"difference": FLOOR.difference * 1.01}, True),
            ({"divergence": FLOOR.divergence * 1.01}, True),
            ({"divergence_p99": FLOOR.divergence_p99 * 1.01}, True),
            ({"top1": FLOOR.top1 - 0.01}, True),
            ({"difference_max": 9.0}, False),
        ],
    )
    def test_each_figure_has_a_limit_of_its_own(self, change: dict[str, float], beyond: bool) -> None:
        at_limits = Agreement(
            tokens=100,
            expected=100,
            top1=FLOOR.top1,
            difference=FLOOR.difference,
            difference_max=1.0,
            divergence=FLOOR.divergence,
            divergence_p99=FLOOR.divergence_p99,
        )
        fit = replace(at_limits, **change)  # type: ignore[arg-type]
        assert grade(fit, FLOOR) is (Grade.BEYOND if beyond else Grade.WITHIN)
        assert grade(fit, PRECISION_FLOOR) is Grade.WITHIN

    def test_another_precision_is_allowed_more(self) -> None:
        assert PRECISION_FLOOR.difference > FLOOR.difference
        assert PRECISION_FLOOR.divergence > FLOOR.divergence
        assert PRECISION_FLOOR.divergence_p99 > FLOOR.divergence_p99
        assert PRECISION_FLOOR.top1 < FLOOR.top1
