"""Building the loop in C: with which compiler, how it fails, and that nothing of it is left lying about."""

from __future__ import annotations

import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_moegpu.host import nativebuild
from pytest_moegpu.host.nativebuild import NativeError, native_library

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the loop in C is for Linux")


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Build in every test anew, and once more for whoever comes after."""
    nativebuild._built.cache_clear()
    yield
    nativebuild._built.cache_clear()


def compiler(folder: Path, script: str) -> Path:
    """Write a program called cc."""
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be the only folder with programs; Python was built with a compiler that is not here."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: "no-such-compiler -pthread")
    return tmp_path


def test_it_is_built_once_in_a_process_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    library = native_library()
    assert library is native_library()
    assert callable(library.moegpu_sample)
    assert list(tmp_path.iterdir()) == []


def test_nobody_else_can_write_where_it_is_built(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = only / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    compiler(
        only,
        f'for each; do target=$last; last=$each; done; /bin/ls -ld "$(/usr/bin/dirname $target)" >{only}/seen\nexit 1',
    )
    with pytest.raises(NativeError):
        native_library()
    assert (only / "seen").read_text().startswith(stat.filemode(stat.S_IFDIR | 0o700))


def test_no_compiler(only: Path) -> None:
    with pytest.raises(NativeError, match=r"^no C compiler \(cc, gcc or clang\) here$"):
        native_library()


def test_a_compiler_that_fails_says_why_and_is_not_asked_again(only: Path) -> None:
    compiler(only, f"echo asked >>{only}/asked; echo 'nativeloop.c:9:10: fatal error: time.h: not there' >&2; exit 1")
    for _ in range(3):
        with pytest.raises(NativeError) as caught:
            native_library()
        assert str(caught.value) == "the C compiler failed: nativeloop.c:9:10: fatal error: time.h: not there"
    assert (only / "asked").read_text() == "asked\n"


def test_a_compiler_that_fails_without_a_word(only: Path) -> None:
    compiler(only, "exit 1")
    with pytest.raises(NativeError, match="the C compiler failed: it does not say why"):
        native_library()


def test_a_compiler_that_makes_nothing(only: Path) -> None:
    compiler(only, "exit 0")
    with pytest.raises(NativeError, match=r"what it made cannot be used: .*No such file"):
        native_library()


def test_a_compiler_that_does_not_end(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nativebuild, "_SECONDS", 0.1)
    compiler(only, "exec /bin/sleep 60")
    with pytest.raises(NativeError, match=r"did not end within 0\.1 s"):
        native_library()


def test_no_folder_to_build_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/no-such-folder")
    with pytest.raises(NativeError, match="cannot be used"):
        native_library()


def test_other_systems_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(NativeError, match="for Linux only"):
        native_library()


def test_the_source_has_no_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = ("-Wall", "-Wextra", "-Werror", "-Wpedantic", "-Wconversion", "-Wshadow")
    monkeypatch.setattr(nativebuild, "_FLAGS", (*nativebuild._FLAGS, *strict))
    assert callable(native_library().moegpu_take)
