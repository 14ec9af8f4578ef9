"""Builds the sampler's loop in C where a C compiler is at hand.

It is built anew in each process that samples, which takes 0.1 s, in a folder that only this user can write and that is
gone once the library is loaded: nothing is kept that somebody else could replace.
"""

from __future__ import annotations

import ctypes
import functools
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from pytest_moegpu.host.command import run_command

__all__ = ["NativeError", "native_library"]

_SOURCE = Path(__file__).with_name("nativeloop.c")
_FLAGS = ("-std=gnu11", "-O2", "-shared", "-fPIC")
_SECONDS = 20.0


class NativeError(Exception):
    """The loop in C cannot be had here; the message says why."""


@functools.cache
def _built() -> ctypes.CDLL | NativeError:
    """Build once in a process, and fail once."""
    try:
        return _build()
    except NativeError as error:
        return error


def native_library() -> ctypes.CDLL:
    """Return the library, built at the first call.

    Raises:
        NativeError: There is no C compiler here, it fails, or what it made cannot be loaded.
    """
    built = _built()
    if isinstance(built, NativeError):
        raise built
    return built


def _build() -> ctypes.CDLL:
    if sys.platform != "linux":
        raise NativeError("the faster one is for Linux only")
    try:
        with tempfile.TemporaryDirectory(prefix="moegpu-native-") as folder:
            target = Path(folder) / "nativeloop.so"
            done = run_command([*_compiler(), *_FLAGS, "-o", str(target), str(_SOURCE)], seconds=_SECONDS)
            if done.returncode:
                said = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
                raise NativeError(f"the C compiler failed: {said[0].strip() if said else 'it does not say why'}")
            return ctypes.CDLL(str(target))
    except subprocess.TimeoutExpired as error:
        raise NativeError(f"the C compiler did not end within {_SECONDS:g} s") from error
    except OSError as error:
        raise NativeError(f"the C compiler or what it made cannot be used: {error}") from error


def _compiler() -> list[str]:
    """Find the compiler this Python was built with, else one of the usual names."""
    own = shlex.split(sysconfig.get_config_var("CC") or "")
    for argv in (own[:1], ["cc"], ["gcc"], ["clang"]):
        if argv and (path := shutil.which(argv[0])):
            return [path]
    raise NativeError("no C compiler (cc, gcc or clang) here")
