"""A-B-A over an upgrade: a change is its doing only if it came with it and left with it.

Sessions differ though nothing changed, so before and back are two stored sessions and the rule for those decides on
after (`core.between`). What the way back adds is a check that no level can give: that the machine itself stayed.
"""

from __future__ import annotations

import math
from dataclasses import replace

from pytest_moegpu.core import stats
from pytest_moegpu.core.compare import MIN_LOSS
from pytest_moegpu.core.designs import ALPHA
from pytest_moegpu.core.units import format_percent
from pytest_moegpu.core.verdict import Outcome, Verdict

__all__ = ["moved", "there_and_back"]

_ROUNDING = 1e-9


def moved(before: tuple[float, ...], back: tuple[float, ...], change: float, tolerance: float) -> float | None:
    """Return by how much back differs from before, a share of one; None when it is too little to explain a change.

    Two sessions always differ a little, so what counts is at least 2 % and more than half of the change in question.

    Args:
        before: One value a start, on the old stack.
        back: The same, on the old stack again.
        change: Of the new stack against both, a share of one.
        tolerance: Where it is below 2 %, it is the least that counts.
    """
    drift = stats.ratio(back, before, 1 - ALPHA).estimate - 1
    return drift if abs(drift) >= max(min(MIN_LOSS, tolerance), abs(change) / 2) - _ROUNDING else None


def there_and_back(
    verdict: Verdict, before: tuple[float, ...], after: tuple[float, ...], back: tuple[float, ...], tolerance: float
) -> Verdict:
    """Let a change stand only if before and back agree and after differs from both.

    Args:
        verdict: Of after, against before and back as two stored sessions.
        before: One value a start, on the old stack.
        after: The same, on the new stack.
        back: The same, on the old stack again.
        tolerance: Of the metric, a share of one.

    Raises:
        ValueError: A side is empty or holds NaN, an infinite, zero or negative value.
    """
    if drift := moved(before, back, verdict.change or 0.0, tolerance):
        told = f"the machine itself moved: back on the old stack it is {format_percent(drift)} off before"
        if verdict.outcome is Outcome.PASS:
            return replace(verdict, lines=(*verdict.lines, ("note", told)))
        return _open(verdict, f"{told}, so no change is the upgrade's alone; {verdict.reason}")
    if verdict.outcome not in (Outcome.REGRESSED, Outcome.IMPROVED):
        return verdict
    same = [name for name, side in (("before", before), ("back", back)) if not _apart(after, side)]
    if same:
        return _open(verdict, f"after does not differ from {' and '.join(same)} by itself; {verdict.reason}")
    return replace(verdict, reason=f"{verdict.reason}; before and back agree, and after differs from both")


def _open(verdict: Verdict, reason: str) -> Verdict:
    return replace(verdict, outcome=Outcome.INCONCLUSIVE, failed_class=None, reason=reason)


def _apart(now: tuple[float, ...], base: tuple[float, ...]) -> bool:
    """Tell whether two sessions differ: at 1 %, or as clearly as so few starts can."""
    reachable = 2 / math.comb(len(now) + len(base), len(now))
    return stats.mann_whitney(now, base, "two-sided") <= max(2 * ALPHA, reachable) + _ROUNDING
