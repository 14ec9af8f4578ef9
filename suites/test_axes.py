"""Is the text right under other conditions: long, cached, several at once, in a later turn, after many requests?"""

from collections.abc import Callable

import pytest


@pytest.mark.moegpu(level=3, check="axes")
def test_axes(moegpu_verify: Callable[..., object]) -> None:
    assert moegpu_verify()
