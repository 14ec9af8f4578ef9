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
from pytest_moegpu.host.modelfile import catalog_name, is_lfs_pointer

__all__ = ["facts_of_folder", "folder_file", "is_folder_model"]

_CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
# What an engine reads of a folder; other files may change without the model being another.
_READ = ("*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")


def is_folder_model(path: Path) -> bool:
    """Tell whether a path is a folder with a `config.json`."""
    return (path / _CONFIG).is_file()


def folder_file(path: Path) -> ModelFile:
    """Return size, checksum and precision of a folder; the checksum is of the checksums of its files, by name.

    Raises:
        ModelFileError: No `config.json`, no weights, or weights that its index names are missing.
    """
    config = _config(path)
    weights = _weights(path)
    read = sorted({file for pattern in _READ for file in path.glob(pattern) if file.is_file()})
    sums = "\n".join(f"{file.name} {sha256_of(file)}" for file in read)
    return ModelFile(
        path=str(path.absolute()),
        size_bytes=sum(file.stat().st_size for file in weights),
        sha256=hashlib.sha256(sums.encode()).hexdigest(),
        quantisation=_precision(config),
        format=ModelFormat.HF,
    )


def facts_of_folder(path: Path) -> ModelFacts:
    """Return the facts of a model from its `config.json`; a nested `text_config` counts. Recurrent state counts as 0.

    Raises:
        ModelFileError: A number that every language model has is missing.
    """
    outer = _config(path)
    config = outer["text_config"] | {"model_type": outer.get("model_type")} if "text_config" in outer else outer

    def number(*names: str, default: int | None = None) -> int:
        for name in names:
            if isinstance(config.get(name), int):
                return int(config[name])
        if default is None:
            raise ModelFileError(f"model folder {path}: {_CONFIG} has no {names[0]}: it is not a language model")
        return default

    layers, heads, embedding = number("num_hidden_layers"), number("num_attention_heads"), number("hidden_size")
    kinds = config.get("layer_types")
    full = sum("full" in str(kind) for kind in kinds) if isinstance(kinds, list) and kinds else layers
    return ModelFacts(
        name=catalog_name(path.name),
        title=path.name,
        architecture=str(outer.get("model_type", "")),
        layers=layers,
        kv_layers=full,
        kv_heads=number("num_key_value_heads", default=heads),
        head_dim=number("head_dim", default=embedding // max(heads, 1)),
        vocabulary=number("vocab_size"),
        context_train=number("max_position_embeddings"),
        embedding=embedding,
        experts=number("num_experts", "num_local_experts", "n_routed_experts", default=0),
        experts_used=number("num_experts_per_tok", default=0),
    )


def _config(path: Path) -> dict[str, Any]:
    file = path / _CONFIG
    try:
        config = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ModelFileError(f"model folder {path}: has no {_CONFIG}: it is not a model folder") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"model folder {path}: {_CONFIG} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelFileError(f"model folder {path}: {_CONFIG} is not a JSON object")
    return config


def _weights(path: Path) -> list[Path]:
    weights = sorted(path.glob("*.safetensors"))
    index = path / _INDEX
    if index.is_file():
        try:
            named = set(json.loads(index.read_bytes())["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise ModelFileError(f"model folder {path}: {_INDEX} cannot be read: {error!r}") from error
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


def _precision(config: dict[str, Any]) -> str:
    """Return the quantisation method, else the type the weights were saved in."""
    method = config.get("quantization_config")
    if isinstance(method, dict) and method.get("quant_method"):
        bits = method.get("bits") or method.get("w_bit")
        return f"{str(method['quant_method']).upper()}{f' {bits}-bit' if bits else ''}"
    text = config.get("text_config")
    inner: dict[str, Any] = text if isinstance(text, dict) else {}
    kind = next((c[key] for c in (config, inner) for key in ("dtype", "torch_dtype") if c.get(key)), "unknown")
    return {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}.get(str(kind), str(kind))
