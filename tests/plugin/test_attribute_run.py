"""`--moegpu-attribute` as a person sees it, with a server that is wrong only under some flags."""

from __future__ import annotations

import json
import shlex

import pytest

from pytest_moegpu.core.trials import Change, Result
from pytest_moegpu.host.store import read_attribution
from tests.fakes.llama_server import VARIABLE
from tests.fakes.project import Project, section, usage_error

ONE_START = ("--moegpu-starts=1", "--moegpu-level=1", "-k", "output")
WRONG = json.dumps({"wrong": True})


def where(project: Project, pattern: str, do: str) -> None:
    """Have the program do something first where its command line has these words in a row."""
    inner = project.program.with_name("inner-server")
    project.program.rename(inner)
    project.program.write_text(f'#!/bin/sh\ncase " $* " in *" {pattern} "*) {do};; esac\nexec "{inner}" "$@"\n')
    project.program.chmod(0o755)


def wrong_with(project: Project, pattern: str) -> None:
    """Have the program answer wrongly where its command line has these words in a row."""
    where(project, pattern, f"export {VARIABLE}={shlex.quote(WRONG)}")


def settings(project: Project, **values: str) -> None:
    """Put launch settings into the scenario."""
    path = project.catalog / "scenarios/fake-1k.toml"
    lines = "".join(f'{name} = "{value}"\n' for name, value in values.items())
    path.write_text(path.read_text().replace("[settings]\n", f"[settings]\n{lines}"))


def told(result: pytest.RunResult) -> list[str]:
    """Return the lines of the attribution in the failure text, without their indent."""
    text = section(result.stdout.str(), "FAILED  known answers").splitlines()
    first = next(number for number, line in enumerate(text) if line.startswith("  attribution"))
    width = len(text[first]) - len(text[first].removeprefix("  attribution").lstrip())
    found = [text[first][width:]]
    for line in text[first + 1 :]:
        if not line.startswith(" " * width):
            break
        found.append(line[width:])
    return found


def test_flash_attention_is_named_when_leaving_it_off_cures(project: Project) -> None:
    settings(project, flash_attention="on")
    wrong_with(project, "--flash-attn on")
    result = project.run(*ONE_START, "--moegpu-attribute")
    assert result.ret == 1
    once, off, other, conclusion = told(result)
    assert once.startswith("as it was, once more: still wrong, ")
    assert off.startswith("flash_attention off: right again, ")
    assert "(known answers 3 of 3 right; text form " in off
    assert other.startswith("another backend: not tried (no other engine is here ")
    assert conclusion == "flash_attention off: right again: the flash attention kernel is the suspect"
    text = result.stdout.str()
    assert "fake-1k: wrong text, looking for what cures it: at most 2 starts, about " in text
    assert text.index("looking for what cures it") < text.index("attribution, as it was, once more: ready after")

    folder = project.store.find("latest")
    kept = read_attribution(folder, "fake-1k")
    assert [(each.trial.change, each.result) for each in kept.tried] == [
        (Change.NOTHING, Result.WRONG),
        (Change.FLASH_ATTENTION, Result.CURED),
        (Change.BACKEND, Result.NOT_TRIED),
    ]
    start = kept.tried[1].start
    assert start is not None
    assert "off" in start.argv
    assert (folder / "server-fake-1k-flash-attention.log").is_file()
    (verdict,) = [v for v in project.last_run().verdicts if v.subject == "known answers"]
    assert verdict.outcome == "FAILED"
    assert conclusion in dict(verdict.lines)["attribution"]
    # The starts of the trials are no starts of the run: nothing is judged from them.
    assert len(project.last_run().evidence[0].starts) == 1


