"""How the NVML probe starts: library, driver, choice of devices."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pynvml
import pytest

from pytest_moegpu.errors import DeviceError, ProbeError
from pytest_moegpu.host.nvmlprobe import NvmlProbe
from pytest_moegpu.host.probe import Probe
from tests.fakes.pynvml_fake import FakeNvml, h200, install, nvml_error

UUIDS = ("GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000")


def three(monkeypatch: pytest.MonkeyPatch, **second: Any) -> FakeNvml:
    extras: tuple[dict[str, Any], ...] = ({}, second, {})
    return install(
        monkeypatch, *(h200(nvmlDeviceGetUUID=uuid) | extra for uuid, extra in zip(UUIDS, extras, strict=True))
    )


def indexes(probe: Probe) -> list[int]:
    return [gpu.index for gpu in probe.devices()]


class TestSelection:
    def test_all_devices_by_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        three(monkeypatch)
        assert indexes(NvmlProbe()) == [0, 1, 2]

    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [((2,), [2]), ((2, 0), [2, 0]), (("1",), [1]), ((UUIDS[1],), [1]), (("GPU-bbbb",), [2]), ((1, UUIDS[1]), [1])],
    )
    def test_by_index_and_uuid(
        self, monkeypatch: pytest.MonkeyPatch, wanted: tuple[int | str, ...], expected: list[int]
    ) -> None:
        three(monkeypatch)
        assert indexes(NvmlProbe(wanted, visible="0")) == expected

    @pytest.mark.parametrize(
        ("visible", "expected"),
        [("1", [1]), ("2, 0", [2, 0]), ("GPU-bbbb,0", [2, 0]), ("1,-1,0", [1]), (UUIDS[0], [0])],
    )
    def test_visible_devices(self, monkeypatch: pytest.MonkeyPatch, visible: str, expected: list[int]) -> None:
        three(monkeypatch)
        assert indexes(NvmlProbe(visible=visible)) == expected

    @pytest.mark.parametrize("visible", ["", "-1", " "])
    def test_all_hidden_says_so(self, monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
        fake = three(monkeypatch)
        with pytest.raises(DeviceError, match=r"CUDA_VISIBLE_DEVICES=.* hides every GPU; found: 0 NVIDIA H200"):
            NvmlProbe(visible=visible)
        assert fake.running == 0

    @pytest.mark.parametrize("word", [7, "GPU-cccc", "MIG-1234", "-1"])
    def test_unknown_device_lists_those_found(self, monkeypatch: pytest.MonkeyPatch, word: int | str) -> None:
        fake = three(monkeypatch)
        with pytest.raises(DeviceError, match=f"no GPU '{word}'; found: ") as caught:
            NvmlProbe([word])
        assert all(uuid in str(caught.value) for uuid in UUIDS)
        assert fake.running == 0

    def test_ambiguous_uuid(self, monkeypatch: pytest.MonkeyPatch) -> None:
        three(monkeypatch)
        with pytest.raises(DeviceError, match="more than one GPU 'GPU-aaaa'"):
            NvmlProbe(["GPU-aaaa"])

    def test_forbidden_device_is_not_counted_as_visible(self, monkeypatch: pytest.MonkeyPatch) -> None:
        three(monkeypatch, handle=nvml_error("NO_PERMISSION"))
        assert indexes(NvmlProbe()) == [0, 2]
        assert indexes(NvmlProbe(visible="1")) == [2]
        with pytest.raises(ProbeError) as caught:
            NvmlProbe([1])
        assert caught.value.kind == "no-permission"

    def test_broken_device_stops_only_those_who_ask_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        three(monkeypatch, handle=nvml_error("GPU_IS_LOST"))
        assert indexes(NvmlProbe([0, 2])) == [0, 2]
        with pytest.raises(ProbeError, match="GPU 1: the GPU is lost") as caught:
            NvmlProbe()
        assert caught.value.kind == "lost"


class TestLibrary:
    @pytest.mark.parametrize(
        ("error", "kind", "words"),
        [
            ("LIBRARY_NOT_FOUND", "no-library", "libnvidia-ml is not installed"),
            ("LIB_RM_VERSION_MISMATCH", "mismatch", "driver and library versions differ: reboot needed"),
            ("NO_PERMISSION", "no-permission", "no permission"),
            ("DRIVER_NOT_LOADED", "no-device", "kernel driver is not loaded"),
            ("GPU_NOT_FOUND", "no-device", "no GPU"),
            ("UNKNOWN", "other", "Unknown Error"),
        ],
    )
    def test_failed_start(self, monkeypatch: pytest.MonkeyPatch, error: str, kind: str, words: str) -> None:
        install(monkeypatch, h200(), init=nvml_error(error))
        with pytest.raises(ProbeError, match=words) as caught:
            NvmlProbe()
        assert caught.value.kind == kind

    def test_no_devices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fake = install(monkeypatch)
        fake.system["nvmlDeviceGetCount"] = 0
        with pytest.raises(ProbeError, match="no GPU") as caught:
            NvmlProbe()
        assert (caught.value.kind, fake.running) == ("no-device", 0)

    def test_close_twice_and_when_the_driver_is_gone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fake = install(monkeypatch, h200())
        probe = NvmlProbe()
        probe.follow(os.getpid())
        probe.close()
        probe.close()
        assert fake.calls["nvmlShutdown"] == 1
        with pytest.raises(ProbeError):
            probe.read(0, "stop")
        other = NvmlProbe()
        fake.calls["nvmlShutdown"] += 1
        other.close()

    def test_meets_the_protocol(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, h200())
        probe: Probe = NvmlProbe()
        assert (probe.name, probe.interval_seconds) == ("nvml", 0.01)

    def test_importing_the_module_does_not_import_the_binding(self) -> None:
        code = "import sys, pytest_moegpu.host.nvmlprobe; sys.exit('pynvml' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    def test_real_binding_without_a_driver(self) -> None:
        if _has_library():
            pytest.skip("this machine has libnvidia-ml")
        with pytest.raises(ProbeError, match="libnvidia-ml is not installed") as caught:
            NvmlProbe()
        assert caught.value.kind == "no-library"


def _has_library() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return bool(error.value != pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    pynvml.nvmlShutdown()
    return True
