"""What an upgrade may change, and where the server program is found."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import pytest

from pytest_moegpu.errors import ProgramError
from pytest_moegpu.host.stack import find_program, host_facts, libraries, os_class, program_output

VARIABLE = "MOEGPU_LLAMA_SERVER"


def program(folder: Path, name: str = "llama-server", mode: int = 0o755) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\necho hello\n")
    path.chmod(mode)
    return path


def ways(option: str | None = None, variable: str | None = None) -> tuple[tuple[str, str | None], ...]:
    """The ways to give a program, in order of precedence."""
    return (("--moegpu-server", option), (VARIABLE, variable), ("program of profile rtx3090", None))


class TestFindProgram:
    def test_option_then_variable_then_path(self, tmp_path: Path) -> None:
        given, named, found = (program(tmp_path / folder) for folder in ("a", "b", "c"))
        search = str(found.parent)
        assert find_program("llama-server", ways(str(given), str(named)), search) == (str(given),)
        assert find_program("llama-server", ways(None, str(named)), search) == (str(named),)
        assert find_program("llama-server", ways("", ""), search) == (str(found),)
        assert find_program("llama-server", (), search) == (str(found),)

    def test_a_bare_name_is_looked_up_and_made_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        other = program(tmp_path, "my-server")
        assert find_program("llama-server", ways("my-server"), str(tmp_path)) == (str(other),)
        monkeypatch.chdir(tmp_path)
        assert find_program("llama-server", ways("./my-server"), "") == (str(other),)

    def test_a_wrong_option_is_not_healed_by_the_path(self, tmp_path: Path) -> None:
        program(tmp_path)
        with pytest.raises(ProgramError) as caught:
            find_program("llama-server", ways("/gone/llama-server"), str(tmp_path))
        assert str(caught.value) == "server program '/gone/llama-server' (from --moegpu-server) does not exist"

    def test_the_source_of_a_wrong_name_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(ProgramError, match=rf"\(from {VARIABLE}\) is a folder"):
            find_program("llama-server", ways(None, str(tmp_path)), "")
        plain = program(tmp_path, mode=0o644)
        with pytest.raises(ProgramError, match=r"\(from --moegpu-server\) is not executable"):
            find_program("llama-server", ways(str(plain)), "")

    def test_nowhere_names_every_way(self, tmp_path: Path) -> None:
        with pytest.raises(ProgramError) as caught:
            find_program("llama-server", ways(), str(tmp_path))
        assert str(caught.value) == (
            "server program 'llama-server' is not on PATH: give it by "
            f"--moegpu-server or {VARIABLE} or program of profile rtx3090"
        )


class TestProgramOutput:
    def test_both_streams(self) -> None:
        code = "import sys; print('version: 1'); print('built with cc', file=sys.stderr)"
        assert program_output([sys.executable, "-c", code]) == "version: 1\nbuilt with cc\n"

    def test_exit_code_and_last_lines(self) -> None:
        code = "import sys; print('1\\n2\\nlibcudart.so.13: cannot open\\nlast'); sys.exit(127)"
        with pytest.raises(ProgramError) as caught:
            program_output([sys.executable, "-c", code])
        assert str(caught.value).endswith("ended with exit code 127: 2 / libcudart.so.13: cannot open / last")

    def test_a_signal_is_a_failure(self) -> None:
        with pytest.raises(ProgramError, match="exit code -9"):
            program_output([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])

    def test_what_cannot_be_run(self, tmp_path: Path) -> None:
        with pytest.raises(ProgramError, match="cannot run '/gone/server --version'"):
            program_output(["/gone/server", "--version"])
        binary = program(tmp_path)
        binary.write_bytes(b"\x7fELF for another machine")
        with pytest.raises(ProgramError, match="cannot run"):
            program_output([str(binary)])

    def test_one_that_hangs_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pytest_moegpu.host.stack._VERSION_SECONDS", 0.2)
        with pytest.raises(ProgramError, match=r"timed out after 0\.2"):
            program_output([sys.executable, "-c", "import time; time.sleep(30)"])

    def test_it_gets_no_input_and_any_bytes_are_taken(self) -> None:
        code = "import sys; sys.stdout.buffer.write(b'\\xff' + sys.stdin.buffer.read())"
        assert program_output([sys.executable, "-c", code]) == "\ufffd"


class TestLibraries:
    def test_of_this_process(self) -> None:
        assert isinstance(libraries(os.getpid()), dict)

    def test_of_a_process_that_is_gone(self) -> None:
        assert libraries(2**22 + 1) == {}

    def test_cuda_libraries_with_full_versions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        line = "7f00-7f01 r-xp 00000000 08:01 42                  "
        maps = "\n".join(
            [
                f"{line}/usr/local/cuda/lib64/libcudart.so.13.0.48",
                f"{line}/usr/local/cuda/lib64/libcudart.so.13.0.48",
                f"{line}/usr/local/cuda/lib64/libcublasLt.so.13.0.0.19",
                f"{line}/usr/lib/x86_64-linux-gnu/libc.so.6",
                f"{line}/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04",
                f"{line}/opt/with space/libnccl.so.2.28.3",
                "7f02-7f03 rw-p 00000000 00:00 0",
                "7f04-7f05 rw-p 00000000 00:00 0                          [stack]",
                "7f06-7f07 r--s 00000000 00:00 1 /memfd:/lib/x (deleted)",
            ]
        )
        monkeypatch.setattr(Path, "read_text", lambda *_a, **_k: maps)
        assert libraries(1) == {"libcublasLt": "13.0.0.19", "libcudart": "13.0.48", "libnccl": "2.28.3"}


class TestOsClass:
    @pytest.fixture(autouse=True)
    def _bare_linux(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(platform, "release", lambda: "6.8.0-generic")
        monkeypatch.setattr(Path, "exists", lambda _path: False)
        monkeypatch.delenv("container", raising=False)

    def test_linux(self) -> None:
        assert os_class() == "Linux"

    def test_wsl2(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(platform, "release", lambda: "5.15.167.4-microsoft-standard-WSL2")
        assert os_class() == "WSL2"

    def test_container_by_variable_or_mark(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("container", "podman")
        assert os_class() == "container"
        monkeypatch.delenv("container")
        monkeypatch.setattr(Path, "exists", lambda path: str(path) == "/.dockerenv")
        assert os_class() == "container"

    def test_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "win32")
        monkeypatch.setattr(platform, "system", lambda: "Windows")
        assert os_class() == "Windows"


def test_host_facts_are_text() -> None:
    facts = host_facts()
    assert {"host", "kernel", "os", "python", "processor"} == facts.keys()
    assert all(facts.values())
