"""`moegpu check-launch` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_moegpu.cli import main

GOOD = ("llama-server", "-m", "model.gguf", "-c", "4096")
BAD = ("llama-server", "-m", "my model.gguf", "--max-model-len", "6144")


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MOEGPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MOEGPU_LLAMA_SERVER", raising=False)


def test_nothing_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-launch", "--", *GOOD]) == 0
    assert capsys.readouterr().out == (
        "backend  llamacpp\n"
        "checked  against the flags of llamacpp 11434, as its own help printed them when they were recorded, "
        "256 flags\n"
        "note     it is not installed here\n"
        "result   nothing wrong\n"
    )


@pytest.mark.parametrize("separator", [["--"], []])
def test_something_wrong(separator: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-launch", "--gpu", "8.6", *separator, *BAD]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[3:] == [
        "result   1 thing wrong",
        "",
        "word 4  --max-model-len 6144  llamacpp 11434 has no such flag, it is one of vllm (context length in tokens); "
        "write --ctx-size 6144",
        "",
        "what was meant, ready to paste:",
        "",
        "llama-server -m 'my model.gguf' --ctx-size 6144",
    ]


def test_all_of_it_as_one_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-launch", "--", "A=1 llama-server \\\n  -m 'my model.gguf' \\\n  --bogus"]) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "# --bogus: left out; nothing here is known to mean the same",
        "A=1 llama-server -m 'my model.gguf'",
    ]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-launch", "--json", "--", *BAD]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert told["line"] == "llama-server -m 'my model.gguf' --ctx-size 6144"
    assert told["problems"] == [
        {
            "fault": "unknown flag",
            "word": 4,
            "at": 32,
            "written": "--max-model-len 6144",
            "reason": "llamacpp 11434 has no such flag, it is one of vllm (context length in tokens); "
            "write --ctx-size 6144",
            "instead": ["--ctx-size", "6144"],
            "left_out": "",
        }
    ]
    assert main(["check-launch", "--json", "--", *GOOD]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_a_cache_type_written_with_a_letter_for_a_digit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-launch", "--", *GOOD, "--cache-type-k", "q8_O"]) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "# --cache-type-k q8_O: read as q8_0",
        "llama-server -m model.gguf -c 4096 --cache-type-k q8_0",
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "moegpu check-launch: no command line: write it behind --"),
        (["--", "nginx", "-g"], "moegpu check-launch: no server program in this command line: 'nginx' is none"),
        (["--", "llama-server -m 'x"], "moegpu check-launch: the quote ' at character 17"),
    ],
)
def test_no_command_line_of_a_known_server(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-launch", *words]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(says)


@pytest.mark.parametrize("gpu", ["ampere", "8", "8.", "-1.0"])
def test_a_gpu_is_a_compute_capability(gpu: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["check-launch", f"--gpu={gpu}", "--", *GOOD])
    assert caught.value.code == 3
    assert f"{gpu!r} is not a compute capability: write it as 8.6" in capsys.readouterr().err
