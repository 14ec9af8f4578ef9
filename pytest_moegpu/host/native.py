"""Whether, and with what, a probe is read outside Python."""

from __future__ import annotations

import os

from pytest_moegpu.host.nativebuild import NativeError, native_library
from pytest_moegpu.host.nativeloop import NativeLoop
from pytest_moegpu.host.nativeplan import Planned

__all__ = ["VARIABLE", "native_loop"]

VARIABLE = "MOEGPU_NATIVE"
"""When this variable of the environment is 0, every probe is read in Python."""


def native_loop(probe: Planned, interval: float) -> NativeLoop:
    """Return a loop that asks what the probe asks, every `interval` seconds.

    Raises:
        NativeError: It cannot be had here, or is not wanted.
    """
    if os.environ.get(VARIABLE) == "0":
        raise NativeError(f"{VARIABLE}=0")
    library, plan = native_library(), probe.native_plan()
    if plan is None:
        raise NativeError("nvidia-ml-py does not show its library")
    return NativeLoop(library, plan, interval)
