"""The end of a run: the section in the terminal and the page of a GitHub job."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_moegpu.outcome import Ledger, distinct
from pytest_moegpu.report.markdown import summary
from pytest_moegpu.report.terminal import results_table

if TYPE_CHECKING:
    from pytest_moegpu.session import Session

__all__ = ["section", "step_summary"]

_BASELINES = "baselines"


def section(session: Session, ledger: Ledger, *, green: bool, hidden: bool) -> Iterator[str]:
    """Give the table of verdicts, the decision, and where the bundle is.

    Args:
        session: What measured.
        ledger: What the tests judged.
        green: The whole of pytest's run is good.
        hidden: No test failed, and yet what was judged is not good.
    """
    if session.verdicts:
        yield results_table(distinct(session.verdicts))
        yield ""
    decision = ledger.decision
    if not ledger.outcomes:
        yield "NOTHING MEASURED: no test judged anything on this machine, so this run is not green."
    else:
        yield decision.headline + (f" (rehearsal: {session.target.rehearsal})" if session.target.rehearsal else "")
    if ledger.uncounted:
        yield f"not counted: {ledger.uncounted} verdicts of tests that were expected to fail (xfail)"
    if hidden:
        yield "NOT GREEN: pytest counts no failed test, but a skip or an xfail hides what is not good above."
    for fault in session.faults:
        yield f"DEVICE FAULT: {fault}. No test asked for it, and nothing measured beside it is good."
    if session.unusable:
        yield f"LEFT BEHIND: {session.unusable}. Look at the GPU before anything else is started on it."
    if session.store_problem:
        yield f"NOT KEPT: {session.store_problem}"
    if session.measured is not None:
        folder = _short(session.measured.folder)
        good = (
            not session.store_problem
            and green
            and decision.exit_code == 0
            and not ledger.uncounted
            and _promotable(ledger)
        )
        yield f"run {folder}" + (f"    keep it as baseline: {_promote(session, folder)}" if good else "")


def _promotable(ledger: Ledger) -> bool:
    judged: dict[str, set[str]] = {}
    for verdict in ledger.counted:
        if verdict.outcome.green:
            judged.setdefault(verdict.scenario, set()).add(verdict.check)
    return bool(judged) and all({"output", "throughput"} <= checks for checks in judged.values())


def _promote(session: Session, folder: str) -> str:
    words = ["moegpu", "promote", folder]
    baselines = session.options.baselines
    if baselines.resolve() != Path(_BASELINES).resolve():
        words += ["--baselines", _short(baselines)]
    return shlex.join(words)


def step_summary(session: Session) -> str:
    """Add the results to the page of a GitHub job; where it cannot be written, return what to say of that."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path or not session.verdicts:
        return ""
    title = f"pytest-moegpu: {session.target.profile.name}"
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(summary(distinct(session.verdicts), title, session.facts()) + "\n")
    except OSError as error:
        return f"GITHUB_STEP_SUMMARY: cannot write {path}: {error}"
    return ""


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
