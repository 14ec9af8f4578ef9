"""Command lines as people paste them: what is wrong, and the line that does what was meant."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_moegpu.backends import BACKENDS, get_backend
from pytest_moegpu.backends.base import Backend
from pytest_moegpu.backends.fastllm import FastLlm
from pytest_moegpu.backends.mlx import Mlx
from pytest_moegpu.backends.ollama import Ollama
from pytest_moegpu.core.flags import Flag
from pytest_moegpu.core.launchcheck import LaunchReport, as_text
from pytest_moegpu.core.launchflags import Fault, alike, read_arguments
from pytest_moegpu.core.launchforms import FORMS, Form
from pytest_moegpu.core.launchline import read_line
from pytest_moegpu.core.launchmeaning import DOCUMENTED, FIELDS, read_meaning
from pytest_moegpu.core.launchwords import split_words
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, Settings
from pytest_moegpu.errors import UserError
from pytest_moegpu.session.launchcheck import check_line, launch_problems
from pytest_moegpu.session.launchhelp import InstalledFlags, recorded_flags

SGLANG = (
    "python -m sglang.launch_server --model-path X.gguf --model-format gguf --context-length 6144 "
    "--kv-cache-dtype int8 --mem-fraction-static 0.92 --chunked-prefill-enabled --enable-radix-cache "
    "--chat-template qwen3 "
    """--extra-body '{"chat_template_kwargs":{"enable_thinking":false}}' --device-map '{"moe":"cuda"}' --port 30000"""
)
FASTLLM = (
    "fastllm_server model.gguf --cache-type-k q8_0 --cache-type-v q8_0 --flash-attn on --ctx-size 6144 --port 8080"
)
VLLM = (
    "vllm serve Qwen/Qwen3.6-35B-A3B --gpu-memory-utilization 0.92 --max-model-len 6k --kv-cache-dtype int8 "
    "--swap-space 4 --device cuda"
)
EMBEDDED = ("python", "-m", "pytest_moegpu.host.embedded_server")


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No server program is found unless a test puts one there; all recipes are in the table."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("MOEGPU_CACHE", str(tmp_path / "cache"))
    for make in list(BACKENDS.values()):
        monkeypatch.delenv(make().program_variable, raising=False)
    rows: dict[str, Callable[[], Backend]] = {"fastllm": FastLlm, "mlx": Mlx, "ollama": Ollama}
    for name, make in rows.items():
        monkeypatch.setitem(BACKENDS, name, make)


def faults(report: LaunchReport) -> dict[str, Fault]:
    return {problem.written: problem.fault for problem in report.problems}


def instead(report: LaunchReport) -> dict[str, str]:
    return {problem.written: " ".join(problem.instead) for problem in report.problems}


# Words and lines.


def test_words_are_cut_as_a_shell_cuts_them() -> None:
    text = 'A=1 run \\\n --x=\'a b\' "c \\"d" e\\ f $V 2>&1 | tee log # end'
    first = [word for word in split_words(text) if word.command == 0]
    assert [word.text for word in first] == ["A=1", "run", "--x=a b", 'c "d', "e f", "$V"]
    assert [text[word.start : word.end] for word in first] == [word.raw for word in first]
    assert [word.text for word in split_words("a; b && c\nd") if word.command > 0] == ["b", "c", "d"]


@pytest.mark.parametrize(
    "text", ["vllm serve m --x '{\"a\": [1, 2]}'", "a\tb  c", 'x "" y', "'it'\\''s'", "--a=\"b c\"d'e'"]
)
def test_words_of_one_command_are_those_of_python_s_own_shell_reader(text: str) -> None:
    assert [word.text for word in split_words(text)] == shlex.split(text)


def test_a_quote_that_is_not_closed_says_where() -> None:
    with pytest.raises(UserError, match="the quote ' at character 10 of the command line is not closed"):
        split_words("llama -m 'a b")


@pytest.mark.parametrize(
    ("text", "backend", "program", "arguments"),
    [
        ("llama-server -m a.gguf", "llamacpp", "llama-server", ["-m", "a.gguf"]),
        ("cd x && A=1 nohup ./bin/llama-server -m a >l 2>&1 &", "llamacpp", "./bin/llama-server", ["-m", "a"]),
        ("numactl -N 0 vllm serve m --port 1", "vllm", "vllm serve", ["m", "--port", "1"]),
        ("python3.12 -m vllm.entrypoints.openai.api_server --model m", "vllm", None, ["--model", "m"]),
        ("/venv/bin/python -u -m sglang.launch_server --port 1", "sglang", None, ["--port", "1"]),
        ("ftllm server m -t 1", "fastllm", "ftllm server", ["m", "-t", "1"]),
        ("python -m mlx_lm server --model m", "mlx", "python -m mlx_lm server", ["--model", "m"]),
        ("mlx_lm.server --model m", "mlx", "mlx_lm.server", ["--model", "m"]),
        ("OLLAMA_HOST=0.0.0.0 ollama serve", "ollama", "ollama serve", []),
        ("ollama run qwen3 --verbose", "ollama", "ollama run", ["qwen3", "--verbose"]),
        ("docker run --gpus all vllm/vllm-openai:v0.22 --model m", "vllm", "", ["--model", "m"]),
        ("docker run lmsysorg/sglang python3 -m sglang.launch_server --tp 2", "sglang", None, ["--tp", "2"]),
        ("podman run ghcr.io/ggml-org/llama.cpp:server-cuda -m a", "llamacpp", "", ["-m", "a"]),
        ("docker run ollama/ollama", "ollama", "", []),
    ],
)
def test_the_server_of_a_line_is_recognised(text: str, backend: str, program: str | None, arguments: list[str]) -> None:
    line = read_line([text])
    assert line.backend == backend
    assert [word.text for word in line.arguments] == arguments
    if program is not None:
        assert " ".join(word.text for word in line.program) == program
    assert line.contained is text.startswith(("docker", "podman"))


def test_words_of_a_shell_are_read_like_one_text() -> None:
    words = ["vllm", "serve", "my model", "--port", "1"]
    assert [word.text for word in read_line(words).arguments] == words[2:]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["lama-server -m x"],
            r"'lama-server' is none \(did you mean 'llama-server'\?\); known: llama-server, ",
        ),
        (["A=1", "vllm", "bench"], "'vllm' is none"),
        ([], "no command line: write it behind --"),
        (["  "], "no command line"),
    ],
)
def test_a_line_without_a_known_server(words: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_line(words)


# Arguments.


FLAGS = (
    Flag(names=("-c", "--ctx-size"), takes_value=True),
    Flag(names=("--kv",), takes_value=True, choices=("a", "b")),
    Flag(names=("--keys",), takes_value=True, many=True),
    Flag(names=("--tp-size",), takes_value=True),
    Flag(names=("--on", "--no-on"), takes_value=False),
    Flag(names=("--may",), takes_value=None),
)
STRICT, LOOSE = Form(programs=()), Form(programs=(), abbreviates=True, underscores=True, dotted=True)


@pytest.mark.parametrize(
    ("words", "form", "fault"),
    [
        ("-c 5", STRICT, None),
        ("--ctx-size=5", STRICT, None),
        ("-c -1", STRICT, None),
        ("-c", STRICT, Fault.MISSING),
        ("-c --on", STRICT, Fault.MISSING),
        ("--kv c", STRICT, Fault.CHOICE),
        ("--keys a b c", STRICT, None),
        ("--on=1", STRICT, Fault.NEEDLESS),
        ("--may", STRICT, None),
        ("--tp 2", STRICT, Fault.UNKNOWN),
        ("--tp 2", LOOSE, None),
        ("--k a", LOOSE, Fault.AMBIGUOUS),
        ("--ctx_size 5", STRICT, Fault.UNKNOWN),
        ("--ctx_size 5", LOOSE, None),
        ("--kv.key a", STRICT, Fault.UNKNOWN),
        ("--kv.key a", LOOSE, None),
    ],
)
def test_what_a_parser_lets_pass(words: str, form: Form, fault: Fault | None) -> None:
    assert read_arguments(words.split(), FLAGS, form)[0].fault is fault


def test_values_go_to_their_flags() -> None:
    found = read_arguments(["model", "-c", "5", "--on", "x", "--keys", "a", "b", "--bad", "3", "--may"], FLAGS, STRICT)
    assert [(each.name, each.values) for each in found] == [
        ("", ("model",)),
        ("-c", ("5",)),
        ("--on", ()),
        ("", ("x",)),
        ("--keys", ("a", "b")),
        ("--bad", ("3",)),
        ("--may", ()),
    ]


def test_the_level_of_vllm_stands_in_the_word() -> None:
    known = recorded_flags("vllm")
    assert known is not None
    (argument,) = read_arguments(["-O3"], known.flags, FORMS["vllm"])
    assert (argument.values, argument.fault) == (("3",), None)


# Meanings.


@pytest.mark.parametrize(
    ("meaning", "value", "said"),
    [
        ("context", "6144", 6144),
        ("context", "6k", 6000),
        ("context", "6K", 6144),
        ("context", "auto", None),
        ("kv_cache", "q8_0", "int8"),
        ("kv_cache", "int8_per_token_head", "int8"),
        ("kv_cache", "8", "int8"),
        ("kv_cache", "fp8", "fp8_e4m3"),
        ("kv_cache", "auto", None),
        ("gpu_layers", "99", None),
        ("gpu_layers", "20", 20),
        ("memory_share", "0.92", 0.92),
        ("host_weights", "4", 4 * 2**30),
        ("prefill_chunk", "-1", None),
        ("prefix_cache_on", "", True),
        ("prefix_cache_on", "false", False),
        ("prefix_cache_off", "", False),
        ("flash_attention", "", "on"),
        ("flash_attention", "1", "on"),
        ("flash_attention", "off", "off"),
        ("graphs_off", "", False),
        ("thinking", '{"enable_thinking": true}', True),
        ("thinking", '{"chat_template_kwargs": {"enable_thinking": false}}', False),
        ("thinking", "off", False),
    ],
)
def test_a_value_says_the_same_whichever_engine_it_is_for(meaning: str, value: str, said: object) -> None:
    assert read_meaning(meaning, value) == said


@pytest.mark.parametrize(
    ("meaning", "value", "says"),
    [
        ("context", "long", "'long' is no whole number"),
        ("memory_share", "most", "'most' is no number"),
        ("thinking", "{", "is no JSON"),
        ("thinking", "{}", "nothing of enable_thinking"),
        ("prefix_cache_on", "perhaps", "neither on nor off"),
        ("kv_cache", "int9", r"did you mean 'int8'\?"),
    ],
)
def test_a_value_that_says_nothing(meaning: str, value: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read_meaning(meaning, value)


def test_fields_are_settings() -> None:
    assert set(FIELDS.values()) <= set(Settings.__dataclass_fields__)


@pytest.mark.parametrize("backend", ["sglang", "vllm", "fastllm", "mlx", "llamacpp"])
def test_no_recorded_program_has_a_flag_that_only_documents_have(backend: str) -> None:
    known = recorded_flags(backend)
    assert known is not None
    assert not {name for flag in known.flags for name in flag.names} & set(DOCUMENTED)


# The lines of the users' documents.


def test_the_documents_line_for_sglang() -> None:
    report = check_line([SGLANG])
    assert faults(report) == {
        "--model-format gguf": Fault.UNKNOWN,
        "--kv-cache-dtype int8": Fault.CHOICE,
        "--chunked-prefill-enabled": Fault.UNKNOWN,
        "--enable-radix-cache": Fault.UNKNOWN,
        """--extra-body '{"chat_template_kwargs":{"enable_thinking":false}}'""": Fault.UNKNOWN,
        """--device-map '{"moe":"cuda"}'""": Fault.UNKNOWN,
    }
    assert report.line == (
        "python -m sglang.launch_server --model-path X.gguf --load-format gguf --context-length 6144 "
        "--kv-cache-dtype fp8_e4m3 --mem-fraction-static 0.92 --chat-template qwen3 "
        """--default-chat-template-kwargs '{"enable_thinking": false}' --port 30000"""
    )
    assert [comment.partition(":")[0] for comment in report.comments] == [
        "--kv-cache-dtype int8",
        "--chunked-prefill-enabled",
        "--enable-radix-cache",
        '--device-map \'{"moe"',
    ]
    assert "sglang has no KV cache of int8; fp8_e4m3 takes as much memory" in report.comments[0]
    assert report.against.startswith("the flags of sglang 0.5.23, ")
    assert report.flags == 530
    kv = report.problems[1]
    assert (kv.word, SGLANG[kv.at :].split()[0]) == (10, "--kv-cache-dtype")


def test_a_gpu_without_fp8_is_not_given_it() -> None:
    report = check_line([SGLANG], gpu="8.6")
    assert "fp8_e4m3 " not in report.line
    (comment,) = (each for each in report.comments if each.startswith("--kv-cache-dtype"))
    assert "fp8_e4m3" in comment
    assert "8.6" in comment
    assert "--kv-cache-dtype fp8_e4m3" in check_line([SGLANG], gpu="9.0").line


def test_a_kv_cache_type_that_the_gpu_cannot_do_is_wrong_only_when_the_gpu_is_known() -> None:
    line = "python -m sglang.launch_server --model-path /m --kv-cache-dtype fp8_e4m3"
    assert check_line([line]).problems == ()
    assert faults(check_line([line], gpu="8.6")) == {"--kv-cache-dtype fp8_e4m3": Fault.MEANING}


def test_the_documents_line_for_fastllm() -> None:
    report = check_line([FASTLLM])
    assert report.line == "ftllm server model.gguf --kv_cache_dtype fp8_e4m3 --max_context_length 6144 --port 8080"
    assert faults(report) == {
        "fastllm_server": Fault.PROGRAM,
        "--cache-type-k q8_0": Fault.UNKNOWN,
        "--cache-type-v q8_0": Fault.UNKNOWN,
        "--flash-attn on": Fault.UNKNOWN,
        "--ctx-size 6144": Fault.UNKNOWN,
    }
    assert instead(report)["--ctx-size 6144"] == "--max_context_length 6144"
    assert report.comments == (
        "--cache-type-k q8_0: fastllm has no KV cache of int8; fp8_e4m3 takes as much memory",
        "--flash-attn on: left out; it chooses its attention kernels itself",
    )


def test_the_documents_line_for_vllm() -> None:
    report = check_line([VLLM])
    assert report.line == (
        "vllm serve Qwen/Qwen3.6-35B-A3B --gpu-memory-utilization 0.92 --max-model-len 6k "
        "--kv-cache-dtype int8_per_token_head"
    )
    assert faults(report) == {
        "--kv-cache-dtype int8": Fault.CHOICE,
        "--swap-space 4": Fault.UNKNOWN,
        "--device cuda": Fault.AMBIGUOUS,
    }


# Other lines.


@pytest.mark.parametrize(
    ("pasted", "meant"),
    [
        # The context of llama.cpp is that of all slots together.
        ("llama-server -m x --max-model-len 6144 -np 4", "llama-server -m x --ctx-size 24576 -np 4"),
        ("llama-server -m x --kv-cache-dtype int8", "llama-server -m x --cache-type-k q8_0 --cache-type-v q8_0"),
        ("llama-server --model-path x --tp 2", "llama-server --model x"),
        ("llama-server -m x -c 6k", "llama-server -m x -c 6000"),
        ("llama-server -m x --chat-template-args '{\"enable_thinking\":true}'", None),
        ("vllm serve --model-path /m --ctx-size 8192", "vllm serve /m --max-model-len 8192"),
        ("vllm serve m --no-cache-prompt", "vllm serve m --no-enable-prefix-caching"),
        ("vllm serve m --disable-cuda-graph", "vllm serve m --enforce-eager"),
        ("vllm serve m --tensor-paralel-size 2", "vllm serve m --tensor-parallel-size 2"),
        ("vllm serve m --dtype bflot16", "vllm serve m --dtype bfloat16"),
        ("ftllm server m --max-model-len 8k -ngl 99", "ftllm server m --max_context_length 8000"),
        ("ftllm server m --kv_cache_dtype q8_0", "ftllm server m --kv_cache_dtype fp8_e4m3"),
        ("ftllm server m --max_context_length 64 --ctx-size 32", "ftllm server m --max_context_length 64"),
        ("mlx_lm.server --model m -ctk q8_0", "mlx_lm.server --model m --kv-bits 8 --quantized-kv-start 0"),
        ("mlx_lm.server --model m --ctx-size 4096", "mlx_lm.server --model m"),
        (
            "A=1 ollama serve --ctx-size 6144 --cache-type-k q8_0",
            "A=1 OLLAMA_CONTEXT_LENGTH=6144 OLLAMA_KV_CACHE_TYPE=q8_0 OLLAMA_FLASH_ATTENTION=1 ollama serve",
        ),
        (
            "docker run --gpus all -p 8000:8000 vllm/vllm-openai:latest --model m --ctx-size 8192",
            "docker run --gpus all -p 8000:8000 vllm/vllm-openai:latest --model m --max-model-len 8192",
        ),
        (
            'X=1 ./llama-server -m "$MODEL" --max-num-seqs 4 >log 2>&1 & # start',
            'X=1 ./llama-server -m "$MODEL" --parallel 4 >log 2>&1 & # start',
        ),
    ],
)
def test_the_line_that_was_meant(pasted: str, meant: str | None) -> None:
    report = check_line([pasted])
    assert report.problems
    if meant is not None:
        assert report.line == meant
    assert check_line([report.line]).problems == ()


@pytest.mark.parametrize(
    "text",
    [
        "llama-server -m x.gguf -c 8192 -np 4 -ngl 99 -ctk q8_0 -ctv q8_0 -fa on --flash_attn 1 -ot 'exps=CPU'",
        "python -m sglang.launch_server --model-path /m --tp 8 --mem-fraction-static 0.9 --context-length 6k",
        "vllm serve m --max_model_len 6k -O3 -tp 2 --compilation-config.mode 3 --no-enable-prefix-caching",
        "ftllm server m --device cuda --kv_cache_dtype fp4_e2m1 --max-context-length 512",
        "mlx_lm.server --model m --kv-bits 8",
        "ollama run qwen3 --verbose --keepalive 5m",
    ],
)
def test_a_line_that_is_right_stays_as_it_is(text: str) -> None:
    report = check_line([text])
    assert report.problems == ()
    assert (report.line, report.comments) == (text, ())
    assert as_text(report).endswith("result   nothing wrong")


def test_what_cannot_be_carried_over_says_why() -> None:
    report = check_line(["llama-server -m x --cpu-offload-gb 4 --trust-remote-code --enforce-eager"])
    assert report.line == "llama-server -m x"
    assert report.comments == (
        "--cpu-offload-gb 4: left out; llama.cpp counts layers: --gpu-layers, or --n-cpu-moe",
        "--trust-remote-code: left out; nothing here is known to mean the same",
        "--enforce-eager: left out; only at build time, or by the variable GGML_CUDA_DISABLE_GRAPHS=1",
    )


def test_other_keys_of_a_request_are_not_lost_in_silence() -> None:
    body = '{"temperature": 0, "chat_template_kwargs": {"enable_thinking": false, "x": 1}}'
    report = check_line([f"vllm serve m --extra-body '{body}'"])
    assert report.comments[0].endswith("temperature, x belong into each request")


def test_a_container_is_given_its_variables() -> None:
    report = check_line(["docker run ollama/ollama serve --ctx-size 6144"])
    assert report.line == "docker run ollama/ollama serve"
    assert report.comments[-1] == "give the container OLLAMA_CONTEXT_LENGTH=6144"


def test_a_gguf_for_an_engine_that_loads_folders_is_noted() -> None:
    notes = check_line(["mlx_lm.server --model x.gguf"]).notes
    assert "x.gguf: pytest --moegpu starts mlx with a Hugging Face folder only" in notes


def test_text_has_columns_and_no_line_of_a_comment_can_be_run() -> None:
    lines = as_text(check_line([FASTLLM])).splitlines()
    assert lines[0] == "backend  fastllm"
    assert [line.index("fastllm 1.9.0 has no such flag") for line in lines if "no such flag" in line] == [29] * 4
    pasted = lines[lines.index("what was meant, ready to paste:") + 2 :]
    assert [line for line in pasted if not line.startswith("# ")] == [check_line([FASTLLM]).line]


# Against the program that is installed.


def program(tmp_path: Path, name: str, help_text: str, version: str = "version: 7 (abc)") -> Path:
    """Put a stand-in on PATH that prints a help text and a version, and notes each call."""
    path = tmp_path / "bin" / name
    (tmp_path / "help.txt").write_text(help_text)
    path.write_text(
        f"#!/bin/sh\necho \"$@\" >> '{tmp_path}/calls'\n"
        f'case "$*" in *version*) echo \'{version}\' ;; *) while read -r line; do echo "$line"; done '
        f"< '{tmp_path}/help.txt' ;; esac\n"
    )
    path.chmod(0o755)
    return path


def test_the_installed_program_is_asked_and_named(tmp_path: Path) -> None:
    flags = "\n".join(("-m, --model FILE", "-c, --ctx-size N", "--new-flag", "--host H", "--port N", "--alias A"))
    path = program(tmp_path, "llama-server", flags)
    report = check_line(["llama-server -m x --new-flag --metrics"])
    assert faults(report) == {"--metrics": Fault.UNKNOWN}
    assert report.against == f"the help of the installed llamacpp 7 (abc) ({path})"
    assert report.problems[0].reason.startswith("llamacpp 7 (abc) has no such flag")


def test_a_program_named_by_its_variable_keeps_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = program(tmp_path, "other-name", "\n".join(f"--flag-{i} N" for i in range(6)))
    monkeypatch.setenv("MOEGPU_VLLM", f"{path} serve")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    report = check_line(["vllm serve m --flag-1 5"])
    assert report.against == f"the help of the installed vllm of unknown version ({path})"
    assert "serve --help" in (path.parent.parent / "calls").read_text()


def test_a_program_that_prints_no_help_leaves_the_recorded_list(tmp_path: Path) -> None:
    program(tmp_path, "llama-server", "Segmentation fault")
    report = check_line(["llama-server -m x --bogus"])
    assert report.notes[0].startswith("its own help cannot be had: no flags can be read in what")
    assert report.against.startswith("the flags of llamacpp 11434, ")


def spec(backend: Backend, **settings: object) -> LaunchSpec:
    return LaunchSpec(
        program=("/opt/run",),
        model_path="/m",
        model_name="m",
        settings=replace(Settings(context=4096), **settings),  # type: ignore[arg-type]
        host="127.0.0.1",
        port=18081,
        api_key="key",
        model_format=backend.model_formats[0],
    )


def test_the_embedded_server_is_held_against_its_own_parser() -> None:
    backend = get_backend("llamacpp")
    good = replace(spec(backend), program=EMBEDDED)
    assert launch_problems(backend, good, InstalledFlags()) == ()
    bad = replace(good, settings=replace(good.settings, extra_flags=("--ctx-siz", "5", "--no-mmap")))
    assert launch_problems(backend, bad, InstalledFlags()) == (
        "--ctx-siz 5: the embedded server has no such flag; write --ctx-size 5 (the line has --ctx-size 4096 already)",
        "--no-mmap: the embedded server has no such flag (nothing here is known to mean the same)",
    )


@pytest.mark.parametrize("name", ["llamacpp", "vllm", "sglang", "fastllm", "mlx"])
@pytest.mark.parametrize("kind", list(DeviceKind))
def test_what_a_recipe_writes_the_recorded_program_takes(name: str, kind: DeviceKind) -> None:
    backend, known = get_backend(name), recorded_flags(name)
    assert known is not None
    for settings in ({}, {"slots": 2, "thinking": True}, {"prefix_cache": False}, {"prefill_chunk": 512}):
        layers = {"gpu_layers": 0} if kind is DeviceKind.CPU else {}
        try:
            argv = backend.argv(replace(spec(backend, **settings, **layers), device_kind=kind))
        except UserError:
            continue
        arguments = read_arguments(argv[1:], known.flags, FORMS[name])
        assert [each for each in arguments if each.fault is not None] == []


def test_a_typo_in_extra_flags_is_told_with_the_version_and_the_right_spelling(tmp_path: Path) -> None:
    help_text = (Path(__file__).parents[1] / "data" / "help" / "llama-server.txt").read_text(encoding="utf-8")
    path = str(program(tmp_path, "llama-server", help_text))
    backend = get_backend("llamacpp")
    wrong = replace(spec(backend, extra_flags=("--n-cpu-mo", "8", "-fa", "maybe")), program=(path,))
    said: list[str] = []
    assert launch_problems(backend, wrong, InstalledFlags(said.append)) == (
        "--n-cpu-mo 8: llamacpp 7 (abc) has no such flag; write --n-cpu-moe 8",
        "-fa maybe: llamacpp 7 (abc) has no value 'maybe' for it; it has on, off, auto, enabled, true, 1, disabled, "
        "false, 0, -1 ('maybe' is neither on nor off)",
    )
    assert said == []


def test_a_program_whose_help_cannot_be_had_is_not_judged(tmp_path: Path) -> None:
    path = str(program(tmp_path, "llama-server", "no flags here"))
    backend = get_backend("llamacpp")
    said: list[str] = []
    installed = InstalledFlags(said.append)
    bogus = replace(spec(backend, extra_flags=("--bogus",)), program=(path,))
    assert launch_problems(backend, bogus, installed) == ()
    assert launch_problems(backend, bogus, installed) == ()
    assert len(said) == 1
    assert said[0].startswith("the flags of llamacpp are not known, extra_flags are not checked: no flags can be read")


def test_what_the_recipe_writes_itself_is_not_told_as_the_users_own(tmp_path: Path) -> None:
    many = "".join(f"--flag-{i} N   one of many\n" for i in range(6))
    path = str(program(tmp_path, "llama-server", f"{many}--model N  the model\n"))
    backend = get_backend("llamacpp")
    own = replace(spec(backend, extra_flags=("--flag-1", "2", "--bogus")), program=(path,))
    assert launch_problems(backend, own, InstalledFlags()) == (
        "--bogus: llamacpp 7 (abc) has no such flag (nothing here is known to mean the same)",
    )


@pytest.mark.parametrize(
    ("word", "allowed", "found"),
    [
        ("q8_O", ("q4_0", "q8_0", "q5_0"), "q8_0"),
        ("Q8_0", ("q4_0", "q8_0"), "q8_0"),
        ("--ctx_size", ("--ctx-size", "--ctx-checkpoints"), "--ctx-size"),
        ("q3_0", ("q4_0", "q8_0"), ""),
        ("Auto", ("auto", "AUTO"), ""),
    ],
)
def test_signs_that_look_alike_are_taken_for_each_other(word: str, allowed: tuple[str, ...], found: str) -> None:
    assert alike(word, allowed) == found
