"""What a backend is: a recipe for one server program. It writes command lines and reads answers, no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pytest_moegpu.core.evidence import LogFacts
from pytest_moegpu.core.model import LaunchSpec

__all__ = ["Backend", "ChatRequest", "Delta", "EngineVersion", "Health", "ServedModel", "Usage"]


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """One chat turn by meaning. `prefill` is a start of the answer that the model must continue."""

    prompt: str
    max_tokens: int
    prefill: str = ""
    ignore_eos: bool = False
    cache_prompt: bool = True
    thinking: bool = False
    top_logprobs: int = 0
    seed: int = 1


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


@dataclass(frozen=True, kw_only=True)
class EngineVersion:
    """Version, build and toolkit of a server program, as far as it tells."""

    version: str | None = None
    build: str | None = None
    toolkit: str | None = None


@dataclass(frozen=True, kw_only=True)
class Health:
    """What a health answer means: `ready`, still `loading`, or neither (then `detail` says what)."""

    ready: bool
    loading: bool = False
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """Which model a server says it serves, and with how much context per slot."""

    name: str | None = None
    path: str | None = None
    context: int | None = None
    slots: int | None = None


class Backend(Protocol):
    """A recipe for one server program.

    To add one: a file with a class of these members beside this one, and a row in the table of `backends/__init__.py`.
    """

    @property
    def name(self) -> str:
        """Name in options, files and reports."""

    @property
    def program(self) -> str:
        """Executable looked for on PATH."""

    @property
    def program_variable(self) -> str:
        """Environment variable that may name the executable."""

    @property
    def environment_prefixes(self) -> tuple[str, ...]:
        """Beginnings of the names of variables that change what the engine does when the caller has them set."""

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

    def argv(self, spec: LaunchSpec) -> tuple[str, ...]:
        """Write the command line.

        Raises:
            UserError: A setting this backend cannot express.
        """

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        """Variables to add to the server's environment."""

    def version_argv(self, program: Sequence[str]) -> tuple[str, ...]:
        """Command that prints version and build."""

    def read_version(self, output: str) -> EngineVersion:
        """Read what `version_argv` printed."""

    def read_health(self, status: int, body: str) -> Health:
        """Judge a health answer."""

    def read_props(self, body: Any) -> ServedModel:
        """Read the decoded answer of `props_path`."""

    def read_metrics(self, text: str) -> dict[str, float]:
        """Read Prometheus text as name → value, without the engine's prefix."""

    def read_log(self, text: str) -> LogFacts:
        """Read offloaded layers, buffer sizes, and lines that name a failure."""

    def request(self, spec: LaunchSpec, chat: ChatRequest) -> dict[str, Any]:
        """Write the JSON body of a streamed chat request with usage."""

    def read_event(self, data: str) -> Delta:
        """Read the data of one server-sent event."""
