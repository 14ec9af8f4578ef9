"""The corrected lines of the page about a 24 GB card are those of shipped scenarios, and nothing is wrong with them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pytest_moegpu.backends import get_backend
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.budget import default_reserve
from pytest_moegpu.core.budgetllama import llama_budget
from pytest_moegpu.core.model import LaunchSpec, ModelFormat, Settings
from pytest_moegpu.core.shapeofmodel import published, shape_of_facts
from pytest_moegpu.core.units import GIB
from pytest_moegpu.session.launchcheck import check_line

PAGE = (Path(__file__).parents[2] / "docs/how-to/qwen-24gb.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?:planned ([\d.]+) GiB:[^\n]*\n\n)?```sh\n# (\S+) (\S+)\n(.*?)\n```", PAGE)
PROGRAMS = {"sglang": ("python3", "-m", "sglang.launch_server"), "fastllm": ("ftllm",)}


def settings_of(profile: str, scenario: str) -> Settings:
    catalog = Catalog.load()
    return catalog.scenario(scenario, catalog.profile(profile)).settings


def test_every_backend_of_the_page_has_a_line() -> None:
    assert [scenario for _, _, scenario, _ in BLOCKS] == [
        "balanced-6k",
        "long-128k",
        "experts-16g",
        "int4-vllm-8k",
        "int4-sglang-8k",
        "int4-fastllm-8k",
    ]


@pytest.mark.parametrize(("planned", "profile", "scenario", "line"), BLOCKS, ids=[block[2] for block in BLOCKS])
def test_a_line_is_that_of_its_scenario_and_the_engine_takes_it(
    planned: str, profile: str, scenario: str, line: str
) -> None:
    found = Catalog.load().profile(profile)
    backend = get_backend(found.backend)
    gguf = found.backend == "llamacpp"
    spec = LaunchSpec(
        program=PROGRAMS.get(found.backend, (backend.program,)),
        model_path="/models/model.gguf" if gguf else "/models/folder",
        model_name=found.model,
        settings=settings_of(profile, scenario),
        host="127.0.0.1",
        port=8080,
        api_key="KEY",
        model_format=ModelFormat.GGUF if gguf else ModelFormat.HF,
        compute_capability=found.gpu.compute_capability,
    )
    assert line == shlex.join(backend.argv(spec))
    assert check_line((line,), found.gpu.compute_capability).problems == ()
    assert bool(planned) is gguf


@pytest.mark.parametrize(("planned", "profile", "scenario"), [block[:3] for block in BLOCKS if block[0]])
def test_what_is_planned_is_what_the_planner_says(planned: str, profile: str, scenario: str) -> None:
    facts = Catalog.load().model("qwen3.6-35b-a3b")
    budget = llama_budget(
        shape_of_facts(facts, published(facts, None)), settings_of(profile, scenario), default_reserve(24 * GIB)
    )
    assert planned == f"{budget.total / GIB:.1f}"


FALSE_FLAGS = {
    "--model-format gguf": "write --load-format gguf",
    "--kv-cache-dtype int8": "write --kv-cache-dtype fp8_e5m2",
    "--chunked-prefill-enabled": "leave it away: --chunked-prefill-size N sets the size, -1 is off",
    "--enable-radix-cache": "leave it away: the radix cache is on; --disable-radix-cache turns it off",
    "--extra-body": """write --default-chat-template-kwargs '{"enable_thinking": false}'""",
    "--device-map": "instead --cpu-offload-gb keeps a part of the weights in host memory",
}
VALUES = {
    "--extra-body": """ '{"chat_template_kwargs":{"enable_thinking":false}}'""",
    "--device-map": """ '{"moe":"cuda"}'""",
}


@pytest.mark.parametrize(("flag", "advice"), FALSE_FLAGS.items())
def test_a_flag_that_the_page_calls_false_is_found_with_the_right_spelling(flag: str, advice: str) -> None:
    assert flag in PAGE
    line = f"python3 -m sglang.launch_server --model-path /m {flag}{VALUES.get(flag, '')}"
    (problem,) = check_line((line,), "8.6").problems
    assert problem.reason.endswith(advice)
