"""Recipes for server programs, and the table that names them."""

from __future__ import annotations

from collections.abc import Callable

from pytest_moegpu.backends.base import Backend
from pytest_moegpu.backends.fastllm import FastLlm
from pytest_moegpu.backends.llamacpp import LlamaCpp
from pytest_moegpu.backends.mlx import Mlx
from pytest_moegpu.backends.ollama import Ollama
from pytest_moegpu.backends.openai import OpenAi
from pytest_moegpu.backends.sglang import SgLang
from pytest_moegpu.backends.vllm import Vllm
from pytest_moegpu.errors import UserError, nearest

__all__ = ["BACKENDS", "get_backend"]

BACKENDS: dict[str, Callable[[], Backend]] = {
    "fastllm": FastLlm,
    "llamacpp": LlamaCpp,
    "mlx": Mlx,
    "ollama": Ollama,
    "openai": OpenAi,
    "sglang": SgLang,
    "vllm": Vllm,
}


def get_backend(name: str) -> Backend:
    """Return the backend of that name.

    Raises:
        UserError: There is none; the nearest name is offered.
    """
    try:
        return BACKENDS[name]()
    except KeyError:
        raise UserError(
            f"unknown backend {name!r}{nearest(name, BACKENDS)}; known: {', '.join(sorted(BACKENDS))}"
        ) from None
