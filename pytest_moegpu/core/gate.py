"""Verdicts → one decision and its exit code. A run that judged nothing is never green."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_moegpu.core.verdict import Outcome, Verdict

__all__ = ["Decision", "decide"]

_WORSE = (Outcome.REGRESSED, Outcome.FAILED)
_UNDECIDED = (Outcome.INCONCLUSIVE, Outcome.NOT_COMPARABLE, Outcome.ERROR)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What all verdicts say together.

    `exit_code` is 0 for good, 1 for worse, 2 for no answer; `counts` holds only outcomes that occurred, worst first.
    """

    exit_code: int
    headline: str
    counts: dict[Outcome, int]


def decide(verdicts: Iterable[Verdict], *, gate: bool = False) -> Decision:
    """Decide on a run.

    Args:
        verdicts: All verdicts of the run.
        gate: A missing baseline blocks as well. Without it NO_BASELINE alone is still no answer, but does not
            spoil green verdicts.

    Returns:
        1 when anything is REGRESSED or FAILED, whatever else happened; else 2 when anything is undecided, or no
        verdict is green; else 0.
    """
    found = Counter(verdict.outcome for verdict in verdicts)
    order = (Outcome.FAILED, Outcome.REGRESSED, Outcome.ERROR, *_UNDECIDED[:2], Outcome.NO_BASELINE)
    counts = {o: found[o] for o in (*order, Outcome.IMPROVED, Outcome.PASS) if found[o]}
    listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "nothing was judged"
    blocking = (*_UNDECIDED, Outcome.NO_BASELINE) if gate else _UNDECIDED
    if any(found[o] for o in _WORSE):
        return Decision(exit_code=1, headline=f"worse: {listed}", counts=counts)
    if any(found[o] for o in blocking) or not any(o.green for o in counts):
        return Decision(exit_code=2, headline=f"no answer: {listed}", counts=counts)
    return Decision(exit_code=0, headline=f"good: {listed}", counts=counts)
