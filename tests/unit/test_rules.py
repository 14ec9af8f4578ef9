"""Rules as data: three answers, versions and architectures as they are compared, and files that are read strictly."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pytest_moegpu.catalog.rulebook import Rulebook
from pytest_moegpu.core.rules import Condition, Confidence, Fact, Operator, Rule, Severity, State, evaluate
from pytest_moegpu.core.ruleversions import in_range, newer, newer_major, runs_on
from pytest_moegpu.errors import CatalogError

RULE = """
schema = 1
name = "mine"
title = "My rules"

[[rule]]
id = "my-rule"
title = "a driver we do not like"
when = [{ fact = "driver.version", version = ">=570, <575" }]
what = "It is slow here."
do = "Take 580."
severity = "warning"
confidence = "reported"
affects = "performance"
sources = ["https://example.org/1"]
date = 2026-11-30
"""


def rule(*conditions: tuple[str, Operator, Fact]) -> Rule:
    return Rule(
        id="r",
        title="t",
        when=tuple(Condition(fact=fact, operator=operator, value=value) for fact, operator, value in conditions),
        what="w",
        do="d",
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        affects="memory",
        sources=("https://example.org",),
        date="2026-11-30",
    )


def state(made: Rule, **facts: Fact) -> State:
    (found,) = evaluate([made], {name.replace("__", "."): value for name, value in facts.items()})
    return found.state


def written(folder: Path, text: str = RULE, name: str = "mine") -> Path:
    (folder / "rules").mkdir(exist_ok=True)
    path = folder / "rules" / f"{name}.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("version", "bounds", "inside"),
    [
        ("13.2.0", ">=13.2.0, <13.2.2", True),
        ("13.2", ">=13.2.0, <13.2.2", True),
        ("13.2.2", ">=13.2.0, <13.2.2", False),
        ("13.10", "<13.9", False),
        ("V13.2.51 (nvcc)", ">13.2.2", True),
        ("0.6.10.post1", "<=0.6.13", True),
        ("580.159.04", "==580.159.4", True),
        ("unknown", ">1", None),
    ],
)
def test_a_version_is_compared_number_by_number(version: str, bounds: str, inside: bool | None) -> None:
    assert in_range(version, bounds) is inside


def test_a_runtime_of_the_drivers_own_minor_is_not_newer() -> None:
    assert newer("13.0.88", "13.0") is False
    assert newer("13.1", "13.0") is True
    assert newer("12.9", "13.0") is False
    assert newer("none", "13.0") is None
    assert newer_major("13.2", "13.0") is False
    assert newer_major("13.0", "12.9") is True
    assert newer_major("13.0", "none") is None


@pytest.mark.parametrize(
    ("built", "capability", "runs"),
    [
        ("8.6", "8.6", True),
        ("8.0", "8.6", True),
        ("8.6", "8.0", False),
        ("8.0", "9.0", False),
        ("8.0+ptx", "9.0", True),
        ("9.0+ptx", "8.6", False),
        ("12.0", "12.1", True),
    ],
)
def test_machine_code_runs_within_a_major_and_ptx_on_anything_newer(built: str, capability: str, runs: bool) -> None:
    assert runs_on(built, capability) is runs


def test_a_build_must_have_kernels_for_each_of_several_gpus() -> None:
    made = rule(("engine.architectures", Operator.NONE_RUNS_ON, "gpu.capabilities"))
    assert state(made, engine__architectures=("8.6",), gpu__capabilities=("8.6", "12.0")) is State.FIRES
    assert state(made, engine__architectures=("8.6", "12.0"), gpu__capabilities=("8.6", "12.0")) is State.QUIET
    assert state(made, engine__architectures=(), gpu__capabilities=("8.6",)) is State.UNJUDGED


def test_a_condition_that_does_not_hold_settles_it_whatever_else_is_not_known() -> None:
    made = rule(("os.class", Operator.IS, "WSL2"), ("driver.version", Operator.VERSION, ">=500"))
    assert state(made, os__class="Linux") is State.QUIET
    assert state(made, os__class="WSL2") is State.UNJUDGED
    assert state(made, os__class="WSL2", driver__version="536.40") is State.FIRES


def test_what_fired_says_why_and_what_was_not_judged_says_what_it_lacks() -> None:
    made = rule(("engine.cuda_runtime", Operator.NEWER_THAN, "driver.cuda"), ("gpu.count", Operator.ABOVE, 1))
    (found,) = evaluate([made], {"engine.cuda_runtime": "13.2", "driver.cuda": "13.0", "gpu.count": 2})
    assert found.because == ("engine.cuda_runtime 13.2", "driver.cuda 13.0", "gpu.count 2")
    (found,) = evaluate([made], {"engine.cuda_runtime": "13.2", "gpu.count": 2})
    assert (found.state, found.unknown) == (State.UNJUDGED, ("driver.cuda",))


def test_a_variable_that_is_not_set_is_known_once_the_environment_is() -> None:
    made = rule(("env.GGML_CUDA_P2P", Operator.PRESENT, True))
    assert state(made) is State.UNJUDGED
    assert state(made, env__known=True) is State.QUIET
    assert state(made, env__known=True, env__GGML_CUDA_P2P="") is State.FIRES


def test_own_rules_come_to_the_shipped_ones_and_one_of_the_same_id_replaces_it(tmp_path: Path) -> None:
    written(tmp_path)
    written(tmp_path, RULE.replace("my-rule", "persistence-off").replace('"mine"', '"other"'), "other")
    shipped, found = Rulebook.load(), Rulebook.load([tmp_path])
    assert len(found.rules) == len(shipped.rules) + 1
    by_id = {each.id: each for each in found.rules}
    assert by_id["my-rule"].sources == ("https://example.org/1",)
    assert by_id["persistence-off"].title == "a driver we do not like"


def test_a_silence_holds_until_its_day_and_is_told(tmp_path: Path) -> None:
    written(tmp_path, RULE + '\n[[silence]]\nid = "my-rule"\nreason = "we know"\nuntil = 2026-12-24\n')
    book = Rulebook.load([tmp_path])
    rules, said = book.heard(date(2026, 12, 24))
    assert "my-rule" not in {each.id for each in rules}
    assert said == ("my-rule is silenced until 2026-12-24: we know",)
    rules, said = book.heard(date(2026, 12, 25))
    assert "my-rule" in {each.id for each in rules}
    assert said == ("the silence of my-rule ended on 2026-12-24: we know",)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'fact = "driver.version"',
            'fact = "driver.verson"',
            "unknown fact 'driver.verson' (did you mean 'driver.version'?)",
        ),
        ("version = ", "versoin = ", "'versoin' (did you mean 'version'?): one of is, in, any_of, matches"),
        ('">=570, <575"', '"570"', "when: version: '570' is not a range such as '>=13.2.0, <13.2.2'"),
        ('version = ">=570, <575"', 'matches = "("', "when: matches: '(' is not a regular expression"),
        ('version = ">=570, <575"', 'above = "many"', "when: above: 'many' is not a number"),
        ('version = ">=570, <575"', 'in = "570"', "when: in: '570' is not a list of texts"),
        (
            'version = ">=570, <575"',
            'newer_than = "driver.cude"',
            "unknown fact 'driver.cude' (did you mean 'driver.cuda'?)",
        ),
        (
            '[{ fact = "driver.version", version = ">=570, <575" }]',
            "[]",
            "rule my-rule: when: write a list of conditions",
        ),
        ('severity = "warning"', 'severity = "warnin"', "severity: 'warnin' is not allowed (did you mean 'warning'?)"),
        ("what = ", "waht = ", "rule[1].waht: unknown key (did you mean 'what'?)"),
        ('do = "Take 580."', "", "rule[1].do: this key is required"),
        ("https://example.org/1", "example.org", "sources: 'example.org' is not an address: write it as https://…"),
        ("2026-11-30", '"yesterday"', "date: 'yesterday' is not a day: write it as 2026-11-30"),
        ('name = "mine"', 'name = "yours"', "name: 'yours' is not the file's name 'mine'"),
    ],
)
def test_a_file_that_is_wrong_names_the_rule_the_key_and_what_is_allowed(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in RULE
    path = written(tmp_path, RULE.replace(old, new))
    with pytest.raises(CatalogError) as caught:
        Rulebook.load([tmp_path])
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_a_silence_of_an_unknown_rule_offers_the_nearest(tmp_path: Path) -> None:
    written(tmp_path, RULE + '\n[[silence]]\nid = "persistance-off"\nreason = "x"\nuntil = 2026-12-24\n')
    with pytest.raises(CatalogError, match=r"unknown rule 'persistance-off' \(did you mean 'persistence-off'\?\)"):
        Rulebook.load([tmp_path])


def test_the_catalog_check_reads_rules_too(tmp_path: Path) -> None:
    path = written(tmp_path, RULE.replace("2026-11-30", '"x"'))
    command: list[Any] = [sys.executable, "-m", "pytest_moegpu.catalog", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"error {path}: rule[1].date: 'x' is not a day" in done.stdout
    assert done.stdout.count("/catalog/rules/") == 4
