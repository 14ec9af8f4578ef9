"""Flags from a help text, as Python's argparse, llama.cpp and Go's cobra lay it out.

All three write a flag at the beginning of a line, its spellings divided by commas, what stands for a value behind them,
and the prose after two spaces or on the next line.
"""

from __future__ import annotations

import re

from pytest_moegpu.core.flags import Flag

__all__ = ["read_flags"]

# llama.cpp indents a flag not at all, Python by 2, Go by 2 or 6; examples and prose stand elsewhere.
_LINE = re.compile(r"^(?: {0,2}| {6})(-{1,2}[A-Za-z].*)$")
_NAME = re.compile(r"-{1,2}[A-Za-z][\w.-]*")
_USAGE = re.compile(r"^usage: .*\n(?:[ \t]+\S.*\n)*", re.MULTILINE)
_BRACES = re.compile(r"^\{([^{}\s]+)\}$")
# llama.cpp: `[on|off|auto]` must be given. Python: `[FILE]` may be, `[FILE ...]` any number of times.
_HINT = re.compile(r"^\[([\w.-]+(?:\|[\w.-]+)+)\]$")
_MAY = re.compile(r'^\[[^\[\]]*\]$|\[=".*"\]$')
# llama.cpp's parser takes these as well where its help says on, off and auto (common/arg.cpp, is_truthy and so on).
_ALSO = {"on": ("enabled", "true", "1"), "off": ("disabled", "false", "0"), "auto": ("-1",)}
_MANY = re.compile(r"\s\.\.\.")
_ALLOWED = re.compile(r"^allowed values: (\S+(?:, \S+)*)$", re.MULTILINE)
_OPEN, _CLOSE = "[{<(", ")>}]"


def read_flags(output: str) -> tuple[Flag, ...]:
    """Read the flags; what is not a line of one is passed over, and no flags are an empty tuple."""
    found: list[Flag] = []
    heads: list[tuple[str, list[str]]] = []
    for line in _USAGE.sub("", output).splitlines():
        match = _LINE.match(line)
        if match is not None:
            # llama.cpp pads its short spellings, so a comma does not end the head.
            head, _, prose = re.sub(r",\s+(?=-)", ", ", match[1]).partition("  ")
            heads.append((head.strip(), [prose.strip()]))
        elif heads and line.startswith(" "):
            heads[-1][1].append(line.strip())
    for head, told in heads:
        flag = _flag(head, "\n".join(told))
        if flag is not None:
            found.append(flag)
    return tuple(found)


def _flag(head: str, prose: str) -> Flag | None:
    names: list[str] = []
    value = ""
    for part in _divided(head, ","):
        name, _, rest = part.partition(" ")
        if _NAME.fullmatch(name):
            names.append(name)
            value = rest.strip() or value
    if not names:
        return None
    words = _divided(value, " ")
    if words[1:] and words[0][:1] in "[{" and words[1][:1] not in "[{":
        # `{a,b} or name registered in …` and the like: what is listed is not all there is.
        return Flag(names=tuple(dict.fromkeys(names)), takes_value=True)
    listed = _BRACES.match(value) or (_BRACES.match(words[0]) if words else None)
    hinted, allowed = _HINT.match(value), _ALLOWED.search(prose)
    choices = listed[1].split(",") if listed else hinted[1].split("|") if hinted else []
    if hinted:
        choices += [other for choice in choices for other in _ALSO.get(choice, ())]
    if not choices and allowed:
        choices = allowed[1].split(", ")
    may = _MAY.search(value) is not None and hinted is None and "'" not in value
    return Flag(
        names=tuple(dict.fromkeys(names)),
        takes_value=None if may else bool(value),
        choices=tuple(choices),
        many=_MANY.search(value) is not None or len(words) > 1,
    )


def _divided(text: str, by: str) -> list[str]:
    """Split at a character that stands outside of all brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in _OPEN) - (character in _CLOSE)
        if character == by and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]
