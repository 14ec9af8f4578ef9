"""The shape of a model from its folder: `config.json` and the headers of its safetensors files."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_moegpu.core.modelfacts import PublishedFile
from pytest_moegpu.core.shape import BlockWeights, ModelShape, WeightTable
from pytest_moegpu.core.shapeofmodel import shape_of_facts
from pytest_moegpu.errors import ModelFileError
from pytest_moegpu.host.hfconfig import CONFIG, Config
from pytest_moegpu.host.hffolder import INDEX, facts_of_config, precision_of
from pytest_moegpu.host.modelfile import catalog_name
from pytest_moegpu.host.safetensors import TensorHeader, read_header

__all__ = ["shape_of_folder"]

# `model.layers.3.`, `model.language_model.layers.3.`, `transformer.h.3.`
_BLOCK = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_EXPERTS = re.compile(r"\.experts\.")
_NOT_TEXT = re.compile(r"(?:^|\.)(?:visual|vision\w*|audio\w*|multi_modal\w*|mm_\w+)\.")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|tok_embeddings)\.")
_OUTPUT = re.compile(r"(?:^|\.)(?:lm_head|output)\.|^(?:model\.|language_model\.|transformer\.)*(?:norm|ln_f)\.")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|output)\.")
_MTP = re.compile(r"^(?:model\.)?mtp\.")


def shape_of_folder(path: Path) -> ModelShape:
    """Read the shape of a model folder. Without its weight files only the shape is known, or what its index adds up.

    Raises:
        ModelFileError: As `Config` and `read_header`; a tensor in two files or of a layer that is not there; an index
            that cannot be read or names a file outside the folder.
    """
    config = Config(path)
    names = _files(path)
    present = [name for name in names if (path / name).is_file()]
    notes = []
    weights, parameters = None, None
    if present and len(present) == len(names):
        tensors = _tensors(path, present)
        weights = _table(path, config, tensors)
        # Packed weights are stored as words of 32 bits or as bytes, which are no parameters.
        packed = "quantization_config" in config.outer or "quantization_config" in config.inner
        parameters = None if packed else sum(tensor.elements for tensor in tensors)
    elif (total := _indexed_total(path)) is not None:
        weights = _by_arithmetic(path, config, total)
        notes.append(f"{len(names) - len(present)} of {len(names)} weight files are not here: spread by arithmetic")
    experts = config.experts
    width = config.number("intermediate_size")
    shared = config.number("n_shared_experts", "num_shared_experts")
    return ModelShape(
        name=catalog_name(path.absolute().name) or config.type,
        architecture=config.type,
        layers=config.layers,
        embedding=config.embedding,
        heads=config.heads,
        kv=config.kv,
        vocabulary=config.need("vocab_size"),
        context_train=config.need("max_position_embeddings"),
        recurrent_layers=config.recurrent_layers,
        recurrent_bytes_per_slot=config.state_bytes,
        mtp_layers=config.mtp,
        experts=experts,
        experts_used=config.experts_used,
        shared_experts=shared or int(config.number("shared_expert_intermediate_size") > 0),
        # Mixtral and gpt-oss have one width for both.
        expert_width=config.number("moe_intermediate_size", default=width if experts else 0) or None,
        feed_forward=width or None,
        quantisation=precision_of(config.outer),
        parameters=parameters,
        weights=weights,
        missing=config.missing,
        notes=tuple(notes),
        sources=(f"{path.name}/{CONFIG}", *((f"the headers of {len(present)} safetensors files",) if present else ())),
    )


def _files(path: Path) -> list[str]:
    """Return the weight files that belong to the model: those its index names, else all."""
    if not (path / INDEX).is_file():
        return sorted(file.name for file in path.glob("*.safetensors"))
    named = _index(path).get("weight_map")
    files = sorted({str(name) for name in named.values()}) if isinstance(named, dict) else []
    if not files:
        raise ModelFileError(f"model folder {path}: {INDEX} has no weight_map that names files")
    if outside := [name for name in files if Path(name).name != name]:
        raise ModelFileError(f"model folder {path}: {INDEX} names {outside[0][:80]!r}, which is not in the folder")
    return files


def _index(path: Path) -> dict[str, Any]:
    try:
        index = json.loads((path / INDEX).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"model folder {path}: {INDEX} cannot be read: {error}") from error
    if not isinstance(index, dict):
        raise ModelFileError(f"model folder {path}: {INDEX} is not a JSON object")
    return index


def _indexed_total(path: Path) -> int | None:
    """Return the bytes of all weights as the index adds them up; None where it does not."""
    if not (path / INDEX).is_file():
        return None
    metadata = _index(path).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return total if type(total) is int and 0 < total < 2**63 else None


def _by_arithmetic(path: Path, config: Config, total: int) -> WeightTable | None:
    """Spread a sum over the parts of the model."""
    facts = facts_of_config(path, config)
    named = _index(path).get("weight_map")
    width = config.number("moe_intermediate_size", default=config.number("intermediate_size"))
    tied = not any(_HEAD.search(str(name)) for name in named) if isinstance(named, dict) else config.tied
    spread = replace(facts, expert_width=width or None, tied=tied)
    file = PublishedFile(quantisation=precision_of(config.outer), size_bytes=total, source=INDEX)
    return shape_of_facts(spread, file).weights


def _tensors(path: Path, names: Iterable[str]) -> list[TensorHeader]:
    found: dict[str, TensorHeader] = {}
    for name in names:
        for tensor in read_header(path / name):
            if tensor.name in found:
                raise ModelFileError(f"model folder {path}: tensor {tensor.name[:80]} is in two files, one is {name}")
            found[tensor.name] = tensor
    return list(found.values())


def _table(path: Path, config: Config, tensors: list[TensorHeader]) -> WeightTable:
    """Add the tensors up by block; layers beyond the model's, and `mtp.`, serve multi-token prediction."""
    blocks = [[0, 0] for _ in range(config.layers)]
    mtp: dict[int, list[int]] = {}
    by_type: Counter[str] = Counter()
    embedding = output = other = 0
    tied = True
    for tensor in tensors:
        by_type[tensor.dtype] += tensor.size_bytes
        expert = bool(_EXPERTS.search(tensor.name))
        match = _BLOCK.search(tensor.name)
        if _NOT_TEXT.search(tensor.name):
            other += tensor.size_bytes
        elif _MTP.match(tensor.name):
            mtp.setdefault(int(match[1][:9]) if match else 0, [0, 0])[expert] += tensor.size_bytes
        elif match and int(match[1][:9]) < config.layers:
            blocks[int(match[1])][expert] += tensor.size_bytes
        elif match:
            number = int(match[1][:9]) - config.layers
            if number >= config.mtp:
                raise ModelFileError(
                    f"model folder {path}: tensor {tensor.name[:80]} is of a layer that is not there ({config.layers})"
                )
            mtp.setdefault(number, [0, 0])[expert] += tensor.size_bytes
        elif _EMBEDDING.search(tensor.name):
            embedding += tensor.size_bytes
        elif _OUTPUT.search(tensor.name):
            output += tensor.size_bytes
            tied = tied and not _HEAD.search(tensor.name)
        else:
            other += tensor.size_bytes
    spare = [mtp[number] for number in sorted(mtp)]
    return WeightTable(
        embedding=embedding,
        output=output,
        blocks=tuple(BlockWeights(other=plain, experts=experts) for plain, experts in (*blocks, *spare)),
        mtp_blocks=len(spare),
        other=other,
        by_type=dict(by_type),
        tied=tied,
    )
