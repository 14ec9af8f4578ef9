"""Is it the right GPU, idle, with enough memory free?"""

from collections.abc import Callable

import pytest


@pytest.mark.moegpu(level=1, check="preflight")
def test_preflight(moegpu_verify: Callable[..., object]) -> None:
    assert moegpu_verify()
