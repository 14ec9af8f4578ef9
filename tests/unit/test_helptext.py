"""Help texts as the real programs print them, and small ones for what those do not have."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_moegpu.backends.helptext import read_flags
from pytest_moegpu.core.flags import Flag
from pytest_moegpu.host.embedded_server import parser

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
LISTS = ROOT / "pytest_moegpu" / "backends" / "flagdata"
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
PREFIX_CACHING = ("--enable-prefix-caching", "--no-enable-prefix-caching")
ON_OFF_AUTO = ("on", "off", "auto", "enabled", "true", "1", "disabled", "false", "0", "-1")


def printed(engine: str) -> str:
    path = DATA / "help" / "llama-server.txt" if engine == "llamacpp" else DATA / "engines" / engine / "help.txt"
    return path.read_text(encoding="utf-8")


def flags_of(engine: str) -> dict[str, Flag]:
    return {name: flag for flag in read_flags(printed(engine)) for name in flag.names}


@pytest.mark.parametrize(
    ("engine", "flags", "spellings", "with_choices"),
    [
        ("fastllm", 97, 144, 5),
        ("llamacpp", 256, 413, 12),
        ("mlx", 27, 28, 1),
        ("sglang", 530, 559, 95),
        ("vllm", 317, 430, 43),
    ],
)
def test_all_flags_of_a_real_help_text(engine: str, flags: int, spellings: int, with_choices: int) -> None:
    found = read_flags(printed(engine))
    names = [name for flag in found for name in flag.names]
    assert len(found) == flags
    assert len(names) == len(set(names)) == spellings
    assert sum(bool(flag.choices) for flag in found) == with_choices


@pytest.mark.parametrize("engine", ["fastllm", "mlx", "sglang"])
def test_what_the_usage_names_is_found(engine: str) -> None:
    usage = printed(engine).split("\n\n")[0]
    named = set(re.findall(r"(?<=[\[| ])--?[a-zA-Z][\w-]*", usage))
    assert len(named) > 20
    assert named <= set(flags_of(engine))


def test_every_line_of_llama_server_that_begins_with_a_flag_is_read() -> None:
    begun = set(re.findall(r"^(--?[A-Za-z][\w.-]*)", printed("llamacpp"), re.MULTILINE))
    assert len(begun) == 256
    assert begun <= set(flags_of("llamacpp"))


@pytest.mark.parametrize(
    ("engine", "name", "flag"),
    [
        ("fastllm", "-t", Flag(names=("-t", "--threads"), takes_value=True)),
        ("fastllm", "--ep", Flag(names=("--ep",), takes_value=True, choices=("1", "8"))),
        ("fastllm", "--cuda_se", Flag(names=("--cuda_shared_expert", "--cuda_se"), takes_value=True)),
        ("fastllm", "--kv_cache_dtype", Flag(names=("--kv_cache_dtype",), takes_value=True)),
        ("fastllm", "--hide_input", Flag(names=("--hide_input",), takes_value=False)),
        ("llamacpp", "-c", Flag(names=("-c", "--ctx-size"), takes_value=True)),
        ("llamacpp", "-ctk", Flag(names=("-ctk", "--cache-type-k"), takes_value=True, choices=KV_TYPES)),
        ("llamacpp", "-fa", Flag(names=("-fa", "--flash-attn"), takes_value=True, choices=ON_OFF_AUTO)),
        ("llamacpp", "--no-perf", Flag(names=("--perf", "--no-perf"), takes_value=False)),
        ("llamacpp", "-ot", Flag(names=("-ot", "--override-tensor"), takes_value=True)),
        ("llamacpp", "--poll", Flag(names=("--poll",), takes_value=True)),
        ("mlx", "--pipeline", Flag(names=("--pipeline",), takes_value=False)),
        ("sglang", "--tp-size", Flag(names=("--tp-size", "--tensor-parallel-size"), takes_value=True)),
        ("sglang", "--model-checksum", Flag(names=("--model-checksum",), takes_value=None)),
        ("sglang", "--lora-paths", Flag(names=("--lora-paths",), takes_value=None, many=True)),
        (
            "vllm",
            "-ep",
            Flag(names=("--enable-expert-parallel", "--no-enable-expert-parallel", "-ep"), takes_value=False),
        ),
        ("vllm", "--hf-token", Flag(names=("--hf-token",), takes_value=None)),
        ("vllm", "--api-key", Flag(names=("--api-key",), takes_value=True, many=True)),
        # Of these the help text lists some values and lets others pass.
        ("vllm", "--tool-call-parser", Flag(names=("--tool-call-parser",), takes_value=True)),
        ("vllm", "--config-format", Flag(names=("--config-format",), takes_value=True)),
    ],
)
def test_flags_as_the_real_programs_have_them(engine: str, name: str, flag: Flag) -> None:
    assert flags_of(engine)[name] == flag


def test_kv_cache_types_of_sglang_and_vllm() -> None:
    sglang = flags_of("sglang")["--kv-cache-dtype"].choices
    assert sglang == ("auto", "fp8_e5m2", "fp8_e4m3", "mxfp8", "bf16", "bfloat16", "nvfp4", "fp4_mx_block16")
    vllm = flags_of("vllm")["--kv-cache-dtype"].choices
    assert "int8_per_token_head" in vllm
    assert "int8" not in vllm


def test_examples_in_the_prose_are_no_flags() -> None:
    assert "--json-arg" in printed("vllm")
    assert "--json-arg" not in flags_of("vllm")


def test_the_embedded_server() -> None:
    flags = {name: flag for flag in read_flags(parser().format_help()) for name in flag.names}
    assert flags["-fa"] == Flag(names=("-fa", "--flash-attn"), takes_value=True, choices=("auto", "on", "off"))
    assert flags["--metrics"].takes_value is False
    assert "--cache-prompt" not in flags


def test_python_3_13_writes_the_value_once() -> None:
    text = "usage: x [-h] [-t N]\n\noptions:\n  -h, --help        show this\n  -t, --threads N   threads\n"
    assert read_flags(text) == (
        Flag(names=("-h", "--help"), takes_value=False),
        Flag(names=("-t", "--threads"), takes_value=True),
    )


def test_a_usage_of_many_lines_is_no_list_of_flags() -> None:
    text = "usage: m [-h]\n  --one ONE\n  --two\n\noptions:\n  --one ONE  the one\n"
    assert read_flags(text) == (Flag(names=("--one",), takes_value=True),)


def test_the_layout_of_ollama() -> None:
    text = (
        "Run a model\n\nUsage:\n  ollama run MODEL [PROMPT] [flags]\n\nFlags:\n"
        "      --format string          Response format (e.g. json)\n"
        "  -h, --help                   help for run\n"
        "      --insecure               Use an insecure registry\n"
        '      --think string[="true"]  Enable thinking mode\n\n'
        "Environment Variables:\n"
        "      OLLAMA_HOST              IP Address for the ollama server\n"
    )
    assert read_flags(text) == (
        Flag(names=("--format",), takes_value=True),
        Flag(names=("-h", "--help"), takes_value=False),
        Flag(names=("--insecure",), takes_value=False),
        Flag(names=("--think",), takes_value=None),
    )


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("flagdata", ROOT / "scripts" / "_engines" / "flagdata.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Read a list; SGLang prints some choices in the order of a set, which is another one each time."""
    data = json.loads(text)
    return data["version"], [flag | {"choices": sorted(flag.get("choices", ()))} for flag in data["flags"]]


@pytest.mark.parametrize("engine", ["fastllm", "llamacpp", "mlx", "sglang", "vllm"])
def test_the_list_that_is_shipped_is_that_of_the_recording(engine: str) -> None:
    assert listed((LISTS / f"{engine}.json").read_text(encoding="utf-8")) == listed(builder().shipped(engine))
