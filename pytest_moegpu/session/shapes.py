"""The shape of a model by what a user calls it: a name of the catalog, a GGUF file, or a folder."""

from __future__ import annotations

from pathlib import Path

from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.modelfacts import ModelFacts
from pytest_moegpu.core.shape import ModelShape
from pytest_moegpu.core.shapeofmodel import published, shape_of_facts
from pytest_moegpu.errors import UserError, nearest
from pytest_moegpu.host.hffolder import is_folder_model
from pytest_moegpu.host.shapegguf import shape_of_gguf
from pytest_moegpu.host.shapehf import shape_of_folder

__all__ = ["model_names", "shape_named"]


def shape_named(given: str, quantisation: str | None, catalog: Catalog) -> tuple[ModelShape, ModelFacts | Path]:
    """Return the shape, and the entry of the catalog or the path that it is from.

    Raises:
        UserError: No such model; a quantisation for a file, which has its own; or the file is damaged.
    """
    facts = next((model for model in catalog.models() if given in (model.name, *model.aliases)), None)
    if facts is not None:
        return shape_of_facts(facts, published(facts, quantisation)), facts
    path = Path(given).expanduser()
    if not path.exists() and path.suffix != ".gguf" and "/" not in given:
        known = model_names(catalog)
        raise UserError(f"unknown model {given!r}{nearest(given, known)}: known are {', '.join(known)}; or name a file")
    if quantisation is not None:
        raise UserError(f"--quant is for models without a file; {path} has its own")
    return (shape_of_folder if is_folder_model(path) else shape_of_gguf)(path), path


def model_names(catalog: Catalog) -> list[str]:
    """Return all names and aliases of models."""
    return [name for model in catalog.models() for name in (model.name, *model.aliases)]
