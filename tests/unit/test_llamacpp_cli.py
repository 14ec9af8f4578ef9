from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_moegpu.backends.llamacpp import LlamaCpp
from pytest_moegpu.backends.llamacpp_cli import cli_argv, cli_environment, read_answer
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, Settings
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.errors import UserError

DATA = Path(__file__).parent.parent / "data" / "llama_cli"
ASKED = KnownAnswer(prompt="What is the capital of Japan?", expect=("Tokyo",), max_tokens=8)
SPEC = LaunchSpec(
    program=("/opt/llama-server", "--first"),
    model_path="/models/a b.gguf",
    model_name="m",
    settings=Settings(context=6144, kv_cache="q8_0", gpu_layers=20, prefix_cache=False, extra_flags=("--no-mmap",)),
    host="127.0.0.1",
    port=18081,
    api_key="secret-key",
    devices=("1",),
)


def test_it_has_the_settings_of_the_server_and_nothing_of_a_server() -> None:
    argv = cli_argv(SPEC, ("/opt/llama-cli",), ASKED)
    assert argv[0] == "/opt/llama-cli"
    assert " ".join(argv) == (
        "/opt/llama-cli --model /models/a b.gguf --ctx-size 6144 --gpu-layers 20 --cache-type-k q8_0 "
        "--cache-type-v q8_0 --flash-attn auto --batch-size 2048 --ubatch-size 512 --fit off --no-mmap "
        "--prompt What is the capital of Japan? --predict 8 --temp 0 --seed 1 --single-turn --jinja "
        "--no-display-prompt --simple-io --log-verbosity 1 --reasoning off"
    )


def test_every_word_of_the_server_is_kept_or_known_as_its_own() -> None:
    server = LlamaCpp().argv(SPEC)
    left_out = [word for word in server if word not in cli_argv(SPEC, (), ASKED)]
    assert left_out == [
        *("/opt/llama-server", "--first", "--alias", "m", "--parallel"),
        *("--host", "127.0.0.1", "--port", "18081", "--metrics", "--no-webui", "--cache-ram", "4", "--no-cache-prompt"),
    ]


def test_thinking_is_switched_as_in_the_server() -> None:
    thinking = replace(SPEC, settings=replace(SPEC.settings, thinking=True))
    assert cli_argv(thinking, (), ASKED)[-2:] == ("--reasoning", "on")


def test_settings_that_cannot_be_expressed_are_refused_as_by_the_server() -> None:
    with pytest.raises(UserError, match=r"^settings\.memory_share: "):
        cli_argv(replace(SPEC, settings=Settings(context=2048, memory_share=0.5)), (), ASKED)


def test_it_sees_the_devices_of_the_run_and_not_the_key() -> None:
    assert cli_environment(SPEC) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}
    cpu = replace(SPEC, devices=(), device_kind=DeviceKind.CPU)
    assert cli_environment(cpu) == {}
    assert "secret-key" not in " ".join(cli_argv(cpu, (), ASKED))


@pytest.mark.parametrize("program", ["llama-cli", "llama-completion"])
def test_recorded_answers(program: str) -> None:
    output = (DATA / f"{program}.txt").read_text(encoding="utf-8")
    assert read_answer(output, ASKED.prompt) == "The capital of Japan is Tokyo."


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        ("", ""),
        ("warning: no usable GPU found\n", ""),
        ("banner\n\n> What is the capital of Japan?\n\n\nExiting...\n", ""),
        ("banner\n\n> What is the ... (truncated)\nTokyo.\n\nExiting...\n", "Tokyo."),
        ("banner\n\n> What is the capital of Japan?\r\nTokyo\r\nis it.\r\n\r\nExiting...\r\n", "Tokyo\nis it."),
        ("0.03.387.260 I common_perf_print: x\nTokyo. [end of text]\n0.03.387.289 I y\n", "Tokyo."),
    ],
)
def test_answers_of_other_forms(output: str, answer: str) -> None:
    assert read_answer(output, ASKED.prompt) == answer
