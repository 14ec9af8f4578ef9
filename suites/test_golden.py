"""Does the model give the numbers that it gave on the known-good stack?"""

from collections.abc import Callable

import pytest


@pytest.mark.moegpu(level=2, check="golden")
def test_golden(moegpu_verify: Callable[..., object]) -> None:
    assert moegpu_verify()
