"""Host memory of a process tree: what counts, what does not, and what is not known."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from pytest_moegpu.host.treemem import TreeMemory
from tests.fakes.waiting import wait_for

MIB = 2**20
HELD = "data = b'x' * (60 * 1024 * 1024)"
MAPPED = "f = open({path!r}, 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); sum(m[::4096])"
SHARED = "s = mmap.mmap(-1, 50 * 1024 * 1024); s.write(b'x' * (50 * 1024 * 1024))"
END = "print(os.getpid(), flush=True); sys.stdin.read()"


@contextmanager
def running(*code: str, pids: int = 1) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Run a program until it has printed so many pids; it and its children end when stdin closes."""
    text = "; ".join(("import mmap, os, subprocess, sys", *code, END))
    with subprocess.Popen([sys.executable, "-c", text], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process, [int(process.stdout.readline()) for _ in range(pids)]
        finally:
            process.stdin.close()


def child(*code: str) -> str:
    return f"c = subprocess.Popen([sys.executable, '-c', {'; '.join(('import mmap, os, sys', *code, END))!r}])"


def read(memory: TreeMemory) -> int:
    size = memory.read()
    assert size is not None
    return size


def alive(memory: TreeMemory) -> bool:
    return memory.alive


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_mapped_file_does_not_count_and_own_and_shared_memory_do(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"x" * (80 * MIB))
    memory = TreeMemory()
    with running(HELD, SHARED, MAPPED.format(path=str(model))) as (process, _):
        memory.follow(process.pid)
        assert psutil.Process(process.pid).memory_info().rss >= 190 * MIB
        assert 110 * MIB <= read(memory) < 140 * MIB


def test_the_whole_tree_counts_also_when_its_parent_is_gone() -> None:
    memory = TreeMemory()
    with running(HELD, child(HELD), pids=2) as (process, pids):
        memory.follow(process.pid)
        assert 120 * MIB <= read(memory) < 170 * MIB
        assert memory.pids == set(pids)
        assert memory.name.startswith("python")
        assert alive(memory)
        process.kill()
        process.wait()
        assert not alive(memory)
        assert 60 * MIB <= read(memory) < 90 * MIB
        assert memory.pids == set(pids) - {process.pid}
    wait_for(lambda: memory.read() == 0, "the end of the tree")


def test_a_child_born_later_is_found_after_two_seconds() -> None:
    clock = Clock()
    memory = TreeMemory(clock=clock)
    with running("print(os.getpid(), flush=True)", "sys.stdin.readline()", child()) as (process, _):
        assert process.stdin is not None
        assert process.stdout is not None
        memory.follow(process.pid)
        read(memory)
        process.stdin.write("\n")
        process.stdin.flush()
        born = {int(process.stdout.readline()), int(process.stdout.readline())} - {process.pid}
        clock.now = 1.9
        read(memory)
        assert memory.pids == {process.pid}
        clock.now = 2.0
        read(memory)
        assert memory.pids == {process.pid} | born


def test_a_process_that_waits_to_be_reaped_is_not_alive_and_holds_nothing() -> None:
    memory = TreeMemory()
    with running() as (process, _):
        memory.follow(process.pid)
        assert alive(memory)
        process.kill()
        wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, "its death")
        assert not alive(memory)
        assert memory.read() == 0


def test_nothing_followed_is_not_known() -> None:
    memory = TreeMemory()
    assert (memory.read(), memory.alive, memory.pids, memory.name) == (None, False, frozenset(), "")
    memory.follow(os.getpid())
    assert read(memory) > 0
    memory.follow(None)
    assert memory.read() is None
    assert 0 < memory.free() <= psutil.virtual_memory().total


def test_a_process_that_is_already_gone_is_a_tree_that_has_ended() -> None:
    with running() as (process, _):
        pass
    memory = TreeMemory()
    memory.follow(process.pid)
    assert (memory.read(), memory.alive, memory.name) == (0, False, "")


@contextmanager
def made(folder: Path, text: str | None) -> Iterator[TreeMemory]:
    """Follow a process that has no children, with another /proc."""
    with running() as (process, _):
        if text is not None:
            (folder / str(process.pid)).mkdir()
            (folder / str(process.pid) / "status").write_text(text)
        memory = TreeMemory(folder)
        memory.follow(process.pid)
        yield memory


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Name:\tx\nVmRSS:\t 90 kB\nRssAnon:\t 30 kB\nRssFile:\t 50 kB\nRssShmem:\t 10 kB\n", 40 * 1024),
        ("Name:\tx\nState:\tZ (zombie)\n", 0),
    ],
)
def test_lines_of_proc(tmp_path: Path, text: str, expected: int) -> None:
    with made(tmp_path, text) as memory:
        assert memory.read() == expected


@pytest.mark.parametrize("text", [None, "Name:\tx\nVmRSS:\t 90 kB\n"], ids=["no /proc", "an old kernel"])
def test_resident_memory_where_the_system_does_not_tell_them_apart(
    tmp_path: Path, text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_moegpu.host.treemem.resident", lambda process: 12345)
    with made(tmp_path, text) as memory:
        assert memory.read() == 12345


def test_memory_that_may_not_be_read_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    with made(tmp_path, "") as memory:
        monkeypatch.setattr(Path, "read_bytes", refuse)
        assert memory.read() is None
