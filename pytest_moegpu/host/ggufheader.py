"""The header of a GGUF file, read without touching its weights.

`gguf.GGUFReader` makes an array object of every vocabulary entry, which takes seconds for a large vocabulary and would
be paid at every run; here long arrays are stepped over and only their length is kept.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["DamagedHeaderError", "Header", "LongArray", "PastEndError", "Tensor", "read_header"]

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING = 8
_ARRAY = 9
_KEPT_LENGTH = 1024
_MAX_DIMENSIONS = 8
# Vocabulary and merges of 250,000 entries take about 10 MB; what goes on for longer is no header.
_MAX_HEADER_BYTES = 128 * 2**20


class PastEndError(Exception):
    """The header goes on beyond the end of the file."""


class DamagedHeaderError(Exception):
    """The header cannot mean anything; `str()` says what is wrong in it."""


@dataclass(frozen=True)
class LongArray:
    """Stands for an array that was stepped over."""

    length: int


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """Where one tensor's data lies; `offset` counts from the start of the data, `type` is the GGML type number."""

    name: str
    elements: int
    type: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class Header:
    """Metadata and tensor list. Arrays are tuples, or `LongArray` when they are long or hold text."""

    metadata: dict[str, object]
    tensors: tuple[Tensor, ...]
    data_offset: int


def read_header(path: Path) -> Header:
    """Read the header of a file that starts with the GGUF magic.

    Raises:
        PastEndError: The file ends within its header.
        DamagedHeaderError: The header is of an unknown version or damaged.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Cursor(data).header()


class _Cursor:
    """Walks through the header from front to back."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._size = len(data)
        self._end = min(self._size, _MAX_HEADER_BYTES)
        self._at = len(b"GGUF")

    def header(self) -> Header:
        (version,) = self._take("I")
        if version & 0xFFFF == 0:
            raise DamagedHeaderError("it is a big-endian GGUF, which this machine cannot use")
        if version not in (2, 3):
            raise DamagedHeaderError(f"its GGUF version is {version}; 2 and 3 are known")
        tensor_count, key_count = self._take("QQ")
        metadata: dict[str, object] = {}
        for _ in range(key_count):
            key = self._text()
            (kind,) = self._take("I")
            metadata[key] = self._value(kind)
        tensors = tuple(self._tensor() for _ in range(tensor_count))
        if len({tensor.name for tensor in tensors}) != len(tensors):
            raise DamagedHeaderError("two of its tensors have one name")
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise DamagedHeaderError(f"its alignment is {alignment}, which is no power of two")
        return Header(metadata=metadata, tensors=tensors, data_offset=-(-self._at // alignment) * alignment)

    def _skip(self, count: int) -> int:
        start = self._at
        if count > self._end - start:
            if self._end < self._size:
                raise DamagedHeaderError(f"its header goes on beyond {_MAX_HEADER_BYTES // 2**20} MiB")
            raise PastEndError
        self._at += count
        return start

    def _take(self, layout: str) -> tuple[Any, ...]:
        start = self._skip(struct.calcsize(f"<{layout}"))
        return struct.unpack_from(f"<{layout}", self._data, start)

    def _text(self) -> str:
        (length,) = self._take("Q")
        start = self._skip(length)
        return self._data[start : self._at].decode("utf-8", errors="replace")

    def _value(self, kind: int) -> object:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise DamagedHeaderError(f"a value has the unknown type {kind}")
        return self._take(_SCALARS[kind])[0]

    def _array(self) -> object:
        kind, length = self._take("IQ")
        if kind == _STRING:
            for _ in range(length):
                (size,) = self._take("Q")
                self._skip(size)
            return LongArray(length)
        if kind not in _SCALARS:
            raise DamagedHeaderError(f"an array has the unknown type {kind}")
        if length > _KEPT_LENGTH:
            self._skip(length * struct.calcsize(f"<{_SCALARS[kind]}"))
            return LongArray(length)
        return self._take(_SCALARS[kind] * length)

    def _tensor(self) -> Tensor:
        name = self._text()
        (dimensions,) = self._take("I")
        if dimensions > _MAX_DIMENSIONS:
            raise DamagedHeaderError(f"a tensor has {dimensions} dimensions")
        shape = self._take("Q" * dimensions)
        kind, offset = self._take("IQ")
        return Tensor(name=name, elements=math.prod(shape), type=kind, offset=offset)
