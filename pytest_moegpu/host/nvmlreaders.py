"""Quick ways to ask libnvidia-ml one question again and again.

The binding makes a value and looks up its function at every call. Between two readings the processor's caches go cold,
and then that takes longer than the driver does. These prepare both once. Whatever is not a plain answer is asked again
the slow way, which tells it as everything else is told.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from struct import Struct
from typing import Any

__all__ = ["Memory", "memory_reader", "number_reader"]

Memory = tuple[int | None, int | None, int | None]
"""Used, free and reserved bytes."""

# Reserved, free and used of v2, behind version and total; total (not used here), free and used of v1.
_SIZES_V2 = Struct("=16xQQQ")
_SIZES_V1 = Struct("=QQQ")
_ONES_64 = 0xFFFF_FFFF_FFFF_FFFF


def memory_reader(binding: Any, handle: Any, slow: Callable[[], Memory], *, v2: bool) -> Callable[[], Memory]:
    """Return a function that reads used, free and, with v2, reserved bytes; all ones are None.

    Args:
        binding: The module `pynvml`, started.
        handle: The device.
        slow: The way through the binding.
        v2: Which version of the struct.
    """
    call = _symbol(binding, "nvmlDeviceGetMemoryInfo_v2" if v2 else "nvmlDeviceGetMemoryInfo")
    if call is None:
        return slow
    info = binding.c_nvmlMemory_v2_t(version=binding.nvmlMemory_v2) if v2 else binding.c_nvmlMemory_t()
    place, ones = ctypes.byref(info), _ONES_64
    # All sizes in one step, since each access to a field of a ctypes struct costs as much as this.
    unpack = _SIZES_V2.unpack_from if v2 else _SIZES_V1.unpack_from

    def read() -> Memory:
        if call(handle, place):
            return slow()
        reserved, free, used = unpack(info)
        if used == ones or free == ones or reserved == ones:
            return _given(used), _given(free), _given(reserved) if v2 else None
        return used, free, reserved if v2 else None

    return read


def number_reader(
    binding: Any, handle: Any, symbol: str, slow: Callable[[], int | None], *arguments: int, bits: int = 32
) -> Callable[[], int | None]:
    """Return a function that reads one unsigned number of a device, None when all its bits are ones.

    Args:
        binding: The module `pynvml`, started.
        handle: The device.
        symbol: The library's function: (device, arguments …, pointer to the number) → error code.
        slow: The way through the binding.
        arguments: Unsigned numbers of 32 bits between the device and the pointer.
        bits: 32 or 64.
    """
    call = _symbol(binding, symbol)
    if call is None:
        return slow
    value = ctypes.c_uint64() if bits == 64 else ctypes.c_uint32()
    ones = 2**bits - 1
    given = (handle, *map(ctypes.c_uint32, arguments), ctypes.byref(value))

    def read() -> int | None:
        if call(*given):
            return slow()
        number = value.value
        return None if number == ones else number

    return read


def _symbol(binding: Any, name: str) -> Any:
    """Find a function of the loaded library; None: it lacks it, or the binding does not keep the library there."""
    return getattr(getattr(binding, "nvmlLib", None), name, None)


def _given(size: int) -> int | None:
    return None if size == _ONES_64 else size
