"""`moegpu model facts`: what a model is made of. Weights are not read, and nothing is started."""

from __future__ import annotations

from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.modelargs import FactsOrder
from pytest_moegpu.report.shape import shape_as_json, shape_as_text
from pytest_moegpu.session.shapes import shape_named

__all__ = ["told"]


def told(order: FactsOrder) -> str:
    """Return the facts as text or JSON.

    Raises:
        UserError: No such model, or its file is damaged; says what is known.
    """
    shape, _ = shape_named(order.model, order.quantisation, Catalog.load(order.catalog))
    return (shape_as_json if order.json else shape_as_text)(shape)
