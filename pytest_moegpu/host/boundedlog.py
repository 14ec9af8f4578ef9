"""A server's log on disk: bounded, its beginning and its end kept. Standard library only: the supervisor loads it.

The file holds the first 4 MiB of what the server printed, then a line that says how many bytes are left out, then the
last 1 to 2 MiB. It is so at any moment, and the last lines before a death are always there.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import struct
import threading
from pathlib import Path

__all__ = ["HEAD_BYTES", "TAIL_BYTES", "BoundedLog", "clean", "read_ends", "tail"]

HEAD_BYTES = 4 * 2**20
TAIL_BYTES = 2**20
_MOST_BYTES = HEAD_BYTES + 2 * TAIL_BYTES
_CHUNK_BYTES = 2**18
_PIPE_BYTES = 2**20
# A cut is moved to the end of its line, unless the line is longer than this.
_LINE_BYTES = 4096
_SHOWN_CHARACTERS = 500
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[^\S\t ]|[\x00-\x08\x0e-\x1f\x7f-\x9f]")


def _marker(left_out: int) -> bytes:
    return b"\n[moegpu: %d bytes of the log are left out here]\n" % left_out


class BoundedLog:
    """Drains a pipe into a file, in a thread of its own, so that whoever writes into the pipe never waits for us.

    A disk that takes no more does not stop the draining; a line in the log says how much is missing.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._seen = self._size = os.lseek(self._file, 0, os.SEEK_END)
        self._missing = 0
        self._source, self.sink = os.pipe()
        # Two readers: the thread, and `settle`; neither may wait inside a read for what the other has taken.
        os.set_blocking(self._source, False)
        with contextlib.suppress(ImportError, AttributeError, OSError):
            import fcntl  # not on Windows, where a log must be readable all the same

            fcntl.fcntl(self._source, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, name="moegpu-log", daemon=True)

    def start(self) -> None:
        """Let go of the writing end, which the server has now, and begin to drain."""
        os.close(self.sink)
        self._thread.start()

    def settle(self) -> None:
        """Write what is in the pipe now: what a process printed before it died is in the file afterwards."""
        import fcntl
        import termios

        with self._lock:
            waiting = struct.unpack("i", fcntl.ioctl(self._source, termios.FIONREAD, b"\0\0\0\0"))[0]
            while waiting > 0 and (taken := self._take()):
                waiting -= taken

    def finish(self, seconds: float) -> None:
        """Wait for the end of the pipe: until every process that can write into it is gone, or the time is over."""
        self._thread.join(seconds)

    def _drain(self) -> None:
        while True:
            select.select([self._source], [], [])
            with self._lock:
                if self._take() == 0:
                    return

    def _take(self) -> int | None:
        """Move one piece from the pipe to the file; returns its length, 0 at the end, None when there is nothing."""
        try:
            data = os.read(self._source, max(1, min(_CHUNK_BYTES, _MOST_BYTES - self._size)))
        except BlockingIOError:
            return None
        if data:
            self._seen += len(data)
            self._write(data)
        return len(data)

    def _write(self, data: bytes) -> None:
        rest = memoryview(_marker(self._missing) + data if self._missing else data)
        try:
            while rest:
                written = os.write(self._file, rest)
                self._size += written
                rest = rest[written:]
            self._missing = 0
            if self._size >= _MOST_BYTES:
                self._compact()
        except OSError:
            self._missing += min(len(rest), len(data))

    def _compact(self) -> None:
        """Write the end over the middle, then cut the file: a reader in between sees the end twice, never less."""
        end = os.pread(self._file, TAIL_BYTES, self._size - TAIL_BYTES)
        end = end[end.find(b"\n", 0, _LINE_BYTES) + 1 :]
        kept = _marker(self._seen - HEAD_BYTES - len(end)) + end
        # Never more than was there, so a full disk cannot refuse it.
        os.pwrite(self._file, kept, HEAD_BYTES)
        self._size = HEAD_BYTES + len(kept)
        os.ftruncate(self._file, self._size)
        os.lseek(self._file, self._size, os.SEEK_SET)


def clean(line: str) -> str:
    """Return a line fit to be shown: without colours and control characters, and cut to 500 characters."""
    shown = _ESCAPES.sub("", line[: 4 * _SHOWN_CHARACTERS])
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[: _SHOWN_CHARACTERS - 1] + "…"


def read_ends(path: Path) -> str:
    """Return the beginning and the end of a log, whatever bytes are in it; empty when there is none."""
    try:
        with path.open("rb") as file:
            data = file.read(HEAD_BYTES)
            if len(data) == HEAD_BYTES:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(HEAD_BYTES, size - TAIL_BYTES))
                data += b"\n" + file.read(2 * TAIL_BYTES)
    except OSError:
        return ""
    return data.decode("utf-8", "replace")


def tail(path: Path, lines: int = 20, limit: int = 65536) -> tuple[str, ...]:
    """Return the last lines of a log, fit to be shown; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - limit))
            text = file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(clean(line) for line in text.rstrip("\n").splitlines()[-lines:]) if text.strip() else ()
