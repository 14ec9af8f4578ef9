"""Is it as good as the stored baseline?"""

from collections.abc import Callable

import pytest


@pytest.mark.moegpu(level=2, check="throughput")
@pytest.mark.parametrize("metric", ["decode", "prefill", "ttft", "peak_memory"])
def test_baseline(moegpu_verify: Callable[..., object], metric: str) -> None:
    assert moegpu_verify(baseline=metric)
