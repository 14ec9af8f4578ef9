"""What an ELF file says of itself: its sections, the libraries it needs and where it looks for them.

Only 64-bit little-endian files are read, which all CUDA programs on Linux are. A damaged one is an error, and no more
than the tables of a sound one is read of it.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ElfFile", "NotElfError", "Section"]

_MAGIC = b"\x7fELF\x02\x01"
_HEADER = 64
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC = struct.Struct("<qQ")
_MOST_SECTIONS = 4096
_MOST_ENTRIES = 10_000
_NEEDED, _RPATH, _RUNPATH = 1, 15, 29
_NO_BITS = 8
_LONGEST_NAME = 4096


class NotElfError(Exception):
    """It is no such file, or a damaged one; `str()` says what is wrong."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One section: where it lies in the file, in bytes. `kind` is ELF's number for its type."""

    name: str
    kind: int
    offset: int
    size: int
    link: int


class ElfFile:
    """An open file; a context manager.

    Raises:
        NotElfError: It is not an ELF file of 64 bits, or its tables lie beyond its end.
        OSError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            if not file.read(len(_MAGIC)).startswith(_MAGIC):
                raise NotElfError("not a 64-bit ELF file")
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self.sections = self._sections()
        except BaseException:
            self.data.close()
            raise

    def __enter__(self) -> ElfFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.data.close()

    def _sections(self) -> tuple[Section, ...]:
        if len(self.data) < _HEADER:
            raise NotElfError("the file ends inside its header")
        (table,) = struct.unpack_from("<Q", self.data, 0x28)
        size, count, names_at = struct.unpack_from("<HHH", self.data, 0x3A)
        if not count:
            # Stripped of its section table, as some packers do.
            return ()
        if size < _SECTION.size or count > _MOST_SECTIONS or names_at >= count:
            raise NotElfError("the table of sections is damaged")
        rows = [self._unpack(_SECTION, table + index * size) for index in range(count)]
        names = rows[names_at]
        return tuple(
            Section(name=self._text(names[4] + row[0]), kind=row[1], offset=row[4], size=self._inside(row), link=row[6])
            for row in rows
        )

    def _inside(self, row: tuple[Any, ...]) -> int:
        kind, offset, size = row[1], row[4], row[5]
        if kind == _NO_BITS:
            return 0
        if offset + size > len(self.data):
            raise NotElfError("a section lies beyond the end of the file")
        return int(size)

    def _unpack(self, form: struct.Struct, offset: int) -> tuple[Any, ...]:
        if offset < 0 or offset + form.size > len(self.data):
            raise NotElfError("a table lies beyond the end of the file")
        return form.unpack_from(self.data, offset)

    def _text(self, offset: int) -> str:
        end = self.data.find(b"\0", offset, offset + _LONGEST_NAME) if 0 <= offset < len(self.data) else -1
        if end < 0:
            raise NotElfError("a name lies beyond the end of the file")
        return self.data[offset:end].decode(errors="replace")

    def section(self, name: str) -> Section | None:
        """Return the section of that name."""
        return next((section for section in self.sections if section.name == name), None)

    def needed(self) -> tuple[str, ...]:
        """Return the names of the libraries that the loader must find."""
        return tuple(text for tag, text in self._dynamic() if tag == _NEEDED)

    def search_paths(self, origin: Path) -> tuple[Path, ...]:
        """Return the folders that the file names for its libraries, with $ORIGIN replaced by `origin`."""
        found = [text for tag, text in self._dynamic() if tag in (_RPATH, _RUNPATH)]
        parts = [part for text in found for part in text.split(":") if part]
        return tuple(
            Path(part.replace("${ORIGIN}", str(origin)).replace("$ORIGIN", str(origin)))
            for part in dict.fromkeys(parts)
        )

    def _dynamic(self) -> list[tuple[int, str]]:
        dynamic = self.section(".dynamic")
        if dynamic is None or dynamic.link >= len(self.sections):
            return []
        strings = self.sections[dynamic.link]
        count = min(dynamic.size // _DYNAMIC.size, _MOST_ENTRIES)
        rows = [self._unpack(_DYNAMIC, dynamic.offset + index * _DYNAMIC.size) for index in range(count)]
        return [(tag, self._text(strings.offset + value)) for tag, value in rows if tag in (_NEEDED, _RPATH, _RUNPATH)]
