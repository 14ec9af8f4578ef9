"""Is the text right?"""

from collections.abc import Callable

import pytest


@pytest.mark.moegpu(level=1)
@pytest.mark.moegpu_output
def test_output(moegpu_verify: Callable[..., object]) -> None:
    assert moegpu_verify()
