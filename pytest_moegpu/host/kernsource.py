"""The places where the kernel log can be read, and how each writes a message down."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from pytest_moegpu.errors import MoegpuError

__all__ = [
    "DmesgSource",
    "JournalSource",
    "KmsgSource",
    "Line",
    "Source",
    "SourceError",
    "command_output",
    "dmesg_lines",
    "journal_lines",
    "kmsg_record",
]

# A healthy kernel says a few lines a minute; a device in trouble, some hundred at once.
_MOST_LINES = 20_000
# A journal on a slow or broken disk must not hold up the run.
_SECONDS = 5.0

# Major and minor number of /dev/kmsg: https://docs.kernel.org/admin-guide/devices.html
_KMSG_DEVICE = (1, 11)
_RECORD_BYTES = 65_536

# `pri,sequence,microseconds,flags;text`, then lines of properties that begin with a blank.
_KMSG = re.compile(rb"(\d+),(\d+),(\d+),[^;]*;([^\n]*)")
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
_DMESG = re.compile(r"(?:<\d+>)?\[ *(\d+\.\d+)\](?:\[ *[TC]\d+\])? ?(.*)")

# The first line of the log that gVisor makes up for whoever reads it; nothing of the host's kernel is in there.
# https://github.com/google/gvisor/blob/master/pkg/sentry/kernel/syslog.go
_GVISOR = "Starting gVisor"
_MADE_UP = "is made up by gVisor: no message of the host's kernel is in it"

# journald gets a message by itself and some time after the kernel has it.
_JOURNAL_SECONDS = 0.3

_TURNED_OVER = "the kernel's ring buffer turned over: lines were lost"

Line = tuple[float | None, str]
"""Seconds of the kernel's clock, None where the source does not say, and the text of one message."""


class SourceError(MoegpuError):
    """This source cannot be read here; says why."""


class Source(Protocol):
    """One place where the kernel log can be read. `mark` and `since` raise `SourceError`."""

    name: str

    def mark(self) -> None:
        """Remember where the log is now. Raises when not one message can be read: then silence means nothing."""

    def since(self) -> tuple[list[Line], str]:
        """Return the messages since the mark, oldest first, and what is wrong with them; empty when nothing is."""

    def close(self) -> None:
        """Let go of whatever is held. Safe to call twice."""


class KmsgSource:
    """/dev/kmsg, read without waiting; needs CAP_SYSLOG where kernel.dmesg_restrict is 1."""

    name = "/dev/kmsg"

    def __init__(self, path: Path = Path("/dev/kmsg"), device: tuple[int, int] | None = _KMSG_DEVICE) -> None:
        self._path = path
        self._device = device
        self._file: int | None = None
        self._lines: list[Line] = []
        self._lost = False

    def mark(self) -> None:
        """Open the log and go to its end."""
        if sys.platform == "win32":
            raise SourceError("is not there on Windows")
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            info = os.fstat(self._file)
            # Some containers have a link to the console or to /dev/null under this name.
            found = (os.major(info.st_rdev), os.minor(info.st_rdev)) if stat.S_ISCHR(info.st_mode) else None
            if self._device not in (None, found):
                raise SourceError("is not the kernel log here")
            if (first := self._next()) is None:
                raise SourceError("holds no message")
            if _GVISOR.encode() in first:
                raise SourceError(_MADE_UP)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            raise SourceError(error.strerror or str(error)) from None
        self._lines, self._lost = [], False

    def since(self) -> tuple[list[Line], str]:
        """Read on to the end of the log."""
        if self._file is None:
            raise SourceError("is not open")
        until, cut = time.monotonic() + _SECONDS, ""
        try:
            while (record := self._next()) is not None:
                line = kmsg_record(record)
                if line is not None and line[1]:
                    self._lines.append(line)
                if len(self._lines) >= _MOST_LINES or time.monotonic() > until:
                    cut = f"only {len(self._lines)} lines were read, and more may have followed"
                    break
        except OSError as error:
            raise SourceError(error.strerror or str(error)) from None
        return list(self._lines), "; ".join(filter(None, (cut, _TURNED_OVER if self._lost else "")))

    def _next(self) -> bytes | None:
        """Return the next record; None at the end of the log."""
        while self._file is not None:
            try:
                return os.read(self._file, _RECORD_BYTES) or None
            except BlockingIOError:
                return None
            except BrokenPipeError:
                # The kernel's word for records that were overwritten before they were read; the next read goes on.
                self._lost = True
        return None

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                os.close(file)


