"""Builds the stand-in for libcuda, and tells what it has handed out."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["FakeCuda"]

_SOURCE = Path(__file__).with_name("cuda_library.c")


@dataclass(frozen=True, kw_only=True)
class FakeCuda:
    """One device of `total` bytes; a process that uses it takes `context` bytes before it allocates any."""

    folder: Path
    total: int
    context: int = 0
    largest: int | None = None
    init: int = 0

    def build(self) -> FakeCuda:
        """Compile the library into the folder."""
        target = self.folder / "libcuda.so.1"
        subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", target, _SOURCE], check=True)
        return self

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a process that shall find this library."""
        numbers = {"TOTAL": self.total, "CONTEXT": self.context, "LARGEST": self.largest, "INIT": self.init or None}
        return {
            "LD_LIBRARY_PATH": str(self.folder),
            "MOEGPU_FAKE_CUDA": str(self.folder / "used"),
            **{f"MOEGPU_FAKE_CUDA_{name}": str(value) for name, value in numbers.items() if value is not None},
        }

    @property
    def holder(self) -> tuple[int, int]:
        """Pid and bytes of the process that uses the device now; its memory is gone with it."""
        try:
            pid, used = map(int, (self.folder / "used").read_text().split())
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return pid, used
        except (OSError, ValueError, psutil.NoSuchProcess):
            pass
        return 0, 0
