"""How a line of a log is meant: as a fact, as advice, as somebody's prompt, or as a warning. Lines are lower case."""

from __future__ import annotations

import re

__all__ = ["has_happened", "is_another_cause", "is_mild", "is_new_try"]

# `may` with a number behind it is the month. Of one that runs out of memory, `when` is an advice too.
_ADVICE = re.compile(
    r"\b(?:avoid|prevent|may(?! \d)|might|could(?! not)|risk of|instead of)\W+(?:\w+\W+){0,4}$"
    r"|\b(?:if|in case|unless) (?:[\w'-]+ ){0,4}$"
    r"|\bwhen(?:ever)? (?:[\w'-]+ ){0,4}run(?:s|ning)? $"
)
_ADVICE_CHARACTERS = 60

# What stands behind one of these is the text of somebody's request.
_QUOTED = re.compile(
    r"received request|generatereqinput\(|[\"'](?:content|messages|input)[\"']\s*[:=]"
    r"|\bprompt[\"']?\s*[:=]\s*[\"'\[{]|^[^a-z]*prompt\b"
)

# Levels as Python, vLLM, SGLang, Ollama, llama.cpp and torch (glog) write them, and words of one that goes on.
_MILD = re.compile(
    r"^(?:\([^)]*\)|\[[^\]]*\]|[\d:.,t/ -])*(?:warn|warning|info|debug)\b|level=(?:warn|info|debug)\b"
    r"|\b[a-z]+warning: | - (?:warning|info|debug) - "
    r"|^\d+\.\d+\.\d+\.\d+ [wid] |^[wid]\d{4} |\[[wid](?:\d{4}| \w+\.cpp)"
    r"|\bignor(?:e|ed|ing)\b|\bfalling back\b|\bretrying\b|\bpinned memory\b"
)

_CAUSE = re.compile(
    r"(?:error|exception): +\S|\berror (?:with|loading model|while handling)|unknown model architecture|ggml_assert"
    r"|terminate called|thread died: |value error, |invalid choice|(?<=[a-z])(?:error|exception)$"
)
_CONSEQUENCE = re.compile(
    r"see root cause|startup failed|exiting due to|unable to load model|scheduler died|following error|traceback"
    r"|connection(?:reset|refused|aborted)|brokenpipe|eoferror|cancellederror|childfailed|no cpu backend found"
)


def has_happened(before: str) -> bool:
    """Tell from what stands before some words in their line whether they state a fact: no advice, and no prompt."""
    return not (_ADVICE.search(before[-_ADVICE_CHARACTERS:]) or _QUOTED.search(before))


def is_mild(line: str) -> bool:
    """Tell whether a line is of a level below error, or says that the server goes on."""
    return _MILD.search(line) is not None


def is_new_try(line: str) -> bool:
    """Tell whether a line says that what has just failed is tried again: what stands before it was survived."""
    return "retrying" in line and not _QUOTED.search(line)


def is_another_cause(line: str) -> bool:
    """Tell whether a line that names no known fault states a cause of its own, and not what follows from an earlier."""
    if _CAUSE.search(line) is None or _CONSEQUENCE.search(line) is not None:
        return False
    return not (is_mild(line) or _QUOTED.search(line))