class JournalSource:
    """The systemd journal: the messages of this boot after the newest one at the mark, found by its cursor.

    Before it is read again it gets `settle_seconds` to take over what the kernel said last.
    """

    name = "journalctl"

    def __init__(
        self, run: Callable[[Sequence[str]], str] | None = None, settle_seconds: float = _JOURNAL_SECONDS
    ) -> None:
        self._run = run or command_output
        self._settle_seconds = settle_seconds
        self._cursor = ""

    def mark(self) -> None:
        """Remember the newest message."""
        self._cursor = ""
        for entry in _entries(self._run(("journalctl", "-k", "-q", "-o", "json", "-n", "1"))):
            self._cursor = str(entry.get("__CURSOR") or "")
        if not self._cursor:
            raise SourceError("shows this user no kernel message")

    def since(self) -> tuple[list[Line], str]:
        """Read what came after it."""
        time.sleep(self._settle_seconds)
        after = ("journalctl", "-k", "-q", "-o", "json", "-n", str(_MOST_LINES), f"--after-cursor={self._cursor}")
        output = self._run(after)
        cut = f"only the newest {_MOST_LINES} lines were read" if output.count("\n") >= _MOST_LINES else ""
        return journal_lines(output), cut

    def close(self) -> None:
        """Hold nothing."""


class DmesgSource:
    """`dmesg`: the messages with a later time than the newest one at the mark."""

    name = "dmesg"

    def __init__(self, run: Callable[[Sequence[str]], str] | None = None) -> None:
        self._run = run or command_output
        self._newest = 0.0

    def _read(self) -> list[Line]:
        lines = dmesg_lines(self._run(("dmesg", "--kernel")))
        if not lines:
            raise SourceError("prints no message with a time")
        if any(_GVISOR in text for _, text in lines):
            raise SourceError(_MADE_UP)
        return lines

    def mark(self) -> None:
        """Remember the time of the newest message."""
        self._newest = max(seconds or 0.0 for seconds, _ in self._read())

    def since(self) -> tuple[list[Line], str]:
        """Read what came after it."""
        lines = self._read()
        later = [line for line in lines if (line[0] or 0.0) > self._newest]
        # When even the oldest message is newer than the mark, what came in between is gone.
        lost = _TURNED_OVER if len(later) == len(lines) else ""
        return later[-_MOST_LINES:], lost

    def close(self) -> None:
        """Hold nothing."""


def kmsg_record(record: bytes) -> Line | None:
    """Read one record of /dev/kmsg; the text is empty when a program wrote it, None when it is no record.

    Format: https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg. The priority's upper bits are the facility,
    and 0 is the kernel's own.
    """
    match = _KMSG.match(record)
    if match is None:
        return None
    text = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), match[4]).decode("utf-8", errors="replace")
    return int(match[3]) / 1e6, text if int(match[1]) < 8 else ""


def journal_lines(output: str) -> list[Line]:
    """Read what `journalctl -o json` prints: an object a line; a text that is not UTF-8 is a list of bytes there.

    Facility 0 is the kernel's own; with another one, a program wrote the message into the kernel's log.
    """
    lines = []
    for entry in _entries(output):
        if entry.get("SYSLOG_FACILITY") not in (None, "0"):
            continue
        text, micros = entry.get("MESSAGE"), entry.get("_SOURCE_MONOTONIC_TIMESTAMP")
        if isinstance(text, list):
            text = bytes(value & 0xFF for value in text if isinstance(value, int)).decode("utf-8", errors="replace")
        if isinstance(text, str):
            lines.append((int(micros) / 1e6 if isinstance(micros, str) and micros.isdigit() else None, text))
    return lines


def dmesg_lines(output: str) -> list[Line]:
    """Read what `dmesg` prints: `[seconds] text`; a line without a time goes on with the message before it."""
    lines: list[Line] = []
    for line in output.splitlines():
        if match := _DMESG.match(line):
            lines.append((float(match[1]), match[2]))
        elif lines and line.strip():
            seconds, text = lines.pop()
            lines.append((seconds, f"{text}\n{line.strip()}"))
    return lines


def _entries(output: str) -> Iterator[dict[str, Any]]:
    for line in output.splitlines():
        with suppress(json.JSONDecodeError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                yield entry


def command_output(argv: Sequence[str], seconds: float = _SECONDS) -> str:
    """Run a command and return what it prints; it is given up when it takes too long."""
    program = shutil.which(argv[0])
    if program is None:
        raise SourceError("is not installed")
    environment = {**os.environ, "LC_ALL": "C", "PAGER": "cat"}
    process = subprocess.Popen(
        [program, *argv[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        # A process that hangs in the kernel does not end even now; it is left to itself.
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1.0)
        raise SourceError(f"does not answer within {seconds:.0f} s") from None
    if process.returncode != 0:
        last = errors.decode("utf-8", errors="replace").strip().splitlines()[-1:]
        raise SourceError(" ".join(last) or f"exit code {process.returncode}")
    return output.decode("utf-8", errors="replace")
