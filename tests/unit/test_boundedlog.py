"""The log on disk is bounded, and its beginning and its end are kept, whatever a server prints."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_moegpu.host.boundedlog import HEAD_BYTES, TAIL_BYTES, BoundedLog, clean, read_ends, tail

MIB = 2**20
MOST = HEAD_BYTES + 2 * TAIL_BYTES
MARKER = re.compile(r"^\[moegpu: (\d+) bytes of the log are left out here\]$", re.MULTILINE)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Write pieces through a bounded log and return its path; checks the bound after each piece."""

    def write(*pieces: bytes) -> Path:
        path = tmp_path / "server.log"
        log = BoundedLog(path)
        writer = os.dup(log.sink)
        log.start()
        with os.fdopen(writer, "wb", buffering=0) as pipe:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[pipe.write(rest) :]
                log.settle()
                assert path.stat().st_size <= MOST
        log.finish(20)
        assert not log._thread.is_alive()
        return path

    return write


def numbered(count: int, start: int = 0) -> bytes:
    return b"".join(b"line %09d of a log that never ends\n" % n for n in range(start, start + count))


def test_a_short_log_is_kept_as_it_is(written: Callable[..., Path]) -> None:
    path = written(b"one\n", b"two\r\n\xff\xfe\0", b"three")
    assert path.read_bytes() == b"one\ntwo\r\n\xff\xfe\0three"
    assert read_ends(path) == "one\ntwo\r\n\ufffd\ufffd\0three"


def test_an_earlier_log_is_continued(written: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "server.log").write_bytes(b"before\n")
    assert written(b"after\n").read_bytes() == b"before\nafter\n"


def test_head_and_tail_of_a_flood_are_kept_and_the_marker_counts_the_rest(written: Callable[..., Path]) -> None:
    everything = b"the very first line\n" + numbered(600_000) + b"the cause of death\n"
    assert len(everything) > 20 * MIB
    path = written(*(everything[at : at + 3_000_000] for at in range(0, len(everything), 3_000_000)))
    data = path.read_bytes()
    assert HEAD_BYTES + TAIL_BYTES - 4096 < len(data) < MOST
    assert data[:HEAD_BYTES] == everything[:HEAD_BYTES]
    found = MARKER.findall(data.decode())
    assert len(found) == 1
    _, marker, end = data[HEAD_BYTES:].partition(b"left out here]\n")
    assert marker
    assert end == everything[-len(end) :]
    assert len(everything) == HEAD_BYTES + int(found[0]) + len(end)
    assert tail(path, 2) == ("line 000599999 of a log that never ends", "the cause of death")
    text = read_ends(path)
    assert text.startswith("the very first line\n")
    assert text.endswith("the cause of death\n")
    assert len(text) <= HEAD_BYTES + 1 + TAIL_BYTES


def test_the_end_begins_at_a_line(written: Callable[..., Path]) -> None:
    data = written(numbered(250_000)).read_bytes()
    end = data.partition(b"left out here]\n")[2]
    assert re.match(rb"line \d{9} of a log that never ends\n", end)


def test_a_line_without_end_is_cut_all_the_same(written: Callable[..., Path]) -> None:
    path = written(b"x" * (9 * MIB), b"y\n")
    assert path.stat().st_size < MOST
    assert tail(path) == ("x" * 499 + "…",)


def test_binary_noise_survives(written: Callable[..., Path]) -> None:
    noise = bytes(range(256)) * 4096
    path = written(*[noise] * 9, b"\nthe last line\n")
    assert path.read_bytes()[:HEAD_BYTES] == noise * 4
    assert tail(path, 1) == ("the last line",)
    assert all(line.isprintable() or "\t" in line for line in tail(path))


def test_a_full_disk_stops_neither_the_draining_nor_what_comes_after(
    written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    def write(file: int, data: bytes) -> int:
        if b"lost" in bytes(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    path = written(b"kept\n", b"lost 1\n", b"lost 2\n", b"kept again\n")
    assert path.read_text() == "kept\n\n[moegpu: 14 bytes of the log are left out here]\nkept again\n"


def test_the_last_lines_are_written_before_a_death_is_told(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    log = BoundedLog(path)
    # The draining thread has not begun: `settle` alone must do it.
    os.write(log.sink, b"CUDA error: out of memory\n")
    log.settle()
    assert path.read_text() == "CUDA error: out of memory\n"
    os.close(log.sink)


def test_colours_and_control_characters_are_not_shown() -> None:
    assert clean("\x1b[0;36m(EngineCore pid=1)\x1b[0m \x07ERROR\ttext\x9b é") == "(EngineCore pid=1) ERROR\ttext é"
    assert clean("a" * 501) == "a" * 499 + "…"


def test_no_log_has_neither_ends_nor_lines(tmp_path: Path) -> None:
    assert read_ends(tmp_path / "none") == ""
    assert tail(tmp_path / "none") == ()
