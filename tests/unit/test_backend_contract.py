"""What every backend must do, whatever its server. A new row in the table is tested here without a new line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_moegpu.backends import BACKENDS, get_backend
from pytest_moegpu.backends.base import Backend, ChatRequest, Delta, EngineVersion, Load, ServedModel, StreamFormat
from pytest_moegpu.core.evidence import LogFacts
from pytest_moegpu.core.flags import MEANINGS
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, Settings
from pytest_moegpu.errors import UserError

KEY = "moegpu-contract-key-0123456789"
SPEC = LaunchSpec(
    program=("/opt/a server/run",),
    model_path="/models/with space/m.gguf",
    model_name="m",
    settings=Settings(context=4096),
    host="127.0.0.1",
    port=18081,
    api_key=KEY,
    devices=("1",),
)
SETTINGS = (
    SPEC.settings,
    Settings(context=6144, kv_cache="q8_0", slots=2),
    Settings(context=2048, gpu_layers=0, threads=2, prefix_cache=False),
    Settings(context=8192, extra_flags=("--verbose",), flash_attention="on"),
)


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Backend:
    return get_backend(request.param)


@pytest.fixture(params=sorted(name for name in BACKENDS if get_backend(name).program))
def starting(request: pytest.FixtureRequest) -> Backend:
    """A backend with a program of its own; the others can only be attached to."""
    return get_backend(request.param)


def written(backend: Backend, spec: LaunchSpec) -> str:
    """Everything that a start is told: command line, variables, and what is set up afterwards."""
    setup = backend.setup(spec)
    words = [*backend.argv(spec), *backend.environment(spec).values()]
    return "\n".join([*words, *(word for each in setup for word in (*each.argv, *each.files.values()))])


def test_its_name_is_that_of_its_row() -> None:
    assert {name: make().name for name, make in BACKENDS.items()} == {name: name for name in BACKENDS}


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown backend 'lamacpp' \(did you mean 'llamacpp'\?\); known: "):
        get_backend("lamacpp")


def test_program_and_paths(backend: Backend) -> None:
    assert "/" not in backend.program
    assert backend.program_variable.startswith("MOEGPU_" if backend.program else "")
    for path in (backend.health_path, backend.chat_path, backend.props_path, backend.metrics_path):
        assert path is None or path.startswith("/")


def test_one_without_a_program_refuses_to_start() -> None:
    attached_only = [get_backend(name) for name in BACKENDS if not get_backend(name).program]
    assert [backend.name for backend in attached_only] == ["openai"]
    for backend in attached_only:
        with pytest.raises(UserError, match=r"starts no server: .*--moegpu-attach"):
            backend.argv(SPEC)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", list(DeviceKind))
def test_argv(starting: Backend, settings: Settings, kind: DeviceKind) -> None:
    backend = starting
    spec = replace(SPEC, settings=settings, device_kind=kind, model_format=backend.model_formats[0])
    try:
        argv = backend.argv(spec)
    except UserError:
        # What a scenario asks for by meaning is done or refused, and the plain one is never refused.
        assert settings is not SPEC.settings
        with pytest.raises(UserError, match=r"^settings\.\w+: "):
            backend.argv(spec)
        return
    assert isinstance(argv, tuple)
    assert all("\0" not in word for word in argv)
    assert argv[: len(SPEC.program)] == SPEC.program
    told = written(backend, spec)
    assert all(word in told for word in (SPEC.model_path, SPEC.host, str(SPEC.port)))
    assert all(flag in argv for flag in settings.extra_flags)
    assert argv == backend.argv(spec)


def test_the_key_is_never_on_the_command_line(starting: Backend) -> None:
    backend = starting
    spec = replace(SPEC, model_format=backend.model_formats[0])
    assert KEY not in " ".join(backend.argv(spec))
    assert (KEY in backend.environment(spec).values()) is backend.takes_key


def test_it_uses_the_devices_of_the_run_and_no_others(starting: Backend) -> None:
    backend = starting
    assert backend.environment(SPEC)["CUDA_VISIBLE_DEVICES"] == "1"
    assert backend.environment(SPEC)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_VISIBLE_DEVICES" not in backend.environment(replace(SPEC, devices=()))


def test_its_flags_have_known_meanings_and_one_each(backend: Backend) -> None:
    assert set(backend.meanings) <= set(MEANINGS)
    spellings = [name for names in backend.meanings.values() for name in names]
    assert all(name.startswith("-") or name == "model" for name in spellings)
    assert not set(spellings) & set(backend.not_flags)


def test_what_it_says_about_itself(backend: Backend) -> None:
    assert backend.install_hint
    assert backend.model_formats
    assert 1024 < backend.last_port <= 65_535
    assert 0 < backend.stop_seconds <= 60


def test_no_counters_are_no_load(backend: Backend) -> None:
    assert backend.read_load({}) == Load()


def test_a_help_text_that_says_nothing_has_no_flags(backend: Backend) -> None:
    for output in ("", "Segmentation fault", "usage: x\n\n"):
        assert backend.read_help(output) == ()


def test_only_a_refusal_that_speaks_of_length_is_one(backend: Backend) -> None:
    assert not backend.is_too_long(200, "")
    assert not backend.is_too_long(500, "internal error")
    assert not backend.is_too_long(404, "no such model")


def test_environment_is_text(backend: Backend) -> None:
    for name, value in backend.environment(SPEC).items():
        assert isinstance(name, str)
        assert isinstance(value, str)


def test_version(backend: Backend) -> None:
    argv = backend.version_argv(("/opt/server",))
    assert argv[0] == "/opt/server"
    assert len(argv) > 1
    for output in ("", "\n\n", "Segmentation fault", "\ufffd\ufffd\0"):
        assert backend.read_version(output) == EngineVersion()


def test_health(backend: Backend) -> None:
    assert backend.read_health(200, "").ready
    for status in (400, 401, 404, 500, 502, 503):
        health = backend.read_health(status, "")
        assert not health.ready
        assert health.loading or health.detail


def test_props_of_an_empty_object_know_nothing(backend: Backend) -> None:
    if backend.props_path is not None:
        assert backend.read_props({}) == ServedModel()


def test_metrics_of_no_metrics(backend: Backend) -> None:
    for text in ("", "# HELP x y\n# TYPE x counter\n", "<html>not found</html>", "a" * 10_000):
        assert backend.read_metrics(text) == {}


@pytest.mark.parametrize("text", ["", "\n", "\ufffd\0\x1b[31m\ufffd\n" * 100, "x" * 10**6, "offloaded / layers to GPU"])
def test_log_that_says_nothing(backend: Backend, text: str) -> None:
    assert backend.read_log(text) == LogFacts()


@pytest.mark.parametrize(
    "chat",
    [
        ChatRequest(prompt="Größe 茶 🎉\n\0", max_tokens=1),
        ChatRequest(prompt="q", max_tokens=32, prefill="a", ignore_eos=True, cache_prompt=False, thinking=True),
        ChatRequest(prompt="q", max_tokens=32, top_logprobs=5, seed=3),
    ],
)
def test_request_is_json_streamed_and_with_usage(backend: Backend, chat: ChatRequest) -> None:
    body = backend.request(SPEC, chat)
    assert json.loads(json.dumps(body)) == body
    assert body["stream"] is True
    if backend.stream_format is StreamFormat.SSE:
        assert body["stream_options"] == {"include_usage": True}
    assert KEY not in json.dumps(body)
    assert chat.prompt in json.dumps(body, ensure_ascii=False).replace("\\n", "\n").replace("\\u0000", "\0")


def test_a_role_delta_is_empty(backend: Backend) -> None:
    if backend.stream_format is not StreamFormat.SSE:
        assert backend.read_event('{"message": {"role": "assistant", "content": ""}, "done": false}') == Delta()
        return
    data = json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    assert backend.read_event(data) == Delta()


def test_text_usage_and_error_are_read(backend: Backend) -> None:
    if backend.stream_format is not StreamFormat.SSE:
        assert backend.read_event('{"message": {"content": "Hi"}, "done": false}').text == "Hi"
        assert backend.read_event('{"error": "no"}').error == "no"
        return
    assert backend.read_event('{"choices":[{"index":0,"delta":{"content":"Hi"}}]}').text == "Hi"
    usage = backend.read_event('{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}').usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.output_tokens) == (3, 2)
    assert backend.read_event('{"error":{"message":"no","code":500}}').error == "no"


@pytest.mark.parametrize("data", ["", "not json", "null", "[1]"])
def test_an_unreadable_event_is_a_value_error(backend: Backend, data: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        backend.read_event(data)
