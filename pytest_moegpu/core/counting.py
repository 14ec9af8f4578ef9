"""A long answer with one right continuation: counting. Where it fades, the first wrong number says when."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["COUNTING_PREFILL", "COUNTING_PROMPT", "Counted", "counted"]

COUNTING_PROMPT = "Count from 1 to 1000. Write the numbers with commas."
COUNTING_PREFILL = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10,"
"""SmolLM2-135M goes on from here for 600 tokens with a margin of 1.58 nat or more at each of them."""

_LAST_GIVEN = 10
_LATEST_START = _LAST_GIVEN + 1
_NUMBER = re.compile(r"\d+")
_BETWEEN = re.compile(r"[\s,;.]+")


@dataclass(frozen=True, kw_only=True)
class Counted:
    """How far a text counts. `last` is the last right number, None where it does not count at all.

    `position` is the character at which it leaves off counting, None where it does not; `rest` is what stands there
    instead. `miscounted` when that is another number in place of the next one.
    """

    last: int | None = None
    position: int | None = None
    rest: str = ""
    miscounted: bool = False


def counted(text: str, *, cut: bool = False) -> Counted:
    """Read how far a text counts from where it begins to.

    The numbers may be parted by any of commas, semicolons, full stops, blanks and ends of line. A text that goes on
    without the given beginning starts at the number after it.

    Args:
        text: What the model wrote.
        cut: Whether it was cut off at the most tokens, so that its last number may be half of one.
    """
    first = _NUMBER.search(text)
    if first is None or int(first[0][:9]) > _LATEST_START:
        return Counted(position=0, rest=text)
    last, end = int(first[0]), first.end()
    while end < len(text):
        between = _BETWEEN.match(text, end)
        start = between.end() if between else end
        number = _NUMBER.match(text, start) if between else None
        if start == len(text):
            break
        whole = number is not None and not (cut and number.end() == len(text))
        if number is not None and not whole and str(last + 1).startswith(number[0]):
            break
        if number is None or number[0] != str(last + 1):
            return Counted(last=last, position=end, rest=text[start:], miscounted=number is not None)
        last, end = last + 1, number.end()
    return Counted(last=last)
