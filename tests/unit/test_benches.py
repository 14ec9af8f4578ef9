"""The arithmetic of the benches: what counts as seen, and what an interval is worth."""

from __future__ import annotations

import os
import random
import statistics

import pytest

from bench.sampler_effect import sign_interval
from bench.spikes import Spike, child_environment, found
from pytest_moegpu.core.model import Gpu
from pytest_moegpu.core.sample import Sample

GIB = 2**30
SPIKES = [
    Spike(hold=0.01, before=1.000, taken=1.001, given=1.011, after=1.012),
    Spike(hold=0.01, before=1.100, taken=1.101, given=1.111, after=1.112),
    Spike(hold=0.01, before=1.200, taken=1.201, given=1.211, after=1.212),
]


def readings(*pairs: tuple[float, int | None]) -> list[Sample]:
    return [Sample(time=time, phase="load", device=0, used_bytes=used) for time, used in pairs]


@pytest.mark.parametrize(
    ("samples", "seen"),
    [
        ([], set()),
        ([(1.005, GIB)], {0}),
        ([(1.005, GIB - 1), (1.105, None), (1.15, 0)], set()),
        ([(0.997, GIB), (1.21, GIB)], {0, 2}),
        ([(0.99, GIB)], set()),
        ([(1.105, GIB), (1.107, GIB)], {1}),
        ([(1.096, GIB)], {1}),
        ([(9.0, GIB)], {2}),
    ],
)
def test_a_spike_is_seen_by_a_high_reading_before_the_next(
    samples: list[tuple[float, int | None]], seen: set[int]
) -> None:
    assert found(SPIKES, readings(*samples), GIB) == seen


@pytest.mark.parametrize("visible", [None, "1"])
def test_spikes_are_made_on_the_device_that_is_read(monkeypatch: pytest.MonkeyPatch, visible: str | None) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpu = Gpu(index=2, name="NVIDIA H200", memory_bytes=GIB, uuid="GPU-one")
    ours = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "GPU-one"}
    assert child_environment(gpu) == os.environ | ours
    with pytest.raises(SystemExit, match="by which name CUDA knows GPU 0"):
        child_environment(Gpu(index=0, name="NVIDIA H200", memory_bytes=GIB))


def test_the_interval_of_a_median_is_the_table_of_the_sign_test() -> None:
    """n = 10: ranks 2 and 9 hold the median with 97.9 %; n = 20: 6 and 15 with 95.9 %; n = 5: 1 and 5 with 93.8 %."""
    for n, low, high, level in ((10, 2, 9, 0.9785), (20, 6, 15, 0.9586), (5, 1, 5, 0.9375)):
        found_low, found_high, found_level = sign_interval([float(k) for k in range(n, 0, -1)], 0.95)
        assert (found_low, found_high) == (low, high)
        assert found_level == pytest.approx(level, abs=1e-4)


def test_one_value_has_an_interval_that_is_worth_nothing() -> None:
    assert sign_interval([1.5], 0.95) == (1.5, 1.5, 0.0)


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    chance = random.Random(3)
    held = []
    for _ in range(2000):
        low, high, _ = sign_interval([chance.lognormvariate(0, 0.02) for _ in range(30)], 0.95)
        held.append(low <= 1.0 <= high)
    assert 0.94 <= statistics.fmean(held) <= 0.98
