"""The devices of a run: found, checked against the profile, and opened for reading."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pytest_moegpu.core.model import Gpu, Profile
from pytest_moegpu.core.units import format_bytes
from pytest_moegpu.errors import DeviceError, ProbeError
from pytest_moegpu.host.emulated import EmulatedProbe
from pytest_moegpu.host.hostmem import HostProbe
from pytest_moegpu.host.nvmlprobe import NvmlProbe
from pytest_moegpu.host.probe import Probe

__all__ = ["open_probe"]


def open_probe(
    profile: Profile, devices: tuple[str, ...], emulate_bytes: int | None = None
) -> tuple[Probe, tuple[Gpu, ...]]:
    """Open the profile's probe on the devices asked for, and make sure that they are what the profile expects.

    With `emulate_bytes` any larger GPU will do, and the probe reads it as one of that size.

    Raises:
        DeviceError: No such GPU, or another one; says what was found and what was expected.
    """
    if profile.probe == "host":
        for given, option in ((devices or None, "--moegpu-device"), (emulate_bytes, "--moegpu-emulate-vram")):
            if given is not None:
                raise DeviceError(
                    f"{option}: profile {profile.name} uses no GPU; leave it away, or take a profile of a GPU "
                    "(--moegpu=list shows them)"
                )
        host = HostProbe()
        return host, host.devices()
    want = profile.gpu
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        probe, gpus = _identify(devices, visible)
        if not devices and len(gpus) > want.count:
            fitting = [gpu for gpu in gpus if _fits(gpu, profile, emulate_bytes)] or gpus
            probe.close()
            probe, gpus = _identify([gpu.index for gpu in fitting[: want.count]], None)
    except ProbeError as error:
        raise DeviceError(f"profile {profile.name} expects {_expected(profile)}; found none: {error}") from error
    if emulate_bytes is not None and len(gpus) == want.count:
        return _emulated(profile, probe, emulate_bytes)
    wrong = [gpu for gpu in gpus if (want.names and gpu.name not in want.names) or gpu.memory_bytes < want.memory_bytes]
    if wrong or len(gpus) != want.count:
        probe.close()
        found = ", ".join(f"{gpu.name} with {format_bytes(gpu.memory_bytes)}" for gpu in gpus) or "no GPU"
        raise DeviceError(
            f"profile {profile.name} expects {_expected(profile)}; found {found}. "
            "--moegpu=list shows the profiles; a profile of your own goes into a --moegpu-catalog folder; "
            "--moegpu-emulate-vram rehearses the memory of a smaller card"
        )
    return probe, gpus


def _fits(gpu: Gpu, profile: Profile, emulate_bytes: int | None) -> bool:
    """Tell whether a device of several is one to take: of the right name, or larger than the one to rehearse."""
    if emulate_bytes is not None:
        return gpu.memory_bytes > emulate_bytes
    return not profile.gpu.names or gpu.name in profile.gpu.names


def _emulated(profile: Profile, probe: Probe, size: int) -> tuple[Probe, tuple[Gpu, ...]]:
    """Wrap a probe so that its devices look as small as the profile's; the real ones may have any name."""
    try:
        if size < profile.gpu.memory_bytes:
            raise DeviceError(
                f"--moegpu-emulate-vram={format_bytes(size)}: profile {profile.name} expects at least "
                f"{format_bytes(profile.gpu.memory_bytes)}"
            )
        emulated = EmulatedProbe(probe, size)
    except BaseException:
        probe.close()
        raise
    return emulated, emulated.devices()


def _identify(devices: Sequence[int | str], visible: str | None) -> tuple[NvmlProbe, tuple[Gpu, ...]]:
    probe = NvmlProbe(devices, visible)
    try:
        return probe, probe.devices()
    except BaseException:
        probe.close()
        raise


def _expected(profile: Profile) -> str:
    want = profile.gpu
    names = " or ".join(want.names) or "any GPU"
    return f"{want.count} x {names} with at least {format_bytes(want.memory_bytes)}"
