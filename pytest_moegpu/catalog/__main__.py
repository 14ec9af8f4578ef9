"""`python -m pytest_moegpu.catalog [FOLDER…]`: check the shipped files and the user's, one line each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_moegpu.catalog import check_files
from pytest_moegpu.errors import CatalogError

__all__ = ["main"]


def main(folders: Sequence[str]) -> int:
    """Print a line a file; return 0 when all are sound, else 2."""
    code = 0
    try:
        for file, error in check_files([Path(folder) for folder in folders]):
            print(f"error {error}" if error else f"ok    {file}")
            code = 2 if error else code
    except CatalogError as error:
        print(f"error {error}")
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
