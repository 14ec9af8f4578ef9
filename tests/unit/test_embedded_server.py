"""The embedded server takes the very flags the llama.cpp backend writes, and no others."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

from pytest_moegpu.backends.llamacpp import LlamaCpp
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, Settings
from pytest_moegpu.host.embedded_server import main, parser

SETTINGS = {
    "plain": Settings(context=2048),
    "all": Settings(
        context=6144,
        slots=3,
        kv_cache="q8_0",
        gpu_layers=12,
        flash_attention="on",
        batch=1024,
        ubatch=128,
        threads=2,
        prefix_cache=False,
    ),
    **{
        scenario.name: scenario.settings
        for scenario in Catalog.load().scenarios()
        if scenario.backend in (None, "llamacpp")
    },
}


def words(settings: Settings, **changes: Any) -> list[str]:
    """The backend's command line without the program."""
    given: dict[str, Any] = {
        "program": ("server",),
        "model_path": "/models/a file.gguf",
        "model_name": "m",
        "settings": settings,
        "host": "127.0.0.1",
        "port": 18082,
        "api_key": "secret",
    }
    return list(LlamaCpp().argv(LaunchSpec(**given | changes))[1:])


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", list(DeviceKind))
def test_everything_the_backend_writes_is_understood(name: str, kind: DeviceKind) -> None:
    settings = SETTINGS[name]
    if settings.extra_flags:
        pytest.skip("flags of the user's own are llama-server's, not the embedded server's")
    found = parser().parse_args(words(settings, device_kind=kind))
    assert (found.model, found.alias, found.host, found.port) == ("/models/a file.gguf", "m", "127.0.0.1", 18082)
    assert (found.ctx_size, found.parallel) == (settings.context * settings.slots, settings.slots)
    assert (found.cache_type_k, found.cache_type_v) == (settings.kv_cache,) * 2
    assert (found.batch_size, found.ubatch_size, found.threads) == (settings.batch, settings.ubatch, settings.threads)
    assert (found.flash_attn, found.fit) == (settings.flash_attention, "off")
    assert found.no_cache_prompt is not settings.prefix_cache
    assert found.metrics
    assert found.no_webui
    if kind is DeviceKind.CPU:
        assert found.gpu_layers == 0


def test_the_settings_above_move_every_field() -> None:
    """A new setting must be thought of here, or the embedded server may meet a flag it refuses."""
    plain, everything = SETTINGS["plain"], SETTINGS["all"]
    same = {f.name for f in fields(Settings) if getattr(plain, f.name) == getattr(everything, f.name)}
    # Refused by the recipe of llama.cpp, and the last two by the embedded server.
    refused = {"memory_share", "host_weights_bytes", "prefill_chunk", "cuda_graphs", "cpu_expert_layers", "mmap"}
    assert same == {"thinking", "speculative", "extra_flags"} | refused


@pytest.mark.parametrize("flag", ["--override-tensor", "--api-key", "--por", "--wrong"])
def test_an_unknown_flag_is_refused_as_llama_server_does(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*words(SETTINGS["plain"]), flag, "1"])
    assert caught.value.code == 2
    assert f"unrecognized arguments: {flag}" in capsys.readouterr().err


def test_short_flags_are_llama_servers() -> None:
    found = parser().parse_args(["-m", "a.gguf", "-c", "512", "-ngl", "3", "-np", "2", "-fa", "on", "-t", "1"])
    assert (found.model, found.ctx_size, found.gpu_layers, found.parallel) == ("a.gguf", 512, 3, 2)
    assert (found.flash_attn, found.threads) == ("on", 1)


def test_without_a_model_nothing_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xllamacpp", reason="the embedded server needs the extra `embedded`")
    assert main([]) == 2
    assert capsys.readouterr().err == "error: --model is required\n"


def test_missing_wheel_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    assert main(words(SETTINGS["plain"])) == 1
    assert "pip install 'pytest-moegpu[embedded]==" in capsys.readouterr().err


def test_version_is_read_by_the_backend() -> None:
    command = LlamaCpp().version_argv((sys.executable, "-m", "pytest_moegpu.host.embedded_server"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    version = LlamaCpp().read_version(done.stdout)
    assert version.version is not None
    assert version.version.endswith("(xllamacpp)")
    assert version.build is not None


def test_experts_are_in_host_memory_already_and_nothing_else_is_promised(capsys: pytest.CaptureFixture[str]) -> None:
    assert parser().parse_args(["--n-cpu-moe", "20"]).n_cpu_moe == 20
    assert main(["--model", "/no/such.gguf", "--n-cpu-moe", "20", "--gpu-layers", "10"]) == 2
    assert "this server has no placement of experts on a GPU: use llama-server" in capsys.readouterr().err
