"""A model folder as Hugging Face's libraries save it: what it says about itself, whether it is whole, its checksum."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pytest_moegpu.core.model import ModelFile, ModelFormat
from pytest_moegpu.core.modelfacts import ModelFacts
from pytest_moegpu.errors import ModelFileError
from pytest_moegpu.host.checksum import sha256_of
from pytest_moegpu.host.hfconfig import CONFIG, Config
from pytest_moegpu.host.modelfile import catalog_name, is_lfs_pointer

__all__ = ["INDEX", "facts_of_config", "facts_of_folder", "folder_file", "is_folder_model", "precision_of"]

INDEX = "model.safetensors.index.json"
# What an engine reads of a folder; other files may change without the model being another.
_READ = ("*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")


def is_folder_model(path: Path) -> bool:
    """Tell whether a path is a folder with a `config.json`."""
    return (path / CONFIG).is_file()


def folder_file(path: Path) -> ModelFile:
    """Return size, checksum and precision of a folder; the checksum is of the checksums of its files, by name.

    Raises:
        ModelFileError: No `config.json`, no weights, or weights that its index names are missing.
    """
    config = Config(path)
    weights = _weights(path)
    read = sorted({file for pattern in _READ for file in path.glob(pattern) if file.is_file()})
    sums = "\n".join(f"{file.name} {sha256_of(file)}" for file in read)
    return ModelFile(
        path=str(path.absolute()),
        size_bytes=sum(file.stat().st_size for file in weights),
        sha256=hashlib.sha256(sums.encode()).hexdigest(),
        quantisation=precision_of(config.outer),
        format=ModelFormat.HF,
    )


def facts_of_folder(path: Path) -> ModelFacts:
    """Return the facts of a model from its `config.json`; a nested `text_config` counts.

    Raises:
        ModelFileError: A number that every language model has is missing.
    """
    return facts_of_config(path, Config(path))


def facts_of_config(path: Path, config: Config) -> ModelFacts:
    """Return the facts that a configuration which was read tells.

    Raises:
        ModelFileError: A number that every language model has is missing.
    """
    return ModelFacts(
        name=catalog_name(path.name),
        title=path.name,
        architecture=config.type,
        layers=config.layers,
        kv_layers=sum(group.layers for group in config.kv),
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocabulary=config.need("vocab_size"),
        context_train=config.need("max_position_embeddings"),
        embedding=config.embedding,
        recurrent_layers=config.recurrent_layers,
        recurrent_bytes_per_slot=config.state_bytes,
        mtp_layers=config.mtp,
        experts=config.experts,
        experts_used=config.experts_used,
        kv=config.kv,
    )


def _weights(path: Path) -> list[Path]:
    weights = sorted(path.glob("*.safetensors"))
    index = path / INDEX
    if index.is_file():
        try:
            named = set(json.loads(index.read_bytes())["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise ModelFileError(f"model folder {path}: {INDEX} cannot be read: {error!r}") from error
        if missing := sorted(named - {file.name for file in weights}):
            raise ModelFileError(
                f"model folder {path}: {len(missing)} of {len(named)} weight files are missing, e.g. {missing[0]}: "
                "fetch it again"
            )
    if not weights:
        raise ModelFileError(f"model folder {path}: has no .safetensors file")
    for file in weights:
        with file.open("rb") as opened:
            if is_lfs_pointer(opened.read(40)):
                raise ModelFileError(
                    f"model folder {path}: {file.name} is a Git LFS pointer, not the weights: run `git lfs pull` there"
                )
    return weights


def precision_of(config: dict[str, Any]) -> str:
    """Return the quantisation method, else the type the weights were saved in."""
    text = config.get("text_config")
    inner: dict[str, Any] = text if isinstance(text, dict) else {}
    method = config.get("quantization_config") or inner.get("quantization_config")
    if isinstance(method, dict) and method.get("quant_method"):
        bits = method.get("bits") or method.get("w_bit")
        return f"{str(method['quant_method']).upper()}{f' {bits}-bit' if bits else ''}"
    kind = next((c[key] for c in (config, inner) for key in ("dtype", "torch_dtype") if c.get(key)), "unknown")
    return {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}.get(str(kind), str(kind))
