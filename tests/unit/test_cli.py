"""`moegpu` as a person runs it: exit codes, what goes to stderr, and help that names everything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_moegpu import __version__
from pytest_moegpu.cli import VERBS, main
from pytest_moegpu.core.evidence import Phase
from pytest_moegpu.core.verdict import Outcome, Verdict
from pytest_moegpu.host.store import Bundle, write_baseline
from pytest_moegpu.session.doctor import profile_lines
from tests.unit.builders import answers, baseline, evidence, profile, run_record, scenario, stream, watched


def moegpu(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest_moegpu.cli", *words], cwd=cwd, capture_output=True, text=True, timeout=60
    )


def test_an_unknown_verb_offers_the_nearest(tmp_path: Path) -> None:
    done = moegpu("shwo", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == ("moegpu: unknown verb 'shwo' (did you mean 'show'?); known: " + ", ".join(VERBS) + "\n")


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    done = moegpu("show", "20991231", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "moegpu show: no run '20991231' in .moegpu/runs; there are 0\n"


@pytest.mark.parametrize(
    "words", [[], ["--wrong"], ["show", "a", "b"], ["compare", "a"], ["promote"], ["check-baselines"]]
)
def test_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("moegpu: ")


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for verb in VERBS:
        assert f"\n    {verb}" in text


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([verb, "--help"])
    assert caught.value.code == 0
    assert f"moegpu {verb}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"pytest-moegpu {__version__}\n"


def test_check_baselines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_baseline(tmp_path, baseline())
    assert main(["check-baselines", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("ok    ")
    (tmp_path / "bad.json").write_text("{")
    assert main(["check-baselines", str(tmp_path)]) == 2
    assert "BAD   " in capsys.readouterr().out
    assert main(["check-baselines", str(tmp_path / "gone")]) == 2
    assert capsys.readouterr().err.startswith("moegpu check-baselines: ")


def test_show_promote_and_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    green = tuple(
        Verdict(outcome=Outcome.PASS, check=check, scenario="balanced-6k", subject=check, phase=Phase.DECODE)
        for check in ("output", "throughput")
    )
    for name, share in (("20261130-1", 1.0), ("20261130-2", 0.8)):
        rates = (99.0, 100.0, 100.5, 101.0, 100.2)
        starts = (watched(i, requests=(*answers(), *(stream(rate * share),) * 3)) for i, rate in enumerate(rates, 1))
        record = run_record(evidence(*starts), id=name, verdicts=green, asked=profile(), scenarios=(scenario(),))
        Bundle(tmp_path / "runs" / name).write(record)
    runs = ("--runs", str(tmp_path / "runs"))
    assert main(["show", *runs]) == 0
    assert "20261130-2" in capsys.readouterr().out
    assert main(["promote", "20261130-1", *runs, "--baselines", str(tmp_path / "base")]) == 0
    assert (tmp_path / "base" / "rtx3090" / "balanced-6k" / "llamacpp.json").is_file()
    assert main(["compare", "20261130-1", "20261130-2", *runs]) == 1
    assert "REGRESSED" in capsys.readouterr().out
    assert main(["compare", "20261130-1", "20261130-1", *runs]) == 0
    assert main(["compare", "20261130-1", "2026", *runs]) == 2
    assert "fits 2 runs" in capsys.readouterr().err


def test_doctor_of_an_unknown_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "rtx309"]) == 3
    assert "did you mean 'rtx3090'?" in capsys.readouterr().err


def kept(folder: Path, *findings: str) -> None:
    """Keep a run with a verdict whose text is not ASCII."""
    verdict = Verdict(
        outcome=Outcome.FAILED,
        check="output",
        scenario="balanced-6k",
        subject="known answers",
        phase=Phase.OUTPUT,
        reason="Größe 茶",
        lines=(("changed", "driver 570 → 580"),),
        findings=findings,
    )
    Bundle(folder / ".moegpu/runs/20261130-1").write(run_record(evidence(), id="20261130-1", verdicts=(verdict,)))


def test_a_terminal_of_plain_ascii(tmp_path: Path) -> None:
    kept(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest_moegpu.cli", "show"],
        cwd=tmp_path,
        env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"driver 570 ? 580" in done.stdout


def test_a_reader_that_leaves(tmp_path: Path) -> None:
    kept(tmp_path, *(f"finding {n} " + "x" * 200 for n in range(5000)))
    with subprocess.Popen(
        [sys.executable, "-m", "pytest_moegpu.cli", "show"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as show:
        assert show.stdout is not None
        assert show.stderr is not None
        assert show.stdout.readline().startswith(b"run ")
        show.stdout.close()
        assert show.stderr.read() == b""
        assert show.wait(60) == 2


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> list[str]:
        raise PermissionError(13, "Permission denied", "/srv/baselines")

    monkeypatch.setattr("pytest_moegpu.session.records.promote", refused)
    assert main(["promote", "latest"]) == 2
    assert capsys.readouterr() == ("", "moegpu promote: [Errno 13] Permission denied: '/srv/baselines'\n")


def test_ctrl_c_ends_any_verb_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(VERBS, "show", interrupted)
    assert main(["show"]) == 2
    assert capsys.readouterr() == ("", "moegpu show: interrupted\n")


def test_the_list_of_profiles_has_its_columns_below_each_other() -> None:
    lines = profile_lines(())
    assert {len(line) - len(line.split(None, 1)[1]) for line in lines} == {len("embedded-fastllm") + 2}
