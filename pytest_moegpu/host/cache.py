"""Where this user's cache folder is: models fetched once, checksums of files already read."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pytest_moegpu.errors import UserError

__all__ = ["cache_dir"]

_NAME = "pytest-moegpu"


def cache_dir() -> Path:
    """Return the cache folder, made or not: `$MOEGPU_CACHE`, else the place the operating system has for caches.

    Raises:
        UserError: The user has no home folder and `MOEGPU_CACHE` is not set.
    """
    if chosen := os.environ.get("MOEGPU_CACHE"):
        return Path(chosen).expanduser().absolute()
    # The XDG specification has relative paths ignored.
    if (xdg := os.environ.get("XDG_CACHE_HOME")) and Path(xdg).is_absolute():
        return Path(xdg) / _NAME
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / _NAME / "Cache"
    try:
        home = Path.home()
    except RuntimeError as error:
        raise UserError("no home folder to keep fetched models in: set MOEGPU_CACHE to a folder") from error
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / _NAME
