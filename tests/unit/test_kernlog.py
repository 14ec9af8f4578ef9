"""The sources of the kernel log: what they print, how they fail, and that silence is never taken for health."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_moegpu.host import kernsource
from pytest_moegpu.host.kernlog import KernelLogReader
from pytest_moegpu.host.kernsource import (
    DmesgSource,
    JournalSource,
    KmsgSource,
    Line,
    SourceError,
    command_output,
    dmesg_lines,
    journal_lines,
    kmsg_record,
)

BOOT = b"5,1,0,-;Linux version 6.8.0\n"
MADE_UP = "is made up by gVisor: no message of the host's kernel is in it"
FALLEN = "NVRM: Xid (PCI:0000:0f:00): 79, pid=1234, name=llama-server, GPU has fallen off the bus."


class FakeKmsg:
    """Stands in for `os`: a log of records, each read at once, as the kernel gives them."""

    O_RDONLY, O_NONBLOCK, O_CLOEXEC, SEEK_END = os.O_RDONLY, os.O_NONBLOCK, os.O_CLOEXEC, os.SEEK_END
    major, minor = staticmethod(os.major), staticmethod(os.minor)

    def __init__(
        self, records: list[bytes | OSError], device: tuple[int, int] = (1, 11), mode: int = stat.S_IFCHR
    ) -> None:
        self.records = records
        self.at = 0
        self.opened: list[int] = []
        self.info = SimpleNamespace(st_mode=mode | 0o644, st_rdev=os.makedev(*device))

    def open(self, _path: Path, flags: int) -> int:
        assert flags & os.O_NONBLOCK
        self.opened.append(7)
        self.at = 0
        return 7

    def fstat(self, _file: int) -> SimpleNamespace:
        return self.info

    def lseek(self, _file: int, offset: int, whence: int) -> int:
        assert (offset, whence) == (0, os.SEEK_END)
        self.at = len(self.records)
        return 0

    def read(self, _file: int, _size: int) -> bytes:
        if self.at == len(self.records):
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        self.at += 1
        record = self.records[self.at - 1]
        if isinstance(record, OSError):
            raise record
        return record

    def close(self, file: int) -> None:
        self.opened.remove(file)


@pytest.fixture
def kmsg(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeKmsg]:
    def put(*records: bytes | OSError, **changes: object) -> FakeKmsg:
        fake = FakeKmsg(list(records), **changes)  # type: ignore[arg-type]
        monkeypatch.setattr(kernsource, "os", fake)
        return fake

    return put


def record(text: str, micros: int = 9_000_000, priority: int = 3) -> bytes:
    return f"{priority},42,{micros},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:0f:00.0\n".encode()


class Silent:
    """A source that can be read, with these lines since the mark."""

    name = "silent"

    def __init__(self, *lines: Line, problem: str = "") -> None:
        self.lines = list(lines)
        self.problem = problem

    def mark(self) -> None:
        pass

    def since(self) -> tuple[list[Line], str]:
        return self.lines, self.problem

    def close(self) -> None:
        pass


class Closed(Silent):
    """A source that cannot be read."""

    name = "closed"

    def mark(self) -> None:
        raise SourceError("Operation not permitted")


def test_kmsg_gives_what_came_after_the_mark_and_is_closed(kmsg: Callable[..., FakeKmsg]) -> None:
    fake = kmsg(BOOT, record(FALLEN, 1_000_000))
    reader = KernelLogReader([KmsgSource()])
    reader.mark()
    fake.records += [record("usb 1-1: new device"), record(FALLEN, 9_500_000)]
    log = reader.since_mark()
    assert (log.source, log.problem) == ("/dev/kmsg", "")
    assert [(m.xid, m.seconds, m.text) for m in log.messages] == [(79, 9.5, FALLEN)]
    assert fake.opened == []
    assert reader.since_mark().problem == "the kernel log was read already"


def test_kmsg_says_that_lines_were_lost_and_goes_on(kmsg: Callable[..., FakeKmsg]) -> None:
    fake = kmsg(BOOT)
    reader = KernelLogReader([KmsgSource()])
    reader.mark()
    fake.records += [BrokenPipeError(errno.EPIPE, "Broken pipe"), record(FALLEN)]
    log = reader.since_mark()
    assert log.problem == "the kernel's ring buffer turned over: lines were lost"
    assert [m.xid for m in log.messages] == [79]


def test_kmsg_that_turned_over_before_the_mark_lost_nothing_of_ours(kmsg: Callable[..., FakeKmsg]) -> None:
    kmsg(BrokenPipeError(errno.EPIPE, "Broken pipe"), BOOT)
    reader = KernelLogReader([KmsgSource()])
    reader.mark()
    assert (reader.since_mark().source, reader.since_mark().problem) == ("/dev/kmsg", "the kernel log was read already")


@pytest.mark.parametrize(
    ("records", "changes", "why"),
    [
        ([], {}, "/dev/kmsg: holds no message"),
        ([b"6,0,0,-;Starting gVisor...\n"], {}, f"/dev/kmsg: {MADE_UP}"),
        ([BOOT], {"device": (1, 3)}, "/dev/kmsg: is not the kernel log here"),
        ([BOOT], {"mode": stat.S_IFREG}, "/dev/kmsg: is not the kernel log here"),
        ([PermissionError(errno.EPERM, "Operation not permitted")], {}, "/dev/kmsg: Operation not permitted"),
    ],
)
def test_a_kmsg_from_which_silence_means_nothing_is_not_taken(
    kmsg: Callable[..., FakeKmsg], records: list[bytes | OSError], changes: dict[str, object], why: str
) -> None:
    fake = kmsg(*records, **changes)
    reader = KernelLogReader([KmsgSource()])
    reader.mark()
    log = reader.since_mark()
    assert log.problem.startswith(f"the kernel log cannot be read ({why})")
    assert "kernel.dmesg_restrict" in log.problem
    assert "--cap-add SYSLOG" in log.problem
    assert fake.opened == []


def test_a_log_that_was_closed_is_not_called_read_and_holds_no_descriptor(kmsg: Callable[..., FakeKmsg]) -> None:
    fake = kmsg(BOOT)
    reader = KernelLogReader([KmsgSource()])
    reader.close()
    assert reader.since_mark().problem == "the kernel log was never looked at"
    reader.mark()
    fake.records += [record(FALLEN)]
    assert fake.opened == [7]
    reader.close()
    reader.close()
    assert fake.opened == []
    log = reader.since_mark()
    assert (log.source, log.problem) == ("", "the kernel log was closed before it was read")
    reader.mark()
    fake.records += [record(FALLEN)]
    assert [m.xid for m in reader.since_mark().messages] == [79]
    reader.close()


def test_a_source_that_was_closed_gives_no_empty_answer(kmsg: Callable[..., FakeKmsg]) -> None:
    kmsg(BOOT)
    source = KmsgSource()
    source.mark()
    source.close()
    with pytest.raises(SourceError, match="is not open"):
        source.since()


def test_a_descriptor_that_cannot_be_closed_is_let_go_of(
    kmsg: Callable[..., FakeKmsg], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = kmsg(BOOT)
    reader = KernelLogReader([KmsgSource()])
    reader.mark()
    closed: list[int] = []

    def close(file: int) -> None:
        closed.append(file)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fake, "close", close)
    reader.close()
    reader.close()
    assert closed == [7]


@pytest.mark.parametrize(
    ("release", "problem"),
    [
        ("6.8.0-45-generic", "cut"),
        (
            "5.15.153.1-microsoft-standard-WSL2",
            "on WSL2 the driver runs in Windows: no Xid reaches this kernel's log; cut",
        ),
        ("4.4.0-19041-Microsoft", "on WSL2 the driver runs in Windows: no Xid reaches this kernel's log; cut"),
    ],
)
def test_a_log_that_no_xid_reaches_is_read_and_says_so(release: str, problem: str) -> None:
    killed = "Out of memory: Killed process 4242 (llama-server) total-vm:1kB, anon-rss:1kB"
    reader = KernelLogReader([Silent((1.0, killed), problem="cut")], release)
    reader.mark()
    log = reader.since_mark()
    assert (log.source, log.problem) == ("silent", problem)
    assert [message.text for message in log.messages] == [killed]


def test_a_flood_in_kmsg_is_cut_and_said(kmsg: Callable[..., FakeKmsg], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernsource, "_MOST_LINES", 10)
    fake = kmsg(BOOT)
    reader = KernelLogReader([KmsgSource()])
    reader.mark()
    fake.records += [record(FALLEN)] * 50
    log = reader.since_mark()
    assert log.problem == "only 10 lines were read, and more may have followed"
    assert len(log.messages) == 10


def test_a_record_of_kmsg_is_read() -> None:
    assert kmsg_record(record("a: b; c", 8_321_309_407)) == (8321.309407, "a: b; c")
    assert kmsg_record(b"6,1,5,c;NVRM: one\\x0aNVRM: two \\xc2\\xb0\n") == (5e-06, "NVRM: one\nNVRM: two °")
    assert kmsg_record(b"30,12,5,-;NVRM: Xid (PCI:0000:0f:00): 79, a program wrote this\n") == (5e-06, "")
    assert kmsg_record(b"") is None
    assert kmsg_record(b"garbage") is None


def test_the_first_readable_source_is_taken() -> None:
    reader = KernelLogReader([Closed(), Silent((1.0, FALLEN)), Silent()])
    reader.mark()
    log = reader.since_mark()
    assert (log.source, log.problem, len(log.messages)) == ("silent", "", 1)


def test_no_readable_source_is_never_silently_empty() -> None:
    reader = KernelLogReader([Closed(), Closed()])
    assert reader.since_mark().problem == "the kernel log was never looked at"
    reader.mark()
    log = reader.since_mark()
    assert log.source == ""
    assert log.problem.startswith(
        "the kernel log cannot be read (closed: Operation not permitted; closed: Operation not permitted); add the user"
    )


def test_a_flood_of_other_lines_loses_no_xid() -> None:
    page_fault = "nvidia 0000:0f:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x001c address=0xd0 flags=0x0020]"
    reader = KernelLogReader([Silent(*((float(n), page_fault) for n in range(300)), (300.0, FALLEN), problem="cut")])
    reader.mark()
    log = reader.since_mark()
    assert len(log.messages) == 200
    assert (log.messages[0].seconds, log.messages[-1].xid) == (0.0, 79)
    assert log.problem == "cut; 101 further lines about GPUs were left out"


def entry(text: object, cursor: str = "s=1;i=2", micros: object = "9500000", **fields: object) -> str:
    known = {"__CURSOR": cursor, "_SOURCE_MONOTONIC_TIMESTAMP": micros, "MESSAGE": text, "PRIORITY": "3"}
    return json.dumps(known | fields)


def test_the_journal_is_read_on_from_its_cursor() -> None:
    asked: list[tuple[str, ...]] = []

    def run(argv: Sequence[str]) -> str:
        asked.append(tuple(argv))
        return entry("usb 1-1: new device") if "-n1" in "".join(argv) else f"{entry(FALLEN)}\n{entry('other')}\n"

    source = JournalSource(run, settle_seconds=0.0)
    source.mark()
    lines, problem = source.since()
    assert lines == [(9.5, FALLEN), (9.5, "other")]
    assert problem == ""
    assert asked[0] == ("journalctl", "-k", "-q", "-o", "json", "-n", "1")
    assert asked[1][-1] == "--after-cursor=s=1;i=2"


def test_the_journal_gets_time_to_take_over_what_the_kernel_said_last(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        written.append(entry(FALLEN))

    monkeypatch.setattr(kernsource, "time", SimpleNamespace(sleep=sleep))
    source = JournalSource(lambda argv: entry("boot") if "--after-cursor=s=1;i=2" not in argv else "\n".join(written))
    source.mark()
    assert slept == []
    assert source.since() == ([(9.5, FALLEN)], "")
    assert slept == [0.3]


def test_what_programs_write_into_the_journal_of_the_kernel_is_not_the_kernels() -> None:
    said = (
        entry("kernel", SYSLOG_FACILITY="0"),
        entry(FALLEN, SYSLOG_FACILITY="3"),
        entry(FALLEN, SYSLOG_FACILITY="1"),
        entry("no facility given"),
    )
    assert journal_lines("\n".join(said)) == [(9.5, "kernel"), (9.5, "no facility given")]


def test_a_journal_with_more_than_is_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernsource, "_MOST_LINES", 2)
    source = JournalSource(lambda _argv: f"{entry('a')}\n{entry('b', SYSLOG_FACILITY='3')}\n", settle_seconds=0.0)
    source.mark()
    assert source.since() == ([(9.5, "a")], "only the newest 2 lines were read")


def test_a_journal_that_shows_nothing_is_not_taken() -> None:
    with pytest.raises(SourceError, match="shows this user no kernel message"):
        JournalSource(lambda _argv: "").mark()
    with pytest.raises(SourceError, match="shows this user no kernel message"):
        JournalSource(lambda _argv: "-- No entries --\n").mark()


def test_odd_entries_of_the_journal() -> None:
    lines = (entry(list(b"NVRM: \xff")), entry(None), entry("late", micros=None), "[1, 2]", "{half", entry("last"))
    assert journal_lines("\n".join(lines)) == [(9.5, "NVRM: �"), (None, "late"), (9.5, "last")]


DMESG = """\
[    0.000000] Linux version 6.8.0
[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands.
<4>[14328.198504][T13332] NVRM: Xid (PCI:0000:0a:00): 31, pid=13332, name=cuda_plot_k32_v
"""


def test_dmesg_is_read_with_messages_of_several_lines() -> None:
    lines = dmesg_lines(DMESG)
    assert [seconds for seconds, _ in lines] == [0.0, 1843.308145, 14328.198504]
    assert lines[1][1].count("\n") == 2
    assert lines[2][1] == "NVRM: Xid (PCI:0000:0a:00): 31, pid=13332, name=cuda_plot_k32_v"
    assert dmesg_lines("dmesg: garbage\n") == []


def test_dmesg_gives_what_is_later_than_the_mark() -> None:
    outputs = ["[    1.0] a\n[    2.0] b\n", f"[    1.0] a\n[    2.0] b\n[    3.5] {FALLEN}\n"]
    reader = KernelLogReader([DmesgSource(lambda _argv: outputs.pop(0))])
    reader.mark()
    log = reader.since_mark()
    assert (log.source, log.problem) == ("dmesg", "")
    assert [(m.seconds, m.xid) for m in log.messages] == [(3.5, 79)]


GVISOR = """\
[    0.000000] Starting gVisor...
[    0.403651] Creating cloned children...
[    0.827305] Ready!
"""


def test_a_log_made_up_by_a_sandbox_is_not_taken() -> None:
    reader = KernelLogReader([DmesgSource(lambda _argv: GVISOR)])
    reader.mark()
    log = reader.since_mark()
    assert log.source == ""
    assert log.problem.startswith(f"the kernel log cannot be read (dmesg: {MADE_UP}); ")


def test_dmesg_that_turned_over_or_is_empty_is_said() -> None:
    outputs = ["[    1.0] a\n", "[    5.0] b\n"]
    source = DmesgSource(lambda _argv: outputs.pop(0))
    source.mark()
    assert source.since() == ([(5.0, "b")], "the kernel's ring buffer turned over: lines were lost")
    with pytest.raises(SourceError, match="prints no message with a time"):
        DmesgSource(lambda _argv: "").mark()


def test_a_source_that_fails_after_the_mark_is_said() -> None:
    outputs = ["[    1.0] a\n", ""]
    reader = KernelLogReader([DmesgSource(lambda _argv: outputs.pop(0))])
    reader.mark()
    log = reader.since_mark()
    assert log.problem == "the kernel log could not be read again: prints no message with a time"
    assert log.source == "dmesg"


def test_a_command_that_hangs_fails_or_is_not_there() -> None:
    assert command_output((sys.executable, "-c", "print('[ 1.0] a')")) == "[ 1.0] a\n"
    with pytest.raises(SourceError, match="does not answer within 0 s"):
        command_output((sys.executable, "-c", "import time; time.sleep(60)"), seconds=0.2)
    with pytest.raises(SourceError, match=r"^read kernel buffer failed$"):
        command_output((sys.executable, "-c", "import sys; sys.exit('first\\nread kernel buffer failed')"))
    with pytest.raises(SourceError, match=r"^exit code 3$"):
        command_output((sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(SourceError, match="is not installed"):
        command_output(("no-such-program-here",))


def test_the_kernel_log_of_this_machine_is_read_or_said() -> None:
    reader = KernelLogReader()
    reader.mark()
    log = reader.since_mark()
    assert bool(log.source) != log.problem.startswith("the kernel log cannot be read (")
    reader.close()
