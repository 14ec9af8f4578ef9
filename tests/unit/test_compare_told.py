"""What a verdict against a baseline says beside the number: its age, what moved, and all that forbids comparing."""

from __future__ import annotations

from dataclasses import replace

from pytest_moegpu.core.compare import compare
from pytest_moegpu.core.designs import Design
from pytest_moegpu.core.evidence import Evidence
from pytest_moegpu.core.model import Stack
from pytest_moegpu.core.verdict import Metric, Outcome, Verdict
from tests.unit.builders import baseline, evidence, scenario, start

SAME = (99.0, 100.0, 100.5, 101.0, 100.2)
HALF = tuple(value / 2 for value in SAME)
DAY = 86_400.0


def judged(values: tuple[float, ...], found: Evidence, **more: object) -> Verdict:
    return compare(Metric(name="decode", values=values), found, scenario(**more), baseline())  # type: ignore[arg-type]


def later(days: int) -> Evidence:
    """A run that many days after the baseline's own, of 30 November."""
    return evidence(*(start(n, started_at=f"2026-12-{days:02}T10:00:00+00:00") for n in (1, 2)))


def of(verdict: Verdict, label: str) -> list[str]:
    return [text for name, text in verdict.lines if name == label]


def test_a_baseline_that_is_too_old_is_said_whatever_the_outcome() -> None:
    for values in (SAME, HALF):
        old = judged(values, later(10), baseline_age_seconds=9 * DAY)
        assert of(old, "age") == [
            "the baseline is 10 days old, more than 9: record it again on the stack it stands for"
        ]
        assert of(judged(values, later(10), baseline_age_seconds=10 * DAY), "age") == []
    assert of(judged(SAME, later(10)), "age") == [], "180 days unless the scenario says otherwise"


def test_starts_of_one_session_have_no_age() -> None:
    metric = Metric(name="decode", values=SAME)
    limits = scenario(baseline_age_seconds=DAY)
    found = replace(later(10), noted={"host": "rig"})
    (only,) = baseline().sessions
    base = replace(baseline(), sessions=(replace(only, noted={"host": "rig"}),))
    assert of(compare(metric, found, limits, base, design=Design.INTERLEAVED), "age") == []


def test_a_loss_names_what_moved_alone() -> None:
    moved = replace(later(1), stack=Stack(driver="590.1", cuda_driver="13.1"))
    verdict = judged(HALF, moved)
    assert verdict.outcome is Outcome.REGRESSED
    assert of(verdict, "cause") == [
        "only the driver moved (driver 580.159 → 590.1, CUDA driver 13.0 → 13.1): the suspect"
    ]
    assert of(judged(SAME, moved), "cause") == []
    assert of(judged(HALF, later(1)), "cause") == [], "nothing moved: the note says so"


def test_what_was_not_recorded_is_not_ruled_out() -> None:
    moved = replace(later(1), stack=Stack(driver="590.1", cuda_driver="13.1", kernel="6.8", toolkit="13.1"))
    (told,) = of(judged(HALF, moved), "cause")
    assert told == (
        "only the driver moved (driver 580.159 → 590.1, CUDA driver 13.0 → 13.1): the suspect; "
        "not recorded on one side, so not ruled out: toolkit and kernel"
    )


def test_a_refusal_lists_must_match_fields_and_forbidden_moves_together() -> None:
    found = evidence(identity={"gpu.ecc": "off", "settings.batch": "256"}, stack=Stack(driver="590.1"))
    base = replace(baseline(), identity={"gpu.ecc": "on", "settings.batch": "512"})
    verdict = compare(
        Metric(name="decode", values=SAME), found, scenario(), base, varying=frozenset({"engine", "kernel"})
    )
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    assert verdict.reason == (
        "must match but differs: gpu.ecc on → off, settings.batch 512 → 256; only engine, kernel may vary, but this "
        "moved: driver 580.159 → 590.1, CUDA driver 13.0 → not known"
    )
