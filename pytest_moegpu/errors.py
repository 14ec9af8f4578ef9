"""Every exception this package raises on purpose.

MoegpuError
├── UserError                 the caller can fix it: option, file, marker, missing program
│   ├── CatalogError          a TOML file: names file, key, what is allowed
│   ├── MarkerError           a marker's argument
│   ├── ModelFileError        missing, truncated, not GGUF, wrong checksum
│   ├── ProgramError          the server program is missing or not what it claims to be
│   ├── DeviceError           no such GPU, wrong GPU, GPU in use
│   └── RecordError           a run bundle or baseline that cannot be read
├── ProbeError                a device cannot be read; `kind` says which way
└── StartError                a server did not come up or did not go down; carries a StartFailure
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_moegpu.core.evidence import StartFailure

__all__ = [
    "CatalogError",
    "DeviceError",
    "MarkerError",
    "ModelFileError",
    "MoegpuError",
    "ProbeError",
    "ProgramError",
    "RecordError",
    "StartError",
    "UserError",
    "nearest",
]


class MoegpuError(Exception):
    """Base of all errors of this package; `str()` is fit to show to a person."""


class UserError(MoegpuError):
    """Something the caller can put right; the message says what is wrong, where, and what is allowed."""


class CatalogError(UserError):
    """A profile, model, scenario or rule file is wrong."""


class MarkerError(UserError):
    """A `moegpu*` marker has an argument it does not take, or a value it cannot mean."""


class ModelFileError(UserError):
    """A model file is missing, truncated, not a GGUF, or not the file it should be."""


class ProgramError(UserError):
    """The server program is missing, not executable, or cannot run here."""


class DeviceError(UserError):
    """The GPU asked for is not there, is another one, or is in use."""


class RecordError(UserError):
    """A stored run bundle or baseline is damaged or of an unknown schema."""


class ProbeError(MoegpuError):
    """A device cannot be read.

    Args:
        message: What happened, for a person.
        kind: `no-library`, `mismatch`, `no-permission`, `no-device`, `lost` or `other`.
    """

    def __init__(self, message: str, kind: str = "other") -> None:
        super().__init__(message)
        self.kind = kind


class StartError(MoegpuError):
    """A server start failed; `failure` names phase, cause, exit code and the last lines of its log."""

    def __init__(self, failure: StartFailure) -> None:
        super().__init__(f"{failure.phase}: {failure.cause}")
        self.failure = failure


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the closest allowed word, or an empty string when none is close."""
    import difflib  # here, because an idle plugin should not pay for it

    match = difflib.get_close_matches(word.lower(), list(allowed), n=1, cutoff=0.6)
    return f" (did you mean {match[0]!r}?)" if match else ""
