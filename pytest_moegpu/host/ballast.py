"""Holds memory of one GPU until it is ended, so that a server finds what a smaller card would leave it.

Run as a script, with the standard library only: `ballast.py FREE_BYTES`. It takes plain allocations of the first
visible CUDA device until no more than FREE_BYTES are free there, says so on stdout as one JSON line, and waits:

    {"held": 123, "free": 456}      or      {"error": "cuMemAlloc: out of memory"}

The memory goes back to the driver with the process, however that ends; a supervisor sees to it that it does.
CUDA driver API: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from typing import Any

OUT_OF_MEMORY = 2
# The driver hands out device memory in pages of this size, so nothing finer can be held.
PAGE_BYTES = 2 * 1024 * 1024


class CudaError(Exception):
    """A call of the driver failed; `code` is its CUresult."""

    def __init__(self, call: str, code: int, words: str) -> None:
        super().__init__(f"{call}: {words} (CUresult {code})")
        self.code = code


class Cuda:
    """The few calls of the CUDA driver that are needed here.

    Raises:
        OSError: There is no CUDA driver.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver.

        Raises:
            CudaError: It did not succeed.
        """
        code = getattr(self._library, name)(*arguments)
        if code:
            words = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(words))
            raise CudaError(name, code, (words.value or b"unknown error").decode())

    def open(self) -> None:
        """Make the first visible device the current one."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def free_bytes(self) -> int:
        """Return what is free on the device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size: int) -> None:
        """Take `size` bytes and keep them."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))


def fill(cuda: Cuda, leave: int) -> int:
    """Allocate until at most `leave` bytes and a page are free; returns the bytes allocated.

    A block that does not fit in one piece is taken in halves.
    """
    held, block = 0, 1 << 62
    while (excess := cuda.free_bytes() - leave) >= PAGE_BYTES:
        block = min(block, excess) // PAGE_BYTES * PAGE_BYTES
        try:
            cuda.allocate(block)
        except CudaError as error:
            if error.code != OUT_OF_MEMORY or block <= PAGE_BYTES:
                raise
            block //= 2
            continue
        held += block
    return held


def main() -> int:
    """Hold memory and wait to be ended; exit code 1 when it cannot be held."""
    cuda: Cuda | None = None
    try:
        cuda = Cuda()
        cuda.open()
        held = fill(cuda, int(sys.argv[1]))
        said = {"held": held, "free": cuda.free_bytes()}
    except (CudaError, OSError, AttributeError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    print(json.dumps(said), flush=True)
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
