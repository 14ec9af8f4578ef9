"""What surrounds a run: the user's ini file, other plugins, folders elsewhere, options that only tell something."""

from __future__ import annotations

import pytest

from tests.fakes.project import Project, section, usage_error

QUICK = ("--moegpu-starts=1", "--moegpu-level=1")
SAME_PROMPT = """
import pytest

PROMPT = "What is the opposite of up?"

@pytest.mark.moegpu_output(prompt=PROMPT, expect="down")
def test_right(moegpu_verify):
    assert moegpu_verify()

@pytest.mark.moegpu_output(prompt=PROMPT, expect="sideways")
def test_wrong(moegpu_verify):
    moegpu_verify()
"""
SCENARIOS = """
import pytest

@pytest.mark.moegpu(scenario="other-1k")
class TestClass:
    @pytest.mark.moegpu(level=1)
    def test_of_class(self, moegpu_scenario):
        assert moegpu_scenario == "other-1k"

@pytest.mark.parametrize("word", ["a", pytest.param("b", marks=pytest.mark.moegpu(scenario="other-1k"))])
def test_of_parameter(moegpu_scenario, word):
    assert (moegpu_scenario, word) in {("fake-1k", "a"), ("other-1k", "b")}
"""
WITHOUT_PARAMETER = """
import unittest
import pytest

def test_dynamic(request):
    assert request.getfixturevalue("moegpu_verify")("offload")

@pytest.fixture
def verify_of_class(request, moegpu_verify):
    request.instance.verify = moegpu_verify

@pytest.mark.usefixtures("verify_of_class")
class TestUnit(unittest.TestCase):
    def test_unit(self):
        assert self.verify("offload")

@pytest.mark.moegpu(scenario="fake-1k")
def test_named(request):
    assert request.getfixturevalue("moegpu_scenario") == "fake-1k"
    assert request.getfixturevalue("moegpu_verify")("offload")
"""


def _second_scenario(project: Project) -> None:
    text = (project.catalog / "scenarios/fake-1k.toml").read_text()
    project.write("scenarios/other-1k", text.replace("fake-1k", "other-1k"))


def test_own_suites_are_collected_whatever_the_ini_file_says(project: Project) -> None:
    ini = "python_files = check_*.py\npython_functions = it_*\npython_classes = X*\ntestpaths = none\n"
    project.pytester.makeini(f"[pytest]\nmoegpu_catalog = catalog\n{ini}")
    result = project.run(*QUICK)
    assert result.ret == 0
    result.assert_outcomes(passed=4, deselected=11)
    named = project.refuse("--collect-only", "-q", "-p", "no:cacheprovider")
    assert named.stdout.str().count("::test_") == 15


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--dist=load", "--tx", "2*popen"), "--dist=load with --moegpu"),
        (("-d", "--tx", "2*popen"), "--dist=load with --moegpu"),
        (("--tx", "2*popen"), "--tx=2*popen with --moegpu"),
    ],
)
def test_workers_by_another_way_are_refused(project: Project, args: tuple[str, ...], said: str) -> None:
    usage_error(project.refuse(*args), said, "one server at a time", "-n 0")


def test_no_workers_after_all(project: Project) -> None:
    result = project.refuse("--dist=load", "--tx", "2*popen", "-n", "0", "--collect-only", "-q")
    assert result.ret == 0


@pytest.mark.parametrize("option", ["--help", "--version", "--markers", "--fixtures", "--cache-show"])
def test_options_that_only_tell_something_open_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setenv("MOEGPU_PROFILE", "rtx3090")
    result = project.refuse(option, profile=None)
    assert result.ret == 0, result.stderr.str()
    assert project.refuse(option, profile="fake").ret == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("moegpu_verify(baseline='deocde')", ("baseline='deocde'", "did you mean 'decode'?", "peak_memory")),
        ("moegpu_verify(baseline='load')", ("baseline='load'", "known: decode")),
        ("moegpu_verify('offload', 'ofload')", ("'ofload'", "did you mean 'offload'?")),
    ],
)
def test_a_wrong_name_is_told_before_anything_is_measured(project: Project, call: str, words: tuple[str, ...]) -> None:
    project.pytester.makepyfile(test_mine=f"def test_a(moegpu_verify):\n    {call}\n")
    result = project.refuse("test_mine.py")
    assert result.ret == 1
    for word in words:
        assert word in result.stdout.str()
    assert "KeyError: " not in result.stdout.str()
    assert not project.store.ids()


def test_each_expectation_of_the_same_prompt_is_judged_alone(project: Project) -> None:
    project.pytester.makepyfile(test_mine=SAME_PROMPT)
    result = project.run("--moegpu-starts=1", "test_mine.py")
    result.assert_outcomes(passed=1, failed=1)
    told = section(result.stdout.str(), "FAILED  known answers")
    assert "0 of 1 right" in told
    assert "sideways" in told


def test_a_scenario_of_a_class_or_of_one_parameter_holds(project: Project) -> None:
    _second_scenario(project)
    project.pytester.makepyfile(test_mine=SCENARIOS)
    result = project.refuse("test_mine.py", "-v")
    result.assert_outcomes(passed=3, deselected=2)
    assert "test_of_class[other-1k] PASSED" in result.stdout.str()
    only = project.refuse("test_mine.py", "--moegpu-scenario=fake-1k")
    only.assert_outcomes(passed=1, deselected=4)


def test_fixtures_without_a_parameter_take_the_only_scenario(project: Project) -> None:
    project.pytester.makepyfile(test_mine=WITHOUT_PARAMETER)
    result = project.run("--moegpu-starts=1", "test_mine.py")
    result.assert_outcomes(passed=3)
    assert result.ret == 0


def test_fixtures_without_a_parameter_ask_which_of_several_scenarios(project: Project) -> None:
    _second_scenario(project)
    project.pytester.makepyfile(test_mine="def test_a(request):\n    request.getfixturevalue('moegpu_verify')\n")
    result = project.refuse("test_mine.py", "--moegpu-scenario=fake-1k,other-1k")
    result.assert_outcomes(failed=1)
    assert "which scenario?" in result.stdout.str()
    assert "(fake-1k, other-1k)" in result.stdout.str()


def test_a_summary_page_that_cannot_be_written_is_told_and_changes_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.pytester.path))
    result = project.run(*QUICK, "-W", "error")
    assert result.ret == 0
    assert f"GITHUB_STEP_SUMMARY: cannot write {project.pytester.path}" in result.stdout.str()
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


def test_a_run_without_the_junit_plugin(project: Project) -> None:
    result = project.run(*QUICK, "-p", "no:junitxml")
    assert result.ret == 0
    result.assert_outcomes(passed=4, deselected=11)


def test_folders_given_on_the_command_line_are_in_the_lines_to_paste(project: Project) -> None:
    elsewhere = project.pytester.path / "my runs"
    folders = ("--moegpu-baselines=kept", f"--moegpu-runs={elsewhere}")
    result = project.run("--moegpu-starts=1", "--moegpu-level=2", "-k", "output or decode", *folders)
    text = result.stdout.str()
    if result.ret == 0:
        assert "--baselines kept" in text
        assert f"keep it as baseline: moegpu promote '{elsewhere.name}/" in text
    failed = project.run("--moegpu-starts=1", "-k", "output", *folders, wrong=True)
    rerun = section(failed.stdout.str(), "FAILED  known answers").partition("  rerun")[2]
    assert f"--moegpu-baselines={project.pytester.path / 'kept'}" in rerun
    assert f"'--moegpu-runs={elsewhere}'" in rerun
    assert "keep it as baseline" not in failed.stdout.str()
