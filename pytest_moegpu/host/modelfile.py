"""A model file on disk: what it says about itself, whether it is whole, and its checksum."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_moegpu.core.model import ModelFile
from pytest_moegpu.core.modelfacts import ModelFacts
from pytest_moegpu.errors import ModelFileError
from pytest_moegpu.host.checksum import sha256_of
from pytest_moegpu.host.ggufheader import DamagedHeaderError, Header, LongArray, PastEndError, read_header
from pytest_moegpu.host.gguflayers import KNOWN_ARCHITECTURES, Values, attention_layers, state_bytes
from pytest_moegpu.host.ggufparts import check_parts, parts_of

__all__ = [
    "GgufFacts",
    "catalog_name",
    "facts_of",
    "facts_of_headers",
    "is_lfs_pointer",
    "model_file",
    "read_gguf",
    "tensor_size",
    "whole_headers",
]

_GUESSED = 1024
# More than any model has, and few enough to make a record of each.
_MOST_LAYERS = 10_000


@dataclass(frozen=True, kw_only=True)
class GgufFacts:
    """What a GGUF file says about itself.

    `size_bytes` counts all parts of a split model. `layers` counts those of multi-token prediction, `kv_layers` does
    not.
    `recurrent_bytes_per_slot` is None where there is such a state of unknown size.
    """

    architecture: str
    name: str
    layers: int
    kv_layers: int
    embedding: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context_train: int
    experts: int
    experts_used: int
    quantisation: str
    licence: str
    size_bytes: int
    tensor_types: dict[str, int]
    mtp_layers: int = 0
    recurrent_layers: int = 0
    recurrent_bytes_per_slot: int | None = 0


def read_gguf(path: Path) -> GgufFacts:
    """Read the facts of a model file, or of all parts when `path` is the first part of a split one.

    Raises:
        ModelFileError: Missing, empty, not a GGUF, truncated, damaged, or not a language model.
    """
    return facts_of_headers(path, whole_headers(path))


def facts_of_headers(path: Path, headers: Sequence[Header]) -> GgufFacts:
    """Return the facts of a model file whose headers are read already.

    Raises:
        ModelFileError: It is not a language model.
    """
    types: Counter[str] = Counter()
    weight: Counter[str] = Counter()
    for header in headers:
        for tensor in header.tensors:
            label, size = tensor_size(tensor.type, tensor.elements)
            types[label] += 1
            weight[label] += size or 0
    return _facts(path, headers[0].metadata, types, weight, sum(part.stat().st_size for part in parts_of(path)))


def whole_headers(path: Path) -> tuple[Header, ...]:
    """Read the header of a model file, or those of all parts, after making sure that all tensor data is there.

    Raises:
        ModelFileError: As `read_gguf`.
    """
    parts = parts_of(path)
    headers = tuple(_whole_header(part) for part in parts)
    check_parts(parts, headers)
    return headers


def facts_of(gguf: GgufFacts) -> ModelFacts:
    """Return the facts of a model that the catalog does not know."""
    return ModelFacts(
        name=catalog_name(gguf.name) or gguf.architecture,
        title=gguf.name,
        architecture=gguf.architecture,
        layers=gguf.layers - gguf.mtp_layers,
        kv_layers=gguf.kv_layers,
        kv_heads=gguf.kv_heads,
        head_dim=gguf.head_dim,
        vocabulary=gguf.vocabulary,
        context_train=gguf.context_train,
        embedding=gguf.embedding,
        recurrent_layers=gguf.recurrent_layers,
        recurrent_bytes_per_slot=gguf.recurrent_bytes_per_slot,
        mtp_layers=gguf.mtp_layers,
        heads=gguf.heads,
        experts=gguf.experts,
        experts_used=gguf.experts_used,
        licence=gguf.licence,
        size_bytes=gguf.size_bytes,
        quantisation=gguf.quantisation,
    )


def catalog_name(title: str) -> str:
    """Turn a model's own name into one as the catalog has them; empty where nothing of it can stay."""
    return re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-.")


def is_lfs_pointer(start: bytes) -> bool:
    """Tell from the first bytes of a file whether it is Git LFS's pointer to a file."""
    return start.startswith(b"version https://git-lfs")


def model_file(path: Path) -> ModelFile:
    """Return size, checksum and quantisation of a model file; a split model has the checksum of its parts' checksums.

    Raises:
        ModelFileError: As `read_gguf`.
    """
    facts = read_gguf(path)
    sums = [sha256_of(part) for part in parts_of(path)]
    digest = sums[0] if len(sums) == 1 else hashlib.sha256("\n".join(sums).encode()).hexdigest()
    return ModelFile(
        path=str(path.absolute()), size_bytes=facts.size_bytes, sha256=digest, quantisation=facts.quantisation
    )


