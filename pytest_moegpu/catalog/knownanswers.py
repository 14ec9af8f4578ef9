"""The known answers of a model file: its own rows, and the generated probes it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_moegpu.core.answers import check_rule
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.core.probes import probes
from pytest_moegpu.errors import UserError

__all__ = ["answers_of"]


def answers_of(read: Mapping[str, Any]) -> tuple[KnownAnswer, ...]:
    """Return the known answers of a model: its own, then the generated ones of some tiers that are not among them.

    Raises:
        UserError: An expectation that its rule cannot read, or a name that stands twice.
    """
    own = tuple(KnownAnswer(**row) for row in read.get("known_answers", ()))
    for number, answer in enumerate(own, 1):
        try:
            check_rule(answer.rule, answer.expect)
        except UserError as error:
            raise UserError(f"known_answers[{number}].expect: {error}") from None
    names = [answer.name for answer in own if answer.name]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"known_answers: the name {twice!r} stands twice")
    return (*own, *(probe for probe in probes(tiers=read.get("probe_tiers", ())) if probe.name not in names))
