"""A run against the stored baselines: which one, which others of its profile, and what it will be able to see."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from pytest_moegpu.core.baseline import Baseline
from pytest_moegpu.core.evidence import Evidence
from pytest_moegpu.core.identity import parse_varying
from pytest_moegpu.core.model import Scenario
from pytest_moegpu.core.planned import planned_loss
from pytest_moegpu.core.verdict import Verdict
from pytest_moegpu.errors import RecordError
from pytest_moegpu.host.store import baseline_path, read_baseline
from pytest_moegpu.options import Options
from pytest_moegpu.session.judge import Comparison
from pytest_moegpu.session.target import Target

__all__ = ["StoredComparisons", "kin_of"]

# What two scenarios of one machine share, whatever they ask of it.
_SAME_MACHINE = ("backend", "model.sha256")
_GPU = "gpu."


def kin_of(folder: Path, baseline: Baseline) -> tuple[Baseline, ...]:
    """Return the baselines of other scenarios of a profile whose sessions spread as those of this one.

    They are of the same backend, model file and GPU. What cannot be read tells nothing, and is left out.
    """
    found = []
    for path in sorted((folder / baseline.profile).glob(f"*/{baseline.backend}.json")):
        try:
            other = read_baseline(path)
        except RecordError:
            continue
        if other.scenario != baseline.scenario and _machine(other) == _machine(baseline):
            found.append(other)
    return tuple(found)


def _machine(baseline: Baseline) -> dict[str, str]:
    told = baseline.identity.items()
    return {key: text for key, text in told if key in _SAME_MACHINE or key.startswith(_GPU)}


class StoredComparisons:
    """Compares the scenarios of one run with the baselines in its folder."""

    def __init__(self, options: Options, target: Target) -> None:
        self._options = options
        self._target = target

    @property
    def looks(self) -> tuple[int, ...]:
        """The planned numbers of starts."""
        return tuple(sorted({self._options.starts, self._options.max_starts}))

    def comparison(self, metric: str, name: str) -> Comparison:
        """Return the comparison of a metric of a scenario, as the options ask for it."""
        varying = self._options.varying
        scenario = self._target.scenario(name)
        return Comparison(
            metric=metric,
            scenario=scenario,
            profile=self._target.profile,
            looks=self.looks,
            varying=parse_varying(varying) if varying is not None else None,
            session_cv=scenario.limits.session_cv,
        )

    def judge(self, comparison: Comparison, evidence: Evidence, more: Callable[[int], Evidence]) -> Verdict:
        """Judge one metric; a baseline that cannot be read is an ERROR. `more` goes on to a number of starts."""
        try:
            baseline = self._baseline(comparison.scenario.name)
        except RecordError as error:
            return comparison.impossible(str(error))
        kin = kin_of(self._options.baselines, baseline) if baseline is not None else ()
        return replace(comparison, kin=kin).run(evidence, baseline, more)

    def foretell(self, metrics: Iterable[str], scenario: Scenario) -> tuple[str, ...]:
        """Say what loss of each metric will be found; nothing where there is no baseline that can be read."""
        try:
            baseline = self._baseline(scenario.name)
        except RecordError:
            return ()
        if baseline is None:
            return ()
        kin, cv = kin_of(self._options.baselines, baseline), scenario.limits.session_cv
        told = (planned_loss(name, scenario, baseline, self.looks, kin=kin, session_cv=cv) for name in metrics)
        return tuple(f"{scenario.name}: {loss}" for loss in told if loss is not None)

    def _baseline(self, scenario: str) -> Baseline | None:
        target = self._target
        path = baseline_path(self._options.baselines, target.profile.name, scenario, target.backend.name)
        return read_baseline(path) if path.exists() else None
