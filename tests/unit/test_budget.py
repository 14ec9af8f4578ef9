"""The arithmetic of memory against what real servers told of themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.budget import Reserve, default_reserve, kv_bytes_per_token
from pytest_moegpu.core.budgetcompute import cells, compute_bytes
from pytest_moegpu.core.budgetllama import CUBLAS, llama_budget, uses_cublas
from pytest_moegpu.core.budgetpool import kv_room, least_share, pool_budget
from pytest_moegpu.core.model import DeviceKind, Settings
from pytest_moegpu.core.shape import BlockWeights, KvGroup, ModelShape, WeightTable
from pytest_moegpu.core.shapeofmodel import published, shape_of_facts
from pytest_moegpu.core.units import GIB, MIB
from pytest_moegpu.errors import UserError

NOTHING = Reserve(size_bytes=0, source="none", band_bytes=0)
BUILD = 11434


def shape(name: str, quantisation: str | None = None) -> ModelShape:
    facts = Catalog.load().model(name)
    return shape_of_facts(facts, published(facts, quantisation))


SMALL = shape("smollm2-135m-instruct")
LARGE = shape("qwen3.6-35b-a3b")


# `compute buffer size` of llama-server 11434 with SmolLM2-135M on a processor.
@pytest.mark.parametrize(
    ("context", "ubatch", "flash", "mib"),
    [
        (512, 512, "on", 15.14),
        (2048, 512, "on", 16.64),
        (8192, 512, "on", 22.64),
        (32_768, 512, "on", 46.64),
        (2048, 64, "on", 2.08),
        (2048, 128, "on", 4.16),
        (2048, 1024, "on", 33.29),
        (512, 512, "off", 17.51),
        (2048, 512, "off", 47.51),
        (8192, 512, "off", 167.51),
        (8192, 128, "off", 41.88),
    ],
)
def test_the_compute_buffer_is_what_the_log_told(context: int, ubatch: int, flash: str, mib: float) -> None:
    settings = Settings(context=context, ubatch=ubatch, flash_attention=flash)
    found = compute_bytes(SMALL, settings, build=BUILD, kind=DeviceKind.CPU)
    assert found / MIB == pytest.approx(mib, rel=0.015)


# The same on an H200, by `bench/plan_truth.py --gpu`.
@pytest.mark.parametrize(
    ("changes", "mib"),
    [
        ({"context": 2048}, 15.55),
        ({"context": 8192}, 21.55),
        ({"context": 32_768}, 45.55),
        ({"context": 8192, "slots": 4}, 21.55),
        ({"context": 8192, "ubatch": 128}, 5.44),
        ({"context": 2048, "kv_cache": "q8_0"}, 15.55),
        ({"context": 16_384, "kv_cache": "q8_0"}, 33.67),
        ({"context": 32_768, "kv_cache": "q8_0"}, 61.67),
        ({"context": 32_768, "kv_cache": "q4_0"}, 61.67),
        ({"context": 8192, "kv_cache": "q8_0", "slots": 4}, 37.67),
        ({"context": 32_768, "kv_cache": "q8_0", "ubatch": 128}, 33.44),
        ({"context": 8192, "kv_cache": "q8_0", "ubatch": 256}, 12.85),
        ({"context": 2048, "gpu_layers": 15}, 17.75),
        ({"context": 16_384, "gpu_layers": 15}, 34.75),
        ({"context": 8192, "gpu_layers": 15, "ubatch": 128}, 9.69),
        ({"context": 8192, "gpu_layers": 15, "slots": 4}, 38.75),
        ({"context": 32_768, "gpu_layers": 30}, 62.75),
        ({"context": 32_768, "gpu_layers": 0}, 62.75),
        ({"context": 32_768, "gpu_layers": 15, "kv_cache": "q8_0"}, 75.5),
        ({"context": 8192, "flash_attention": "off"}, 166.38),
        ({"context": 32_768, "flash_attention": "off"}, 646.38),
        ({"context": 2048, "flash_attention": "off", "ubatch": 128}, 11.6),
    ],
)
def test_the_compute_buffer_on_a_gpu_is_what_the_log_told(changes: dict[str, Any], mib: float) -> None:
    assert compute_bytes(SMALL, Settings(**changes), build=BUILD) / MIB == pytest.approx(mib, rel=0.015)


# Copies, 2 of 4 used: 22.5 MiB beside the mask; a tensor of experts in host memory is 2.1 MiB.
@pytest.mark.parametrize(("held", "mib"), [(0, 54.51), (15, 56.62)])
def test_experts_in_host_memory_are_copied_to_the_gpu_one_tensor_at_a_time(held: int, mib: float) -> None:
    block = BlockWeights(other=0, experts=3 * 4 * 1536 * 576 * 20 // 32)
    table = WeightTable(embedding=0, output=0, blocks=(block,) * 30)
    mixture = replace(SMALL, experts=4, experts_used=2, expert_width=1536, weights=table)
    found = compute_bytes(mixture, Settings(context=32_768, cpu_expert_layers=held), build=BUILD)
    assert found / MIB == pytest.approx(mib, rel=0.005)


# The device's delta less what the log names was 607 MiB without, 700.7 with BF16 weights, 705 with routers, 708 plain.
def test_cublas_takes_memory_of_its_own_once_it_is_used() -> None:
    plain = Settings(context=8192)
    mixture = replace(SMALL, experts=4, experts_used=2, expert_width=1536)
    table = WeightTable(embedding=0, output=0, blocks=(), by_type={"BF16": 256 * MIB, "F32": MIB})
    scarce = replace(table, by_type={"Q4_K": 256 * MIB, "F16": MIB, "F32": 9 * MIB})
    assert not uses_cublas(SMALL, plain)
    assert not uses_cublas(replace(SMALL, weights=scarce), plain)
    assert uses_cublas(replace(SMALL, weights=table), plain)
    assert uses_cublas(mixture, plain)
    assert uses_cublas(SMALL, replace(plain, flash_attention="off"))
    large, small = default_reserve(140 * GIB), default_reserve(24 * GIB)
    assert llama_budget(mixture, plain, large).of(CUBLAS) == 98 * MIB
    assert llama_budget(SMALL, plain, large).of(CUBLAS) == llama_budget(mixture, plain, small).of(CUBLAS) == 0


# Mixtures made of it: 4 copies of which 2 work, and 4 slices that all work.
@pytest.mark.parametrize(("used", "width", "mib"), [(2, 1536, 25.64), (4, 384, 16.64)])
def test_the_compute_buffer_of_a_mixture_is_what_the_log_told(used: int, width: int, mib: float) -> None:
    mixture = replace(SMALL, experts=4, experts_used=used, expert_width=width, feed_forward=width)
    found = compute_bytes(mixture, Settings(context=2048), build=BUILD, kind=DeviceKind.CPU)
    assert found / MIB == pytest.approx(mib, rel=0.015)


def test_an_older_build_reserves_logits_for_every_token_of_a_ubatch() -> None:
    vocabulary = 248_320
    assert compute_bytes(LARGE, Settings(context=8192)) == vocabulary * 512 * 4  # 485 MiB
    assert compute_bytes(LARGE, Settings(context=8192, ubatch=2048)) == vocabulary * 2048 * 4
    assert compute_bytes(LARGE, Settings(context=8192, slots=4), build=BUILD) < 128 * MIB
    assert compute_bytes(LARGE, Settings(context=8192, slots=4), build=9272) == vocabulary * 512 * 4


# Bytes of one token, by arithmetic from published shapes; logs agree (docs/how-to/plan.md).
@pytest.mark.parametrize(
    ("model", "kv_cache", "size"),
    [
        ("qwen3.6-35b-a3b", "f16", 20_480),
        ("qwen3.6-35b-a3b", "q8_0", 10_880),
        ("qwen3.6-35b-a3b", "fp8", 10_240),
        ("qwen3.6-35b-a3b", "q4_0", 5_760),
        ("qwen3-next-80b-a3b", "f16", 24_576),
        ("qwen3-30b-a3b", "f16", 98_304),
        ("mixtral-8x7b", "f16", 131_072),
        ("deepseek-v2-lite", "f16", 31_104),
        ("gpt-oss-20b", "f16", 24_576),
    ],
)
def test_the_cache_of_one_token(model: str, kv_cache: str, size: int) -> None:
    assert kv_bytes_per_token(shape(model, "Q4_K_M").kv, kv_cache) == size


def test_the_recurrent_state_is_62_8_mib_a_slot_whatever_the_context() -> None:
    for context in (4096, 262_144):
        budget = llama_budget(LARGE, Settings(context=context, slots=3), NOTHING)
        assert budget.of("recurrent state") / MIB == pytest.approx(3 * 62.81, abs=0.1)
    assert shape("qwen3-next-80b-a3b").state_bytes / MIB == pytest.approx(75.4, abs=0.05)


# The launch whose log is in the recordings: an H200, 4,096 tokens of q8_0, build 11434.
def test_the_parts_of_a_recorded_launch_on_an_h200() -> None:
    settings = Settings(context=4096, kv_cache="q8_0")
    budget = llama_budget(SMALL, settings, default_reserve(140 * GIB), build=BUILD)
    assert budget.of("weights") == pytest.approx(96_647_250, rel=0.03)
    assert budget.of("KV cache") == pytest.approx(50_153_390, rel=0.001)
    assert budget.of("compute buffer") == pytest.approx(18_402_509, abs=2 * MIB)
    assert budget.total == pytest.approx(804_061_184, rel=0.03)


# A 24 GiB card, UD-Q4_K_M, one slot: corrected figures by hand, whose error band is 1 GiB.
@pytest.mark.parametrize(
    ("context", "f16", "q8_0", "q4_0"),
    [
        (4096, 21.7, 21.6, 21.6),
        (8192, 21.8, 21.7, 21.6),
        (16_384, 21.9, 21.8, 21.7),
        (32_768, 22.2, 21.9, 21.8),
        (65_536, 22.9, 22.3, 22.0),
        (131_072, 24.1, 22.9, 22.3),
        (262_144, 26.6, 24.3, 23.0),
    ],
)
def test_the_35b_on_a_24_gib_card(context: int, f16: float, q8_0: float, q4_0: float) -> None:
    reserve = default_reserve(24_576 * MIB)
    for kv_cache, gib in (("f16", f16), ("q8_0", q8_0), ("q4_0", q4_0)):
        found = llama_budget(LARGE, Settings(context=context, kv_cache=kv_cache), reserve).total / GIB
        assert found == pytest.approx(gib, abs=0.5)


def test_layers_leave_from_the_first_and_the_output_stays_longest() -> None:
    assert SMALL.weights is not None
    reserve = default_reserve(GIB)
    none = llama_budget(SMALL, Settings(context=512, gpu_layers=0), reserve, build=BUILD)
    assert none.of("weights") == none.of("KV cache") == 0
    assert none.total == compute_bytes(SMALL, Settings(context=512, gpu_layers=0), build=BUILD) + reserve.size_bytes
    assert none.host_bytes == SMALL.weights.total
    one = llama_budget(SMALL, Settings(context=512, gpu_layers=1), NOTHING, build=BUILD)
    assert one.of("weights") == SMALL.weights.embedding
    assert one.of("KV cache") == 0
    half = llama_budget(SMALL, Settings(context=512, gpu_layers=16), NOTHING, build=BUILD)
    whole = llama_budget(SMALL, Settings(context=512), NOTHING, build=BUILD)
    assert half.of("KV cache") * 2 == whole.of("KV cache")
    assert half.of("weights") + half.host_bytes == whole.of("weights") + whole.host_bytes == SMALL.weights.total


def test_experts_of_the_first_layers_stay_in_host_memory_alone() -> None:
    assert LARGE.weights is not None
    whole = llama_budget(LARGE, Settings(context=4096), NOTHING)
    held = llama_budget(LARGE, Settings(context=4096, cpu_expert_layers=10), NOTHING)
    moved = sum(block.experts for block in LARGE.weights.blocks[:10])
    assert whole.of("weights") - held.of("weights") == moved > 4 * GIB
    assert held.host_bytes - whole.host_bytes == moved
    assert held.of("KV cache") == whole.of("KV cache")


def test_a_sliding_window_holds_its_window_and_one_ubatch() -> None:
    windowed, full = KvGroup(layers=1, k_width=8, v_width=8, window=128), KvGroup(layers=1, k_width=8, v_width=8)
    assert cells(windowed, Settings(context=32_768)) == 768
    assert cells(windowed, Settings(context=32_768, ubatch=2048)) == 2304
    assert cells(windowed, Settings(context=500)) == cells(full, Settings(context=500)) == 512
    assert cells(full, Settings(context=32_768)) == 32_768


# A recorded vLLM run: 0.2 of an H200, 279,172,874 bytes of weights, 29,420,525,978 of cache.
def test_what_a_share_leaves_for_the_cache_of_vllm() -> None:
    device, weights = 150_754_820_096, 279_172_874
    assert SMALL.weights is not None
    bf16 = replace(SMALL, weights=replace(SMALL.weights, blocks=(), output=0, embedding=weights))
    assert kv_room(bf16, 0.2, "vllm", device, NOTHING) == pytest.approx(29_420_525_978, rel=0.03)


def test_the_least_share_leaves_just_enough_room() -> None:
    settings, device, reserve = Settings(context=32_768, kv_cache="bf16", slots=4), 80 * GIB, default_reserve(80 * GIB)
    needed = round(kv_bytes_per_token(LARGE.kv, "bf16")) * 32_768 * 4
    for backend in ("vllm", "sglang"):
        share = least_share(LARGE, settings, backend, device, reserve)
        room = kv_room(LARGE, share, backend, device, reserve)
        assert room - 4 * LARGE.state_bytes == pytest.approx(needed, abs=16)
        assert pool_budget(LARGE, settings, backend, device, reserve).of("KV cache") == needed


@given(
    context=st.integers(1, 262_144),
    slots=st.integers(1, 8),
    layers=st.integers(0, 60),
    held=st.integers(0, 60),
    kv_cache=st.sampled_from(["f16", "q8_0", "q4_0"]),
)
def test_more_of_anything_never_takes_less(context: int, slots: int, layers: int, held: int, kv_cache: str) -> None:
    base = Settings(context=context, slots=slots, gpu_layers=layers, cpu_expert_layers=held, kv_cache=kv_cache)
    total = llama_budget(LARGE, base, NOTHING).total
    assert llama_budget(LARGE, replace(base, context=context + 256), NOTHING).total >= total
    assert llama_budget(LARGE, replace(base, slots=slots + 1), NOTHING).total >= total
    if layers != LARGE.layers:
        # With the last layer on the GPU the copies of what was in host memory are no longer needed.
        assert llama_budget(LARGE, replace(base, gpu_layers=layers + 1), NOTHING).total >= total
    assert llama_budget(LARGE, replace(base, cpu_expert_layers=held + 1), NOTHING).total <= total


def test_parts_of_a_model_without_a_file_add_up_to_the_file() -> None:
    for model in Catalog.load().models():
        found = shape_of_facts(model, published(model, "Q4_0"))
        assert found.weights is not None
        assert found.weights.total == published(model, "Q4_0").size_bytes
        assert min(found.weights.embedding, *(block.other for block in found.weights.blocks)) > 0, model.name


def test_an_unknown_quantisation_names_those_that_are_known() -> None:
    with pytest.raises(UserError, match=r"'Q4_K_N' of qwen3-30b-a3b \(did you mean 'q4_k_m'\?\): known are BF16"):
        published(Catalog.load().model("qwen3-30b-a3b"), "Q4_K_N")
