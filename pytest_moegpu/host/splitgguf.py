"""Whether the parts of a split GGUF model are one model: each its own place, one count, no tensor twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_moegpu.errors import ModelFileError
from pytest_moegpu.host.ggufheader import Header

__all__ = ["check_parts"]


def check_parts(parts: Sequence[Path], headers: Sequence[Header]) -> None:
    """Hold the parts against what their headers say (`split.no`, `split.count`, `split.tensors.count`).

    Files of older tools lack these keys; then only tensors that are there twice tell of a part in the wrong place.

    Raises:
        ModelFileError: One is of another place, of a split of another number, or has a tensor of another part; or the
            parts together have not the tensors that were split.
    """
    where: dict[str, Path] = {}
    for place, (part, header) in enumerate(zip(parts, headers, strict=True)):
        number, count = header.metadata.get("split.no"), header.metadata.get("split.count")
        if isinstance(count, int) and count not in (0, len(parts)):
            raise _error(part, f"it is of a model of {count} parts, by its name of one of {len(parts)}")
        if isinstance(number, int) and count and number != place:
            raise _error(part, f"it is part {number + 1}, by its name part {place + 1}")
        for tensor in header.tensors:
            if (first := where.setdefault(tensor.name, part)) is not part:
                raise _error(part, f"its tensor {tensor.name} is in {first.name} too")
    whole = headers[0].metadata.get("split.tensors.count")
    if isinstance(whole, int) and whole and whole != len(where):
        raise _error(parts[0], f"it was split with {whole} tensors, its {len(parts)} parts have {len(where)}")


def _error(part: Path, what: str) -> ModelFileError:
    return ModelFileError(f"model file {part}: {what}: fetch all parts again")
