"""Writes small ELF files with GPU code in them, of the form that nvcc's own have, and folders of Python packages."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

__all__ = ["COMPILER", "cubin", "elf", "fatbin", "ptx", "site_packages"]

COMPILER = "Cuda compilation tools, release {0}, V{0}.{1}"
_SECTION = struct.Struct("<IIQQQQIIQQ")
_PROGBITS, _STRTAB, _DYNAMIC = 1, 3, 6


def cubin(capability: int, flags: int = 0x11, code: bytes = b"") -> bytes:
    """Return an entry of machine code, such as 90 for sm_90."""
    return _entry(2, capability, flags, code)


def ptx(capability: int, flags: int = 0x8011, code: bytes = b"") -> bytes:
    """Return an entry of PTX."""
    return _entry(1, capability, flags, code)


def _entry(kind: int, capability: int, flags: int, code: bytes) -> bytes:
    code += bytes(-len(code) % 8)
    head = struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, len(code), 0, 0, 8, 1, capability, 0, 0, flags, 0, len(code))
    return head + code


def fatbin(*entries: bytes) -> bytes:
    """Return one fat binary: what is linked for one source file."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def elf(path: Path, code: bytes = b"", needed: Sequence[str] = (), runpath: str = "") -> Path:
    """Write a shared library with GPU code, which needs libraries and looks for them at a path."""
    strings, dynamic = b"\0", b""
    for tag, text in (*((1, name) for name in needed), *(((29, runpath),) if runpath else ())):
        dynamic += struct.pack("<qQ", tag, len(strings))
        strings += text.encode() + b"\0"
    dynamic += struct.pack("<qQ", 0, 0)
    parts = [("", 0, b"", 0), (".dynstr", _STRTAB, strings, 0), (".dynamic", _DYNAMIC, dynamic, 1)]
    parts += [(".nv_fatbin", _PROGBITS, code, 0)] if code else []
    names = b"".join(name.encode() + b"\0" for name, *_ in parts) + b".shstrtab\0"
    parts.append((".shstrtab", _STRTAB, names, 0))
    body, table = b"", b""
    for name, kind, data, link in parts:
        body += bytes(-(64 + len(body)) % 8)
        at = names.index(name.encode() + b"\0") if name else names.index(b"\0")
        table += _SECTION.pack(at, kind, 0, 0, 64 + len(body), len(data), link, 0, 8, 0)
        body += data
    body += bytes(-len(body) % 8)
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQ", 3, 62, 1, 0, 0, 64 + len(body))
    head += struct.pack("<IHHHHHH", 0, 64, 0, 0, _SECTION.size, len(parts), len(parts) - 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + body + table)
    return path


def site_packages(prefix: Path, **versions: str) -> Path:
    """Make an environment's folder of packages with the metadata folders of these; `_` in a name is as it is there."""
    site = prefix / "lib" / "python3.11" / "site-packages"
    for name, version in versions.items():
        (site / f"{name}-{version}.dist-info").mkdir(parents=True)
    return site
