"""Is the model where it should be?"""

from collections.abc import Callable

import pytest


@pytest.mark.moegpu(level=1, check="offload")
def test_offload(moegpu_verify: Callable[..., object]) -> None:
    assert moegpu_verify()
