"""Ollama: a server of its own (`ollama serve`) with a models folder of its own, and its native chat API.

Written from its documentation (docs/api.md, docs/faq.md and docs/modelfile.md of github.com/ollama/ollama). It has not
been run for real: no package index ships the server. See docs/how-to/ollama.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, ClassVar

from pytest_moegpu.backends.base import (
    ChatRequest,
    Delta,
    EngineVersion,
    ServedModel,
    SetupCommand,
    StreamFormat,
    Usage,
)
from pytest_moegpu.backends.llamacpp import LlamaCpp
from pytest_moegpu.backends.recipe import Recipe, count, lines, messages, refuse, text, token_choice
from pytest_moegpu.core.evidence import LogFacts, TokenChoice
from pytest_moegpu.core.kvcache import spell_kv
from pytest_moegpu.core.model import ALL_LAYERS, DeviceKind, LaunchSpec, ModelFormat
from pytest_moegpu.errors import UserError

__all__ = ["DEFAULT_PORT", "Ollama", "daemon_address"]

DEFAULT_PORT = 11_434
_DEFAULT_HOST = "127.0.0.1"
_LATEST = ":latest"
_KV_SPELLINGS = {"f16": "f16", "int8": "q8_0", "int4": "q4_0"}
_UNABLE = {
    "extra_flags": "`ollama serve` takes no flags; set its OLLAMA_… variables, which are part of the identity",
    "batch": "Ollama has one such size: settings.ubatch",
    "memory_share": "Ollama takes what the model and its cache need; settings.context and gpu_layers set how much",
    "cpu_expert_layers": "Ollama places whole layers: settings.gpu_layers",
    "host_weights_bytes": "Ollama counts layers: settings.gpu_layers",
    "prefill_chunk": "Ollama calls it num_batch: settings.ubatch",
    "prefix_cache": "Ollama has no switch for it",
    "cuda_graphs": "only by the variable GGML_CUDA_DISABLE_GRAPHS=1",
    "speculative": "Ollama has no draft models",
}
_VERSION = re.compile(r"(?:client )?version is (\S+)")
_FATAL = re.compile(
    r"bind: address already in use|llama runner process has terminated|model requires more system memory|"
    r"unable to load model|error loading model|"
    r"^Error: ",
    re.IGNORECASE,
)
_TIMINGS = (
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
)


class Ollama(Recipe):
    """Recipe for `ollama serve`, and for an Ollama that runs already where a run is attached to it."""

    name = "ollama"
    program = "ollama"
    program_variable = "MOEGPU_OLLAMA"
    install_hint = "see https://ollama.com/download"
    environment_prefixes = ("OLLAMA_", "GGML_", "CUDA_", "NCCL_", "OMP_", "GOMP_")
    model_formats = (ModelFormat.GGUF,)
    stream_format = StreamFormat.NDJSON
    ignores_eos = False
    # Whether an answer can be begun depends on the chat template that it finds for the model.
    continues_prefill = False
    takes_key = False
    health_path = "/api/version"
    chat_path = "/api/chat"
    props_path = "/api/ps"
    not_flags: ClassVar[Mapping[str, str]] = {
        "--port": "OLLAMA_HOST=127.0.0.1:PORT",
        "--host": "OLLAMA_HOST=ADDRESS:PORT",
        "--ctx-size": "OLLAMA_CONTEXT_LENGTH=TOKENS",
        "--num-ctx": "OLLAMA_CONTEXT_LENGTH=TOKENS, or PARAMETER num_ctx in the Modelfile",
        "--num-gpu": "PARAMETER num_gpu in the Modelfile",
        "--gpu-layers": "PARAMETER num_gpu in the Modelfile",
        "--parallel": "OLLAMA_NUM_PARALLEL=N",
        "--flash-attn": "OLLAMA_FLASH_ATTENTION=1",
        "--cache-type-k": "OLLAMA_KV_CACHE_TYPE=f16, q8_0 or q4_0",
        "--cache-type-v": "OLLAMA_KV_CACHE_TYPE=f16, q8_0 or q4_0",
    }

    def argv(self, spec: LaunchSpec) -> tuple[str, ...]:
        """Write the command line; all that is set goes by environment and Modelfile."""
        refuse(self.name, spec.settings, _UNABLE)
        spell_kv(self.name, spec.settings.kv_cache, _KV_SPELLINGS)
        _flash_attention(spec)
        return (*spec.program, "serve")

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        """Its own address and models folder, one model that stays loaded, and the settings that are the server's."""
        settings = spec.settings
        flash = _flash_attention(spec)
        return {
            "OLLAMA_HOST": _address(spec),
            "OLLAMA_MODELS": str(PurePath(spec.scratch, "models")),
            "OLLAMA_CONTEXT_LENGTH": str(settings.context),
            "OLLAMA_NUM_PARALLEL": str(settings.slots),
            "OLLAMA_KV_CACHE_TYPE": spell_kv(self.name, settings.kv_cache, _KV_SPELLINGS),
            "OLLAMA_MAX_LOADED_MODELS": "1",
            # A model that is unloaded between two requests would be loaded again inside a measurement.
            "OLLAMA_KEEP_ALIVE": "-1",
            "OLLAMA_NOPRUNE": "1",
            **({} if flash is None else {"OLLAMA_FLASH_ATTENTION": "1" if flash else "0"}),
        } | self.devices(spec)

    def setup(self, spec: LaunchSpec) -> tuple[SetupCommand, ...]:
        """Make the model from its file; Ollama copies it into its models folder."""
        options = "".join(f"PARAMETER {name} {_word(value)}\n" for name, value in _runner_options(spec).items())
        return (
            SetupCommand(
                argv=(*spec.program, "create", spec.model_name, "-f", "Modelfile"),
                environment={"OLLAMA_HOST": _address(spec)},
                files={"Modelfile": f"FROM {spec.model_path}\n{options}"},
            ),
        )

    def read_version(self, output: str) -> EngineVersion:
        """Read `ollama version is …`; a line on the client's own version goes before that of a server it reached."""
        found = _VERSION.findall(output)
        client = re.search(r"client version is (\S+)", output)
        return EngineVersion(version=client[1] if client else found[0] if found else None)

    def help_argv(self, program: Sequence[str]) -> tuple[str, ...]:
        """Command that prints the flags of the server, which are none, and its variables."""
        return (*program, "serve", "--help")

    def read_props(self, body: Any) -> ServedModel:
        """Read `/api/ps`, which lists a model only once a request has loaded it; of several the first."""
        models = body.get("models") if isinstance(body, dict) else None
        first = models[0] if isinstance(models, list) and models and isinstance(models[0], dict) else {}
        name = text(first.get("model")) or text(first.get("name"))
        size, on_gpu = count(first.get("size")), count(first.get("size_vram"))
        return ServedModel(
            name=name.removesuffix(_LATEST) if name else None,
            context=count(first.get("context_length")),
            # It leaves out a size of 0, as all its numbers that are 0.
            gpu_share=(on_gpu or 0) / size if size else None,
        )

    def read_log(self, output: str) -> LogFacts:
        """Read what its llama.cpp runner prints, and Ollama's own lines that name a failure."""
        facts = LlamaCpp().read_log(output)
        own = lines(_FATAL, output)
        return replace(facts, fatal_lines=tuple(dict.fromkeys((*facts.fatal_lines, *own))))

    def request(self, spec: LaunchSpec, chat: ChatRequest) -> dict[str, Any]:
        """Write a streamed, greedy chat request that is refused rather than cut when it is too long.

        What the model is loaded with is named in each request as in the Modelfile, because Ollama loads it anew for
        other values; an Ollama that was there before keeps its own.
        """
        own = _runner_options(spec) if spec.program else {}
        body: dict[str, Any] = {
            "model": spec.model_name,
            "messages": messages(chat),
            "stream": chat.stream,
            "think": chat.thinking,
            # Known since 0.12.6; earlier versions cut a long prompt in silence.
            "truncate": False,
            "shift": False,
            "options": {"num_predict": chat.max_tokens, "temperature": 0, "seed": chat.seed} | own,
        }
        if spec.program:
            body["keep_alive"] = -1
        if chat.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": chat.top_logprobs}
        return body

    def read_event(self, data: str) -> Delta:
        """Read one line; the last one has counts, and durations in nanoseconds.

        How much of a prompt came from the cache is not told, so it is not known.

        Raises:
            ValueError: It is no answer of this API.
        """
        line = json.loads(data)
        if not isinstance(line, dict):
            raise ValueError("not a JSON object")  # noqa: TRY004 - unreadable data, as text that is not JSON
        if (error := line.get("error")) is not None:
            return Delta(error=str(error))
        message = line.get("message") or {}
        if not isinstance(message, dict):
            raise ValueError("not an answer of a known form")  # noqa: TRY004 - as above
        done = line.get("done") is True
        return Delta(
            text=text(message.get("content")) or "",
            reasoning=text(message.get("thinking")) or "",
            finish_reason=(text(line.get("done_reason")) or "stop") if done else None,
            usage=_usage(line) if done else None,
            choices=_choices(line.get("logprobs")),
        )


