"""Verdicts as plain text: why one failed, all of them as a table, and how many there are of each outcome."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tabulate import tabulate

from pytest_moegpu.core.age import AGE
from pytest_moegpu.core.gate import decide
from pytest_moegpu.core.margins import LABEL
from pytest_moegpu.core.stats import coefficient_of_variation
from pytest_moegpu.core.units import format_percent, format_value
from pytest_moegpu.core.verdict import METRICS, Better, Outcome, Verdict

__all__ = ["HEADERS", "below", "failure_text", "results_table", "rows", "summary_line"]

HEADERS = ("scenario", "check", "what", "value", "starts", "baseline", "change", "outcome")

_TAIL_LINES = 20

# Labels with a place of their own; any other stands between `changed` and `valid`, in the order given.
_PLACED = ("reason", "starts", "changed", "same", "valid", "log", "rerun")

# Labels of lines that a reader needs though the verdict is green: they stand below the table.
_BELOW = (LABEL, AGE)


def failure_text(verdict: Verdict) -> str:
    """Print one verdict in full: the head, then a line each for what there is to say, then the end of the log."""
    lines = list(_label_lines(verdict))
    width = max([len("changed"), *(len(label) for label, _ in lines)])
    indent = "\n" + " " * (width + 4)
    text = [_head(verdict), *(f"  {label:<{width}}  {indent.join(said.splitlines())}" for label, said in lines)]
    text += [f"    {line}" for line in verdict.log_tail[-_TAIL_LINES:]]
    return "\n".join(line.rstrip() for line in text)


def results_table(verdicts: Sequence[Verdict]) -> str:
    """Print one row a verdict: value and baseline in the metric's unit, spread over starts as CV; near-ties below."""
    table = tabulate(rows(verdicts), headers=HEADERS, tablefmt="simple", disable_numparse=True)
    return "\n".join([table, *below(verdicts)])


def below(verdicts: Iterable[Verdict]) -> list[str]:
    """Return the lines of green verdicts that a reader should see all the same."""
    return [
        f"{label}  {verdict.scenario}: {said}"
        for verdict in verdicts
        if verdict.outcome.green
        for label, said in verdict.lines
        if label in _BELOW
    ]


def summary_line(verdicts: Sequence[Verdict]) -> str:
    """Print how many verdicts there are of each outcome, worst first."""
    counts = decide(verdicts).counts
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "nothing was judged"


def rows(verdicts: Iterable[Verdict]) -> list[tuple[str, ...]]:
    """Return the cells of the results table, in the order of `HEADERS`."""
    return [
        (
            v.scenario,
            v.check,
            v.subject,
            v.more.get("value", "") if v.value is None else _value(v, v.value),
            _spread(v.values),
            "" if v.baseline is None else _value(v, v.baseline),
            "" if v.change is None else format_percent(v.change),
            v.outcome.value,
        )
        for v in verdicts
    ]


def _unit(verdict: Verdict) -> str:
    return METRICS[verdict.metric].unit if verdict.metric in METRICS else ""


def _value(verdict: Verdict, value: float) -> str:
    return format_value(value, _unit(verdict)).strip()


def _bare(verdict: Verdict, value: float) -> str:
    """Print a value without its unit where the unit never changes with the size of the number."""
    unit = _unit(verdict)
    return _value(verdict, value).removesuffix(f" {unit}" if unit not in ("B", "s") else "")


def _variation(values: tuple[float, ...]) -> float | None:
    return coefficient_of_variation(values) if values and min(values) > 0 else None


def _spread(values: tuple[float, ...]) -> str:
    if not values:
        return ""
    cv = _variation(values)
    return str(len(values)) if cv is None else f"{len(values)}, CV {format_percent(cv, signed=False)}"


def _short_percent(share: float) -> str:
    """Print a signed share without a decimal that is zero, for limits that a person wrote."""
    return f"{share * 100:+.1f}".removesuffix(".0") + " %"


def _head(verdict: Verdict) -> str:
    said = verdict.subject
    if verdict.value is not None:
        said += f" {_value(verdict, verdict.value)}"
    if verdict.baseline is not None:
        said += f", baseline {_bare(verdict, verdict.baseline)}{_change(verdict)}"
    if verdict.allowed is not None:
        said += f", allowed {_short_percent(verdict.allowed)}"
    if verdict.limit is not None:
        said += f", limit {_bound(verdict)} {_value(verdict, verdict.limit)}"
    if verdict.value is None and verdict.reason:
        said += f": {' '.join(verdict.reason.split())}"
    fault = f", class {verdict.failed_class}" if verdict.outcome is Outcome.FAILED and verdict.failed_class else ""
    return f"{verdict.outcome}  {said}      phase {verdict.phase}{fault}"


def _bound(verdict: Verdict) -> str:
    higher = verdict.metric in METRICS and METRICS[verdict.metric].better is Better.HIGHER
    return "at least" if higher else "at most"


def _change(verdict: Verdict) -> str:
    if verdict.change is None:
        return ""
    if verdict.interval is None:
        return f" ({format_percent(verdict.change)})"
    low, high = (f"{bound * 100:+.1f}" for bound in verdict.interval)
    level = "" if verdict.confidence is None else f"{verdict.confidence * 100:.3g} % "
    return f" ({format_percent(verdict.change)}, {level}interval {low} … {high})"


def _label_lines(verdict: Verdict) -> Iterator[tuple[str, str]]:
    given: dict[str, list[str]] = {}
    for label, said in verdict.lines:
        given.setdefault(label, []).append(said)
    told = {label: "; ".join(parts) for label, parts in given.items()}
    if verdict.value is not None and verdict.reason:
        yield "reason", verdict.reason
    starts = _starts(verdict) or told.get("starts", "")
    if starts:
        yield "starts", starts
    yield from _changed(told.get("changed", ""), told.get("same", ""))
    yield from ((label, said) for label, said in told.items() if label not in _PLACED)
    if "valid" in told:
        yield "valid", told["valid"]
    log = _log(verdict) or told.get("log", "")
    if log:
        yield "log", log
    if "rerun" in told:
        yield "rerun", told["rerun"]
    yield from (("finding", finding) for finding in verdict.findings)


def _starts(verdict: Verdict) -> str:
    if not verdict.values:
        return ""
    separator = ", " if _unit(verdict) in ("B", "s") else " "
    now = separator.join(_bare(verdict, value) for value in verdict.values)
    base = verdict.baseline_values
    if not base:
        return now
    cv = _variation(base)
    spread = "not known" if cv is None else format_percent(cv, signed=False)
    seen = "none" if verdict.smallest_loss is None else format_percent(verdict.smallest_loss, signed=False)
    count = f"{len(base)} start{'' if len(base) == 1 else 's'}"
    return f"{now}      baseline {count}, CV {spread}; smallest loss this run could see: {seen}"


def _changed(changed: str, same: str) -> Iterator[tuple[str, str]]:
    if changed:
        yield "changed", f"{changed}      same: {same}" if same else changed
    elif same:
        yield "same", same


def _log(verdict: Verdict) -> str:
    shown = len(verdict.log_tail[-_TAIL_LINES:])
    below = f"last {shown} lines below" if shown > 1 else "last line below" if shown else ""
    return f"{verdict.log_path} ({below})" if verdict.log_path and below else verdict.log_path or below
