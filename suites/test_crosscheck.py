"""Does llama.cpp's one-shot program give the same answer? Only with -k crosscheck, or where MOEGPU_LLAMA_CLI is set."""

from collections.abc import Callable

import pytest


@pytest.mark.moegpu(level=3, check="crosscheck")
def test_crosscheck(moegpu_verify: Callable[..., object]) -> None:
    assert moegpu_verify()
