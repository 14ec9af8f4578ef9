"""Histories out of what is stored: the bundles of a folder and the sessions of baselines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_moegpu.checks import get_check
from pytest_moegpu.checks.throughput import metrics
from pytest_moegpu.core.baseline import Baseline
from pytest_moegpu.core.evidence import Evidence
from pytest_moegpu.core.history import History, Key, Session, history
from pytest_moegpu.core.historyargs import HistoryOrder
from pytest_moegpu.core.model import Profile, Scenario
from pytest_moegpu.core.obstacles import bad_values
from pytest_moegpu.core.record import RunRecord
from pytest_moegpu.core.verdict import METRICS, Outcome, Verdict
from pytest_moegpu.errors import RecordError, nearest
from pytest_moegpu.host.store import RunStore, baseline_files, read_baseline, read_run
from pytest_moegpu.report.history import as_json, as_text
from pytest_moegpu.session.judge import Comparison

__all__ = ["Found", "gather", "told"]

# What is no number to draw a line through: text that is wrong, a model elsewhere, readings that do not hold.
_WRONG = ("offload", "output")
_NO_NUMBER = (Outcome.INCONCLUSIVE, Outcome.NOT_COMPARABLE, Outcome.ERROR)
_WIDTH = 80


@dataclass(frozen=True, kw_only=True)
class Found:
    """The histories, sorted, and what was left out with the reason."""

    histories: tuple[History, ...]
    left_out: tuple[str, ...]


def told(wanted: HistoryOrder) -> str:
    """Return what the command prints: for a person as wide as the terminal at hand, or JSON.

    Raises:
        RecordError: There is no session; names what there is.
    """
    found = gather(wanted)
    if wanted.json:
        return json.dumps(as_json(found.histories, found.left_out), ensure_ascii=False, indent=1)
    columns = shutil.get_terminal_size((_WIDTH, 24)).columns
    left_out = "\n".join(f"left out: {each}" for each in found.left_out)
    return "\n\n".join([*(as_text(each, columns) for each in found.histories), *([left_out] if left_out else [])])


def gather(wanted: HistoryOrder) -> Found:
    """Read every bundle and baseline and describe what is wanted of them.

    A run that is both a bundle and a session of a baseline counts once.

    Raises:
        RecordError: Nothing of what is wanted was measured; names what was.
    """
    left_out: list[str] = []
    sessions: dict[Key, list[Session]] = {}
    for key, session in (*_of_runs(wanted, left_out), *_of_baselines(wanted, left_out)):
        sessions.setdefault(key, []).append(session)
    histories = []
    for key in sorted(key for key in sessions if _wanted(wanted, key)):
        try:
            histories.append(history(key, sessions[key]))
        except ValueError as error:
            left_out.append(f"{key.profile}/{key.scenario}/{key.backend}: {error}")
    if not histories:
        raise RecordError(_none(wanted, sessions, left_out))
    return Found(histories=tuple(histories), left_out=tuple(left_out))


def _wanted(wanted: HistoryOrder, key: Key) -> bool:
    return (
        wanted.profile in (None, key.profile)
        and wanted.scenario in (None, key.scenario)
        and wanted.metric in (None, key.metric)
    )


def _of_runs(wanted: HistoryOrder, left_out: list[str]) -> Iterator[tuple[Key, Session]]:
    store = RunStore(wanted.runs)
    for name in store.ids():
        try:
            record = read_run(store.root / name)
        except RecordError as error:
            left_out.append(str(error))
            continue
        if record.status != "finished":
            left_out.append(f"run {record.id}: {record.status}, not finished")
            continue
        for evidence in record.evidence:
            if wanted.profile in (None, evidence.profile) and wanted.scenario in (None, evidence.scenario):
                yield from _of_evidence(record, evidence, left_out)


def _of_evidence(record: RunRecord, evidence: Evidence, left_out: list[str]) -> Iterator[tuple[Key, Session]]:
    scenario = next((s for s in record.scenarios if s.name == evidence.scenario), None)
    if scenario is None or record.asked is None:
        left_out.append(f"run {record.id}: does not hold {evidence.scenario} as it was asked")
        return
    judged: dict[str, tuple[Verdict, ...]] = {}
    for name, metric in metrics(evidence).items():
        if not metric.kind.compared:
            continue
        why = _no_number(name, evidence, scenario, record.asked, judged) or bad_values(metric.values, f"{name} values")
        if why:
            left_out.append(f"run {record.id}, {evidence.scenario} {name}: {why}")
            continue
        session = Session(
            run=record.id,
            recorded_at=record.started_at,
            values=metric.values,
            identity=evidence.identity,
            stack=evidence.stack,
            noted=evidence.noted,
            source="run",
        )
        yield _key(evidence, name), session


def _no_number(
    metric: str, evidence: Evidence, scenario: Scenario, profile: Profile, judged: dict[str, tuple[Verdict, ...]]
) -> str:
    """Say why a metric of a run is not to be believed, from its stored starts judged again; empty when it is.

    Slow or over its budget is a number like any other.
    """
    guards = Comparison(metric=metric, scenario=scenario, profile=profile).guards
    names = dict.fromkeys((*(guard.name for guard in guards), *(_WRONG if metric != "peak_memory" else ("offload",))))
    for name in names:
        if name not in judged:
            judged[name] = get_check(name).judge(evidence, scenario, profile)
        for verdict in judged[name]:
            wrong = name in _WRONG and verdict.outcome is Outcome.FAILED
            if wrong or (verdict.outcome in _NO_NUMBER and verdict.metric in (None, metric)):
                return f"{name} {verdict.outcome}: {verdict.reason}"
    return ""


def _of_baselines(wanted: HistoryOrder, left_out: list[str]) -> Iterator[tuple[Key, Session]]:
    for path in baseline_files(wanted.baselines) if wanted.baselines.is_dir() else ():
        try:
            baseline = read_baseline(path)
        except RecordError as error:
            left_out.append(str(error))
            continue
        yield from _of_baseline(baseline, path, left_out)


def _of_baseline(baseline: Baseline, path: Path, left_out: list[str]) -> Iterator[tuple[Key, Session]]:
    for held in baseline.sessions:
        for name, values in held.metrics.items():
            kind = METRICS.get(name)
            if kind is None or not values:
                continue
            unit = baseline.units.get(name, kind.unit)
            why = bad_values(values, f"{name} values") or ("" if unit == kind.unit else f"{name} in {unit}")
            if why:
                left_out.append(f"{path}, run {held.run}: {why}")
                continue
            session = Session(
                run=held.run,
                recorded_at=held.recorded_at,
                values=values,
                identity=baseline.identity,
                stack=baseline.stack,
                noted=held.noted,
                source=str(path),
            )
            yield _key(baseline, name), session


def _key(of: Evidence | Baseline, metric: str) -> Key:
    return Key(profile=of.profile, scenario=of.scenario, backend=of.backend, metric=metric)


def _none(wanted: HistoryOrder, known: Iterable[Key], left_out: list[str]) -> str:
    keys = tuple(known)
    asked = " ".join(word for word in (wanted.profile, wanted.scenario, wanted.metric) if word)
    profiles = sorted({key.profile for key in keys})
    scenarios = sorted({key.scenario for key in keys})
    hint = ""
    if wanted.profile is not None and wanted.profile not in profiles:
        hint = nearest(wanted.profile, profiles)
    elif wanted.scenario is not None and wanted.scenario not in scenarios:
        hint = nearest(wanted.scenario, scenarios)
    there = f"there are {', '.join(profiles)} with {', '.join(scenarios)}" if keys else "nothing was measured there"
    rest = f"; left out: {'; '.join(left_out)}" if left_out else ""
    return f"no session of {asked or 'anything'}{hint} in {wanted.runs} or {wanted.baselines}: {there}{rest}"
