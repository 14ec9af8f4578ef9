"""What `moegpu model` is asked: the arguments of its two kinds, and the order of `facts`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FactsOrder", "add_model"]


@dataclass(frozen=True, kw_only=True)
class FactsOrder:
    """Which model is asked for, by name or path; `quantisation` of one that is not at hand."""

    model: str
    quantisation: str | None = None
    json: bool = False
    catalog: tuple[Path, ...] = ()

    @classmethod
    def of(cls, args: argparse.Namespace) -> FactsOrder:
        """Take the order from what was parsed."""
        return cls(model=args.model, quantisation=args.quant, json=args.json, catalog=tuple(args.catalog))


def add_model(verb: argparse.ArgumentParser, parser_class: Any) -> None:
    """Describe both kinds."""
    kinds = verb.add_subparsers(dest="kind", required=True, metavar="KIND", parser_class=parser_class)
    up = kinds.add_parser(
        "upcycle",
        help="make a mixture of experts out of a dense model, with the same answers",
        description="Exit code 0: OUT is written, 3: it is not, and nothing is left of it.",
    )
    up.add_argument("dense", type=Path, metavar="IN", help="GGUF file of a dense model, architecture llama")
    up.add_argument("out", type=Path, metavar="OUT", help="GGUF file to write")
    up.add_argument("--experts", type=int, required=True, metavar="N", help="experts in each layer")
    up.add_argument("--used", type=int, required=True, metavar="K", help="experts that work on each token")
    up.add_argument(
        "--how",
        required=True,
        choices=("copies", "slices"),
        help="copies of the dense network, or slices that sum to it",
    )
    up.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the router of copies (default 0)")
    up.add_argument("--force", action="store_true", help="replace OUT")
    facts = kinds.add_parser(
        "facts",
        help="say what a model is made of: layers, cache, state, weights, experts",
        description="Reads headers only. Exit code 0: told, 3: there is no such model, or its file is damaged.",
    )
    facts.add_argument("model", metavar="MODEL", help="GGUF file, model folder, or name of a model")
    facts.add_argument("--quant", metavar="NAME", help="quantisation of a model without its file, such as Q4_K_M")
    facts.add_argument("--json", action="store_true", help="print JSON")
    facts.add_argument(
        "--catalog", type=Path, action="append", default=[], metavar="FOLDER", help="folder with models of your own"
    )
