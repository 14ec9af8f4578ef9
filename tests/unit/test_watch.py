"""`moegpu watch`: what it opens, when it ends, what it prints, and that it never ends in a traceback."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_moegpu.cli import main
from pytest_moegpu.core.evidence import DeviceProcess
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.core.units import GIB
from pytest_moegpu.errors import ProbeError, UserError
from pytest_moegpu.host.recording import Origin, Recording, write_recording
from pytest_moegpu.session.watch import Order, watch
from tests.fakes.probe import FakeProbe
from tests.unit.builders import gpu

NO_GPU = ProbeError("libnvidia-ml is not installed", kind="no-library")
FAST = 0.05


def opens(monkeypatch: pytest.MonkeyPatch, found: FakeProbe | ProbeError) -> list[tuple[Sequence[str], str | None]]:
    """Have the watch find this instead of the GPUs of this machine; returns what it asked for."""
    asked = []

    def make(devices: Sequence[str], visible: str | None, energy_seconds: float) -> FakeProbe:
        assert energy_seconds <= 0.5, "power over the last second takes two readings of the counter"
        asked.append((devices, visible))
        if isinstance(found, ProbeError):
            raise found
        return found

    monkeypatch.setattr("pytest_moegpu.session.watch.NvmlProbe", make)
    return asked


@contextmanager
def server(seconds: float = 60.0) -> Iterator[int]:
    """Run a process that ends by itself after so long; gives its pid."""
    code = f"import time; data = b'x' * (30 * 1024 * 1024); print(flush=True); time.sleep({seconds})"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def recording(folder: Path, seconds: float) -> Path:
    path = folder / "telemetry.jsonl"
    used = [9 * GIB if 10 <= n < 15 else 4 * GIB for n in range(round(seconds * 100))]
    samples = tuple(
        Sample(time=7 + n / 100, phase="load", device=0, used_bytes=size, event_reasons=0x20)
        for n, size in enumerate(used)
    )
    origin = Origin(
        probe="nvml", memory_version="nvml-v2", interval_seconds=0.01, gpus=(gpu(),), versions={"driver": "580.159.04"}
    )
    write_recording(path, Recording(samples=samples, origin=origin))
    return path


def test_a_recording_is_shown_to_its_end_and_summed_up(tmp_path: Path) -> None:
    out = io.StringIO()
    assert watch(Order(replay=recording(tmp_path, 0.4), interval=FAST), out) == 0
    text = out.getvalue()
    assert "replay (nvml-v2), driver 580.159.04" in text
    assert text.count("NVIDIA GeForce RTX 3090") >= 3
    assert "\x1b" not in text
    last = text.rstrip().splitlines()[-1]
    assert last == "GPU 0 NVIDIA GeForce RTX 3090: at most 9.00 GiB used, clocks held by sw thermal"


def test_one_table_and_no_summary(tmp_path: Path) -> None:
    out = io.StringIO()
    assert watch(Order(replay=recording(tmp_path, 5.0), interval=FAST, once=True), out) == 0
    assert out.getvalue().count("NVIDIA GeForce RTX 3090") == 1
    assert "watched" not in out.getvalue()


def test_gpus_are_watched_as_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    stranger = DeviceProcess(pid=12345, device=0, name="python3", used_bytes=3 * GIB)
    probe = FakeProbe(7 * GIB, processes=[stranger])
    asked = opens(monkeypatch, probe)
    out = io.StringIO()
    assert watch(Order(devices=("GPU-f",), interval=FAST, once=True), out) == 0
    assert asked == [(("GPU-f",), "1")]
    assert "7.00 GiB" in out.getvalue()
    assert [line.split() for line in out.getvalue().splitlines() if line.startswith("12345")] == [
        ["12345", "python3", "0", "3.00", "GiB"]
    ]
    assert probe.closes == 1


def test_it_ends_with_the_process_and_says_what_its_tree_held(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(0.7) as pid:
        listed = [
            DeviceProcess(pid=pid, device=0, name="llama-server", used_bytes=5 * GIB),
            DeviceProcess(pid=1, device=0, name="other", used_bytes=9 * GIB),
        ]
        opens(monkeypatch, FakeProbe(15 * GIB, processes=listed))
        out = io.StringIO()
        assert watch(Order(pid=pid, interval=FAST), out) == 0
    assert f"pid {pid} (python" in out.getvalue()
    assert "; on the device 5.00 GiB, peak 5.00 GiB" in out.getvalue()
    last = out.getvalue().rstrip().splitlines()[-1]
    assert last.endswith(", on the device at most 5.00 GiB")
    host = int(last.partition("host memory at most ")[2].split(" MiB")[0])
    assert 30 <= host < 60


def test_device_memory_that_the_driver_does_not_say_is_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> list[DeviceProcess]:
        raise ProbeError("GPU 0 does not list its processes", kind="no-permission")

    with server() as pid:
        opens(monkeypatch, FakeProbe(GIB, processes=refuse))
        out = io.StringIO()
        assert watch(Order(pid=pid, interval=FAST, once=True), out) == 0
    assert "on the device" not in out.getvalue().replace("processes on the device are not known", "")
    assert "note: processes on the device are not known: GPU 0 does not list its processes" in out.getvalue()


def test_without_a_gpu_the_memory_of_the_tree_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    opens(monkeypatch, NO_GPU)
    with server() as pid:
        out = io.StringIO()
        assert watch(Order(pid=pid, interval=0.3, once=True), out) == 0
    assert "host (process-tree-rss)" in out.getvalue()
    assert "note: no GPU can be read, so this is host memory: libnvidia-ml is not installed" in out.getvalue()
    (size,) = [line.split()[-2] for line in out.getvalue().splitlines() if line.startswith(f"{pid} ")]
    assert 30 <= int(size) < 60


def test_without_a_gpu_and_a_pid_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    opens(monkeypatch, NO_GPU)
    with pytest.raises(
        UserError, match=r"libnvidia-ml is not installed\. Give the PID of a server .* or --replay FILE"
    ):
        watch(Order(), io.StringIO())


@pytest.mark.parametrize(
    ("order", "kind", "says"),
    [
        ({"pid": 2**22 + 1}, UserError, "there is no process 4194305"),
        ({"devices": ("7",)}, ProbeError, "libnvidia-ml is not installed"),
        ({"replay": Path("gone.jsonl")}, UserError, "gone.jsonl: there is no such recording"),
        ({"replay": Path("gone.jsonl"), "pid": os.getpid()}, UserError, "neither a PID nor --device"),
        ({"replay": Path("gone.jsonl"), "devices": ("0",)}, UserError, "neither a PID nor --device"),
    ],
)
def test_bad_input(
    order: dict[str, Any], kind: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opens(monkeypatch, NO_GPU)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=says):
        watch(Order(**order), io.StringIO())


def test_a_recording_of_the_first_schema_does_not_say_what_it_is_of(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text('["time", "phase", "device"]\n[1.0, "load", 0]\n')
    with pytest.raises(ProbeError, match="does not say which devices it is of"):
        watch(Order(replay=path), io.StringIO())


def test_a_gpu_lost_midway_ends_with_the_summary_and_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readings: list[Any] = [3 * GIB] * 30
    opens(monkeypatch, FakeProbe([*readings, ProbeError("the GPU is lost: look for an Xid", kind="lost")]))
    assert main(["watch", "--interval", "5"]) == 2
    out, err = capsys.readouterr()
    assert err == "moegpu watch: the GPU is lost: look for an Xid\n"
    assert out.rstrip().splitlines()[-1] == "GPU 0 NVIDIA GeForce RTX 3090: at most 3.00 GiB used"


def test_a_gpu_lost_while_its_processes_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> list[DeviceProcess]:
        raise ProbeError("the GPU is lost", kind="lost")

    probe = FakeProbe(GIB, processes=lost)
    opens(monkeypatch, probe)
    out = io.StringIO()
    with pytest.raises(ProbeError, match="the GPU is lost"):
        watch(Order(interval=FAST), out)
    assert "at most 1.00 GiB used" in out.getvalue()
    assert probe.closes == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["x"], "argument PID: 'x' is not a pid: write a whole number above 0"),
        (["0"], "argument PID: '0' is not a pid"),
        (["--interval", "0"], "argument --interval: '0' is not a time: write a number of seconds above 0"),
        (["--interval", "nan"], "argument --interval: 'nan' is not a time"),
        (["--interval", "soon"], "argument --interval: 'soon' is not a time"),
    ],
)
def test_wrong_usage(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["watch", *words])
    assert caught.value.code == 3
    assert capsys.readouterr().err.startswith(f"moegpu: {says}")


def shown(path: Path, output: int, until: Callable[[], bool]) -> tuple[int, str]:
    """Run a watch of a recording into a file descriptor, press Ctrl-C, and return exit code and stderr."""
    argv = [sys.executable, "-m", "pytest_moegpu.cli", "watch", "--replay", str(path), "--interval", "0.1"]
    environment = os.environ | {"TERM": "xterm"}
    with subprocess.Popen(argv, stdout=output, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stderr is not None
        assert until()
        process.send_signal(signal.SIGINT)
        return process.wait(20), process.stderr.read().decode()


def read(reader: int) -> bytes:
    """Read what is there, or fail: a program that has ended prints nothing, and this process holds the other end."""
    assert select.select([reader], [], [], 30)[0], "nothing was printed"
    return os.read(reader, 4096)


def test_ctrl_c_ends_it_quietly_with_the_summary(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    seen = b""

    def until() -> bool:
        nonlocal seen
        while b"9.00 GiB" not in seen:
            seen += read(reader)
        return True

    code, errors = shown(recording(tmp_path, 60.0), writer, until)
    os.close(writer)
    seen += os.read(reader, 65536)
    os.close(reader)
    assert (code, errors) == (0, "")
    assert b"at most 9.00 GiB used, clocks held by sw thermal" in seen
    assert b"\x1b" not in seen


def test_a_terminal_is_drawn_over_and_never_wider_than_it_is(tmp_path: Path) -> None:
    reader, writer = pty.openpty()
    seen = b""

    def until() -> bool:
        nonlocal seen
        while seen.count(b"\x1b[H") < 4:
            seen += read(reader)
        return True

    code, errors = shown(recording(tmp_path, 60.0), writer, until)
    seen += os.read(reader, 65536)
    os.close(writer)
    os.close(reader)
    assert (code, errors) == (0, "")
    drawn = seen.decode().split("\x1b[H")[2]
    lines = [line.removesuffix("\r").replace("\x1b[K", "").replace("\x1b[J", "") for line in drawn.split("\n")]
    assert lines[1].startswith("device")
    assert max(map(len, lines)) == 80
    assert "watched" in seen.decode()
