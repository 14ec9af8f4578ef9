"""The plugin's own tests: where they are, and how they are collected whatever the user's ini file calls a test."""

from __future__ import annotations

from pathlib import Path

import pytest

__all__ = ["SuiteModule", "suite_files", "suite_folder"]


def suite_folder() -> Path:
    """Where the plugin's own tests are: inside the installed package, or beside it in a checkout."""
    inside = Path(__file__).parent / "suites"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "suites"


def suite_files() -> list[str]:
    """Return the files of the plugin's own tests. A file given by name is collected whatever `python_files` says."""
    return [str(path) for path in sorted(suite_folder().glob("test_*.py"))]


class SuiteModule(pytest.Module):
    """A file of the plugin's own tests, which begin with `test_` whatever `python_functions` says."""

    def funcnamefilter(self, name: str) -> bool:
        """Tell a test by its name."""
        return name.startswith("test_")

    def classnamefilter(self, name: str) -> bool:  # noqa: ARG002 - pytest's signature
        """Find no classes: there are none, and what a file imports is no test."""
        return False
