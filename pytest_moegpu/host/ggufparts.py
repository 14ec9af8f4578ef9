"""The parts of a split GGUF model: which files they are, and whether they belong together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pytest_moegpu.errors import ModelFileError
from pytest_moegpu.host.ggufheader import Header

__all__ = ["check_parts", "is_part", "parts_of"]

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def is_part(path: Path) -> bool:
    """Tell whether a file is one part of a split model, by its name."""
    return _PART.search(path.name) is not None


def parts_of(path: Path) -> list[Path]:
    """Return all parts of a model whose first part was named, there or not; the file itself where it is not split.

    Raises:
        ModelFileError: It is a later part, or a part that cannot be.
    """
    match = _PART.search(path.name)
    if match is None:
        return [path]
    number, count = int(match[1]), int(match[2])
    if not 1 <= number <= count:
        raise ModelFileError(f"model file {path}: cannot be part {number} of {count}, as its name has it")
    parts = [path.with_name(f"{path.name[: match.start()]}-{n:05}-of-{match[2]}.gguf") for n in range(1, count + 1)]
    if number != 1:
        raise ModelFileError(
            f"model file {path}: is a later part of a split model: name the first one, {parts[0].name}"
        )
    return parts


def check_parts(parts: Sequence[Path], headers: Sequence[Header]) -> None:
    """Make sure that the headers of all parts are of one model; what a header does not say counts as right.

    `split.no` counts from 0, `split.count` are the parts, `split.tensors.count` the tensors of all (gguf-split).

    Raises:
        ModelFileError: They are not; names the first part that does not fit.
    """
    seen: set[str] = set()
    for place, (part, header) in enumerate(zip(parts, headers, strict=True)):
        count, number = header.metadata.get("split.count"), header.metadata.get("split.no")
        # A model of one part may be said to have none.
        if count is not None and count != len(parts) and (count, len(parts)) != (0, 1):
            raise ModelFileError(
                f"model file {part}: is one of {count} parts by its header, and by its name one of {len(parts)}"
            )
        if number is not None and number != place:
            raise ModelFileError(
                f"model file {part}: stands as part {place + 1} of {len(parts)}, and its header counts it as {number} "
                "from 0"
            )
        for tensor in header.tensors:
            if tensor.name in seen:
                raise ModelFileError(f"model file {part}: its tensor {tensor.name} is in an earlier part, too")
            seen.add(tensor.name)
    told = headers[0].metadata.get("split.tensors.count")
    if told is not None and told != len(seen):
        raise ModelFileError(
            f"model file {parts[0]}: has {len(seen)} tensors in all its parts, and by its header {told}"
        )
