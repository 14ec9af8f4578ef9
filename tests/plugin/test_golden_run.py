"""Scores of the fixed texts through whole runs: promoted, held against, and what a server that changed then gets."""

from __future__ import annotations

import json

import pytest

from pytest_moegpu.core.baseline import BASELINE_SCHEMA, Baseline
from pytest_moegpu.host.store import read_baseline, write_baseline
from pytest_moegpu.session.reference import golden_of
from tests.fakes.project import Project, section, usage_error

ASKED = ("--moegpu-starts=1", "-k", "golden", "-rs")


@pytest.fixture
def kept(project: Project) -> Project:
    """A project whose baseline holds the golden of a run, and nothing else: no speed is measured for it."""
    project.run(*ASKED, scores=0)
    (evidence,) = project.last_run().evidence
    baseline = Baseline(
        schema=BASELINE_SCHEMA,
        profile=evidence.profile,
        scenario=evidence.scenario,
        backend=evidence.backend,
        check_version=evidence.check_version,
        identity=evidence.identity,
        stack=evidence.stack,
        sessions=(),
        golden=golden_of(evidence),
    )
    assert write_baseline(project.pytester.path / "baselines", baseline) == project.baseline
    return project


def test_without_a_golden_it_is_skipped_and_never_green(project: Project) -> None:
    result = project.run(*ASKED, scores=0)
    assert "there is no golden of this model; promote a good run: moegpu promote " in result.stdout.str()
    result.assert_outcomes(skipped=1, deselected=result.parseoutcomes()["deselected"])
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_golden_holds_every_text_in_little_room(kept: Project) -> None:
    golden = read_baseline(kept.baseline).golden
    assert golden is not None
    assert golden.made_with == "llamacpp 4242 (fake)"
    assert len(golden.texts) == 8
    assert all(len(text.rows) == 32 and len(text.context) == 40 for text in golden.texts)
    assert len(json.dumps(json.loads(kept.baseline.read_text())["golden"], indent=2)) < 60_000


def test_the_same_numbers_pass(kept: Project) -> None:
    result = kept.run(*ASKED, scores=0)
    result.stdout.fnmatch_lines("fake-1k *golden *golden *0.0000 nat *PASS")
    assert result.ret == 0


def test_numbers_within_the_floor_pass_and_beyond_it_fail(kept: Project) -> None:
    within = kept.run(*ASKED, scores=0.05)
    within.stdout.fnmatch_lines("fake-1k *golden *golden *0.0* nat *PASS")
    assert within.ret == 0
    (verdict,) = kept.last_run().verdicts
    assert verdict.findings[0].startswith("the numbers moved, within the floor: ")
    beyond = kept.run(*ASKED, scores=4.0)
    told = section(beyond.stdout.str(), "FAILED  golden")
    assert "class correctness" in told
    assert "beyond the floor: mean difference" in told
    assert "for another kernel path: mean difference" in told
    assert beyond.ret == 1


def test_numbers_that_are_none_fail(kept: Project) -> None:
    told = section(kept.run(*ASKED, scores="nan").stdout.str(), "FAILED  golden")
    assert "log-probabilities that are no numbers: 256 places, the first: start 1, prose, token 0" in told


def test_a_server_that_gives_no_log_probabilities_is_not_green(kept: Project) -> None:
    told = section(kept.run(*ASKED).stdout.str(), "INCONCLUSIVE  golden")
    assert "too little in common: 0 of 256 tokens could be compared" in told
    assert "HTTP 404" in told


def test_a_golden_can_be_named_and_is_looked_for_before_anything_starts(kept: Project) -> None:
    elsewhere = kept.baseline.rename(kept.pytester.path / "kept.json")
    result = kept.run(*ASKED, f"--moegpu-golden={elsewhere.name}", scores=0)
    result.stdout.fnmatch_lines("fake-1k *golden *golden *0.0000 nat *PASS")
    usage_error(kept.refuse("--moegpu-golden=none.json"), "--moegpu-golden=", "there is no such baseline")
