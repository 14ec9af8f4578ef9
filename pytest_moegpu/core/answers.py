"""Is an answer right? Rules by which a text is held against what is expected of it."""

from __future__ import annotations

__all__ = ["contains", "is_right"]


def is_right(rule: str, expect: tuple[str, ...], text: str) -> bool:  # noqa: ARG001
    """Tell whether a text answers as expected."""
    return contains(text, expect)


def contains(text: str, expect: tuple[str, ...]) -> bool:
    """Tell whether a text holds one of the expected answers, whatever the case of its letters."""
    lowered = text.casefold()
    return any(word.casefold() in lowered for word in expect)
