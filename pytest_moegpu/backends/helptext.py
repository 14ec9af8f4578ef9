"""Flags from a help text, as Python's argparse and llama.cpp lay it out."""

from __future__ import annotations

import re

from pytest_moegpu.core.flags import Flag

__all__ = ["read_flags"]

# A flag stands at the beginning of a line, with further spellings behind a comma; what follows two spaces is prose.
_NAME = r"--?[A-Za-z][\w.-]*"
_LINE = re.compile(rf"^\s{{0,8}}({_NAME}(?:[ =]\S+)?(?:,\s+{_NAME}(?:[ =][^\s,]+)?)*)")
_CHOICES = re.compile(r"\{([^{}\s]+)\}")


def read_flags(output: str) -> tuple[Flag, ...]:
    """Read the flags; what is not a line of one is passed over, and no flags are an empty tuple."""
    found = []
    for line in output.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        head = line.strip().split("  ")[0]
        names = tuple(dict.fromkeys(re.findall(rf"(?<![\w-]){_NAME}", head)))
        choices = _CHOICES.search(head)
        rest = re.sub(rf"(?<![\w-]){_NAME}|,", " ", head).strip()
        found.append(Flag(names=names, takes_value=bool(rest), choices=tuple(choices[1].split(",")) if choices else ()))
    return tuple(found)
