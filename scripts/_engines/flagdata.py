"""Write the flags of the recorded engines as the lists that are shipped with the package.

    .venv/bin/python scripts/_engines/flagdata.py

Reads tests/data/engines/NAME/help.txt and version.txt, which record.py writes, and for llama.cpp what a llama-server
built from source printed, in tests/data/help; writes pytest_moegpu/backends/flagdata/NAME.json. Ollama's lists are
written by hand: no package ships that program.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pytest_moegpu.backends.helptext import read_flags
from pytest_moegpu.core.flags import Flag

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "engines"
LISTS = ROOT / "pytest_moegpu" / "backends" / "flagdata"
ORIGIN = "as its own help printed them when they were recorded"
VERSIONS = {
    "fastllm": r"ftllm version: (\S+)",
    "llamacpp": r"^build (\d+)",
    "mlx": r"^Version: (\S+)",
    "sglang": r"^sglang version: (\S+)",
    "vllm": r"^(\d\S+)",
}
"""Engine → where its version stands in version.txt."""


def entry(flag: Flag) -> dict[str, Any]:
    """Return a flag without what is not known or does not apply."""
    told: dict[str, Any] = {"names": flag.names}
    if flag.takes_value is not None:
        told["takes_value"] = flag.takes_value
    if flag.choices:
        told["choices"] = flag.choices
    if flag.many:
        told["many"] = True
    return told


def recording(name: str) -> tuple[str, str]:
    """Return what the program printed for its help, and what says its version."""
    if name == "llamacpp":
        folder, helped, told = DATA.parent / "help", "llama-server.txt", "llama-server-version.txt"
    else:
        folder, helped, told = DATA / name, "help.txt", "version.txt"
    return (folder / helped).read_text(encoding="utf-8"), (folder / told).read_text(encoding="utf-8")


def shipped(name: str) -> str:
    """Return the list of one engine as it is shipped, one flag a line.

    Raises:
        ValueError: No version in its recording.
    """
    helped, told = recording(name)
    version = re.search(VERSIONS[name], told, re.MULTILINE)
    if version is None:
        raise ValueError(f"no version in the recording of {name}")
    flags = read_flags(helped)
    lines = ",\n".join(json.dumps(entry(flag), ensure_ascii=False) for flag in flags)
    return f'{{"version": {json.dumps(version[1])}, "origin": {json.dumps(ORIGIN)}, "flags": [\n{lines}\n]}}\n'


def main() -> None:
    """Write the list of every engine that is recorded."""
    LISTS.mkdir(exist_ok=True)
    for name in VERSIONS:
        (LISTS / f"{name}.json").write_text(shipped(name), encoding="utf-8")


if __name__ == "__main__":
    main()