def _whole_header(path: Path) -> Header:
    """Return the header of a file whose tensor data is all there."""
    _look(path)
    size = path.stat().st_size
    try:
        header = read_header(path)
    except PastEndError as error:
        raise ModelFileError(f"model file {path}: is truncated: it ends within its header ({size} bytes)") from error
    except DamagedHeaderError as error:
        raise ModelFileError(f"model file {path}: is damaged or of an unknown kind: {error}") from error
    needed = end = 0
    last = ""
    for tensor in sorted(header.tensors, key=lambda each: each.offset):
        _, length = tensor_size(tensor.type, tensor.elements)
        if tensor.offset < end:
            raise ModelFileError(
                f"model file {path}: is damaged: its tensors {last} and {tensor.name} lie in the same place"
            )
        if length:
            last, end = tensor.name, tensor.offset + length
        needed = max(needed, header.data_offset + tensor.offset + (length or 0))
    if needed > size:
        raise ModelFileError(
            f"model file {path}: is truncated: its tensors end at byte {needed}, the file has {size} "
            f"({size / needed:.1%}): fetch it again"
        )
    return header


def _look(path: Path) -> None:
    """Refuse what is no GGUF file, in words that say what it is instead."""
    problem = ""
    try:
        if path.is_dir():
            inside = sorted(p.name for p in path.glob("*.gguf"))
            problem = "is a folder" + (f": name a file in it, e.g. {inside[0]}" if inside else " without a .gguf file")
        elif not path.exists():
            problem = "does not exist" + _nearest_in_folder(path)
        elif not path.is_file():
            problem = "is not a regular file"
        elif path.stat().st_size == 0:
            problem = "is empty"
        else:
            with path.open("rb") as file:
                start = file.read(40)
            if is_lfs_pointer(start):
                problem = "is a Git LFS pointer, not the model: run `git lfs pull` in its repository"
            elif not start.startswith(b"GGUF"):
                problem = f"is not a GGUF file: it starts with {start[:4]!r}, not b'GGUF'"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    if problem:
        raise ModelFileError(f"model file {path}: {problem}")


def _nearest_in_folder(path: Path) -> str:
    if not path.parent.is_dir():
        return f", nor does its folder {path.parent}"
    names = {p.name.lower(): p.name for p in path.parent.iterdir() if p.is_file()}
    match = difflib.get_close_matches(path.name.lower(), names, n=1)
    return f" (did you mean {names[match[0]]!r}?)" if match else ""


def tensor_size(kind: int, elements: int) -> tuple[str, int | None]:
    """Return the type's name and the bytes of a tensor; a type newer than the gguf package has a number and no size."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        known = GGMLQuantizationType(kind)
    except ValueError:
        return f"type-{kind}", None
    block, size = GGML_QUANT_SIZES[known]
    return known.name, elements // block * size


def _quantisation(file_type: object, weight: Counter[str]) -> str:
    from gguf.constants import LlamaFileType

    if isinstance(file_type, int):
        with contextlib.suppress(ValueError):
            return LlamaFileType(file_type & ~_GUESSED).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    return weight.most_common(1)[0][0] if weight else "unknown"


def _facts(path: Path, metadata: dict[str, object], types: Counter[str], weight: Counter[str], size: int) -> GgufFacts:
    architecture = str(metadata.get("general.architecture", ""))

    def number(key: str, default: int | None = None) -> int:
        value = metadata.get(f"{architecture}.{key}", default)
        # Models whose layers differ store one number per layer.
        if isinstance(value, tuple) and value:
            value = max(value)
        if not isinstance(value, int):
            kind = metadata.get("general.type", "no type")
            raise ModelFileError(
                f"model file {path}: has no {architecture or 'ARCHITECTURE'}.{key} in its metadata ({kind}): "
                "it is not a language model"
            )
        if value < 0:
            raise ModelFileError(f"model file {path}: is damaged: its {architecture}.{key} is {value}")
        return value

    layers, embedding, heads = number("block_count"), number("embedding_length"), number("attention.head_count")
    if not 0 < layers <= _MOST_LAYERS:
        raise ModelFileError(f"model file {path}: is damaged: it says that it has {layers} layers")
    tokens = metadata.get("tokenizer.ggml.tokens")
    values = Values(metadata, architecture)
    mtp = values.number("nextn_predict_layers")
    if mtp >= layers:
        raise ModelFileError(f"model file {path}: is damaged: {mtp} of its {layers} layers are said to predict ahead")
    cached = attention_layers(values, architecture, layers - mtp)
    hybrid = KNOWN_ARCHITECTURES.get(architecture) == "hybrid"
    recurrent = layers - mtp - cached if hybrid else 0
    state: int | None = recurrent * state_bytes(values)
    if (recurrent and not state) or (not hybrid and values.any_below("ssm.")):
        state = None
    return GgufFacts(
        architecture=architecture,
        name=str(metadata.get("general.name") or path.stem),
        layers=layers,
        kv_layers=cached,
        embedding=embedding,
        heads=heads,
        kv_heads=number("attention.head_count_kv", heads),
        head_dim=number("attention.key_length", embedding // max(heads, 1)),
        vocabulary=number("vocab_size", tokens.length if isinstance(tokens, LongArray) else 0),
        context_train=number("context_length"),
        experts=number("expert_count", 0),
        experts_used=number("expert_used_count", 0),
        quantisation=_quantisation(metadata.get("general.file_type"), weight),
        licence=str(metadata.get("general.license", "")),
        size_bytes=size,
        tensor_types=dict(sorted(types.items())),
        mtp_layers=mtp,
        recurrent_layers=recurrent,
        recurrent_bytes_per_slot=state,
    )
