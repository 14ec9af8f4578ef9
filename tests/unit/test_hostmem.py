"""The host probe on real process trees."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from pytest_moegpu.core.model import DeviceKind
from pytest_moegpu.host.hostmem import HostProbe
from pytest_moegpu.host.probe import Probe

MIB = 1024**2
HOLD = "data = b'x' * ({mib} * 1024 * 1024); print(os.getpid(), flush=True); sys.stdin.read()"
PARENT = "import os, subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {child!r}]); " + HOLD


@contextmanager
def running(code: str, lines: int) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Run a program until it has printed so many pids; it and its children end when stdin closes."""
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process, [int(process.stdout.readline()) for _ in range(lines)]
        finally:
            process.stdin.close()


def tree(parent_mib: int, child_mib: int) -> str:
    return PARENT.format(child="import os, sys; " + HOLD.format(mib=child_mib), mib=parent_mib)


def used(probe: HostProbe) -> int | None:
    (sample,) = probe.read(1.5, "load")
    return sample.used_bytes


def test_one_device_of_kind_cpu() -> None:
    (gpu,) = HostProbe().devices()
    assert (gpu.index, gpu.kind, gpu.memory_bytes) == (0, DeviceKind.CPU, psutil.virtual_memory().total)
    assert gpu.name


@pytest.mark.parametrize(
    ("text", "expected"),
    [("processor\t: 0\nmodel name\t: Some CPU @ 3.00GHz\nmodel name\t: Other\n", "Some CPU @ 3.00GHz"), ("", None)],
)
def test_processor_name(tmp_path: Path, text: str, expected: str | None) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(text)
    named, missing = HostProbe(cpuinfo).devices()[0].name, HostProbe(tmp_path / "none").devices()[0].name
    assert named == (expected or missing)
    assert missing


def test_nothing_followed_is_a_true_zero() -> None:
    probe: Probe = HostProbe()
    (sample,) = probe.read(1.5, "preflight")
    assert (sample.time, sample.phase, sample.device, sample.used_bytes) == (1.5, "preflight", 0, 0)
    assert sample.free_bytes is not None
    assert 0 < sample.free_bytes <= psutil.virtual_memory().total
    assert sample.reserved_bytes is None
    assert (probe.processes(), probe.versions()) == ((), {})
    assert (probe.name, probe.memory_version, probe.interval_seconds) == ("host", "process-tree-rss", 0.05)


def test_the_whole_tree_is_counted() -> None:
    probe = HostProbe()
    with running(tree(60, 90), 2) as (process, pids):
        probe.follow(process.pid)
        size = used(probe)
        listed = {item.pid: item for item in probe.processes()}
        assert size is not None
        assert 150 * MIB <= size < 150 * MIB + 2 * 60 * MIB
        assert set(listed) == set(pids)
        child = listed[next(pid for pid in pids if pid != process.pid)]
        assert child.used_bytes is not None
        assert 90 * MIB <= child.used_bytes < 150 * MIB
        assert child.name.startswith("python")
        assert child.device == 0
        probe.follow(None)
        assert used(probe) == 0


def test_a_child_born_later_is_found() -> None:
    probe = HostProbe()
    code = (
        "import os, subprocess, sys; print(os.getpid(), flush=True); sys.stdin.readline(); "
        f"subprocess.Popen([sys.executable, '-c', {'import os, sys; ' + HOLD.format(mib=80)!r}]); sys.stdin.read()"
    )
    with running(code, 1) as (process, _):
        assert process.stdin is not None
        assert process.stdout is not None
        probe.follow(process.pid)
        before = used(probe)
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        after = [used(probe) for _ in range(5)][-1]
        assert before is not None
        assert after is not None
        assert after - before >= 80 * MIB


def test_a_child_is_counted_after_its_parent_was_killed() -> None:
    probe = HostProbe()
    with running(tree(1, 70), 2) as (process, pids):
        probe.follow(process.pid)
        used(probe)
        process.kill()
        process.wait()
        size = used(probe)
        assert size is not None
        assert 70 * MIB <= size < 130 * MIB
        assert [item.pid for item in probe.processes()] == [pid for pid in pids if pid != process.pid]
    assert _falls_to_zero(probe)
    assert probe.processes() == ()


def test_vanished_processes_are_skipped() -> None:
    probe = HostProbe()
    with running("import os, sys; " + HOLD.format(mib=1), 1) as (process, _):
        probe.follow(process.pid)
        assert used(probe)
    assert used(probe) == 0
    probe.follow(process.pid)
    assert used(probe) == 0


def test_memory_that_may_not_be_read_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    probe = HostProbe()
    probe.follow(os.getpid())
    monkeypatch.setattr(psutil.Process, "memory_info", refuse)
    assert used(probe) is None
    assert {item.used_bytes for item in probe.processes()} == {None}


def test_close_twice() -> None:
    probe = HostProbe()
    probe.follow(os.getpid())
    probe.close()
    probe.close()
    assert used(probe) == 0


def _falls_to_zero(probe: HostProbe) -> bool:
    deadline = time.monotonic() + 10
    while used(probe) != 0:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
