"""Which golden judges a run: the one that was asked for, that of its own baseline, or another backend's of the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pytest_moegpu.checks.base import Judge
from pytest_moegpu.checks.common import nothing
from pytest_moegpu.checks.golden import Reference, judge_against, unlike_itself
from pytest_moegpu.core.attribution import with_cause
from pytest_moegpu.core.baseline import Baseline
from pytest_moegpu.core.evidence import Evidence
from pytest_moegpu.core.golden import Golden
from pytest_moegpu.core.goldentexts import TEXTS_VERSION
from pytest_moegpu.core.identity import stack_changes
from pytest_moegpu.core.model import Profile, Scenario
from pytest_moegpu.core.verdict import Verdict
from pytest_moegpu.errors import RecordError, UserError
from pytest_moegpu.host.store import baseline_files, baseline_path, read_baseline

__all__ = ["GOLDEN", "References", "golden_of"]

GOLDEN = "golden"
"""The name of the check."""

_SHA = "model.sha256"


@dataclass
class References:
    """Finds the golden of each scenario. `given` is the baseline file that the command line names.

    Raises:
        UserError: That file cannot be read, or holds no golden.
    """

    folder: Path
    profile: str
    backend: str
    model_sha256: str
    given: Path | None = None
    _asked: Reference | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.given is None:
            return
        try:
            baseline = read_baseline(self.given)
        except RecordError as error:
            raise UserError(f"--moegpu-golden={self.given}: {error}") from error
        if baseline.golden is None:
            raise UserError(
                f"--moegpu-golden={self.given}: this baseline holds no golden; promote a run of this version"
            )
        self._asked = Reference(baseline=baseline, source=str(self.given), asked=True)

    def of(self, scenario: str) -> Reference | None:
        """Return the reference of a scenario; None when there is none.

        Raises:
            RecordError: The baseline of the scenario and backend is damaged.
        """
        if self._asked is not None:
            return self._asked
        own = baseline_path(self.folder, self.profile, scenario, self.backend)
        found = Reference(baseline=read_baseline(own), source=str(own)) if own.exists() else None
        if found is not None and found.golden is not None:
            return found
        for path in baseline_files(own.parent):
            other = _readable(path) if path != own else None
            if other is not None and other.golden is not None and other.golden.model_sha256 == self.model_sha256:
                return Reference(baseline=other, source=f"{path}, of another backend")
        return found

    def golden(self, scenario: str) -> Golden | None:
        """Return the golden whose token ids can be scored in a scenario; None where there is none for this model."""
        try:
            reference = self.of(scenario)
        except RecordError:
            # Told when it is judged; measuring goes on with ids of its own.
            return None
        golden = reference.golden if reference is not None else None
        if reference is None or golden is None or golden.texts_version != TEXTS_VERSION:
            return None
        return golden if reference.asked or golden.model_sha256 == self.model_sha256 else None

    def judge(self, evidence: Evidence, scenario: Scenario, profile: Profile) -> tuple[Verdict, ...]:
        """Judge the scores of a scenario against its golden; ERROR when the baseline is damaged."""
        try:
            reference = self.of(scenario.name)
        except RecordError as error:
            return (nothing(scenario, GOLDEN, str(error)),)
        judge: Judge = judge_against(reference)
        verdicts = judge(evidence, scenario, profile)
        if reference is None or reference.asked or reference.baseline.backend != evidence.backend:
            return verdicts
        changes = stack_changes(reference.baseline.stack, evidence.stack)
        return tuple(with_cause(verdict, changes) for verdict in verdicts)


def golden_of(evidence: Evidence) -> Golden | None:
    """Return the golden that the good starts of a run make: the scores of the first of them; None without any.

    Raises:
        RecordError: A number of it is none, or the starts do not agree with each other.
    """
    starts = [start for start in evidence.good_starts if start.scores]
    if not starts or all(score.error for score in starts[0].scores):
        return None
    bad = [f"{s.text}" for start in starts for s in start.scores if not all(t.is_number for t in s.tokens)]
    if bad:
        raise RecordError(f"{evidence.scenario}: no golden: log-probabilities that are no numbers in {', '.join(bad)}")
    if parted := unlike_itself((start.number, start.scores) for start in starts):
        raise RecordError(f"{evidence.scenario}: no golden: its starts do not agree: {parted}")
    stack = evidence.stack
    return Golden(
        model_sha256=evidence.identity.get(_SHA, ""),
        made_with=" ".join(word for word in (evidence.backend, stack.engine_version) if word),
        texts=tuple(score for score in starts[0].scores if not score.error),
        texts_version=TEXTS_VERSION,
    )


def _readable(path: Path) -> Baseline | None:
    """Read another backend's baseline; one that is damaged is that backend's matter."""
    try:
        return read_baseline(path)
    except RecordError:
        return None
