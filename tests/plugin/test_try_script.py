"""scripts/try shows the bundle of its own run, and none where the run made none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TRY = Path(__file__).parents[2] / "scripts/try"
ENVIRONMENT = """
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/venv
step() { :; }
ensure_env() { :; }
"""


def _run(root: Path, pytest_does: str) -> subprocess.CompletedProcess[str]:
    program = root / "venv/bin/pytest"
    program.write_text(f"#!/bin/sh\n{pytest_does}\n")
    program.chmod(0o755)
    argv = ["bash", str(root / "scripts/try")]
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_only_the_bundle_of_this_run_is_shown(tmp_path: Path) -> None:
    for folder in ("scripts", "venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(TRY, tmp_path / "scripts/try")
    (tmp_path / "scripts/_env.sh").write_text(ENVIRONMENT)

    none = _run(tmp_path, "exit 4")
    assert (none.returncode, none.stdout, none.stderr) == (4, "", "")
    made = _run(tmp_path, "mkdir -p .moegpu/runs/20260101-000000-embedded-aaaa")
    assert made.returncode == 0
    assert made.stdout.count(f"{tmp_path}/.moegpu/try/.moegpu/runs/20260101-000000-embedded-aaaa") == 2
    assert "promote .moegpu/runs/20260101-000000-embedded-aaaa" in made.stdout
    again = _run(tmp_path, "touch .moegpu/runs/20260101-000000-embedded-aaaa; exit 1")
    assert (again.returncode, again.stdout) == (1, "")
    nothing = _run(tmp_path, "exit 0")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    more = _run(tmp_path, "mkdir .moegpu/runs/20260102-000000-embedded-bbbb; exit 1")
    assert "20260102-000000-embedded-bbbb" in more.stdout
    assert "aaaa" not in more.stdout
