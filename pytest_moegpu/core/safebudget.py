"""What a program in the safe evaluator may use up: steps, sizes of values, bits of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

__all__ = ["MOST_ITEMS", "Budget", "SafeEvalError", "bits"]

_MOST_STEPS = 50_000
MOST_ITEMS = 10_000
"""Characters of a text, items of a list."""
_MOST_BITS = 4_096
"""Bits of a whole number."""
_ITEMS_A_STEP = 16
"""Items that are made for the price of a step, which bounds the memory of a whole program."""


class SafeEvalError(Exception):
    """A program that is outside of what is allowed, goes wrong, or takes too long or too much."""


@dataclass
class Budget:
    """What a program has left. Every step is paid for, and every value by its size."""

    steps: int = _MOST_STEPS

    def step(self, count: int = 1) -> None:
        """Pay for steps.

        Raises:
            SafeEvalError: There are none left.
        """
        self.steps -= count
        if self.steps < 0:
            raise SafeEvalError(f"more than {_MOST_STEPS} steps")

    def sized(self, value: Any) -> Any:
        """Return a value that is not too large, paid for."""
        if isinstance(value, int):
            bits(value.bit_length())
        elif isinstance(value, str | list | tuple | dict | set):
            self.count(len(value))
        elif isinstance(value, complex | bytes):
            raise SafeEvalError(f"{type(value).__name__} is not allowed here")
        return value

    def count(self, items: int) -> None:
        """Pay for so many items at once."""
        if items > MOST_ITEMS:
            raise SafeEvalError(f"more than {MOST_ITEMS} items or characters")
        self.step(max(items, 0) // _ITEMS_A_STEP)

    def charged(self, value: Any) -> Any:
        """Return a value whose every part was paid for, counted as often as it is held: lists may hold themselves."""
        parts = [value]
        while parts:
            part = parts.pop()
            self.step()
            if isinstance(part, list | tuple | set):
                parts.extend(part)
            elif isinstance(part, dict):
                parts.extend(part.values())
            if len(parts) > MOST_ITEMS:
                raise SafeEvalError(f"more than {MOST_ITEMS} parts")
        return value

    def items(self, value: Any) -> Iterator[Any]:
        """Go through the items of a value that has some, each paid for; a copy, which may be changed meanwhile."""
        if not isinstance(value, str | list | tuple | dict | set | range):
            raise SafeEvalError(f"{type(value).__name__} has no items")
        # A long range is taken item by item: a loop over it may be left early.
        for item in value if isinstance(value, range | str | tuple) else list(value):
            self.step()
            yield item

    def taken(self, value: Any) -> list[Any]:
        """Return all items of a value as a list."""
        found = list(islice(self.items(value), MOST_ITEMS + 1))
        self.count(len(found))
        return found

    def key(self, value: Any) -> Any:
        """Return a value that may be the key of a dict: one without parts, or a short tuple of such."""
        parts = value if isinstance(value, tuple) else (value,)
        if len(parts) > _ITEMS_A_STEP or not all(p is None or isinstance(p, bool | int | float | str) for p in parts):
            raise SafeEvalError("only texts, numbers and short tuples of them may be keys")
        return value

    def item(self, held: Any, place: Any) -> Any:
        """Return an item, or a slice, of a value that has some."""
        if isinstance(held, dict):
            return held[self.key(place)]
        if not isinstance(held, str | list | tuple | range):
            raise SafeEvalError("only text, lists and dicts have items")
        return held[place]

    def text(self, value: Any) -> str:
        """Return a value as text."""
        if not (value is None or isinstance(value, bool | int | float | str | list | tuple | dict | set | range)):
            raise SafeEvalError(f"{type(value).__name__} has no text")
        self.charged(value)
        # Texts inside of lists are written again, each at its length.
        self.count(_length(value))
        return str(self.sized(str(value)))


def _length(value: Any) -> int:
    """Return about how long a value is as text; its parts were counted before."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_length(key) + _length(held) for key, held in value.items())
    return sum(map(_length, value)) if isinstance(value, list | tuple | set) else 1


def bits(count: int) -> None:
    """Refuse a whole number of so many bits.

    Raises:
        SafeEvalError: They are too many.
    """
    if count > _MOST_BITS:
        raise SafeEvalError(f"a number of more than {_MOST_BITS} bits")
