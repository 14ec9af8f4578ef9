"""The kinds of known-answer probes: each draws one question of a tier and language, and says what is right."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random

from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.core.probewords import CODE, FACTS, FUNCTIONS, NAMES, PHRASES, SCHEMAS, TRANSLATIONS, WORDS

__all__ = ["KINDS"]

_ASK = {"en": ("Q", "A"), "zh": ("问", "答")}
_ONLY = {
    "number": {"en": "Answer with the number only.", "zh": "只回答数字。"},
    "word": {"en": "Answer with one word.", "zh": "只回答译文。"},
    "short": {"en": "Answer as briefly as you can.", "zh": "只回答结果。"},
    "line": {"en": "Answer with nothing else.", "zh": "不要回答别的内容。"},
    "list": {"en": "Answer with the list only, separated by commas.", "zh": "只回答排好的列表，用逗号分隔。"},
    "json": {"en": "Answer with the JSON only.", "zh": "只回答 JSON。"},
    "code": {"en": "Answer with the code only.", "zh": "只回答代码。"},
}
_SHOTS = 3
_SHORT, _LINE, _LONG, _CODE = 16, 32, 96, 256
"""Tokens that an answer may take."""


def _shots(language: str, pairs: Sequence[tuple[str, str]], question: str) -> str:
    """Write examples as question and answer, and a last question that is left open."""
    ask, tell = _ASK[language]
    colon = ":" if language == "en" else "："
    told = "".join(f"{ask}{colon} {asked}\n{tell}{colon} {answer}\n" for asked, answer in pairs)
    return f"{told}{ask}{colon} {question}\n{tell}{colon}".replace("： ", "：")


def _arithmetic(draw: Random, tier: int, language: str) -> KnownAnswer:
    if tier == 1:
        step = draw.randint(1, 3)
        first, *others = draw.sample(range(2, 10), _SHOTS + 1)
        ask = "{} + {} = ?" if language == "en" else "{} 加 {} 等于多少？"
        pairs = [(ask.format(n, step), str(n + step)) for n in others]
        prompt, value = _shots(language, pairs, ask.format(first, step)), first + step
    else:
        term, value = _term(draw, tier)
        what = f"What is {term}?" if language == "en" else f"{term} 等于多少？"
        prompt = f"{what} {_ONLY['number'][language]}"
    # A model that only repeats the question must not be right.
    if str(value) in prompt:
        return _arithmetic(draw, tier, language)
    return KnownAnswer(prompt=prompt, expect=(str(value),), rule="word", max_tokens=_SHORT)


def _term(draw: Random, tier: int) -> tuple[str, int]:
    if tier == 2:
        a, b = draw.randint(12, 89), draw.randint(12, 89)
        return (f"{a} + {b}", a + b) if draw.random() < 0.5 or a <= b else (f"{a} - {b}", a - b)
    if tier == 3:
        a, b = draw.randint(12, 39), draw.randint(12, 39)
        return f"{a} * {b}", a * b
    a, b, c = draw.randint(12, 39), draw.randint(12, 39), draw.randint(100, 999)
    return f"({a} + {b}) * 7 - {c}", (a + b) * 7 - c


def _copying(draw: Random, tier: int, language: str) -> KnownAnswer:
    if tier == 1:
        # In English for both: a small model has the words of Chinese at most.
        word = draw.choice(WORDS[language])
        prompt = f'The secret word is "{word}". What is the secret word?'
        return KnownAnswer(prompt=prompt, expect=(word,), rule="word", max_tokens=_SHORT)
    if tier == 2:
        text = draw.choice(PHRASES[language])
        what = "Repeat this sentence exactly" if language == "en" else "原样重复这句话"
    elif tier == 3:
        text = "-".join("".join(draw.choices("abcdefghkmnpqrstuvwxyz23456789", k=4)) for _ in range(3))
        what = "Repeat this code exactly" if language == "en" else "原样重复这个代码"
    else:
        text = " ".join(str(draw.randint(100, 999)) for _ in range(8))
        what = "Repeat this line exactly" if language == "en" else "原样重复这一行"
    prompt = (
        f"{what}. {_ONLY['line'][language]}\n{text}".replace("话.", "话。")
        .replace("码.", "码。")
        .replace("行.", "行。")
    )
    return KnownAnswer(prompt=prompt, expect=(text,), rule="line", max_tokens=2 * _LINE)


def _counting(draw: Random, tier: int, language: str) -> KnownAnswer:
    if tier == 1:
        ask = "{}, {}, {}, ?" if language == "en" else "{}，{}，{}，？"
        first, *others = draw.sample(range(10, 90), _SHOTS + 1)
        prompt = _shots(
            language,
            [(ask.format(n, n + 1, n + 2), str(n + 3)) for n in others],
            ask.format(first, first + 1, first + 2),
        )
        if str(first + 3) in prompt:
            return _counting(draw, tier, language)
        return KnownAnswer(prompt=prompt, expect=(str(first + 3),), rule="word", max_tokens=_SHORT)
    if tier == 4:
        letter, word = draw.choice("aeio"), "".join(draw.choices("aeiobdmnrst", k=12))
        count = word.count(letter)
        what = (
            f'How often does the letter "{letter}" stand in "{word}"?'
            if language == "en"
            else f"“{word}”中有几个字母“{letter}”？"
        )
    else:
        kinds = draw.sample(WORDS[language], 3)
        items = draw.choices(kinds, k=5 if tier == 2 else 9)
        count = items.count(kinds[0])
        told = (", " if language == "en" else "、").join(items)
        what = (
            f'How often is "{kinds[0]}" in this list: {told}?'
            if language == "en"
            else f"“{kinds[0]}”在下面的列表中出现几次：{told}？"
        )
    numerals = "零一二三四五六七八九十"
    words = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    if not 1 <= count < len(words):
        return _counting(draw, tier, language)
    expect = (str(count), words[count] if language == "en" else numerals[count])
    return KnownAnswer(prompt=f"{what} {_ONLY['number'][language]}", expect=expect, rule="word", max_tokens=_SHORT)


def _sorting(draw: Random, tier: int, language: str) -> KnownAnswer:
    if tier == 1:
        ask = "Sort: {}" if language == "en" else "排序：{}"
        lists = [draw.sample("123456789" if language == "zh" else "abcdefgh", 3) for _ in range(_SHOTS + 1)]
        if any(one == sorted(one) for one in lists):
            return _sorting(draw, tier, language)
        told = [(ask.format(" ".join(one)), " ".join(sorted(one))) for one in lists]
        prompt = _shots(language, told[:-1], told[-1][0])
        return KnownAnswer(prompt=prompt, expect=tuple(sorted(lists[-1])), rule="order", max_tokens=_SHORT)
    size = {2: 4, 3: 6, 4: 8}[tier]
    numbers = draw.sample(range(10, 100 if tier < 4 else 1000), size)
    falling = tier > 2 and draw.random() < 0.5
    wanted = sorted(numbers, reverse=falling)
    way = ("descending", "从大到小") if falling else ("ascending", "从小到大")
    told_numbers = ", ".join(map(str, numbers))
    what = (
        f"Sort these numbers in {way[0]} order: {told_numbers}."
        if language == "en"
        else f"把这些数字{way[1]}排列：{told_numbers}。"
    )
    prompt = f"{what} {_ONLY['list'][language]}"
    return KnownAnswer(prompt=prompt, expect=tuple(map(str, wanted)), rule="order", max_tokens=2 * _LINE)


def _json(draw: Random, tier: int, language: str) -> KnownAnswer:
    names, words = draw.sample(NAMES[language], 4), draw.sample(WORDS[language], 4)
    ages = draw.sample(range(11, 80), 4)
    if tier == 1:
        ask = "{} is {}" if language == "en" else "{}，{}"
        rows = [(ask.format(n, a), _written({"name": n, "age": a})) for n, a in zip(names, ages, strict=True)]
        prompt = _shots(language, rows[:-1], rows[-1][0])
        return KnownAnswer(prompt=prompt, expect=(rows[-1][1],), rule="json", max_tokens=_LINE)
    value: object = {"name": names[0], "age": ages[0]}
    if tier == 3:
        value = [{"item": word, "count": age} for word, age in zip(words[:2], ages, strict=False)]
    elif tier == 4:
        value = {"owner": value, "items": words[:2], "open": True, "note": None}
    told = SCHEMAS[tier][language].format(name=names[0], one=ages[0], two=ages[1], first=words[0], second=words[1])
    prompt = f"{told} {_ONLY['json'][language]}"
    return KnownAnswer(prompt=prompt, expect=(_written(value),), rule="json", max_tokens=_LONG)


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _code(draw: Random, tier: int, language: str) -> KnownAnswer:
    if tier == 1:
        ask, many = ("Write a Python function {}.", 1) if language == "en" else ("写一个 Python 函数 {}。", 2)
        *shown, (head, _, holds) = draw.sample(FUNCTIONS, many + 1)
        body = "\n```python\ndef {}:\n    return {}\n```"
        told = [(ask.format(other), body.format(other, result)) for other, result, _ in shown]
        # The fence of an example stands on a line of its own, without a space before it.
        prompt = _shots(language, told, ask.format(head)).replace("A: \n", "A:\n")
        return KnownAnswer(prompt=prompt, expect=holds, rule="code", max_tokens=_LINE)
    task = draw.choice(CODE[tier])
    what = f"Write a Python function {task.en}." if language == "en" else f"写一个 Python 函数 {task.zh}。"
    return KnownAnswer(prompt=f"{what} {_ONLY['code'][language]}", expect=task.holds, rule="code", max_tokens=_CODE)


def _translation(draw: Random, tier: int, language: str) -> KnownAnswer:
    known = TRANSLATIONS[tier][language]
    if tier == 1:
        (word, expect), *others = draw.sample(known, _SHOTS + 1)
        ask = "{} in French" if language == "en" else "{}的英文"
        prompt = _shots(language, [(ask.format(one), right[0]) for one, right in others], ask.format(word))
        return KnownAnswer(prompt=prompt, expect=expect, rule="word", max_tokens=_SHORT)
    word, expect = draw.choice(known)
    what = f'Translate "{word}" into Chinese.' if language == "en" else f"把“{word}”翻译成英语。"
    only = {"en": "Answer with the translation only.", "zh": "只回答译文。"}[language]
    return KnownAnswer(prompt=f"{what} {only}", expect=expect, rule="word", max_tokens=_SHORT)


def _fact(draw: Random, tier: int, language: str) -> KnownAnswer:
    known = FACTS[tier][language]
    question, expect = draw.choice(known)
    # A small model answers in the words of the question, each of them surer than the first word of a short answer.
    prompt = question if tier == 1 else f"{question} {_ONLY['short'][language]}"
    return KnownAnswer(prompt=prompt, expect=expect, rule="word", max_tokens=_LINE)


KINDS: dict[str, Callable[[Random, int, str], KnownAnswer]] = {
    "arithmetic": _arithmetic,
    "copying": _copying,
    "counting": _counting,
    "sorting": _sorting,
    "json": _json,
    "code": _code,
    "translation": _translation,
    "fact": _fact,
}
"""Name of a kind → what draws one probe of a tier and language."""
