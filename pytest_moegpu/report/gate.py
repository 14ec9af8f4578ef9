"""The page of a gate: on the terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_moegpu.core.gatepage import GatePage, Group
from pytest_moegpu.core.verdict import Outcome
from pytest_moegpu.report.markdown import summary
from pytest_moegpu.report.terminal import failure_text, results_table

__all__ = ["as_markdown", "as_text"]


def as_text(page: GatePage) -> str:
    """Print the page: a table for each group, what changed, failures in full, and the decision last."""
    parts = []
    for group in page.groups:
        parts.append("\n".join(_head(group)))
        if group.verdicts:
            parts.append(results_table(group.verdicts))
        parts += [failure_text(v) for v in group.verdicts if not v.outcome.green]
    parts.append("\n".join(_ends(page)))
    return "\n\n".join(parts)


def as_markdown(page: GatePage) -> str:
    """Write the page for a pull request or a job: the decision first."""
    parts = [f"# Gate: {_decision(page)}"]
    ends = list(_ends(page))[:-1]
    if ends:
        parts.append("\n".join(f"- {line}" for line in ends))
    for group in page.groups:
        facts = (("run", group.run), ("changed", group.changed))
        parts.append(summary(group.verdicts, group.title, facts).rstrip())
    return "\n\n".join(parts) + "\n"


def _head(group: Group) -> Iterator[str]:
    yield group.title
    yield f"  run      {group.run}"
    yield f"  changed  {group.changed}"


def _decision(page: GatePage) -> str:
    excused = sum(page.excused(v) is not None for v in page.verdicts)
    return page.decision.headline + (f", and {excused} expected" if excused else "")


def _ends(page: GatePage) -> Iterator[str]:
    yield from page.expected_lines()
    for group in page.groups:
        if any(v.outcome is Outcome.IMPROVED for v in group.verdicts):
            yield f"IMPROVED  {group.title}: keep it, so that it is not lost again: {group.promote}"
    yield from page.notes
    yield _decision(page)
