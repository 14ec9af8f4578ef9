"""The command line that asks one question again."""

from __future__ import annotations

import shlex

import pytest

from pytest_moegpu.core.units import GIB, MIB
from pytest_moegpu.options import Options

__all__ = ["rerun_line"]


def rerun_line(item: pytest.Item, scenario: str, options: Options, keyword: str, *, own_suite: bool) -> str:
    """Return a line to paste: the plugin's own test by keyword, somebody else's by its path, with the same sources."""
    words = ["pytest"]
    if not own_suite:
        words.append(f"{item.path}::{item.nodeid.partition('::')[2].partition('[')[0]}")
    words += [f"--moegpu={options.profile}", f"--moegpu-scenario={scenario}"]
    given = {
        "--moegpu-attach": options.attach,
        "--moegpu-backend": options.backend,
        "--moegpu-server": options.server,
        "--moegpu-model": options.model,
        "--moegpu-device": ",".join(options.devices),
        "--moegpu-emulate-vram": _size(options.emulate_bytes),
    }
    words += [f"{option}={value}" for option, value in given.items() if value]
    words += [f"--moegpu-catalog={folder}" for folder in options.catalog]
    if options.baselines_given:
        words.append(f"--moegpu-baselines={options.baselines}")
    if options.runs_given:
        words.append(f"--moegpu-runs={options.runs}")
    if own_suite:
        words += ["-k", keyword]
    return shlex.join(words)


def _size(count: int | None) -> str:
    """Write bytes so that the option reads exactly these again."""
    if count is None:
        return ""
    return f"{count // GIB}GiB" if count % GIB == 0 else f"{count // MIB}MiB" if count % MIB == 0 else f"{count}B"
