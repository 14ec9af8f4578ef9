"""One answer of a program that loads the model, answers one question, and ends."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OneShot"]


@dataclass(frozen=True, kw_only=True)
class OneShot:
    """What such a program was asked, and what it said. `problem` says why there is no answer; empty when there is one.

    `rule` is how `expect` is held against the answer (`core.answers`); `left` are pids that could not be ended.
    """

    argv: tuple[str, ...]
    prompt: str
    expect: tuple[str, ...]
    text: str = ""
    problem: str = ""
    seconds: float | None = None
    exit_code: int | None = None
    left: tuple[int, ...] = ()
    log_path: str = ""
    rule: str = "contains"
    log_tail: tuple[str, ...] = ()
