"""Does it fit, and does the memory come back?"""

from collections.abc import Callable

import pytest


@pytest.mark.moegpu(level=2, check="memory")
def test_memory(moegpu_verify: Callable[..., object]) -> None:
    assert moegpu_verify()
