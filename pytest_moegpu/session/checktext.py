"""`moegpu check-text`: texts that somebody has at hand are held against the signs of broken text, one at a time."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from pytest_moegpu.core.text import examine
from pytest_moegpu.core.textfinding import Finding, TextVerdict, verdict

__all__ = ["LARGEST", "check_texts"]

LARGEST = 16 * 2**20
"""Most bytes of one text, or of one line of JSONL. A larger one is refused, so that memory stays bounded."""

_GOOD, _BAD, _UNCLEAR = 0, 1, 2
_SHOWN = 3
_STDIN = "-"


@dataclass(frozen=True, kw_only=True)
class _Text:
    """One text to judge; `note` says what is odd about how it came."""

    name: str
    text: str
    prompt: str = ""
    finish_reason: str | None = None
    logprobs: tuple[float | None, ...] | None = None
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Fault:
    """Something that could not be read, and where."""

    where: str
    reason: str


def check_texts(
    files: Sequence[str], stdin: BinaryIO, out: TextIO, err: TextIO, *, jsonl: bool = False, as_json: bool = False
) -> int:
    """Judge texts as they are read, and print one line for each.

    Args:
        files: Paths; `-` is standard input, and none at all is standard input too.
        stdin: Read for `-`.
        out: Gets the verdicts: a line for a person each and a summary, or JSON lines.
        err: Gets what could not be read.
        jsonl: Files are JSONL whatever they are called; else only those named `.jsonl`.
        as_json: Print JSON lines of `id`, `verdict` and `findings`.

    Returns:
        0 when all texts are good, 1 when one is bad, else 2: one is suspect, or could not be read, or there was none.
    """
    counts: Counter[str] = Counter()
    for each in _read(files or [_STDIN], stdin, jsonl):
        if isinstance(each, _Fault):
            counts["unread"] += 1
            print(_printable(f"moegpu check-text: {each.where}: {each.reason}"), file=err)
            continue
        findings = examine(each.text, each.prompt, each.finish_reason, each.logprobs)
        said = verdict(findings)
        counts[said] += 1
        print(_as_json(each, findings, said) if as_json else _as_line(each, findings, said), file=out)
    texts = sum(counts[v] for v in TextVerdict)
    if not as_json:
        told = ", ".join(f"{counts[v]} {v}" for v in TextVerdict)
        print(f"{texts} text{'s' * (texts != 1)}: {told}; {counts['unread']} not read", file=out)
    if counts[TextVerdict.BAD]:
        return _BAD
    return _GOOD if texts and texts == counts[TextVerdict.GOOD] and not counts["unread"] else _UNCLEAR


def _read(files: Sequence[str], stdin: BinaryIO, jsonl: bool) -> Iterator[_Text | _Fault]:
    for name in files:
        lines = jsonl or name.lower().endswith(".jsonl")
        if name == _STDIN:
            yield from _lines(stdin, "stdin") if lines else _plain(stdin, "stdin")
            continue
        try:
            with Path(name).open("rb") as file:
                yield from _lines(file, name) if lines else _plain(file, name)
        except (OSError, ValueError) as error:
            yield _Fault(where=name, reason=(error.strerror if isinstance(error, OSError) else None) or str(error))


def _plain(file: BinaryIO, name: str) -> Iterator[_Text | _Fault]:
    raw = file.read(LARGEST + 1)
    if len(raw) > LARGEST:
        yield _Fault(where=name, reason=f"larger than {LARGEST // 2**20} MiB")
        return
    text, note = _decoded(raw)
    yield _Text(name=name, text=text, note=note)


def _lines(file: BinaryIO, name: str) -> Iterator[_Text | _Fault]:
    number = 0
    while raw := file.readline(LARGEST + 1):
        number += 1
        where = f"{name} line {number}"
        if len(raw) > LARGEST:
            # The rest of the line is read away in pieces, and the next line goes on.
            while raw and not raw.endswith(b"\n"):
                raw = file.readline(2**20)
            yield _Fault(where=where, reason=f"a line larger than {LARGEST // 2**20} MiB")
        elif raw.strip():
            yield _row(raw, where)


def _decoded(raw: bytes) -> tuple[str, str | None]:
    """Decode UTF-8. What is none becomes U+FFFD, and a note says where it begins."""
    try:
        return raw.decode("utf-8-sig"), None
    except UnicodeDecodeError as error:
        return raw.decode("utf-8-sig", "replace"), f"not UTF-8 from byte {error.start} on"


def _row(raw: bytes, where: str) -> _Text | _Fault:
    line, note = _decoded(raw)
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return _Fault(where=where, reason=f"not JSON: {error}")
    if not isinstance(row, dict):
        return _Fault(where=where, reason="not a JSON object")
    if not isinstance(row.get("text"), str):
        return _Fault(where=where, reason="lacks a `text` that is a string")
    finish_reason, tokens = row.get("finish_reason"), row.get("tokens")
    if not isinstance(finish_reason, str | None):
        return _Fault(where=where, reason="`finish_reason` is neither a string nor null")
    try:
        prompt, logprobs = _prompt(row.get("prompt")), _logprobs(tokens)
    except (TypeError, ValueError) as error:
        return _Fault(where=where, reason=str(error))
    name = where if row.get("id") is None else str(row["id"])
    return _Text(name=name, text=row["text"], prompt=prompt, finish_reason=finish_reason, logprobs=logprobs, note=note)


def _prompt(value: Any) -> str:
    """Return a prompt as one text: a string, or the contents of a list of messages."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list) or not all(isinstance(m, dict) for m in value):
        raise TypeError("`prompt` is neither a string nor a list of messages")
    parts: list[str] = []
    for message in value:
        content = message.get("content")
        inner = content if isinstance(content, list) else [{"text": content}]
        parts += [p["text"] for p in inner if isinstance(p, dict) and isinstance(p.get("text"), str)]
    return "\n".join(parts)


def _logprobs(value: Any) -> tuple[float | None, ...] | None:
    """Return the log-probabilities of `tokens`: objects with `logprob`, or bare numbers; None is not finite."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise TypeError("`tokens` is no list")
    numbers = [t.get("logprob") if isinstance(t, dict) else t for t in value]
    if not all(n is None or (isinstance(n, int | float) and not isinstance(n, bool)) for n in numbers):
        raise ValueError("`tokens` has a logprob that is no number")
    return tuple(float(n) if n is not None and math.isfinite(n) else None for n in numbers)


def _as_json(each: _Text, findings: Sequence[Finding], said: TextVerdict) -> str:
    row: dict[str, Any] = {"id": each.name, "verdict": said, "findings": [asdict(f) for f in findings]}
    # Escaped, so that half a surrogate pair can be printed too.
    return json.dumps(row | ({"note": each.note} if each.note else {}))


def _as_line(each: _Text, findings: Sequence[Finding], said: TextVerdict) -> str:
    told = [f"{f.name} at {f.position} ({f.strength:.2f}): {f.detail}" for f in findings[:_SHOWN]]
    return _printable(
        f"{said:7}  {each.name}" + "".join(f"  {part}" for part in ([each.note] if each.note else []) + told)
    )


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
