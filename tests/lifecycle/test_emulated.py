"""A smaller card on a larger one: the rest is really held, by a process that never outlives us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_moegpu.core.evidence import DeviceProcess
from pytest_moegpu.core.model import Gpu
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.errors import DeviceError, ProbeError
from pytest_moegpu.host import ballast
from pytest_moegpu.host.emulated import EmulatedProbe
from pytest_moegpu.host.process import ServerProcess
from pytest_moegpu.host.stopreport import StopReport
from tests.fakes.cuda_library import FakeCuda
from tests.fakes.probe import GIB, FakeProbe
from tests.fakes.waiting import gone, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in for libcuda is built for Linux")

MIB = 1024**2
TOTAL, RESERVED = 140 * GIB, 615 * MIB
H200 = Gpu(index=0, name="NVIDIA H200", memory_bytes=TOTAL, uuid="GPU-fake", power_limit_watts=700.0)


def reading(cuda: FakeCuda, server: int = 0) -> Sample:
    used = cuda.holder[1] + server
    free = TOTAL - RESERVED - used
    return Sample(time=0, phase="", device=0, used_bytes=used, reserved_bytes=RESERVED, free_bytes=free)


def device(cuda: FakeCuda, *, others: tuple[DeviceProcess, ...] = ()) -> FakeProbe:
    def processes() -> tuple[DeviceProcess, ...]:
        pid, used = cuda.holder
        holder = (DeviceProcess(pid=pid, device=0, name="python3", used_bytes=used),) if pid else ()
        return (*holder, *others)

    return FakeProbe(lambda time, phase: reading(cuda), gpus=(H200,), processes=processes)


def made(folder: Path, **named: int) -> FakeCuda:
    return FakeCuda(folder=folder, total=TOTAL - RESERVED, context=500 * MIB, **named).build()


def emulated(cuda: FakeCuda, probe: FakeProbe, size: int = 24 * GIB) -> EmulatedProbe:
    return EmulatedProbe(probe, size, os.environ | cuda.environment)


def test_the_server_finds_what_a_card_of_that_size_would_leave(tmp_path: Path) -> None:
    cuda = made(tmp_path)
    inner = FakeProbe(lambda time, phase: reading(cuda, server=3 * GIB if phase == "load" else 0), gpus=(H200,))
    probe = emulated(cuda, inner)
    try:
        assert cuda.holder == (0, 0), "nothing is held before the first reading"
        assert probe.read(0.0, "idle")[0].used_bytes == 0
        (sample,) = probe.read(1.0, "load")
        # In pages of 2 MiB, so up to one of them more than asked for.
        assert 0 <= sample.free_bytes - (24 * GIB - RESERVED) + 3 * GIB < 2 * MIB  # type: ignore[operator]
        assert sample.used_bytes == 3 * GIB
        assert cuda.holder[1] >= TOTAL - 24 * GIB - 2 * MIB
    finally:
        probe.close()


def test_who_holds_it_is_not_listed_and_others_are(tmp_path: Path) -> None:
    cuda = made(tmp_path)
    others: list[DeviceProcess] = []

    def processes() -> tuple[DeviceProcess, ...]:
        return (*(DeviceProcess(pid=pid, device=0) for pid, _ in [cuda.holder] if pid), *others)

    probe = emulated(cuda, FakeProbe(lambda time, phase: reading(cuda), gpus=(H200,), processes=processes))
    try:
        assert probe.processes() == ()
        assert cuda.holder[0] > 0
        others.append(DeviceProcess(pid=4711, device=0))
        assert [p.pid for p in probe.processes()] == [4711]
    finally:
        probe.close()


def test_the_memory_comes_back_with_close_and_twice_is_no_error(tmp_path: Path) -> None:
    cuda = made(tmp_path)
    inner = device(cuda)
    probe = emulated(cuda, inner)
    probe.read(0.0, "idle")
    holder = cuda.holder[0]
    assert not gone([holder])
    probe.close()
    probe.close()
    assert gone([holder])
    assert inner.closes == 2


def test_a_device_is_marked_with_what_it_really_is(tmp_path: Path) -> None:
    cuda = made(tmp_path)
    (gpu,) = emulated(cuda, device(cuda)).devices()
    assert (gpu.name, gpu.memory_bytes, gpu.emulated_on) == ("NVIDIA H200", 24 * GIB, "NVIDIA H200, 140.00 GiB")
    assert gpu.power_limit_watts == 700.0


def test_memory_that_is_not_there_in_one_piece_is_taken_in_halves(tmp_path: Path) -> None:
    cuda = made(tmp_path, largest=10 * GIB)
    probe = emulated(cuda, device(cuda))
    try:
        (sample,) = probe.read(0.0, "idle")
        assert 0 <= sample.free_bytes - (24 * GIB - RESERVED) < 2 * MIB  # type: ignore[operator]
    finally:
        probe.close()


@pytest.mark.parametrize("size", [140 * GIB, 200 * GIB])
def test_a_card_that_is_not_smaller(tmp_path: Path, size: int) -> None:
    cuda = FakeCuda(folder=tmp_path, total=TOTAL)
    with pytest.raises(DeviceError, match=r"GPU 0 NVIDIA H200 has 140.00 GiB; a smaller card can only be rehearsed"):
        emulated(cuda, device(cuda), size)


def test_a_device_in_use_is_refused_and_its_owner_named(tmp_path: Path) -> None:
    cuda = made(tmp_path)
    other = DeviceProcess(pid=4711, device=0, name="trainer", used_bytes=GIB)
    probe = emulated(cuda, device(cuda, others=(other,)))
    with pytest.raises(ProbeError, match=r"while the device is in use by pid 4711 \(trainer\)"):
        probe.read(0.0, "idle")
    assert cuda.holder == (0, 0)
    probe.close()


def test_a_driver_that_refuses_is_told_in_its_words_and_nothing_is_left(tmp_path: Path) -> None:
    cuda = made(tmp_path, init=100)
    probe = emulated(cuda, device(cuda))
    with pytest.raises(
        ProbeError, match=r"could not be held: cuInit: no CUDA-capable device is detected \(CUresult 100"
    ):
        probe.read(0.0, "idle")
    assert probe._holders == {}
    probe.close()


def test_memory_that_somebody_else_takes_meanwhile_is_not_called_held(tmp_path: Path) -> None:
    cuda = made(tmp_path)
    inner = FakeProbe(
        lambda time, phase: reading(cuda, server=GIB if cuda.holder[0] else 0), gpus=(H200,), processes=()
    )
    probe = emulated(cuda, inner)
    with pytest.raises(ProbeError, match=r"22.40 GiB free instead of 23.40 GiB"):
        probe.read(0.0, "idle")
    assert cuda.holder == (0, 0)
    probe.close()


def test_a_holder_that_is_gone_ends_the_emulation(tmp_path: Path) -> None:
    cuda = made(tmp_path)
    probe = emulated(cuda, device(cuda))
    try:
        probe.read(0.0, "idle")
        os.kill(cuda.holder[0], signal.SIGKILL)
        wait_for(lambda: not probe._holders[0].alive, "the notice of it")
        with pytest.raises(ProbeError, match="nothing is emulated now"):
            probe.read(0.0, "decode")
    finally:
        probe.close()


_PARENT = """
import os, sys, threading
from pathlib import Path
from tests.fakes.cuda_library import FakeCuda
from tests.lifecycle.test_emulated import TOTAL, RESERVED, MIB, device, emulated

