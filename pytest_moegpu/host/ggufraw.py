"""A GGUF file as raw parts: metadata entries and tensors whose bytes are copied, never decoded and encoded again.

The layout is that of version 3 of the format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_moegpu.core.upcycle import TensorType
from pytest_moegpu.errors import ModelFileError

__all__ = ["RawEntry", "RawGguf", "RawTensor", "entry_number", "pieces", "read_raw", "tensor_type"]

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY, _U32 = 8, 9, 4
_VERSION = 3


@dataclass(frozen=True, kw_only=True)
class RawEntry:
    """One metadata entry. `data` is all of it, key and type included; the value begins at byte `value` of the file."""

    key: str
    data: bytes
    value: int = 0


@dataclass(frozen=True, kw_only=True)
class RawTensor:
    """One tensor: `shape` with the length of a row first, `offset` in bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True)
class RawGguf:
    """The parts of a file. `alignment` is that of tensor data, in bytes."""

    entries: tuple[RawEntry, ...]
    tensors: tuple[RawTensor, ...]
    alignment: int


def tensor_type(kind: int, name: str) -> TensorType:
    """Return what the gguf package knows about a GGML type.

    Raises:
        ModelFileError: It does not know it, so that the size of the tensor `name` is not known.
    """
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        known = GGMLQuantizationType(kind)
    except ValueError as error:
        raise ModelFileError(f"its tensor {name} is of type {kind}, which gguf does not know") from error
    elements, size = GGML_QUANT_SIZES[known]
    return TensorType(name=known.name, elements=elements, size=size)


def entry_number(key: str, number: int) -> RawEntry:
    """Return a metadata entry that holds a 32-bit number."""
    name = key.encode()
    return RawEntry(key=key, data=struct.pack("<Q", len(name)) + name + struct.pack("<II", _U32, number))


def read_raw(path: Path) -> RawGguf:
    """Return the parts of a whole file, as `host.modelfile.read_gguf` has found it to be.

    Raises:
        ModelFileError: It is of version 1, or has a tensor of unknown type.
        OSError: It cannot be read.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        version, tensor_count, entry_count = struct.unpack_from("<IQQ", data, 4)
        if version not in (2, _VERSION):
            raise ModelFileError(f"its GGUF version is {version}; 2 and 3 are known")
        at, entries = 24, []
        for _ in range(entry_count):
            start, value = at, _after_text(data, at)
            at = _after_value(data, value + 4, _u32(data, value))
            entries.append(RawEntry(key=_text(data, start), data=data[start:at], value=value + 4))
        found = []
        for _ in range(tensor_count):
            name, at = _text(data, at), _after_text(data, at)
            dimensions = _u32(data, at)
            shape = struct.unpack_from(f"<{dimensions}Q", data, at + 4)
            kind, offset = struct.unpack_from("<IQ", data, at + 4 + 8 * dimensions)
            at += 16 + 8 * dimensions
            found.append((name, shape, kind, offset))
        alignment = next((_u32(e.data, len(e.data) - 4) for e in entries if e.key == "general.alignment"), 32)
        base = at + _padding(at, alignment)
    return RawGguf(
        entries=tuple(entries),
        tensors=tuple(
            RawTensor(name=name, shape=shape, type=kind, offset=base + offset, size=_size(name, shape, kind))
            for name, shape, kind, offset in found
        ),
        alignment=alignment,
    )


def pieces(
    entries: Sequence[RawEntry],
    tensors: Sequence[tuple[str, tuple[int, ...], int]],
    data: Iterable[Iterable[bytes]],
    alignment: int,
) -> Iterator[bytes]:
    """Give the bytes of a file from front to back.

    `tensors` are names, shapes and GGML types, and `data` has the bytes of each in pieces, asked for when they are due.

    Raises:
        ValueError: A tensor's pieces are not of its size.
    """
    head = [struct.pack("<4sIQQ", b"GGUF", _VERSION, len(tensors), len(entries)), *(entry.data for entry in entries)]
    offset = 0
    for name, shape, kind in tensors:
        text = name.encode()
        head.append(struct.pack(f"<Q{len(text)}sI{len(shape)}Q", len(text), text, len(shape), *shape))
        head.append(struct.pack("<IQ", kind, offset))
        size = _size(name, shape, kind)
        offset += size + _padding(size, alignment)
    header = b"".join(head)
    yield header + bytes(_padding(len(header), alignment))
    for (name, shape, kind), parts in zip(tensors, data, strict=True):
        given = 0
        for part in parts:
            given += len(part)
            yield part
        size = _size(name, shape, kind)
        if given != size:
            raise ValueError(f"tensor {name}: {given} bytes instead of {size}")
        yield bytes(_padding(size, alignment))


def _size(name: str, shape: tuple[int, ...], kind: int) -> int:
    known = tensor_type(kind, name)
    return math.prod(shape) // known.elements * known.size


def _padding(size: int, alignment: int) -> int:
    return -size % alignment


def _u32(data: mmap.mmap | bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _u64(data: mmap.mmap, at: int) -> int:
    return int(struct.unpack_from("<Q", data, at)[0])


def _text(data: mmap.mmap, at: int) -> str:
    return data[at + 8 : _after_text(data, at)].decode("utf-8", errors="replace")


def _after_text(data: mmap.mmap, at: int) -> int:
    return at + 8 + _u64(data, at)


def _after_value(data: mmap.mmap, at: int, kind: int) -> int:
    """Return where a value of a type ends."""
    if kind == _STRING:
        return _after_text(data, at)
    if kind != _ARRAY:
        return at + _SIZES[kind]
    inner, length = _u32(data, at), _u64(data, at + 4)
    at += 12
    if inner != _STRING:
        return at + length * _SIZES[inner]
    for _ in range(length):
        at = _after_text(data, at)
    return at
