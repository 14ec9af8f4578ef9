"""Near-ties: where a greedy answer hung on less than what sound kernels differ by, taking the other way is no fault.

Log-probabilities can be the judge where exact text cannot: two sound engines part at a near-tie and write other texts.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_moegpu.checks.common import grouped, quote
from pytest_moegpu.core.evidence import Margin, RequestRecord, StartEvidence
from pytest_moegpu.core.margins import GAP_FLOOR, LABEL, NEAR_TIE, is_near_tie, is_witness

__all__ = ["contradiction", "near_tie_lines", "not_greedy", "undecided", "witness_lines"]


_EITHER = "another engine or kernel may take either"

_Asked = tuple[StartEvidence, RequestRecord]


def undecided(record: RequestRecord) -> bool:
    """Tell whether a wrong answer accuses nobody: its way went through a near-tie that a healthy engine may have."""
    return is_near_tie(record.tightest) and not contradiction(record)


def contradiction(record: RequestRecord) -> str:
    """Say that a near-tie is itself the fault: the healthy model has none on its way; empty where it may have one."""
    margin, tightest = record.margin, record.tightest
    if margin is None or tightest is None or not is_near_tie(tightest) or margin - tightest.nat <= GAP_FLOOR:
        return ""
    return (
        f"{_choice(tightest)}, and the healthy model decides by {margin:.2f} nat on its way: "
        f"more than the {GAP_FLOOR:.2f} nat by which sound engines differ"
    )


def near_tie_lines(pairs: Iterable[_Asked]) -> tuple[tuple[str, str], ...]:
    """Return a line for each answer that a near-tie leaves undecided; the same of several starts once."""
    said = (
        (s.number, f"{quote(r.prompt)}: {_choice(r.tightest)}; {_EITHER}; got {quote(r.text, 60)}")
        for s, r in pairs
        if r.tightest is not None
    )
    return tuple((LABEL, text) for text in grouped(said))


def witness_lines(pairs: Iterable[_Asked]) -> tuple[tuple[str, str], ...]:
    """Return a line for each question that is nearly tied on purpose: which path was taken, and by how much."""
    said = ((s.number, f"{quote(r.prompt)}: {_seen(r)}; shown, not judged") for s, r in pairs if is_witness(r.margin))
    return tuple((LABEL, text) for text in grouped(said))


def not_greedy(pairs: Iterable[_Asked]) -> tuple[str, ...]:
    """Note answers in which a token was chosen though another was likelier by more than a near-tie."""
    return grouped(
        (s.number, f"note: {quote(r.prompt)}: {_choice(r.tightest)}: not the likeliest token, at temperature 0")
        for s, r in pairs
        if r.tightest is not None and r.tightest.nat <= -NEAR_TIE
    )


def _seen(record: RequestRecord) -> str:
    if record.error is not None:
        return f"error {quote(record.error)}"
    margin = "" if record.margin is None else f" (healthy model: {record.margin:.2f} nat)"
    if record.tightest is None:
        return f"took {quote(record.text, 60)}, no log-probabilities given{margin}"
    return f"{_choice(record.tightest)}{margin}"


def _choice(margin: Margin) -> str:
    other = margin.logprob - margin.nat
    return (
        f"token {margin.index + 1} {quote(margin.token)} {margin.logprob:.2f}, {quote(margin.other)} {other:.2f}: "
        f"{abs(margin.nat):.2f} nat apart"
    )
