"""Which known answers a start is asked, and what is known of them: from the catalog, or from the promoted starts."""

from __future__ import annotations

from pathlib import Path

from pytest_moegpu.core.model import KnownAnswer
from pytest_moegpu.core.probemargins import calibrated
from pytest_moegpu.errors import RecordError
from pytest_moegpu.host.store import baseline_path, read_baseline
from pytest_moegpu.session.target import Target

__all__ = ["answers_of"]


def answers_of(target: Target, baselines: Path, scenario: str) -> tuple[KnownAnswer, ...]:
    """Return the known answers of a run's model, with the margins that the baseline of the scenario holds for them.

    Margins are of one model file: a baseline of another says nothing. A damaged one is told when it is judged.
    """
    answers = target.model.known_answers
    path = baseline_path(baselines, target.profile.name, scenario, target.backend.name)
    try:
        baseline = read_baseline(path) if path.exists() else None
    except RecordError:
        return answers
    if baseline is None or baseline.identity.get("model.sha256") != target.file.sha256:
        return answers
    return calibrated(answers, baseline.margins)