def test_a_cache_type_is_named_and_several_wrong_starts_need_no_repetition(project: Project) -> None:
    settings(project, kv_cache="q8_0")
    wrong_with(project, "--cache-type-k q8_0")
    result = project.run("--moegpu-starts=2", *ONE_START[1:], "--moegpu-attribute")
    assert result.ret == 1
    kv, flash, _, conclusion = told(result)
    assert kv.startswith("kv_cache f16: right again, ")
    assert flash == (
        "flash_attention off, kv_cache f16: not tried (the f16 cache alone is right, and belongs to this one)"
    )
    assert conclusion == "kv_cache f16: right again: the q8_0 KV cache is the suspect"


def test_none_of_them_cured_it_accuses_none_of_them(project: Project) -> None:
    settings(project, kv_cache="q8_0", flash_attention="on")
    result = project.run(*ONE_START, "--moegpu-attribute", wrong=True)
    assert result.ret == 1
    *_, conclusion = lines = told(result)
    assert [line.split(":")[1].split(",")[0].strip() for line in lines[:3]] == ["still wrong"] * 3
    assert conclusion == (
        "none of them cured it (kv_cache f16, flash_attention off, kv_cache f16): the cause is in what they share, "
        "such as the model file, its chat template or the questions"
    )
    assert "suspect" not in "\n".join(lines)


def test_a_fault_that_does_not_come_again_accuses_nobody(project: Project) -> None:
    """Wrong in the first start only: a trial that is right then would be no cure."""
    settings(project, flash_attention="on")
    mark = project.pytester.path / "started"
    where(project, "--model", f'[ -e "{mark}" ] || export {VARIABLE}={shlex.quote(WRONG)}; touch "{mark}"')
    result = project.run(*ONE_START, "--moegpu-attribute")
    assert result.ret == 1
    first, second, _, conclusion = told(result)
    assert first.startswith("as it was, once more: right again, ")
    assert second == "flash_attention off: not tried (the start as it was did not fail again)"
    assert conclusion.startswith("the same start is right this time: the fault comes and goes")


def test_the_budget_is_kept(project: Project) -> None:
    settings(project, kv_cache="q8_0")
    result = project.run(*ONE_START, "--moegpu-attribute", "--moegpu-attribute-starts=1", wrong=True)
    lines = told(result)
    assert [line.partition(": ")[0] for line in lines if "(the budget of 1 starts is used)" in line] == [
        "kv_cache f16",
        "flash_attention off, kv_cache f16",
    ]
    assert lines[-1] == "no trial gave an answer: nothing can be said about the cause"


def test_a_trial_that_does_not_come_up_cures_nothing(project: Project) -> None:
    settings(project, flash_attention="on")
    where(project, "--flash-attn off", 'echo "no such kernel"; exit 9')
    result = project.run(*ONE_START, "--moegpu-attribute", wrong=True)
    _, off, _, conclusion = told(result)
    assert off.startswith("flash_attention off: no answer, ")
    assert "exit code 9" in off
    assert conclusion == "no trial gave an answer: nothing can be said about the cause"


def test_nothing_is_started_where_the_text_is_right(project: Project) -> None:
    result = project.run(*ONE_START, "--moegpu-attribute")
    assert result.ret == 0
    assert "looking for what cures it" not in result.stdout.str()
    assert not list(project.store.find("latest").glob("attribution-*"))


def test_nothing_is_started_unless_it_is_asked_for(project: Project) -> None:
    result = project.run(*ONE_START, wrong=True)
    assert result.ret == 1
    assert "attribution" not in result.stdout.str()
    assert not list(project.store.find("latest").glob("attribution-*"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--moegpu-attribute-starts=3",), ("without --moegpu-attribute", "add that")),
        (("--moegpu-attribute", "--moegpu-attribute-starts=0"), ("at least 1 start",)),
        (("--moegpu-attribute", "--moegpu-attach=http://127.0.0.1:1"), ("--moegpu-attribute with --moegpu-attach",)),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(
    project: Project, given: tuple[str, ...], words: tuple[str, ...]
) -> None:
    usage_error(project.refuse(*given), *words)
