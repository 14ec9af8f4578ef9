from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# gguf brings PyYAML, whose types are not installed.
yaml: Any = importlib.import_module("yaml")

ROOT = Path(__file__).parents[2]
SCRIPTS = [ROOT / "scripts" / name for name in ("_env.sh", "try", "test", "lint")] + [ROOT / ".ci" / "run"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
BASH = shutil.which("bash") or ""

pytestmark = pytest.mark.skipif(not BASH, reason="needs bash")


def _load(path: Path) -> dict[str, Any]:
    loaded = yaml.safe_load(path.read_text())
    assert isinstance(loaded, dict)
    # YAML 1.1 reads the key `on` as a boolean.
    return {("on" if key is True else key): value for key, value in loaded.items()}


def _steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job.get("steps", [])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_script_is_valid_strict_and_executable(path: Path) -> None:
    done = subprocess.run([BASH, "-n", str(path)], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    if path.suffix != ".sh":
        assert "set -euo pipefail" in path.read_text()
        assert os.access(path, os.X_OK)


def test_ci_runs_the_test_script() -> None:
    assert "/../scripts/test" in (ROOT / ".ci" / "run").read_text()


def test_no_usable_python_is_said(tmp_path: Path) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name in ("bash", "dirname"):
        (bin_folder / name).symlink_to(shutil.which(name) or "")
    old = bin_folder / "python3"
    old.write_text(f"#!{BASH}\nexit 1\n")
    old.chmod(0o755)
    done = subprocess.run(
        [BASH, "-euo", "pipefail", "-c", f'. "{ROOT}/scripts/_env.sh"; find_python'],
        check=False,
        capture_output=True,
        text=True,
        env={"PATH": str(bin_folder)},
    )
    assert done.returncode == 2
    assert "no Python 3.11 or newer" in done.stderr


def test_a_newer_python_is_found_behind_an_old_one(tmp_path: Path) -> None:
    for name, code in (("python3", 1), ("python3.12", 0)):
        path = tmp_path / name
        path.write_text(f"#!{BASH}\nexit {code}\n")
        path.chmod(0o755)
    done = subprocess.run(
        [BASH, "-euo", "pipefail", "-c", f'. "{ROOT}/scripts/_env.sh"; find_python'],
        check=False,
        capture_output=True,
        text=True,
        env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
    )
    assert done.stdout.strip() == str(tmp_path / "python3.12")


def test_the_workflows_are_there() -> None:
    assert {"ci.yml", "gpu.yml", "promote.yml"} <= {path.name for path in WORKFLOWS}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_workflow_is_pinned_and_has_no_permissions_by_default(path: Path) -> None:
    text = path.read_text()
    workflow = _load(path)
    assert workflow["permissions"] == {}
    for job in workflow["jobs"].values():
        assert "permissions" in job
        assert job["timeout-minutes"]
    used = [line for line in text.splitlines() if re.match(r"\s*-?\s*uses:", line)]
    assert all(re.search(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line) for line in used), used
    for step in _steps(workflow):
        if str(step.get("uses", "")).startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", ""), "values reach a shell through env only"


def test_one_pin_per_action() -> None:
    pins: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for step in _steps(_load(path)):
            if "uses" in step:
                name, _, pin = step["uses"].partition("@")
                pins.setdefault(name, set()).add(pin)
    assert {name: len(found) for name, found in pins.items() if len(found) > 1} == {}


def test_gpu_workflow_guards_the_machine() -> None:
    text = (ROOT / ".github" / "workflows" / "gpu.yml").read_text()
    workflow = _load(ROOT / ".github" / "workflows" / "gpu.yml")
    assert set(workflow["on"]) == {"workflow_call", "workflow_dispatch", "schedule", "pull_request"}
    assert set(workflow["on"]["workflow_call"]["inputs"]) >= {"profile", "runner-label", "args"}
    assert "cancel-in-progress: true" not in text
    assert not re.search(r"\b(pkill|killall|kill)\b", text)
    (job,) = workflow["jobs"].values()
    assert "github.event.pull_request.head.repo.full_name == github.repository" in job["if"]
    assert job["runs-on"][0] == "self-hosted"
    assert job["concurrency"]["cancel-in-progress"] is False
    assert "runner-label" in job["concurrency"]["group"]
    (upload,) = (s for s in job["steps"] if str(s.get("uses", "")).startswith("actions/upload-artifact@"))
    assert upload["if"] == "always()"
    assert upload["with"]["include-hidden-files"] is True, ".moegpu is hidden and would be left out"


def test_only_the_promote_job_may_write() -> None:
    for path in WORKFLOWS:
        for name, job in _load(path)["jobs"].items():
            if "write" in job["permissions"].values():
                assert (path.name, name) == ("promote.yml", "promote")


def test_every_job_is_required_by_all_checks() -> None:
    jobs = _load(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]
    assert set(jobs["all-checks"]["needs"]) == set(jobs) - {"all-checks"}
    assert jobs["all-checks"]["if"] == "always()"
