"""What most recipes share: defaults, and the chat API that OpenAI's documentation describes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

from pytest_moegpu.backends.base import (
    ChatRequest,
    Delta,
    Health,
    Load,
    Post,
    ServedModel,
    SetupCommand,
    StreamFormat,
    Usage,
)
from pytest_moegpu.backends.helptext import read_flags
from pytest_moegpu.core.evidence import TokenChoice
from pytest_moegpu.core.flags import Flag
from pytest_moegpu.core.golden import ScoreMethod, TokenScore
from pytest_moegpu.core.model import LaunchSpec, ModelFormat, Settings
from pytest_moegpu.errors import UserError

__all__ = ["LAST_PORT", "Recipe", "count", "lines", "messages", "number", "refuse", "text", "token_choice"]

LAST_PORT = 65_535
# The tail of a crash repeats itself; the first cause is what a person needs.
_MOST_LINES = 10
_MOST_DETAIL = 200
_ROLES = ("user", "assistant")
_SERIES = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{.*\})? (\S+)", re.MULTILINE)
_TOO_LONG = re.compile(
    r"context length|maximum allowed length|context size|maximum context|context window|too long|"
    r"exceeds? the available context",
    re.IGNORECASE,
)


class Recipe:
    """Defaults of a backend: a CUDA engine with a chat API as OpenAI's, and no more than that."""

    install_hint = ""
    environment_prefixes: tuple[str, ...] = ("CUDA_", "NCCL_", "OMP_", "GOMP_")
    model_formats: tuple[ModelFormat, ...] = (ModelFormat.HF,)
    stream_format = StreamFormat.SSE
    ignores_eos = True
    continues_prefill = True
    gives_logprobs = True
    limits_context = True
    takes_key = True
    last_port = LAST_PORT
    stop_seconds = 10.0
    health_path = "/health"
    chat_path = "/v1/chat/completions"
    props_path: str | None = "/v1/models"
    metrics_path: str | None = None
    metric_prefix = ""
    """What stands before the names of its own metrics."""
    meanings: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    not_flags: ClassVar[Mapping[str, str]] = {}

    def spells_by_build(self, settings: Settings) -> bool:  # noqa: ARG002 - of the Protocol
        """All builds spell everything alike."""
        return False

    def setup(self, spec: LaunchSpec) -> tuple[SetupCommand, ...]:  # noqa: ARG002 - of the Protocol
        """Nothing to set up."""
        return ()

    def version_argv(self, program: Sequence[str]) -> tuple[str, ...]:
        """Command that prints version and build."""
        return (*program, "--version")

    def help_argv(self, program: Sequence[str]) -> tuple[str, ...]:
        """Command that prints all flags."""
        return (*program, "--help")

    def read_help(self, output: str) -> tuple[Flag, ...]:
        """Read a help text laid out as Python's argparse or llama.cpp write it."""
        return read_flags(output)

    def devices(self, spec: LaunchSpec) -> dict[str, str]:
        """Return the variables that show the engine the devices of this run and no others."""
        if not spec.devices:
            return {}
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(spec.devices)}

    def read_health(self, status: int, body: str) -> Health:
        """200 is ready, 503 loading; anything else is neither."""
        if status == 200:
            return Health(ready=True)
        return Health(ready=False, loading=status == 503, detail=f"HTTP {status} {body[:_MOST_DETAIL]}".strip())

    def read_props(self, body: Any) -> ServedModel:
        """Read the first model of `/v1/models`; `max_model_len` is vLLM's and SGLang's."""
        models = body.get("data") if isinstance(body, dict) else None
        first = models[0] if isinstance(models, list) and models and isinstance(models[0], dict) else {}
        return ServedModel(
            name=text(first.get("id")), path=text(first.get("root")), context=count(first.get("max_model_len"))
        )

    def read_metrics(self, output: str) -> dict[str, float]:
        """Read the engine's own Prometheus metrics without their prefix; of one name the labels are added up.

        Buckets and creation times of histograms are left out, their sums and counts are not.
        """
        found: dict[str, float] = {}
        for name, value in _SERIES.findall(output):
            own = name.removeprefix(self.metric_prefix)
            if not self.metric_prefix or own == name or own.endswith(("_bucket", "_created")):
                continue
            try:
                number = float(value)
            except ValueError:
                continue
            if math.isfinite(number):
                found[own] = found.get(own, 0.0) + number
        return found

    def read_load(self, counters: Mapping[str, float]) -> Load:  # noqa: ARG002 - of the Protocol
        """No counter is known."""
        return Load()

    def request(self, spec: LaunchSpec, chat: ChatRequest) -> dict[str, Any]:
        """Write a greedy chat request. A prefilled answer is a last message of the assistant."""
        body: dict[str, Any] = {
            "model": spec.model_name,
            "messages": messages(chat),
            "max_tokens": chat.max_tokens,
            "temperature": 0,
            "seed": chat.seed,
            "stream": chat.stream,
            "chat_template_kwargs": {"enable_thinking": chat.thinking},
        }
        if chat.stream:
            body["stream_options"] = {"include_usage": True}
        if chat.ignore_eos:
            body["ignore_eos"] = True
        if chat.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": chat.top_logprobs}
        return body

    def read_event(self, data: str) -> Delta:
        """Read one chunk: choices, usage, timings, or an error object under HTTP 200.

        Raises:
            ValueError: It is none of these.
        """
        chunk = json.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError("not a JSON object")  # noqa: TRY004 - unreadable data, as text that is not JSON
        if (error := chunk.get("error")) is not None:
            return Delta(error=str(error.get("message", error)) if isinstance(error, dict) else str(error))
        try:
            choice = (chunk.get("choices") or [{}])[0]
            delta = choice.get("delta") or {}
            return Delta(
                text=delta.get("content") or "",
                reasoning=delta.get("reasoning_content") or delta.get("reasoning") or "",
                finish_reason=choice.get("finish_reason"),
                usage=_usage(chunk),
                choices=_choices(choice),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a chunk of a known form: {error}") from error

    @property
    def score_method(self) -> ScoreMethod | None:
        """The model's own answers, where it gives log-probabilities."""
        return ScoreMethod.GREEDY if self.gives_logprobs else None

    def tokenize(self, spec: LaunchSpec, text: str) -> Post:
        """Not asked of an engine that scores no given text."""
        raise NotImplementedError

    def read_tokens(self, body: Any) -> tuple[int, ...]:
        """Read `tokens`, the name in llama.cpp, vLLM and SGLang alike."""
        ids = body.get("tokens") if isinstance(body, dict) else None
        if not isinstance(ids, list) or not ids or any(count(each) is None for each in ids):
            raise ValueError("an answer without token ids")
        return tuple(ids)

    def score(self, spec: LaunchSpec, ids: Sequence[int], first: int, top: int, *, fresh: bool) -> Post:
        """Not asked of an engine that scores no given text."""
        raise NotImplementedError

    def read_score(self, body: Any, ids: Sequence[int], first: int) -> tuple[TokenScore, ...]:
        """Not asked of an engine that scores no given text."""
        raise NotImplementedError

    def read_answer(self, data: str) -> Delta:
        """Read an answer that was not streamed: like an event, but for the name of what the model wrote.

        Raises:
            ValueError: It is no answer of this API.
        """
        answer = json.loads(data)
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if isinstance(choices, list):
            whole = [c | {"delta": c.get("message")} if isinstance(c, dict) else c for c in choices]
            data = json.dumps(answer | {"choices": whole})
        return self.read_event(data)

    def is_too_long(self, status: int, body: str) -> bool:
        """Whether a refusal speaks of the length of the context."""
        return status in (400, 413, 422) and _TOO_LONG.search(body) is not None


def messages(chat: ChatRequest) -> list[dict[str, str]]:
    """Write the turns of a conversation: those before it, the question, and the beginning of its answer."""
    turns = [(role, said) for turn in chat.history for role, said in zip(_ROLES, turn, strict=True)]
    turns.append(("user", chat.prompt))
    if chat.prefill:
        turns.append(("assistant", chat.prefill))
    return [{"role": role, "content": said} for role, said in turns]


def _usage(chunk: dict[str, Any]) -> Usage | None:
    usage = chunk.get("usage")
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    timings = chunk.get("timings") or {}
    return Usage(
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=details.get("cached_tokens"),
        output_tokens=usage.get("completion_tokens"),
        timings={n: float(v) for n, v in timings.items() if isinstance(v, int | float) and math.isfinite(v)},
    )


def _choices(choice: dict[str, Any]) -> tuple[TokenChoice, ...]:
    """Read what the model chose from, where log-probabilities were asked for. A missing number is NaN."""
    given = (choice.get("logprobs") or {}).get("content") or []
    return tuple(token_choice(entry) for entry in given)


def token_choice(entry: Mapping[str, Any]) -> TokenChoice:
    """Read the log-probability of one token and of the likeliest, in the form that OpenAI's and Ollama's API have."""
    return TokenChoice(
        token=str(entry.get("token", "")),
        logprob=number(entry.get("logprob")),
        top=tuple((str(t.get("token", "")), number(t.get("logprob"))) for t in entry.get("top_logprobs") or ()),
    )


def number(value: Any) -> float:
    """Return a number as it is, anything else as NaN."""
    return float(value) if isinstance(value, int | float) else math.nan


_CATALOG_NAMES = {"host_weights_bytes": "host_weights"}


def refuse(engine: str, settings: Settings, unable: Mapping[str, str]) -> None:
    """Make sure that nothing is asked of an engine that it cannot do.

    Args:
        engine: Name of the backend.
        settings: What is asked for.
        unable: Fields of `Settings` that must keep their default, each with why, or what does the same.

    Raises:
        UserError: One of them was set.
    """
    for field in fields(settings):
        if field.name in unable and getattr(settings, field.name) != field.default:
            raise UserError(f"settings.{_CATALOG_NAMES.get(field.name, field.name)}: {engine}: {unable[field.name]}")


def text(value: Any) -> str | None:
    """Return a text as it is, anything else as None."""
    return value if isinstance(value, str) else None


def count(value: Any) -> int | None:
    """Return a whole number as it is, anything else as None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def lines(pattern: re.Pattern[str], output: str, drop: re.Pattern[str] | None = None) -> tuple[str, ...]:
    """Return the first ten different lines of a log that match, without what `drop` matches at their beginning."""
    found = (line for line in output.splitlines() if pattern.search(line))
    clean = ((drop.sub("", line) if drop else line).strip() for line in found)
    return tuple(dict.fromkeys(clean))[:_MOST_LINES]
