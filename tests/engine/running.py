"""Running a real engine through the whole plugin, and what every healthy run of one must show."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from pytest_moegpu.core.evidence import StartEvidence
from pytest_moegpu.core.record import RunRecord
from pytest_moegpu.core.verdict import Outcome
from pytest_moegpu.host.cache import cache_dir
from pytest_moegpu.host.store import RunStore, read_run

__all__ = ["CACHE", "RUN_SECONDS", "installed", "judged_good", "nothing_left", "prepare", "run"]

CACHE = cache_dir()
"""Asked for here, since pytester gives a home folder of its own."""
RUN_SECONDS = 600
_BUSY = "client too slow"


def installed(program: str, title: str) -> Path:
    """Return the cache folder with the engine in it. Without it a test fails: nothing else proves the real program."""
    assert (CACHE / "engines" / program).exists(), f"{title} is not installed: run scripts/engines fastllm mlx"
    return CACHE


def prepare(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, variable: str) -> pytest.Pytester:
    """Make a folder with nothing in it, and nothing of the caller's own choice of a program, model or profile."""
    for name in ("MOEGPU_PROFILE", "MOEGPU_MODEL", variable, "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MOEGPU_CACHE", str(CACHE))
    pytester.makeini("[pytest]\nmoegpu_catalog = catalog\n")
    (pytester.path / "catalog/profiles").mkdir(parents=True)
    return pytester


def run(project: pytest.Pytester, *args: str) -> tuple[pytest.RunResult, RunRecord]:
    """Run the plugin's own suites with one start; return what was printed, and the bundle that was kept."""
    result = project.runpytest_subprocess("--moegpu-starts=1", *args, timeout=RUN_SECONDS)
    return result, read_run(RunStore(project.path / ".moegpu/runs").find("latest"))


def judged_good(record: RunRecord, profile: str, text: str) -> StartEvidence:
    """Make sure that a run is finished and every check of it good; returns its one start."""
    assert (record.status, record.profile) == ("finished", profile), text
    (evidence,) = record.evidence
    (start,) = evidence.starts
    assert start.failure is None, text
    assert (start.log.oom_lines, start.log.fatal_lines) == ((), ())
    outcomes: dict[str, set[Outcome]] = {}
    for verdict in record.verdicts:
        # A speed may be doubted on a busy machine, and then for that alone.
        if verdict.check not in ("throughput", "baseline") or _BUSY not in verdict.reason:
            outcomes.setdefault(verdict.check, set()).add(verdict.outcome)
    assert outcomes.pop("baseline", {Outcome.NO_BASELINE}) == {Outcome.NO_BASELINE}, text
    assert outcomes.pop("throughput", {Outcome.PASS}) == {Outcome.PASS}, text
    judged = ("preflight", "offload", "output", "axes", "context", "memory", "stability")
    assert outcomes == {check: {Outcome.PASS} for check in judged}, text
    decode = next(v for v in record.verdicts if (v.check, v.metric) == ("throughput", "decode"))
    assert decode.value is not None
    assert decode.value > 1
    return start


def nothing_left(start: StartEvidence) -> None:
    """Make sure that no process of a start lives any more."""
    assert start.left_over == ()
    assert [pid for pid in start.pids if psutil.pid_exists(pid)] == []
