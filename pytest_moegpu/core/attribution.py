"""What a difference may be put down to: what of the stack moved, and whether it moved alone.

That one thing moved alone makes it the suspect, not the culprit: `moegpu gate` (before, after, back) and `moegpu ab`
can show that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_moegpu.core.identity import NOT_KNOWN, STACK_FIELDS, Difference, in_words, label
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict

__all__ = ["CAUSE", "cause", "with_cause"]

CAUSE = "cause"
"""Label of the line of a verdict that says what moved."""

_TITLES = {
    "driver": "the driver",
    "cuda": "CUDA",
    "engine": "the engine",
    "libraries": "its libraries",
    "kernel": "the kernel",
}


def cause(changes: Sequence[Difference]) -> str:
    """Say whether one thing of the stack moved, several or none, and what is not known to have stayed.

    The CUDA version of the driver comes in one package with the driver, and counts as CUDA of its own only where the
    driver stayed. All fields of the engine (version, build, program, image) are one thing.

    Args:
        changes: What `identity.stack_changes` returns.
    """
    unsure = [c for c in changes if NOT_KNOWN in (c.base, c.now)]
    sure = [c for c in changes if c not in unsure]
    driver = any(c.field == "driver" for c in sure)
    things: dict[str, list[Difference]] = {}
    for change in sure:
        thing = "driver" if change.field == "cuda_driver" and driver else STACK_FIELDS[change.field.partition(".")[0]]
        things.setdefault(thing, []).append(change)
    moved = [_TITLES[thing] for thing in things]
    open_questions = _listed([label(c.field) for c in unsure])
    rest = f"; not recorded on one side, so not ruled out: {open_questions}" if unsure else ""
    if not moved:
        return f"nothing under test is known to have moved{rest}" if unsure else "nothing under test moved"
    if len(moved) > 1:
        return f"{_listed(moved)} moved together: cannot say which; move one at a time to know{rest}"
    (only,) = things.values()
    return f"only {moved[0]} moved ({in_words(only)}): the suspect{rest}"


def with_cause(verdict: Verdict, changes: Sequence[Difference]) -> Verdict:
    """Add the line to a verdict that says something became worse or better, or that text is wrong; else nothing."""
    worse = verdict.outcome in (Outcome.REGRESSED, Outcome.IMPROVED)
    wrong = verdict.outcome is Outcome.FAILED and verdict.failed_class is FailedClass.CORRECTNESS
    if not (worse or wrong) or any(label == CAUSE for label, _ in verdict.lines):
        return verdict
    return replace(verdict, lines=(*verdict.lines, (CAUSE, cause(changes))))


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
