from __future__ import annotations

import json
import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pytest_moegpu.backends.base import ChatRequest, Delta, Health, Load, ServedModel, StreamFormat
from pytest_moegpu.backends.recipe import Recipe, count, lines, refuse, text
from pytest_moegpu.core.model import LaunchSpec, Settings
from pytest_moegpu.errors import UserError

DATA = Path(__file__).parent.parent / "data" / "engines"
SPEC = LaunchSpec(
    program=("/opt/engine",),
    model_path="/models/hf",
    model_name="m",
    settings=Settings(context=2048),
    host="127.0.0.1",
    port=18000,
    api_key="k",
    devices=("0", "2"),
)


class Vllm(Recipe):
    """A recipe of an engine whose metrics have a prefix."""

    metric_prefix = "vllm:"


def test_defaults_are_those_of_a_cuda_engine_with_a_chat_api() -> None:
    recipe = Recipe()
    assert recipe.stream_format is StreamFormat.SSE
    assert (recipe.gives_logprobs, recipe.limits_context, recipe.ignores_eos, recipe.takes_key) == (True,) * 4
    assert recipe.setup(SPEC) == ()
    assert recipe.version_argv(("a", "b")) == ("a", "b", "--version")
    assert recipe.help_argv(("a",)) == ("a", "--help")
    assert recipe.read_load({"kv": 1.0}) == Load()


def test_devices_are_counted_in_bus_order() -> None:
    assert Recipe().devices(SPEC) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0,2"}


def test_health_is_ready_loading_or_neither() -> None:
    recipe = Recipe()
    assert recipe.read_health(200, "") == Health(ready=True)
    assert recipe.read_health(503, "warming up") == Health(ready=False, loading=True, detail="HTTP 503 warming up")
    dead = recipe.read_health(500, "x" * 1000)
    assert (dead.ready, dead.loading, dead.detail) == (False, False, "HTTP 500 " + "x" * 200)


@pytest.mark.parametrize("body", [None, [], "x", {}, {"data": None}, {"data": []}, {"data": ["m"]}, {"data": [{}]}])
def test_props_of_another_form_say_nothing(body: Any) -> None:
    assert Recipe().read_props(body) == ServedModel()


def test_props_of_the_first_model() -> None:
    first = {"id": "m", "root": "/models/hf", "max_model_len": 2048}
    assert Recipe().read_props({"data": [first, {"id": "lora"}]}) == ServedModel(
        name="m", path="/models/hf", context=2048
    )
    assert Recipe().read_props({"data": [{"id": 7, "max_model_len": True}]}) == ServedModel()


METRICS = """# HELP vllm:num_preemptions_total Preemptions.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m, n"} 2.0
vllm:num_preemptions_total{engine="1",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0"} 0.86
vllm:ttft_seconds_bucket{engine="0",le="0.1"} 3.0
vllm:ttft_seconds_bucket{engine="0",le="+Inf"} 4.0
vllm:ttft_seconds_sum{engine="0"} 0.5
vllm:ttft_seconds_count{engine="0"} 4.0
vllm:ttft_seconds_created{engine="0"} 1.7e+09
vllm:gauge_of_nothing NaN
vllm:without_end +Inf
vllm:words hello
vllm:small 1e-3
vllm:reason{reason="a } brace"} 1.0
process_resident_memory_bytes 1.0
sglang:token_usage 0.5
"""


def test_metrics_are_added_up_over_labels_and_lose_their_prefix() -> None:
    assert Vllm().read_metrics(METRICS) == {
        "num_preemptions_total": 3.0,
        "kv_cache_usage_perc": 0.86,
        "ttft_seconds_sum": 0.5,
        "ttft_seconds_count": 4.0,
        "small": 0.001,
        "reason": 1.0,
    }


def test_a_recipe_without_a_prefix_has_no_metrics() -> None:
    assert Recipe().read_metrics(METRICS) == {}


def test_recorded_metrics_of_vllm() -> None:
    found = Vllm().read_metrics((DATA / "vllm" / "metrics.txt").read_text(encoding="utf-8"))
    assert found["num_preemptions_total"] == 0.0
    assert found["time_to_first_token_seconds_count"] >= 2
    assert not any(name.endswith(("_bucket", "_created")) for name in found)
    assert all(math.isfinite(value) for value in found.values())


def test_a_request_is_greedy_streamed_and_has_only_what_was_asked_for() -> None:
    assert Recipe().request(SPEC, ChatRequest(prompt="q", max_tokens=8)) == {
        "model": "m",
        "messages": [{"role": "user", "content": "q"}],
        "max_tokens": 8,
        "temperature": 0,
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"enable_thinking": False},
    }
    more = ChatRequest(prompt="q", max_tokens=8, prefill="A", ignore_eos=True, thinking=True, top_logprobs=2)
    body = Recipe().request(SPEC, more)
    assert body["messages"][1] == {"role": "assistant", "content": "A"}
    assert body["chat_template_kwargs"] == {"enable_thinking": True}
    assert (body["ignore_eos"], body["logprobs"], body["top_logprobs"]) == (True, True, 2)


