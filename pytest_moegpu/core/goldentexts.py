"""The fixed texts whose every token is scored, and the questions for engines that score no given text.

Written for this project. A change of one is a change of what is measured: raise `TEXTS_VERSION` with it.
"""

from __future__ import annotations

__all__ = ["CONTEXT_TOKENS", "GREEDY_TOKENS", "QUESTIONS", "SCORED_TOKENS", "TEXTS", "TEXTS_VERSION", "split"]

TEXTS_VERSION = 1

CONTEXT_TOKENS = 40
"""Tokens at the head of a text that are computed in one go; more than the 8 up to which engines take decode kernels."""

SCORED_TOKENS = 32
"""Tokens after these whose log-probability is read: one request each where an engine takes steps."""

GREEDY_TOKENS = 32
"""Tokens of an answer that is scored in place of a text."""

TEXTS: dict[str, str] = {
    "prose": (
        "The ferry left the harbour a little after six, when the fog still lay on the water and the lamps along the "
        "quay were no more than pale rings. On the upper deck a woman in a green coat counted the stops on her map, "
        "folded it twice, and put it back into the pocket of her coat. She had made this journey every spring for "
        "eleven years, and every spring the captain had wished her good morning and asked after her brother."
    ),
    "facts": (
        "Water is made of hydrogen and oxygen. At sea level it boils at one hundred degrees Celsius and freezes at "
        "zero. The Earth goes around the Sun once a year, and the Moon goes around the Earth about once a month. "
        "Light from the Sun takes a little more than eight minutes to reach us. The largest planet of the solar "
        "system is Jupiter, and the planet closest to the Sun is Mercury. Sound is slower than light: thunder is heard "
        "some seconds after the flash is seen."
    ),
    "code": (
        "def largest(values):\n"
        '    """Return the largest of some numbers, or None when there are none."""\n'
        "    best = None\n"
        "    for value in values:\n"
        "        if best is None or value > best:\n"
        "            best = value\n"
        "    return best\n"
        "\n"
        "\n"
        "def smallest(values):\n"
        '    """Return the smallest of some numbers, or None when there are none."""\n'
        "    best = None\n"
        "    for value in values:\n"
        "        if best is None or value < best:\n"
        "            best = value\n"
        "    return best\n"
    ),
    "json": (
        '{"library": "Northgate", "opened": 1924, "rooms": 12, "books": [\n'
        '  {"title": "The Winter Garden", "author": "A. Keller", "year": 1931, "copies": 3},\n'
        '  {"title": "A Short History of Salt", "author": "M. Okafor", "year": 1978, "copies": 1},\n'
        '  {"title": "Maps of the Coast", "author": "J. Lindqvist", "year": 1956, "copies": 2}\n'
        "]}\n"
    ),
    "chinese": (
        "春天来了，河边的柳树发出了新芽。早上七点，学生们背着书包走进学校，老师在教室门口等着他们。"
        "今天的第一节课是数学，第二节课是语文。下课以后，大家一起到操场上跑步、唱歌、做游戏。"
    ),
    "arithmetic": (
        "3 + 4 = 7\n7 + 5 = 12\n12 + 9 = 21\n21 + 6 = 27\n27 + 8 = 35\n35 + 10 = 45\n45 + 5 = 50\n50 + 11 = 61\n"
        "61 + 4 = 65\n65 + 15 = 80\n80 + 7 = 87\n87 + 3 = 90\n90 + 10 = 100\n"
    ),
    "list": (
        "Shopping for the week:\n1. bread\n2. butter\n3. milk\n4. eggs\n5. apples\n6. carrots\n7. onions\n8. rice\n"
        "9. tea\n10. coffee\n\nThings to do on Monday:\n1. water the plants\n2. call the plumber\n3. pay the rent\n"
        "4. return the books to the library\n5. buy stamps\n6. write to Anna\n7. clean the kitchen\n"
    ),
    "letter": (
        "Dear Mr. Hanley,\n\nThank you for your letter of the third of May. We are sorry to hear that the parcel was "
        "damaged when it reached you. Please send us a photograph of the box, and we will send you a new one at no "
        "cost. You do not need to return the old one.\n\nWe hope to hear from you soon.\n\nYours sincerely,\n"
        "Ellen Marsh\nCustomer Service\n"
    ),
}
"""Name → text: 89 to 156 tokens by SmolLM2's tokenizer. A larger vocabulary makes fewer; see `split`."""

QUESTIONS: dict[str, str] = {
    "days": "Name the seven days of the week in order.",
    "count": "Count from one to twenty in words.",
    "capital": "Which city is the capital of France, and on which river does it lie?",
    "water": "What is water made of, and at which temperature does it boil?",
    "code": "Write a Python function that returns the sum of two numbers.",
    "json": "Write a JSON object with the keys name, age and city for a person of your choice.",
    "story": "Tell a short story about a lighthouse and its keeper.",
    "chinese": "用中文介绍一下北京。",
}
"""Name → question, asked where only the model's own answer is scored."""


def split(tokens: int) -> tuple[int, int]:
    """Return which tokens of a text of so many are scored: the first of them and the end (exclusive)."""
    first = min(CONTEXT_TOKENS, tokens // 2)
    return first, min(tokens, first + SCORED_TOKENS)
