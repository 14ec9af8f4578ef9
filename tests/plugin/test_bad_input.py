"""What a caller can get wrong: one line that says so, exit code 4, and nothing started."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_moegpu.host.cache import cache_dir
from tests.fakes.project import Project, section, usage_error

# Found before a test has a home folder of its own.
CACHE = cache_dir()


def test_unknown_profile_offers_the_nearest(project: Project) -> None:
    usage_error(project.run(profile="rtx309"), "unknown profile 'rtx309'", "did you mean 'rtx3090'?", "fake")


def test_unknown_scenario_offers_the_nearest(project: Project) -> None:
    usage_error(project.refuse("--moegpu-scenario=fake-2k"), "unknown scenario 'fake-2k'", "did you mean 'fake-1k'?")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("context = 1024", "contxt = 1024", ("settings.contxt: unknown key", "did you mean 'context'?")),
        ("context = 1024", 'context = "long"', ("settings.context: 'long'",)),
        ('memory_budget = "1 GiB"', 'memory_budget = "1 GibX"', ("limits.memory_budget", "GibX")),
        ("schema = 1", "schema = = 1", ("line 2: not valid TOML",)),
    ],
    ids=["unknown-key", "wrong-type", "wrong-unit", "no-toml"],
)
def test_a_wrong_catalog_file_is_named(project: Project, old: str, new: str, words: tuple[str, ...]) -> None:
    path = project.catalog / "scenarios/fake-1k.toml"
    path.write_text(path.read_text().replace(old, new))
    usage_error(project.refuse(), str(path), *words)


def test_model_files_that_are_none(project: Project) -> None:
    missing = project.model.with_name("tinny.gguf")
    usage_error(
        project.refuse(f"--moegpu-model={missing}"), str(missing), "does not exist", "did you mean 'tiny.gguf'?"
    )
    other = project.model.with_name("other.gguf")
    other.write_bytes(b"PK\x03\x04 an archive of something")
    usage_error(project.refuse(f"--moegpu-model={other}"), str(other), "is not a GGUF file")
    other.write_bytes(project.model.read_bytes()[:-5000])
    usage_error(project.refuse(f"--moegpu-model={other}"), str(other), "truncated")
    assert not project.store.ids()


def test_server_programs_that_are_none(project: Project, tmp_path: Path) -> None:
    gone = tmp_path / "no-such-server"
    usage_error(project.refuse(f"--moegpu-server={gone}"), str(gone), "--moegpu-server", "does not exist")
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    usage_error(project.refuse(f"--moegpu-server={plain}"), str(plain), "is not executable")
    usage_error(project.refuse(f"--moegpu-server={tmp_path}"), "is a folder")


def test_a_server_program_that_fails_when_asked_its_version(project: Project) -> None:
    lines = ["llama-server: error while loading shared libraries: libcudart.so.13: cannot open shared object file"]
    result = project.refuse(version_fails={"code": 127, "lines": lines})
    usage_error(result, str(project.program), "exit code 127", "libcudart.so.13")


def test_two_profiles(project: Project) -> None:
    usage_error(project.refuse("--moegpu=rtx3090"), "--moegpu takes one profile", "fake and rtx3090")
    usage_error(project.refuse(profile="fake,rtx3090"), "--moegpu takes one profile")


def test_workers_are_refused(project: Project) -> None:
    usage_error(project.refuse("-n", "2"), "-n 2 with --moegpu", "one server at a time")
    assert not project.store.ids()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--moegpu-starts=0",), ("--moegpu-starts=0", "at least 1")),
        (("--moegpu-starts=5", "--moegpu-max-starts=3"), ("--moegpu-max-starts=3", "--moegpu-starts=5")),
        (("--moegpu-backend=lamacpp",), ("lamacpp", "did you mean 'llamacpp'?")),
        (("--moegpu-catalog=nowhere",), ("nowhere", "no such folder")),
        (("--moegpu-device=0",), ("--moegpu-device", "uses no GPU")),
    ],
)
def test_options_out_of_range(project: Project, args: tuple[str, ...], words: tuple[str, ...]) -> None:
    usage_error(project.refuse(*args), *words)


def test_words_of_varying_are_checked_before_anything_starts(project: Project) -> None:
    usage_error(project.refuse("--moegpu-varying=drivr"), "drivr", "did you mean 'driver'?")
    assert not project.store.ids()


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has an NVIDIA GPU")
def test_a_gpu_profile_without_that_gpu(project: Project) -> None:
    usage_error(project.refuse(profile="rtx3090"), "expects 1 x NVIDIA GeForce RTX 3090", "found none")


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        (
            "moegpu(scenaro='a')",
            ("no argument 'scenaro'", "mean 'scenario'?", "allowed: scenario, level, check"),
        ),
        ("moegpu('fake-1k')", ("named arguments only",)),
        ("moegpu(level=4)", ("level=4", "1 (quick), 2 (medium) or 3 (long)")),
        ("moegpu(level='1')", ("level='1'",)),
        ("moegpu(scenario=1)", ("scenario=1",)),
        ("moegpu(check='ofload')", ("'ofload'", "did you mean 'offload'?")),
        ("moegpu_memory(budget=23)", ("budget=23", "a size with its unit")),
        ("moegpu_memory(budget='23 GG')", ("23 GG",)),
        ("moegpu_memory(size='23 GiB')", ("no argument 'size'", "allowed: budget")),
        ("moegpu_throughput(metric='decod', min=1)", ("'decod'", "did you mean 'decode'?")),
        ("moegpu_throughput(metric='decode', max=1)", ("min=, not max=",)),
        ("moegpu_throughput(min=0)", ("min=0", "above 0")),
        ("moegpu_context(tokens='many')", ("tokens='many'",)),
        ("moegpu_context()", ("tokens=None",)),
        ("moegpu_output(prompt='a')", ("both prompt= and expect=",)),
        ("moegpu_output(prompt='a', expect='b', max_tokens=0)", ("max_tokens=0",)),
    ],
)
def test_markers(project: Project, marker: str, words: tuple[str, ...]) -> None:
    project.pytester.makepyfile(test_mine=f"import pytest\n\n@pytest.mark.{marker}\ndef test_a(): pass\n")
    # Markers are checked whether or not there is a profile.
    result = project.refuse(profile=None)
    usage_error(result, "test_mine.py::test_a", f"@{marker.partition('(')[0]}", *words)


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        ("moegpu_context(tokens=2000)", ("tokens=2000", "context of 1024 tokens")),
        ("moegpu(scenario='fake-2k')", ("'fake-2k'", "did you mean 'fake-1k'?", "embedded-2k")),
    ],
)
def test_markers_that_this_run_cannot_serve(project: Project, marker: str, words: tuple[str, ...]) -> None:
    project.pytester.makepyfile(test_mine=f"import pytest\n\n@pytest.mark.{marker}\ndef test_a(moegpu_verify): pass\n")
    usage_error(project.refuse("test_mine.py"), "test_mine.py::test_a", *words)
    assert not project.store.ids()


def test_a_marker_of_a_scenario_that_is_not_asked_for_is_deselected(project: Project) -> None:
    test = "import pytest\n\n@pytest.mark.moegpu(scenario='embedded-2k')\ndef test_a(moegpu_verify): pass\n"
    project.pytester.makepyfile(test_mine=test)
    result = project.refuse("test_mine.py", "--moegpu-scenario=fake-1k")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.assert_outcomes(deselected=1)
    assert not project.store.ids()


def test_a_damaged_baseline_is_named_and_the_rest_goes_on(project: Project) -> None:
    project.baseline.parent.mkdir(parents=True)
    project.baseline.write_text('{"schema": 1, "profile": ')
    result = project.measure("--moegpu-starts=1", "--moegpu-level=2", "-k", "output or decode")
    assert result.ret == 1
    result.assert_outcomes(passed=2, failed=1, deselected=12)
    assert f"{project.baseline}: damaged baseline" in section(result.stdout.str(), "ERROR  decode")
    assert project.baseline.read_text() == '{"schema": 1, "profile": ', "a damaged file must not be overwritten"


def test_a_damaged_bundle_is_named_and_disturbs_no_run(project: Project) -> None:
    folder = project.store.root / "20200101-000000-fake-dead"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{ half")
    shown = project.moegpu("show", "2020")
    assert shown.returncode == 2
    assert f"{folder / 'run.json'}: damaged run" in shown.stderr.replace(".moegpu", str(project.store.root.parent), 1)
    assert "Traceback" not in shown.stderr
    result = project.run("--moegpu-starts=1", "-k", "preflight")
    assert result.ret == 0
    assert project.last_run().status == "finished"
    assert project.moegpu("show").returncode == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("24",), ("--moegpu-emulate-vram=24", "is not a size", "GiB")),
        (("0GiB",), ("--moegpu-emulate-vram=0GiB", "a card without memory holds nothing", "as 24GiB")),
        (("24GiB",), ("--moegpu-emulate-vram: profile fake uses no GPU", "leave it away", "--moegpu=list")),
        (("24GiB", "--moegpu-gate"), ("--moegpu-gate with --moegpu-emulate-vram", "leave one of them away")),
    ],
    ids=["no-unit", "nothing", "no-gpu", "no-gate"],
)
def test_a_rehearsal_that_cannot_be(project: Project, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    size, *others = options
    usage_error(project.refuse(f"--moegpu-emulate-vram={size}", *others), *words)
    assert not project.store.ids()


def test_a_flag_that_the_program_lacks_is_told_before_anything_is_started(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytester has a home folder of its own, and the model is in the cache of the user's.
    monkeypatch.setenv("MOEGPU_CACHE", str(CACHE))
    (pytester.path / "catalog/scenarios").mkdir(parents=True)
    (pytester.path / "catalog/scenarios/typo.toml").write_text(
        'schema = 1\nname = "typo"\ntitle = "t"\nextends = "embedded-2k"\n\n'
        '[settings]\nextra_flags = ["--cache-rm", "0"]\n'
    )
    pytester.makeini("[pytest]\nmoegpu_catalog = catalog\n")
    result = pytester.runpytest_subprocess("--moegpu=embedded", "--moegpu-scenario=typo", timeout=120)
    usage_error(result, "scenario typo: settings.extra_flags: --cache-rm 0", "has no such flag", "write --cache-ram 0")