def read(**choice: Any) -> Delta:
    return Recipe().read_event(json.dumps({"choices": [choice]}))


def test_text_reasoning_and_end_of_an_event() -> None:
    assert read(delta={"content": "Hi"}) == Delta(text="Hi")
    assert read(delta={"reasoning_content": "hm"}).reasoning == "hm"
    assert read(delta={"reasoning": "hm", "content": None}) == Delta(reasoning="hm")
    assert read(delta={}, finish_reason="stop") == Delta(finish_reason="stop")
    assert read(delta=None) == Delta()
    assert Recipe().read_event('{"choices": []}') == Delta()
    assert Recipe().read_event("{}") == Delta()


def test_log_probabilities_of_an_event() -> None:
    top = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -2.0}, {"token": "c", "logprob": None}]
    (choice,) = read(logprobs={"content": [{"token": "a", "logprob": -0.5, "top_logprobs": top}]}).choices
    assert (choice.token, choice.logprob) == ("a", -0.5)
    assert choice.top[:2] == (("a", -0.5), ("b", -2.0))
    assert math.isnan(choice.top[2][1])
    assert read(delta={"content": "x"}, logprobs=None).choices == ()
    assert read(logprobs={"content": None}).choices == ()
    (bare,) = read(logprobs={"content": [{"token": "x"}]}).choices
    assert math.isnan(bare.logprob)
    assert bare.top == ()


def test_usage_with_cached_tokens_and_timings() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    timings = {"predicted_per_second": 50, "note": "x", "broken": math.nan}
    found = Recipe().read_event(json.dumps({"choices": [], "usage": usage, "timings": timings})).usage
    assert found is not None
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (9, 4, 2)
    assert found.timings == {"predicted_per_second": 50.0}
    bare = Recipe().read_event(json.dumps({"usage": {"prompt_tokens": 9, "prompt_tokens_details": None}})).usage
    assert bare is not None
    assert (bare.cached_tokens, bare.output_tokens, bare.timings) == (None, None, {})


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ({"message": "EngineCore encountered an issue.", "code": 500}, "EngineCore encountered an issue."),
        ({"code": 500}, "{'code': 500}"),
        ("generation thread died", "generation thread died"),
        (7, "7"),
    ],
)
def test_an_error_under_http_200_is_an_error(error: Any, said: str) -> None:
    assert Recipe().read_event(json.dumps({"error": error})) == Delta(error=said)


@pytest.mark.parametrize(
    "data", ["", "[1]", "7", "null", '{"choices": 7}', '{"choices": ["x"]}', '{"choices": {"a": 1}}', '{"usage": "x"}']
)
def test_an_event_of_another_form_is_a_value_error(data: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        Recipe().read_event(data)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_recorded_refusals_of_a_too_long_prompt(engine: str) -> None:
    head, _, body = (DATA / engine / "too-long.txt").read_text(encoding="utf-8").partition("\n")
    status = int(head.removeprefix("HTTP "))
    assert Recipe().is_too_long(status, body)
    assert not Recipe().is_too_long(500, body)
    assert not Recipe().is_too_long(200, body)


def test_other_refusals_are_not_about_length() -> None:
    for body in ("", "missing messages", "model not found", "invalid temperature"):
        assert not Recipe().is_too_long(400, body)
    assert Recipe().is_too_long(413, "request too long")


def test_what_an_engine_cannot_do_is_refused_by_name() -> None:
    unable = {"memory_share": "it takes what it needs", "host_weights_bytes": "it counts layers"}
    refuse("x", Settings(context=2048, slots=4, kv_cache="q8_0"), unable)
    with pytest.raises(UserError, match=r"^settings\.memory_share: x: it takes what it needs$"):
        refuse("x", Settings(context=2048, memory_share=0.5), unable)
    with pytest.raises(UserError, match=r"^settings\.host_weights: x: it counts layers$"):
        refuse("x", Settings(context=2048, host_weights_bytes=2**30), unable)
    assert set(unable) <= {field.name for field in fields(Settings)}


def test_values_of_another_kind_are_not_known() -> None:
    assert [text(value) for value in ("a", "", 7, None, ["a"])] == ["a", "", None, None, None]
    assert [count(value) for value in (7, 0, True, 7.0, "7", None)] == [7, 0, None, None, None, None]


def test_the_first_ten_different_lines_of_a_log_are_kept_without_their_stamp() -> None:
    log = "\n".join([*(f"0.0 E fatal {n // 2}" for n in range(40)), "all is well"])
    assert lines(re.compile("fatal"), log, re.compile(r"^\S+ E ")) == tuple(f"fatal {n}" for n in range(10))
    assert lines(re.compile("nothing"), log) == ()
    assert lines(re.compile("well"), log) == ("all is well",)
