"""Which known answers a start is asked, and what is known of them: from the catalog, or from the promoted starts."""

from __future__ import annotations

from pathlib import Path

from pytest_moegpu.core.model import Scenario
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.core.probemargins import calibrated, few
from pytest_moegpu.errors import RecordError
from pytest_moegpu.host.store import baseline_path, read_baseline
from pytest_moegpu.session.target import Target

__all__ = ["answers_of"]


def answers_of(target: Target, baselines: Path, scenario: Scenario) -> tuple[KnownAnswer, ...]:
    """Return the known answers that a scenario asks of its model, with the margins that its baseline holds for them.

    Margins are of one model file: a baseline of another says nothing. A damaged one is told when it is judged.
    """
    answers = few(target.model.known_answers, scenario.workload.known_answers)
    path = baseline_path(baselines, target.profile.name, scenario.name, target.backend.name)
    try:
        baseline = read_baseline(path) if path.exists() else None
    except RecordError:
        return answers
    if baseline is None or baseline.identity.get("model.sha256") != target.file.sha256:
        return answers
    return calibrated(answers, baseline.margins)
