"""What is done with stored runs: shown, compared with each other, promoted to baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_moegpu.checks import get_check
from pytest_moegpu.checks.golden import unlike_itself
from pytest_moegpu.checks.throughput import metrics
from pytest_moegpu.core.baseline import BASELINE_SCHEMA, Baseline, BaselineSession
from pytest_moegpu.core.evidence import Evidence
from pytest_moegpu.core.gate import decide
from pytest_moegpu.core.golden import Golden
from pytest_moegpu.core.identity import differences, stack_changes
from pytest_moegpu.core.model import Profile, Scenario
from pytest_moegpu.core.probemargins import joined, margins_of
from pytest_moegpu.core.record import RunRecord
from pytest_moegpu.core.units import format_value
from pytest_moegpu.core.verdict import METRICS, Outcome, Verdict
from pytest_moegpu.errors import RecordError
from pytest_moegpu.host.store import RunStore, baseline_files, baseline_path, read_baseline, read_run, write_baseline
from pytest_moegpu.report.terminal import failure_text, results_table
from pytest_moegpu.session.judge import Comparison
from pytest_moegpu.session.reference import GOLDEN, golden_of

__all__ = [
    "as_asked",
    "baseline_of",
    "check_baselines",
    "compare_runs",
    "faults_of",
    "finished",
    "merged",
    "promote",
    "show",
]

# What must be good before speeds and memory may become what others are measured by.
_MUST_BE_GREEN = ("offload", "output", "memory", "stability", "throughput")
# 5 against 5 starts is the first even case in which the exact test can reject at 1 %.
_ADVISED_STARTS = 5


def show(run: str, root: Path) -> str:
    """Describe a stored run: facts, table of verdicts, and the text of each that is not green."""
    folder = RunStore(root).find(run)
    record = read_run(folder)
    facts = [
        ("run", record.id),
        ("status", record.status),
        ("started", record.started_at),
        ("profile", record.profile),
        ("command", " ".join(record.command)),
    ]
    for evidence in record.evidence:
        stack = evidence.stack
        facts.append(("GPU", "; ".join(gpu.name for gpu in evidence.gpus)))
        real = [gpu.emulated_on for gpu in evidence.gpus if gpu.emulated_on]
        facts += [("rehearsal", f"on {name}: not a result of the real card") for name in real]
        facts.append(
            ("stack", f"driver {stack.driver}, CUDA {stack.cuda_driver}, {stack.engine} {stack.engine_version}")
        )
        facts += [
            (f"{evidence.scenario} {name}", ", ".join(format_value(value, metric.kind.unit) for value in metric.values))
            for name, metric in metrics(evidence).items()
        ]
    lines = [f"{label:<24}  {text}" for label, text in dict.fromkeys(facts)]
    if record.verdicts:
        lines += ["", results_table(record.verdicts)]
    lines += ["\n" + failure_text(v) for v in record.verdicts if not v.outcome.green]
    return "\n".join(lines)


def as_asked(record: RunRecord, evidence: Evidence) -> tuple[Scenario, Profile]:
    """Return scenario and profile as they were when the run was made.

    Raises:
        RecordError: The run does not hold them.
    """
    scenario = next((s for s in record.scenarios if s.name == evidence.scenario), None)
    if scenario is None or record.asked is None:
        raise RecordError(f"run {record.id} does not hold {evidence.scenario} as it was asked: it cannot be judged")
    return scenario, record.asked


def faults_of(record: RunRecord, evidence: Evidence) -> list[str]:
    """Return what speaks against comparing with a run: what it said itself, and all its starts judged again."""
    scenario, profile = as_asked(record, evidence)
    told = [v for v in record.verdicts if v.scenario == evidence.scenario and _speaks(v)]
    verdicts = told + [v for name in _MUST_BE_GREEN for v in get_check(name).judge(evidence, scenario, profile)]
    return list(dict.fromkeys(f"{v.check} {v.outcome}: {v.reason}" for v in verdicts if not v.outcome.green))


def _speaks(verdict: Verdict) -> bool:
    """Tell whether a verdict can speak against a run: that there was nothing to compare with does not."""
    return verdict.check != "baseline" and (verdict.check != GOLDEN or verdict.outcome is Outcome.FAILED)


def _session(record: RunRecord, evidence: Evidence) -> BaselineSession:
    found = metrics(evidence)
    return BaselineSession(
        run=record.id,
        recorded_at=record.started_at,
        metrics={name: metric.values for name, metric in found.items() if metric.kind.compared},
        noted=evidence.noted,
    )


def baseline_of(record: RunRecord, evidence: Evidence) -> Baseline:
    """Return a run as what others can be compared with, whether it is good enough or not."""
    session = _session(record, evidence)
    return Baseline(
        schema=BASELINE_SCHEMA,
        profile=evidence.profile,
        scenario=evidence.scenario,
        backend=evidence.backend,
        check_version=evidence.check_version,
        identity=evidence.identity,
        stack=evidence.stack,
        sessions=(session,),
        units={name: METRICS[name].unit for name in session.metrics},
        better={name: METRICS[name].better.value for name in session.metrics},
        margins=margins_of(evidence.good_starts),
    )


def merged(old: Baseline, new: Baseline) -> Baseline:
    """Add the sessions of a later run of the same thing on the same stack.

    Raises:
        RecordError: They are not the same thing; lists every difference.
    """
    moved = [str(d) for d in (*differences(old.identity, new.identity), *stack_changes(old.stack, new.stack))]
    if moved:
        raise RecordError(
            f"run {new.sessions[0].run} cannot join the baseline of {old.profile}/{old.scenario}: {'; '.join(moved)}. "
            "Promote it alone (without --add) to replace the baseline"
        )
    known = {session.run for session in old.sessions}
    sessions = (*old.sessions, *(s for s in new.sessions if s.run not in known))
    margins = joined(old.margins, new.margins)
    return replace(old, sessions=sessions, golden=_one_golden(old, new), margins=margins)


def _one_golden(old: Baseline, new: Baseline) -> Golden | None:
    """Return the golden of both: the earlier one.

    Raises:
        RecordError: The later one does not agree with it.
    """
    if old.golden is None or new.golden is None:
        return old.golden or new.golden
    if parted := unlike_itself(((1, old.golden.texts), (2, new.golden.texts))):
        raise RecordError(
            f"run {new.sessions[0].run} cannot join the baseline of {old.profile}/{old.scenario}: its "
            f"log-probabilities are not those of the golden there (start 1 the golden, start 2 the run): {parted}"
        )
    return old.golden


def promote(runs: Sequence[str], root: Path, folder: Path, add: bool) -> list[str]:
    """Write baselines from runs and return a line for each.

    Raises:
        RecordError: A run that is damaged, was not finished, failed a check, or measured nothing to compare.
    """
    baselines: dict[tuple[str, str, str], Baseline] = {}
    for name in runs:
        record = finished(RunStore(root).find(name))
        for baseline in _promotable(record):
            key = (baseline.profile, baseline.scenario, baseline.backend)
            path = baseline_path(folder, *key)
            if add and key not in baselines and path.exists():
                baselines[key] = read_baseline(path)
            baselines[key] = merged(baselines[key], baseline) if key in baselines else baseline
    lines = []
    for baseline in baselines.values():
        path = write_baseline(folder, baseline)
        starts = max(len(baseline.values(name)) for name in baseline.units)
        lines.append(f"{path}: {len(baseline.sessions)} session(s), {starts} starts of {', '.join(baseline.units)}")
        if starts < _ADVISED_STARTS:
            lines.append(
                f"  note: {starts} starts can show that nothing changed by 5 %, but hardly a loss; "
                f"record with --moegpu-starts={_ADVISED_STARTS} or more"
            )
    return lines


def _promotable(record: RunRecord) -> list[Baseline]:
    found = []
    for evidence in record.evidence:
        if real := next((gpu.emulated_on for gpu in evidence.gpus if gpu.emulated_on), None):
            raise RecordError(
                f"run {record.id}, {evidence.scenario}: a rehearsal on {real} (--moegpu-emulate-vram) can never become "
                "the baseline of the real card"
            )
        bad = faults_of(record, evidence)
        if bad:
            raise RecordError(f"run {record.id}, {evidence.scenario}: not good enough for a baseline: {'; '.join(bad)}")
        baseline = baseline_of(record, evidence)
        if baseline.units:
            found.append(replace(baseline, golden=golden_of(evidence)))
    if not found:
        raise RecordError(f"run {record.id} measured nothing that can be compared")
    return found


def finished(folder: Path) -> RunRecord:
    """Read a run that was finished.

    Raises:
        RecordError: It cannot be read, or was not.
    """
    record = read_run(folder)
    if record.status != "finished":
        raise RecordError(f"run {record.id} is {record.status}: only a finished run can be promoted or compared")
    return record


def compare_runs(a: str, b: str, root: Path) -> tuple[str, int]:
    """Judge run B against run A, metric by metric; returns the text and the exit code of `core.gate`.

    Raises:
        RecordError: A run cannot be read or was not finished, or the first measured nothing.
    """
    base, now = (finished(RunStore(root).find(name)) for name in (a, b))
    later = {(e.scenario, e.backend): e for e in now.evidence}
    verdicts: list[Verdict] = []
    for evidence in base.evidence:
        found = later.get((evidence.scenario, evidence.backend))
        scenario, profile = as_asked(base, evidence)
        bad = faults_of(base, evidence)
        baseline = baseline_of(base, evidence)
        for metric in baseline.units:
            comparison = Comparison(
                metric=metric, scenario=scenario, profile=profile, session_cv=scenario.limits.session_cv
            )
            if bad:
                verdicts.append(comparison.impossible(f"run {base.id} is no measure for others: {'; '.join(bad)}"))
            elif found is None:
                verdicts.append(comparison.impossible(f"run {now.id} did not measure {evidence.scenario}"))
            else:
                verdicts.append(comparison.look(found, baseline))
    if not verdicts:
        raise RecordError(f"run {base.id} measured nothing that can be compared")
    decision = decide(verdicts)
    texts = [failure_text(v) for v in verdicts if not v.outcome.green]
    return "\n\n".join([results_table(verdicts), *texts, decision.headline]), decision.exit_code


def check_baselines(folder: Path) -> tuple[list[str], int]:
    """Read every baseline below a folder; a line per file, and 2 when one is damaged or lies in the wrong place.

    Raises:
        RecordError: There is no such folder.
    """
    if not folder.is_dir():
        raise RecordError(f"{folder} is not a folder")
    lines, code = [], 0
    for path in baseline_files(folder):
        try:
            baseline = read_baseline(path)
            right = baseline_path(folder, baseline.profile, baseline.scenario, baseline.backend)
            if right != path:
                raise RecordError(f"{path}: belongs to {right}")
            lines.append(f"ok    {path}")
        except RecordError as error:
            lines.append(f"BAD   {error}")
            code = 2
    return lines or [f"no baselines below {folder}"], code
