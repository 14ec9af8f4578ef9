"""The header of a safetensors file: names, types and sizes of its tensors. The tensors themselves are not read."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from pytest_moegpu.errors import ModelFileError
from pytest_moegpu.host.modelfile import is_lfs_pointer

__all__ = ["DTYPE_BITS", "TensorHeader", "read_header"]

DTYPE_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Type → bits of one element (safetensors, `Dtype::bitsize`)."""

_LENGTH = struct.Struct("<Q")
# The format allows 100 MB. One file of a mixture with 30,000 tensors has 5 MB; parsed, text takes ten times its room.
_MOST_BYTES = 32 * 1024**2
_MOST_DIMENSIONS = 16
_METADATA = "__metadata__"
_POINTER = 32


@dataclass(frozen=True, kw_only=True)
class TensorHeader:
    """One tensor: its name, type, dimensions, and bytes in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def elements(self) -> int:
        """How many numbers it holds, as they are stored: packed ones count once for each word."""
        return math.prod(self.shape)


def read_header(path: Path) -> tuple[TensorHeader, ...]:
    """Read the tensors that a file lists, in the order of the list.

    Raises:
        ModelFileError: It cannot be read, is cut, or its header is none: too long, no JSON, a name twice, an unknown
            type, a size that does not follow from type and dimensions, or bytes outside the file or of two tensors.
    """
    try:
        whole = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(_LENGTH.size)
            if len(start) < _LENGTH.size:
                raise _error(path, f"{whole} bytes are too short for a header")
            if is_lfs_pointer(start + file.read(_POINTER)):
                raise _error(path, "is a Git LFS pointer, not the weights: run `git lfs pull` there")
            file.seek(_LENGTH.size)
            (length,) = _LENGTH.unpack(start)
            if length > _MOST_BYTES:
                raise _error(path, f"its header would be {length:,} bytes long; at most {_MOST_BYTES:,} are read")
            if length > whole - _LENGTH.size:
                raise _error(path, f"its header would be {length:,} bytes long, the file has {whole:,}: it is cut")
            text = file.read(length)
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror or error}") from error
    entries = _parsed(path, text)
    room = whole - _LENGTH.size - length
    found = [_tensor(path, name, entry, room) for name, entry in entries.items() if name != _METADATA]
    end = 0
    for (first, last), tensor in sorted((place, tensor.name) for place, tensor in found):
        if first < end:
            raise _error(path, f"tensor {tensor} begins inside another one")
        end = max(end, last)
    return tuple(tensor for _, tensor in found)


def _parsed(path: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise _error(path, "a name is in its header twice")
        return found

    try:
        entries = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except RecursionError:
        raise _error(path, "its header is nested too deep") from None
    except ValueError as error:
        raise _error(path, f"its header is not JSON: {error}") from error
    if not isinstance(entries, dict):
        raise _error(path, "its header is not a JSON object")
    return entries


def _tensor(path: Path, name: str, entry: Any, room: int) -> tuple[tuple[int, int], TensorHeader]:
    """Return where a tensor lies behind the header, and what it is."""
    if not isinstance(entry, dict):
        raise _error(path, f"tensor {_short(name)} has no description")
    dtype, shape, place = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _error(path, f"tensor {_short(name)} is of type {_short(dtype)}: known are {', '.join(DTYPE_BITS)}")
    if not _counts(shape) or len(shape) > _MOST_DIMENSIONS:
        raise _error(path, f"tensor {_short(name)} has no dimensions that can be: {_short(shape)}")
    if not _counts(place) or len(place) != 2 or not place[0] <= place[1] <= room:
        raise _error(path, f"tensor {_short(name)} lies outside the file: {_short(place)} of {room:,} bytes")
    size = place[1] - place[0]
    if math.prod(shape) * DTYPE_BITS[dtype] != size * 8:
        raise _error(path, f"tensor {_short(name)} has {size:,} bytes, which {dtype} of {_short(shape)} has not")
    return (place[0], place[1]), TensorHeader(name=name, dtype=dtype, shape=tuple(shape), size_bytes=size)


def _counts(value: Any) -> TypeGuard[list[int]]:
    """Tell whether a value is a list of whole numbers from 0 to the largest that 64 bits hold."""
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 2**64 for number in value)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _error(path: Path, what: str) -> ModelFileError:
    return ModelFileError(f"model file {path}: {what}")
