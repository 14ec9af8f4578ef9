from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from pytest_moegpu.errors import UserError
from pytest_moegpu.host.cache import cache_dir
from pytest_moegpu.host.files import write_atomic


def test_write_makes_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert [p.name for p in path.parent.iterdir()] == ["b.json"]


@pytest.mark.skipif(os.name == "nt", reason="POSIX modes")
def test_write_follows_the_umask(tmp_path: Path) -> None:
    plain, written = tmp_path / "plain", tmp_path / "written"
    plain.write_bytes(b"")
    write_atomic(written, b"")
    assert stat.S_IMODE(written.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_failed_write_keeps_the_old_content_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    write_atomic(path, b"old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    contents = [bytes([65 + n]) * 100_000 for n in range(4)]
    write_atomic(path, contents[0])

    def write_often(content: bytes) -> None:
        for _ in range(5):
            write_atomic(path, content)

    threads = [threading.Thread(target=write_often, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert path.read_bytes() in contents
    for thread in threads:
        thread.join()
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_cache_dir_prefers_the_explicit_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("MOEGPU_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.delenv("MOEGPU_CACHE")
    assert cache_dir() == tmp_path / "xdg" / "pytest-moegpu"


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("linux", "home/.cache/pytest-moegpu"),
        ("darwin", "home/Library/Caches/pytest-moegpu"),
        ("win32", "local/pytest-moegpu/Cache"),
    ],
)
def test_cache_dir_follows_the_system(
    platform: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOEGPU_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setattr("sys.platform", platform)
    assert cache_dir() == tmp_path / expected


def test_no_home_folder_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("MOEGPU_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(UserError, match="set MOEGPU_CACHE"):
        cache_dir()
