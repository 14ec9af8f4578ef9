"""The recipe for servers that are attached to, and the address of one."""

from __future__ import annotations

import pytest

from pytest_moegpu.backends.base import ChatRequest, EngineVersion
from pytest_moegpu.backends.openai import VERSION_PATHS, OpenAi, read_engine
from pytest_moegpu.core.evidence import LogFacts
from pytest_moegpu.core.model import LaunchSpec, Settings
from pytest_moegpu.errors import UserError
from pytest_moegpu.session.attaching import NO_KEY, hidden, read_address

SPEC = LaunchSpec(
    program=(),
    model_path="",
    model_name="Qwen/Qwen3.6-35B-A3B",
    settings=Settings(context=2048),
    host="127.0.0.1",
    port=8000,
    api_key="secret",
)
CHAT = ChatRequest(prompt="q", max_tokens=8, ignore_eos=True, cache_prompt=False, top_logprobs=2)


def test_there_is_nothing_to_start() -> None:
    backend = OpenAi()
    with pytest.raises(UserError, match=r"backend openai starts no server: .*--moegpu-attach=http://host:port"):
        backend.argv(SPEC)
    assert backend.environment(SPEC) == {}
    assert backend.setup(SPEC) == ()
    assert backend.read_log("CUDA error: out of memory") == LogFacts()
    assert backend.read_version("version: 1") == EngineVersion()
    assert not backend.program


def test_a_request_asks_for_what_vllm_sglang_and_llama_cpp_understand() -> None:
    assert OpenAi().request(SPEC, CHAT) == {
        "model": "Qwen/Qwen3.6-35B-A3B",
        "messages": [{"role": "user", "content": "q"}],
        "max_tokens": 8,
        "temperature": 0,
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"enable_thinking": False},
        "ignore_eos": True,
        "cache_prompt": False,
        "logprobs": True,
        "top_logprobs": 2,
    }


def test_a_server_that_checks_every_field_gets_those_of_openai_alone() -> None:
    plain = OpenAi(extended=False).request(SPEC, CHAT)
    assert not {"chat_template_kwargs", "ignore_eos", "cache_prompt"} & plain.keys()
    assert plain["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("path", "body", "version"),
    [
        ("/version", {"version": "0.32.0"}, "vLLM 0.32.0"),
        ("/api/version", {"version": "0.40.2"}, "Ollama 0.40.2"),
        ("/props", {"build_info": "b11434-1a2b3c", "model_alias": "m"}, "llama.cpp b11434-1a2b3c"),
        ("/server_info", {"version": "0.5.23", "api_key": "secret"}, "SGLang 0.5.23"),
    ],
)
def test_what_a_server_says_it_is(path: str, body: dict[str, str], version: str) -> None:
    assert path in VERSION_PATHS
    assert read_engine(path, body) == EngineVersion(version=version)


@pytest.mark.parametrize("body", [None, {}, [], {"version": 3}, {"version": ""}, {"error": "File Not Found"}])
def test_what_no_server_says(body: object) -> None:
    assert all(read_engine(path, body) is None for path in VERSION_PATHS)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("http://127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("http://gpu-box:8000/v1/", ("gpu-box", 8000)),
        ("gpu-box:8000", ("gpu-box", 8000)),
        ("http://gpu-box", ("gpu-box", 80)),
        ("http://[::1]:8000/", ("::1", 8000)),
    ],
)
def test_addresses(text: str, found: tuple[str, int]) -> None:
    assert read_address(text) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("https://gpu-box:8000", r"HTTPS is not spoken.*ssh -L"),
        ("http://gpu-box:8000/serve/llm", r"a path other than /v1 is not supported"),
        ("http://gpu-box:port", r"give it as http://host:port"),
        ("http://gpu-box:99999", r"give it as http://host:port"),
        ("ftp://gpu-box", r"not an address of a server"),
        ("http://", r"not an address of a server"),
        ("http://gpu-box:1?a=b", r"not an address of a server"),
        ("http://me:secret@gpu-box:8000", r"no user or password in the address; give the key in MOEGPU_API_KEY"),
    ],
)
def test_addresses_that_are_none(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        read_address(text)
    assert "secret" not in str(caught.value)


def test_a_key_that_a_server_repeats_is_not_shown() -> None:
    assert hidden("Incorrect API key provided: sk-1", "sk-1") == "Incorrect API key provided: <MOEGPU_API_KEY>"
    assert hidden("it has none", NO_KEY) == "it has none"
