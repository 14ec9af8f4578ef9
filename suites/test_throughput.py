"""How fast is it, one stream at a time?"""

from collections.abc import Callable

import pytest


@pytest.mark.moegpu(level=2)
@pytest.mark.parametrize(
    "metric",
    [pytest.param(name, marks=pytest.mark.moegpu_throughput(metric=name)) for name in ("ttft", "prefill", "decode")],
)
def test_throughput(moegpu_verify: Callable[..., object], metric: str) -> None:
    assert moegpu_verify(), metric