def daemon_address(variable: str | None) -> tuple[str, int]:
    """Return where an Ollama of this user listens, from the value of OLLAMA_HOST: host and port.

    Raises:
        UserError: The value has no readable port.
    """
    rest = (variable or "").strip().strip("\"'").partition("://")
    scheme, address = (rest[0], rest[2]) if rest[1] else ("", rest[0])
    port = {"http": 80, "https": 443}.get(scheme, DEFAULT_PORT)
    address = address.partition("/")[0]
    host, colon, given = address.rpartition(":")
    if not colon or address.endswith("]") or (":" in host and not host.startswith("[")):
        host, given = address, ""
    if given:
        if not given.isdigit() or not 0 < int(given) <= 65_535:
            raise UserError(f"OLLAMA_HOST={variable}: {given!r} is no port")
        port = int(given)
    host = host.strip("[]")
    # It listens on all addresses then, and this one is among them.
    return (_DEFAULT_HOST if host in ("", "0.0.0.0", "::") else host), port


def _address(spec: LaunchSpec) -> str:
    return f"{spec.host}:{spec.port}"


def _flash_attention(spec: LaunchSpec) -> bool | None:
    """Return whether flash attention is asked for; None leaves it to Ollama. A quantised cache needs it.

    Raises:
        UserError: It is off, and the cache is quantised.
    """
    asked = {"on": True, "off": False}.get(spec.settings.flash_attention)
    if spell_kv(Ollama.name, spec.settings.kv_cache, _KV_SPELLINGS) == "f16":
        return asked
    if asked is False:
        raise UserError("settings.flash_attention: Ollama quantises the KV cache only with flash attention on")
    return True


def _runner_options(spec: LaunchSpec) -> dict[str, int | bool]:
    """Return what the model is loaded with."""
    settings = spec.settings
    layers = 0 if spec.device_kind is DeviceKind.CPU else settings.gpu_layers
    return {
        "num_ctx": settings.context,
        "num_gpu": ALL_LAYERS if layers is None else layers,
        "num_batch": settings.ubatch,
        **({} if settings.threads is None else {"num_thread": settings.threads}),
        **({} if settings.mmap else {"use_mmap": False}),
    }


def _word(value: int | bool) -> str:
    return str(value).lower()


def _usage(line: dict[str, Any]) -> Usage:
    timings = {name: line.get(name) for name in _TIMINGS}
    return Usage(
        prompt_tokens=count(line.get("prompt_eval_count")),
        output_tokens=count(line.get("eval_count")),
        timings={name: float(value) for name, value in timings.items() if isinstance(value, int | float)},
    )


def _choices(given: Any) -> tuple[TokenChoice, ...]:
    return tuple(token_choice(entry) for entry in given if isinstance(entry, dict)) if isinstance(given, list) else ()
