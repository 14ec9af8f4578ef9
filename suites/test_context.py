"""Do long contexts work?"""

from collections.abc import Callable

import pytest


@pytest.mark.moegpu(level=3, check="context")
def test_context(moegpu_verify: Callable[..., object]) -> None:
    assert moegpu_verify()
