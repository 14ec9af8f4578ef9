"""What a backend is: a recipe for one server program. It writes command lines and reads answers, no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from pytest_moegpu.core.evidence import LogFacts, TokenChoice
from pytest_moegpu.core.flags import Flag
from pytest_moegpu.core.golden import ScoreMethod, TokenScore
from pytest_moegpu.core.model import LaunchSpec, ModelFormat, Settings

__all__ = [
    "Backend",
    "ChatRequest",
    "Delta",
    "EngineVersion",
    "Health",
    "Load",
    "Post",
    "ServedModel",
    "SetupCommand",
    "StreamFormat",
    "Usage",
]


class StreamFormat(StrEnum):
    """How a streamed answer is cut into events."""

    SSE = "sse"
    """Server-sent events."""
    NDJSON = "ndjson"
    """One JSON object a line."""


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """One chat turn by meaning. `prefill` is a start of the answer that the model must continue.

    `history` are the turns before it, each a question and its answer. Without `stream` the answer comes as one object.
    """

    prompt: str
    max_tokens: int
    prefill: str = ""
    ignore_eos: bool = False
    cache_prompt: bool = True
    thinking: bool = False
    top_logprobs: int = 0
    seed: int = 1
    history: tuple[tuple[str, str], ...] = ()
    stream: bool = True


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Token counts and timings as the engine reports them; `timings` keeps the engine's own names and units."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    timings: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Delta:
    """What one stream event carries. Empty text with neither usage nor error is a role delta."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None
    choices: tuple[TokenChoice, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EngineVersion:
    """Version, build and toolkit of a server program, as far as it tells."""

    version: str | None = None
    build: str | None = None
    toolkit: str | None = None


@dataclass(frozen=True, kw_only=True)
class Health:
    """What a health answer means: `ready`, still `loading`, or neither (then `detail` says what).

    `dead` when it says that it will never be ready: the engine behind a front that lives on has ended.
    """

    ready: bool
    loading: bool = False
    dead: bool = False
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """Which model a server says it serves, with how much context per slot, and how many tokens its KV cache holds.

    `gpu_share` is the share of one of the model, by its bytes, that the server says is on a GPU.
    """

    name: str | None = None
    path: str | None = None
    context: int | None = None
    slots: int | None = None
    kv_tokens: int | None = None
    gpu_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class Post:
    """A request that is answered as a whole: path and JSON body."""

    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a server's counters say about its KV cache and queue; None where it has no such counter.

    `kv_use` is a share of one; `preemptions` counts requests whose cache was taken away again since the start.
    """

    kv_use: float | None = None
    preemptions: float | None = None
    running: float | None = None
    waiting: float | None = None


@dataclass(frozen=True, kw_only=True)
class SetupCommand:
    """A command to run once the server answers, before it is ready: making a model known to it, for one.

    `files` are written into the start's own folder before, by name; the command runs there.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


class Backend(Protocol):
    """A recipe for one server program.

    To add one: a file with a class of these members beside this one, and a row in the table of `backends/__init__.py`.
    `backends.recipe.Recipe` has what most servers share.
    """

    @property
    def name(self) -> str:
        """Name in options, files and reports."""

    @property
    def program(self) -> str:
        """Executable looked for on PATH; empty for a server that can only be attached to."""

    @property
    def program_variable(self) -> str:
        """Environment variable that may name the executable, with arguments before those of `argv`."""

    @property
    def install_hint(self) -> str:
        """How to install the program, in a few words for an error message."""

    @property
    def environment_prefixes(self) -> tuple[str, ...]:
        """Beginnings of the names of variables that change what the engine does when the caller has them set."""

    @property
    def model_formats(self) -> tuple[ModelFormat, ...]:
        """What it loads; anything else is refused before a start."""

    @property
    def stream_format(self) -> StreamFormat:
        """How its streamed answers are cut into events."""

    @property
    def ignores_eos(self) -> bool:
        """Whether a request can ask for an exact number of tokens; else an answer may end by itself before."""

    @property
    def continues_prefill(self) -> bool:
        """Whether `ChatRequest.prefill` is continued; else it is said in the prompt how the answer should begin."""

    @property
    def gives_logprobs(self) -> bool:
        """Whether it gives log-probabilities in a stream when asked; else it is never asked."""

    @property
    def score_method(self) -> ScoreMethod | None:
        """How it scores a fixed text; None where it gives no log-probabilities at all."""

    @property
    def limits_context(self) -> bool:
        """Whether it has a limit to the context; else no prompt is too long for it."""

    @property
    def takes_key(self) -> bool:
        """Whether the API key can be given to it without standing on its command line."""

    @property
    def last_port(self) -> int:
        """Highest port it may be given: one that takes more ports above its own has a lower one."""

    @property
    def stop_seconds(self) -> float:
        """Seconds it may take to end by itself after TERM, before it is killed."""

    @property
    def health_path(self) -> str:
        """Path that answers when the server lives."""

    @property
    def chat_path(self) -> str:
        """Path of the chat endpoint."""

    @property
    def props_path(self) -> str | None:
        """Path that describes the model served, if there is one."""

    @property
    def metrics_path(self) -> str | None:
        """Path of Prometheus metrics, if there is one."""

    @property
    def meanings(self) -> Mapping[str, tuple[str, ...]]:
        """Spellings of its flags by meaning (`core.flags.MEANINGS`); the first is the one to write."""

    @property
    def not_flags(self) -> Mapping[str, str]:
        """Flags that documents give for it and that do not exist, each with what to write instead."""

    def spells_by_build(self, settings: Settings) -> bool:
        """Whether these settings are spelled in one way by some builds and otherwise by others (`LaunchSpec.flags`)."""

    def argv(self, spec: LaunchSpec) -> tuple[str, ...]:
        """Write the command line.

        Raises:
            UserError: A setting that this backend, or the GPU with it, cannot express.
        """

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        """Variables to add to the server's environment."""

    def setup(self, spec: LaunchSpec) -> tuple[SetupCommand, ...]:
        """Commands to run once it answers; most need none."""

    def version_argv(self, program: Sequence[str]) -> tuple[str, ...]:
        """Command that prints version and build."""

    def read_version(self, output: str) -> EngineVersion:
        """Read what `version_argv` printed."""

    def help_argv(self, program: Sequence[str]) -> tuple[str, ...]:
        """Command that prints all flags."""

    def read_help(self, output: str) -> tuple[Flag, ...]:
        """Read what `help_argv` printed."""

    def read_health(self, status: int, body: str) -> Health:
        """Judge a health answer."""

    def read_props(self, body: Any) -> ServedModel:
        """Read the decoded answer of `props_path`."""

    def read_metrics(self, text: str) -> dict[str, float]:
        """Read Prometheus text as name → value, without the engine's prefix."""

    def read_load(self, counters: Mapping[str, float]) -> Load:
        """Find KV cache use, preemptions and queue among what `read_metrics` gave."""

    def read_log(self, text: str) -> LogFacts:
        """Read offloaded layers, buffer sizes, KV cache capacity, and lines that name a failure."""

    def request(self, spec: LaunchSpec, chat: ChatRequest) -> dict[str, Any]:
        """Write the JSON body of a chat request; a streamed one with usage."""

    def read_event(self, data: str) -> Delta:
        """Read the data of one event."""

    def read_answer(self, data: str) -> Delta:
        """Read an answer that was not streamed."""

    def tokenize(self, spec: LaunchSpec, text: str) -> Post:
        """Ask for the token ids of a text, with what the model wants before it. Only where it scores given texts."""

    def read_tokens(self, body: Any) -> tuple[int, ...]:
        """Read the decoded answer to `tokenize`.

        Raises:
            ValueError: It holds no ids.
        """

    def score(self, spec: LaunchSpec, ids: Sequence[int], first: int, top: int, *, fresh: bool) -> Post:
        """Ask for the log-probabilities of the tokens from `first` on, and of the `top` likeliest at each place.

        An engine of `ScoreMethod.STEPS` is asked for the last token only. With `fresh` nothing may come from a cache.
        """

    def read_score(self, body: Any, ids: Sequence[int], first: int) -> tuple[TokenScore, ...]:
        """Read the decoded answer to `score`. A number that was left out, or is none, is NaN.

        Raises:
            ValueError: It is of another form, or of other tokens.
        """

    def is_too_long(self, status: int, body: str) -> bool:
        """Whether an answer refuses a prompt because it is longer than the context."""
