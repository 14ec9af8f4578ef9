"""A user's project with a profile of its own, whose server is the fake; pytest runs in it as a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# Loaded here, before pytester takes its snapshot of modules: some of what it imports cannot be loaded twice.
import pytest_moegpu.run  # noqa: F401
from pytest_moegpu.core.record import RunRecord
from pytest_moegpu.host.store import RunStore, read_run
from tests.fakes.gguf import write_gguf
from tests.fakes.llama_server import ANSWERS, VARIABLE, install

_BUSY = "client too slow"
_TRIES = 4
_ROOT = Path(__file__).parents[2]

_PROFILE = """
schema = 1
name = "fake"
title = "A server that only pretends"
probe = "host"
backend = "llamacpp"
program = {program}
model = "tiny"
model_path = {model}
scenarios = ["fake-1k"]

[gpu]
names = []
kind = "cpu"
memory = "64 MiB"

[limits]
ready = "20 s"
request = "10 s"
"""
_SCENARIO = """
schema = 1
name = "fake-1k"
title = "Context 1,024"

[settings]
context = 1024

[workload]
prompt_tokens = 64
output_tokens = 16
requests = 3
context_fills = [0.5, 0.95]
context_depths = [0.9, 0.1]
context_output_tokens = 8
axes = ["not-streamed"]

[limits]
memory_budget = "1 GiB"
"""
_MODEL = """
schema = 1
name = "tiny"
title = "Tiny"
architecture = "llama"
layers = 4
kv_layers = 4
kv_heads = 2
head_dim = 8
vocabulary = 128
context_train = 8192
embedding = 64
licence = "Apache-2.0"
"""


@dataclass(frozen=True, kw_only=True)
class JUnit:
    """What a JUnit file says: its own counts, suite properties, and per test name its state and properties."""

    counts: dict[str, int]
    suite: dict[str, str]
    tests: dict[str, str]
    properties: dict[str, dict[str, str]]


@dataclass
class Project:
    """Runs pytest and moegpu in a folder."""

    pytester: pytest.Pytester
    monkeypatch: pytest.MonkeyPatch
    program: Path
    model: Path
    catalog: Path
    summary: Path
    behaviour: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def create(cls, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
        """Write the catalog, the model and the ini file."""
        root = pytester.path
        made = cls(
            pytester=pytester,
            monkeypatch=monkeypatch,
            program=install(root / "bin"),
            model=write_gguf(root / "tiny.gguf"),
            catalog=root / "catalog",
            summary=root / "summary.md",
        )
        answers = "".join(
            f"\n[[known_answers]]\nprompt = {json.dumps(prompt)}\nmargin = 2.0\n"
            f"expect = [{json.dumps(text.split()[-1].strip('.'))}]\n"
            for prompt, text in ANSWERS.items()
        )
        paths = {"program": json.dumps(str(made.program)), "model": json.dumps(str(made.model))}
        made.write("profiles/fake", _PROFILE.format(**paths))
        made.write("scenarios/fake-1k", _SCENARIO)
        made.write("models/tiny", _MODEL + answers)
        pytester.makeini("[pytest]\nmoegpu_catalog = catalog\n")
        ours = ("MOEGPU_PROFILE", "MOEGPU_MODEL", "MOEGPU_LLAMA_SERVER", "MOEGPU_LLAMA_CLI")
        for name in (*ours, "CI", "CUDA_VISIBLE_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        # One cache of compiled modules for all runs of this session, also where the environment forbids any.
        monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(root.parent / "pycache"))
        monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        # Its plugin loads the whole of hypothesis at the end of every run.
        monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")
        monkeypatch.setenv("MOEGPU_CACHE", str(root / "cache"))
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(made.summary))
        return made

    @property
    def store(self) -> RunStore:
        """The bundles of this project."""
        return RunStore(self.pytester.path / ".moegpu/runs")

    @property
    def baseline(self) -> Path:
        """Where the baseline of the fake lies."""
        return self.pytester.path / "baselines/fake/fake-1k/llamacpp.json"

    def write(self, name: str, text: str) -> Path:
        """Write a file of the catalog, such as `profiles/mine`."""
        path = self.catalog / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run(self, *args: str, profile: str | None = "fake", **behaviour: Any) -> pytest.RunResult:
        """Run pytest once, the server behaving as told."""
        self.monkeypatch.setenv(VARIABLE, json.dumps(self.behaviour | behaviour))
        given = () if profile is None else (f"--moegpu={profile}",)
        return self.pytester.runpytest_subprocess(*given, *args, timeout=90)

    def refuse(self, *args: str, profile: str | None = "fake", **behaviour: Any) -> pytest.RunResult:
        """Run pytest in this process, which is quicker, for what is refused before anything starts."""
        self.monkeypatch.setenv(VARIABLE, json.dumps(self.behaviour | behaviour))
        given = () if profile is None else (f"--moegpu={profile}",)
        return self.pytester.runpytest_inprocess(*given, *args)

    def measure(
        self, *args: str, profile: str | None = "fake", patient: bool = True, **behaviour: Any
    ) -> pytest.RunResult:
        """Run pytest with speeds that count: again where the plugin itself says that this machine was too busy.

        `patient` is for runs in which no speed is compared with another: the client may be late there.
        """
        if patient:
            self.monkeypatch.setenv("PYTHONPATH", str(_ROOT))
            args = ("-p", "tests.fakes.patient", *args)
        for _ in range(_TRIES if patient else 3 * _TRIES):
            result = self.run(*args, profile=profile, **behaviour)
            if _BUSY not in result.stdout.str():
                break
        return result

    def moegpu(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run the command `moegpu`."""
        argv = [sys.executable, "-m", "pytest_moegpu.cli", *args]
        return subprocess.run(argv, cwd=self.pytester.path, capture_output=True, text=True, timeout=60, check=False)

    def last_run(self) -> RunRecord:
        """Read the newest bundle."""
        return read_run(self.store.find("latest"))

    def junit(self, path: str = "junit.xml") -> JUnit:
        """Read a JUnit file."""
        root = ET.parse(self.pytester.path / path).getroot()
        suite = root.find("testsuite")
        assert suite is not None
        cases = {case.get("name", ""): case for case in suite.iter("testcase")}
        children = {name: [child.tag for child in case if child.tag != "properties"] for name, case in cases.items()}
        return JUnit(
            counts={name: int(suite.get(name, "-1")) for name in ("tests", "failures", "errors", "skipped")},
            suite=_properties(suite),
            tests={name: (tags or ["passed"])[0] for name, tags in children.items()},
            properties={name: _properties(case) for name, case in cases.items()},
        )


def _properties(element: ET.Element) -> dict[str, str]:
    return {p.get("name", ""): p.get("value", "") for p in element.findall("properties/property")}


def usage_error(result: pytest.RunResult, *words: str) -> str:
    """Assert a usage error of one line that holds these words, without a traceback; returns the line."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR, result.stdout.str()
    text = result.stderr.str() + result.stdout.str()
    assert "Traceback" not in text
    assert "INTERNALERROR" not in text
    lines = [line for line in text.splitlines() if line.startswith("ERROR: ")]
    assert len(lines) == 1, text
    for word in words:
        assert word in lines[0], lines[0]
    return lines[0]


def section(text: str, start: str) -> str:
    """Return the lines of one failure text: from the line that begins like this to the first that is not of it."""
    found = re.search(rf"^{re.escape(start)}.*(?:\n .*)*", text, re.MULTILINE)
    assert found is not None, text
    return found[0]
