"""In which field of an answer a text stands: what is spoken, and what a server's parser put in the wrong one."""

from __future__ import annotations

import re

from pytest_moegpu.core.answers import is_right
from pytest_moegpu.core.evidence import RequestRecord

__all__ = ["answered", "misplaced", "only_reasoned", "spoken"]

_EMPTY_PAIR = re.compile(r"\s*<think>\s*</think>\s*")
_TAG = re.compile(r"</?think>")


def spoken(text: str) -> str:
    """Return a text without an empty think pair before it, which is how some templates say that thinking is off."""
    return text[found.end() :] if (found := _EMPTY_PAIR.match(text)) else text


def answered(record: RequestRecord) -> bool:
    """Tell whether the answer is right, in whichever field the server put it: a wrong field is not a wrong kernel."""
    return is_right(record.rule, record.expect, spoken(record.text)) or only_reasoned(record)


def only_reasoned(record: RequestRecord) -> bool:
    """Tell whether a finished answer stands in the reasoning field alone, and is right there."""
    if spoken(record.text).strip() or not record.reasoning or record.finish_reason == "length":
        return False
    return is_right(record.rule, record.expect, record.reasoning)


def misplaced(record: RequestRecord) -> str:
    """Say what stands in the wrong field of an answer; empty where nothing does."""
    if record.expect and only_reasoned(record):
        return "the answer is in the reasoning field only"
    tag = _TAG.search(spoken(record.text))
    return f"{tag[0]} is in the content" if tag else ""
