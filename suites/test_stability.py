"""Did hardware, driver and server hold?"""

from collections.abc import Callable

import pytest


@pytest.mark.moegpu(level=1, check="stability")
def test_stability(moegpu_verify: Callable[..., object]) -> None:
    assert moegpu_verify()
