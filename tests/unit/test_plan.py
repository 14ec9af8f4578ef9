"""`moegpu plan`: what fits, what leaves the device, and the line to start it with. Nothing is started."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.budget import Reserve
from pytest_moegpu.core.evidence import LogFacts
from pytest_moegpu.core.learned import learned_reserve, rest_of
from pytest_moegpu.core.model import Settings
from pytest_moegpu.core.plan import Fit, Planner
from pytest_moegpu.core.planargs import PlanOrder
from pytest_moegpu.core.shapeofmodel import published, shape_of_facts
from pytest_moegpu.core.units import GIB, MIB
from pytest_moegpu.host.store import Bundle
from pytest_moegpu.session.launchcheck import check_line
from pytest_moegpu.session.plan import plan, run
from tests.unit.builders import evidence, gpu, run_record, start

RESERVE = Reserve(size_bytes=GIB // 2, source="told by a test", band_bytes=GIB)


def planner(name: str, gib: float, backend: str = "llamacpp", quantisation: str = "Q4_K_M") -> Planner:
    facts = Catalog.load().model(name)
    shape = shape_of_facts(facts, published(facts, quantisation))
    return Planner(shape=shape, backend=backend, device_bytes=round(gib * GIB), reserve=RESERVE)


def said(**asked: Any) -> tuple[int, str, str]:
    out, err = StringIO(), StringIO()
    return run(PlanOrder(**asked), out, err), out.getvalue(), err.getvalue()


def test_the_largest_context_is_the_last_that_fits() -> None:
    found = planner("qwen3.6-35b-a3b", 24)
    settings = Settings(context=1, kv_cache="f16")
    largest = found.largest_context(settings)
    assert 0 < largest < 262_144
    assert largest % 256 == 0
    assert found.cell(replace(settings, context=largest)).free_bytes >= 0
    assert found.cell(replace(settings, context=largest + 256)).free_bytes < 0
    assert planner("qwen3.6-35b-a3b", 200).largest_context(settings) == 262_144
    assert planner("qwen3.6-35b-a3b", 4).largest_context(settings) == 0


def test_a_sum_within_the_error_band_of_the_device_is_tight_on_either_side() -> None:
    settings = Settings(context=8192)
    total = planner("qwen3-30b-a3b", 24).cell(settings).budget.total / GIB
    for more, fit in ((1.1, Fit.FITS), (0.9, Fit.TIGHT), (-0.9, Fit.TIGHT), (-1.1, Fit.NO)):
        assert planner("qwen3-30b-a3b", total + more).cell(settings).fit is fit


def test_experts_leave_first_and_no_more_of_them_than_needed() -> None:
    found = planner("qwen3-30b-a3b", 16)
    placement = found.placement(Settings(context=8192))
    assert placement.settings is not None
    held = placement.settings.cpu_expert_layers
    assert placement.words == f"the experts of {held} of 48 layers"
    assert found.cell(placement.settings).free_bytes >= 0
    assert found.cell(replace(placement.settings, cpu_expert_layers=held - 1)).free_bytes < 0


def test_layers_leave_where_there_are_no_experts_or_these_are_not_enough() -> None:
    dense = planner("smollm2-135m-instruct", 0.65, quantisation="BF16")
    placement = dense.placement(Settings(context=8192))
    assert placement.settings is not None
    assert placement.settings.gpu_layers is not None
    assert placement.words == f"{31 - placement.settings.gpu_layers} of 30 layers"
    nothing = planner("smollm2-135m-instruct", 0.4, quantisation="BF16").placement(Settings(context=8192))
    assert (nothing.settings, nothing.words) == (None, "it does not fit with one layer on the device either")
    pool = planner("qwen3-30b-a3b", 16, backend="vllm").placement(Settings(context=8192, kv_cache="bf16"))
    assert (pool.settings, pool.words) == (None, "vllm keeps all weights on the device")


def test_a_plan_of_a_profile_is_a_table_the_parts_and_a_line_that_the_engine_takes() -> None:
    code, text, _ = said(profile="rtx3090")
    assert code == 0
    assert "model    qwen3.6-35b-a3b, UD-Q4_K_M, 20.58 GiB: 40 layers, 10 with a KV cache, 30 with a state" in text
    assert "the rule of 0.075 GB for 1,000 tokens is 3.7 times what f16 takes here (0.020 GB): it counts all 40" in text
    assert "reserve  461 MiB, assumed, nothing was measured here" in text
    line = text.splitlines()[-1].strip()
    assert check_line((line,), "8.6").problems == ()


@pytest.mark.parametrize(
    ("backend", "flag"), [("vllm", "--gpu-memory-utilization"), ("sglang", "--mem-fraction-static")]
)
def test_a_server_with_a_pool_is_given_the_share_it_needs(backend: str, flag: str) -> None:
    code, text, _ = said(vram="48 GiB", model="qwen3-30b-a3b", quantisation="FP8", backend=backend, contexts=("32k",))
    assert code == 0
    line = text.splitlines()[-1].split()
    share = float(line[line.index(flag) + 1])
    needed = float(text.split("smallest share of the device that holds this: ")[1].split()[0]) / 100
    assert needed < share <= needed + 0.06
    assert check_line((" ".join(line),), None).problems == ()


def test_json_has_bytes_and_all_that_the_text_says() -> None:
    code, text, _ = said(vram="24 GB", model="qwen3.5-35b-a3b", contexts=("8192", "16k"), kv=("q8_0",), json=True)
    assert code == 0
    data = json.loads(text)
    assert data["device"] == {"name": None, "bytes": 24_000_000_000}
    assert [(cell["context"], cell["kv_cache"]) for cell in data["cells"]] == [(8192, "q8_0"), (16_384, "q8_0")]
    first = data["cells"][0]
    assert first["bytes"] == sum(first["parts"].values()) == 24_000_000_000 - first["free_bytes"]
    assert first["parts"]["KV cache"] == 8192 * 10_880
    assert data["line"][:2] == ["llama-server", "--model"]


def test_nothing_that_fits_is_exit_code_1() -> None:
    code, text, _ = said(vram="8 GiB", model="gpt-oss-120b", contexts=("8192",), kv=("f16",))
    assert code == 1
    assert "largest" in text
    assert "none" in text


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, 'name a profile, such as rtx3090, or the memory of the GPU with --vram "24 GiB"'),
        ({"vram": "24"}, "--vram 24: write the unit, '24 GiB' or '24 GB': they differ by 7 %"),
        ({"vram": "24 GiB"}, "name a model with --model: its file, or one of deepseek-v2-lite, "),
        ({"profile": "rtx309"}, "unknown profile 'rtx309' (did you mean 'rtx3090'?)"),
        ({"profile": "embedded"}, "profile embedded runs on the processor: give the memory of a GPU with --vram"),
        ({"profile": "rtx3090", "model": "mixtral-8x7"}, "unknown model 'mixtral-8x7' (did you mean 'mixtral-8x7b'?)"),
        ({"profile": "rtx3090", "model": "/no/such.gguf"}, "model file /no/such.gguf: does not exist"),
        ({"profile": "rtx3090", "kv": ("q8",)}, "'q8' is no KV cache type (did you mean 'q8_0'?): f32, f16,"),
        ({"profile": "rtx3090", "backend": "lamacpp"}, "unknown backend 'lamacpp' (did you mean 'llamacpp'?)"),
        ({"profile": "rtx3090", "backend": "mlx"}, "what mlx takes of a device is not known here: plan for llamacpp,"),
        ({"profile": "rtx3090", "contexts": ("8K2",)}, "--context 8K2: write tokens as a whole number, or with a k"),
        (
            {"profile": "rtx3090", "contexts": ("300k",)},
            "--context 300k: qwen3.6-35b-a3b was trained for 262144 tokens",
        ),
        ({"profile": "rtx3090", "slots": 0}, "--slots 0: write a whole number of 1 or more"),
    ],
)
def test_bad_input_is_one_line_that_says_what_is_allowed(asked: dict[str, Any], message: str) -> None:
    code, text, told = said(**asked)
    assert (code, text) == (3, "")
    assert told.startswith(f"moegpu plan: {message}")
    assert told.count("\n") == 1


LOG = LogFacts(
    model_bytes={"CPU_Mapped": 300 * MIB, "CUDA0": 1000 * MIB},
    kv_bytes={"CUDA0": 100 * MIB},
    compute_bytes={"CUDA0": 50 * MIB, "CUDA_Host": 8 * MIB},
)


def test_a_reserve_is_learned_from_what_no_buffer_of_the_log_explains(tmp_path: Path) -> None:
    one = start(log=LOG, idle_bytes=200 * MIB, peaks={"load": 1700 * MIB, "decode": 1750 * MIB})
    assert rest_of(one) == 400 * MIB
    assert rest_of(replace(one, log=LogFacts())) is None
    device = replace(gpu(), name="NVIDIA GeForce RTX 3090")
    more = replace(one, peaks={"decode": 1770 * MIB})
    found = evidence(one, more, gpus=(device,))
    learned = learned_reserve([found], device.name, "llamacpp")
    assert learned is not None
    assert (learned.reserve.size_bytes, learned.starts) == (410 * MIB, 2)
    assert learned.reserve.band_bytes == 128 * MIB
    assert learned_reserve([found], "NVIDIA H200", "llamacpp") is None
    assert learned_reserve([found], device.name, "vllm") is None
    rehearsed = replace(found, gpus=(replace(device, emulated_on="NVIDIA H200"),))
    assert learned_reserve([rehearsed], device.name, "llamacpp") is None

    Bundle(tmp_path / "20260101-000000-rtx3090-0000").write(replace(run_record(), evidence=(found,)))
    planned = plan(PlanOrder(profile="rtx3090", runs=tmp_path))
    assert planned.planner.reserve.source == "learned from 2 starts of llamacpp on NVIDIA GeForce RTX 3090"
