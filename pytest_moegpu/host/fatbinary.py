"""Which GPUs a program has kernels for, and which CUDA compiler made them: read from the code inside the file.

The form of a fat binary is not documented by NVIDIA. What is read here was the same in files by CUDA 12.9 and 13.0, was
compared with files of known `-gencode` flags by nvcc 13.0, and is given up for the whole file as soon as something does
not fit: a header (magic, length of header, length of all), then entries (kind, length of header, length of code,
compute capability, flags). Code may be compressed; the compiler's name is then found where it was stored as it is.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_moegpu.core.machine import toolkit_release
from pytest_moegpu.host.elf import ElfFile

__all__ = ["Kernels", "read_kernels"]

_SECTIONS = (".nv_fatbin", "__nv_relfatbin")
_MAGIC = 0xBA55ED50
_HEADER = struct.Struct("<IHHQ")
# kind, unknown, length of header, length of code, 2 x unknown, minor, major, capability, 2 x name, flags
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_PTX, _CUBIN = 1, 2
_SPECIFIC, _FAMILY = 1 << 20, 1 << 21
"""Of the flags: made for this capability alone (`sm_90a`), or for its family (`sm_100f`)."""
_ALIGNMENT = 8
# A compressor may keep the second "13.0" as a reference to the first.
_COMPILER = re.compile(rb"Cuda compilation tools, release (\d{1,2}\.\d{1,2}), V(?:\1)?\.(\d{1,4})[^\d.]")
_MOST_SEARCHED = 64 * 1024**2
"""Bytes that are searched for the compiler: each of some hundred kernels names it."""
_MOST_SECONDS = 3.0
_EVERY = 256


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """What one file holds, as `core.machine.Built` has it. `unknown` says why `architectures` is None."""

    architectures: tuple[str, ...] | None
    toolkits: tuple[str, ...] = ()
    unknown: str = ""


def read_kernels(path: Path, most_seconds: float = _MOST_SECONDS) -> Kernels:
    """Read one file: within so many seconds and without loading it; no kernels: an empty tuple.

    Raises:
        NotElfError: It is not an ELF file, or a damaged one.
        OSError: It cannot be read.
    """
    with ElfFile(path) as elf:
        found: set[str] = set()
        compilers: set[str] = set()
        until = time.monotonic() + most_seconds
        try:
            for section in elf.sections:
                if section.name in _SECTIONS:
                    end = section.offset + section.size
                    compilers.update(_compilers(elf, section.offset, end))
                    found.update(_architectures(elf, section.offset, end, until))
        except _GivenUpError as error:
            return Kernels(architectures=None, toolkits=_sorted(compilers), unknown=str(error))
    return Kernels(architectures=_sorted(found), toolkits=_sorted(compilers))


class _GivenUpError(Exception):
    """The section cannot be read to its end."""


def _compilers(elf: ElfFile, start: int, end: int) -> Iterator[str]:
    for match in _COMPILER.finditer(elf.data, start, min(end, start + _MOST_SEARCHED)):
        yield toolkit_release(f"{match[1].decode()}.{match[2].decode()}")


def _architectures(elf: ElfFile, start: int, end: int, until: float) -> Iterator[str]:
    position, count = start, 0
    while position + _HEADER.size <= end:
        magic, _, header, size = _HEADER.unpack_from(elf.data, position)
        if magic == 0:
            # Between two of them.
            position += _ALIGNMENT
            continue
        if magic != _MAGIC or header < _HEADER.size or position + header + size > end:
            raise _GivenUpError("its GPU code is of an unknown form")
        entry, stop = position + header, position + header + size
        while entry + _ENTRY.size <= stop:
            count += 1
            if count % _EVERY == 0 and time.monotonic() > until:
                raise _GivenUpError("its GPU code takes too long to read")
            kind, _, length, code, _, _, _, _, capability, _, _, flags = _ENTRY.unpack_from(elf.data, entry)
            if length < _ENTRY.size or entry + length + code > stop or not 20 <= capability < 1000:
                raise _GivenUpError("its GPU code is of an unknown form")
            if kind in (_PTX, _CUBIN):
                yield _named(kind, capability, flags)
            entry += length + code
        position = stop + -stop % _ALIGNMENT


def _named(kind: int, capability: int, flags: int) -> str:
    name = f"{capability // 10}.{capability % 10}"
    if flags & (_SPECIFIC | _FAMILY):
        # PTX of these is no more portable than their machine code.
        return f"{name}{'a' if flags & _SPECIFIC else 'f'}"
    return f"{name}+ptx" if kind == _PTX else name


def _sorted(texts: set[str]) -> tuple[str, ...]:
    return tuple(sorted(texts, key=lambda text: ([int(number) for number in re.findall(r"\d+", text)], text)))
