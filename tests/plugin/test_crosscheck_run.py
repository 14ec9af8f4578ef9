"""The cross-check of the text through a whole run: left out unless it is asked for, and what it then says."""

from __future__ import annotations

import sys

from tests.fakes.project import Project, section

ASKED = ("--moegpu-starts=1", "-k", "crosscheck")
PROGRAM = """#!{python} -IS
import sys
print("banner\\n\\n>", sys.argv[sys.argv.index("--prompt") + 1])
print("{answer}\\n\\nExiting...")
"""


def one_shot(project: Project, answer: str) -> str:
    """Write a stand-in for llama-cli that always says this, and name it in the variable."""
    program = project.program.with_name("my-cli")
    program.write_text(PROGRAM.format(python=sys.executable, answer=answer))
    program.chmod(0o755)
    project.monkeypatch.setenv("MOEGPU_LLAMA_CLI", str(program))
    return str(program)


def test_it_is_left_out_unless_it_is_asked_for(project: Project) -> None:
    result = project.refuse("--collect-only", "-q")
    assert "test_output.py" in result.stdout.str()
    assert "test_crosscheck" not in result.stdout.str()
    assert "test_crosscheck.py" in project.refuse("--collect-only", "-q", "-k", "crosscheck").stdout.str()
    one_shot(project, "x")
    assert "test_crosscheck.py" in project.refuse("--collect-only", "-q").stdout.str()


def test_the_same_answer_passes(project: Project) -> None:
    one_shot(project, "The capital of Japan is Tokyo.")
    result = project.run(*ASKED)
    result.assert_outcomes(passed=1, deselected=15)
    result.stdout.fnmatch_lines("fake-1k *crosscheck *llama-cli *same text *PASS")
    (evidence,) = project.last_run().evidence
    assert evidence.oneshot is not None
    assert (evidence.oneshot.prompt, evidence.oneshot.exit_code) == ("What is the capital of Japan?", 0)
    assert (project.store.find("latest") / "fake-1k-llama-cli.log").is_file()


def test_a_server_that_is_wrong_alone_is_told_from_a_broken_model(project: Project) -> None:
    one_shot(project, "The capital of Japan is Tokyo.")
    told = section(project.run(*ASKED, wrong=True).stdout.str(), "FAILED  llama-cli")
    assert "the server is wrong and llama-cli is right: the server around the model, or its flags" in told
    assert "I cannot tell." in told
    assert "The capital of Japan is Tokyo." in told
    one_shot(project, "@@@@@@")
    told = section(project.run(*ASKED, wrong=True).stdout.str(), "FAILED  llama-cli")
    assert "both wrong: the model file, or the kernels" in told


def test_a_missing_program_is_an_error_that_says_how_to_give_it(project: Project) -> None:
    project.monkeypatch.setenv("PATH", str(project.pytester.path))
    result = project.run(*ASKED)
    assert result.ret == 1
    told = section(result.stdout.str(), "ERROR  llama-cli")
    assert "'llama-cli' is not on PATH: give it by MOEGPU_LLAMA_CLI" in told
