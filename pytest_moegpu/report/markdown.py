"""A run as Markdown, for `$GITHUB_STEP_SUMMARY`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from tabulate import tabulate

from pytest_moegpu.core.verdict import Outcome, Verdict, worst
from pytest_moegpu.report.terminal import HEADERS, below, failure_text, rows, summary_line

__all__ = ["summary"]


def summary(verdicts: Sequence[Verdict], title: str, facts: Sequence[tuple[str, str]]) -> str:
    """Write the summary of a run.

    Args:
        verdicts: All verdicts of the run; none is an ERROR, not a success.
        title: Headline, such as the profile and the time.
        facts: Rows of label and value: profile, GPU, driver, CUDA, engine, model.

    Returns:
        Headline with counts, facts, results, near-ties, and a folded block with the full text of each verdict that is
        not green.
    """
    outcome = worst(tuple(v.outcome for v in verdicts)) if verdicts else Outcome.ERROR
    parts = [f"## {_cell(title)}", f"**{outcome}**: {summary_line(verdicts)}"]
    if facts:
        parts.append(_table(("", ""), facts))
    if verdicts:
        parts.append(_table(HEADERS, rows(verdicts)))
    if said := below(verdicts):
        parts.append("\n".join(f"- {_cell(line)}" for line in said))
    parts += [_details(v) for v in verdicts if not v.outcome.green]
    return "\n\n".join(parts) + "\n"


def _table(headers: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    escaped = [[_cell(cell) for cell in row] for row in cells]
    return tabulate(escaped, headers=headers, tablefmt="github", disable_numparse=True)


def _cell(text: str) -> str:
    """Make a text safe inside a table cell or a heading: one line, no HTML, no column break."""
    return escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def _details(verdict: Verdict) -> str:
    text = failure_text(verdict)
    # A fence must be longer than any run of backticks inside it.
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    heading = f"{verdict.outcome} {verdict.scenario} {verdict.check}: {verdict.subject}"
    return f"<details><summary>{escape(heading, quote=False)}</summary>\n\n{fence}text\n{text}\n{fence}\n\n</details>"