cuda = FakeCuda(folder=Path(sys.argv[1]), total=TOTAL - RESERVED, context=500 * MIB)
emulated(cuda, device(cuda)).read(0.0, "idle")
print("held", flush=True)
threading.Event().wait()
"""


def test_it_is_released_when_we_are_killed(tmp_path: Path) -> None:
    cuda = made(tmp_path)
    with subprocess.Popen([sys.executable, "-c", _PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "held\n"
        holder = cuda.holder[0]
        assert not gone([holder])
        parent.kill()
        parent.wait()
    wait_for(lambda: gone([holder]), "the end of the holder")


def test_a_driver_that_counts_pids_of_another_namespace_does_not_make_us_a_stranger(tmp_path: Path) -> None:
    cuda = made(tmp_path)

    def processes() -> tuple[DeviceProcess, ...]:
        return (DeviceProcess(pid=0, device=0),) if cuda.holder[0] else ()

    probe = emulated(cuda, FakeProbe(lambda time, phase: reading(cuda), gpus=(H200,), processes=processes))
    try:
        assert probe.processes() == ()
    finally:
        probe.close()


def test_an_interrupt_while_one_holder_ends_leaves_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (FakeCuda(folder=tmp_path / name, total=TOTAL - RESERVED) for name in ("one", "two"))
    cards = (H200, Gpu(index=1, name="NVIDIA H200", memory_bytes=TOTAL, uuid="GPU-two"))
    for cuda in (first, second):
        cuda.folder.mkdir()
        cuda.build()
    probe = FakeProbe(lambda time, phase: (reading(first), reading(second)), gpus=cards)
    both = EmulatedProbe(probe, 24 * GIB)
    monkeypatch.setattr(both, "_environment", _Own(first, second))
    both.read(0.0, "idle")
    holders = [first.holder[0], second.holder[0]]
    assert all(holders)
    assert not gone(holders)
    stop, stopped = ServerProcess.stop, []

    def interrupted(self: ServerProcess, grace: float = 10.0) -> StopReport:
        report = stop(self, grace)
        stopped.append(self)
        if len(stopped) == 1:
            raise KeyboardInterrupt
        return report

    monkeypatch.setattr(ServerProcess, "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        both.close()
    assert gone(holders)
    assert probe.closes == 1


class _Own:
    """Gives each device's holder a library of its own."""

    def __init__(self, *cudas: FakeCuda) -> None:
        self.cudas = dict(zip(("GPU-fake", "GPU-two"), cudas, strict=True))

    def __or__(self, more: dict[str, str]) -> dict[str, str]:
        return os.environ | self.cudas[more["CUDA_VISIBLE_DEVICES"]].environment | more


def test_a_machine_without_a_driver(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ballast.py", "1"])
    monkeypatch.setattr("ctypes.CDLL", _no_library)
    assert ballast.main() == 1
    assert capfd.readouterr().out == '{"error": "libcuda.so.1: cannot open shared object file"}\n'


def _no_library(name: str) -> object:
    raise OSError(f"{name}: cannot open shared object file")
