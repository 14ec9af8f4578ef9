"""The conversation with a server that runs: chat, description, counters, health. How it came to run is another's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_moegpu.backends.base import Backend, ChatRequest, ServedModel, StreamFormat
from pytest_moegpu.core.evidence import RequestKind, RequestRecord, StreamEvent
from pytest_moegpu.core.model import LaunchSpec, Limits
from pytest_moegpu.core.ndjson import parse_lines
from pytest_moegpu.core.sse import parse_events
from pytest_moegpu.core.timing import record
from pytest_moegpu.host.client import StreamClient, StreamRequest, StreamResult
from pytest_moegpu.host.control import Answer, Control, parsed

__all__ = ["Conversation", "generated"]

_WATCH_SECONDS = 0.02
_PARSERS = {StreamFormat.SSE: parse_events, StreamFormat.NDJSON: parse_lines}
_BEGIN_WITH = "Begin your answer with these words and go on from there:"


class Conversation:
    """Talks to the server of a launch. `served` is what it said about its model when it was asked last."""

    wrong_model = "ready for another model: "
    """What stands before the names of two models that are not the same."""

    def __init__(self, backend: Backend, spec: LaunchSpec, limits: Limits) -> None:
        self.backend = backend
        self.spec = spec
        self.limits = limits
        self.served = ServedModel()
        self.notes: list[str] = []
        self._control = Control(spec.host, spec.port, spec.api_key)
        self._client = StreamClient(spec.host, spec.port, spec.api_key)

    @property
    def url(self) -> str:
        """Base address, without a path."""
        return f"http://{self.spec.host}:{self.spec.port}"

    @property
    def alive(self) -> bool:
        """False once it is known that nobody will answer any more."""
        return True

    def settle(self) -> None:
        """Wait a moment after a broken request, for whoever can tell by then whether the server lives."""

    def ask_model(self) -> str:
        """Ask which model is served; return why it is the wrong one, or an empty text."""
        if self.backend.props_path is None:
            return ""
        body = parsed(self.get(self.backend.props_path))
        if body is None:
            self.notes.append(f"{self.backend.props_path} did not answer: the model served is not confirmed")
            return ""
        self.served = self.backend.read_props(self.own_part(body))
        if self.served.name in (None, *self.model_names):
            return ""
        return f"{self.wrong_model}serves {self.served.name!r}, wanted {self.spec.model_name!r}"

    @property
    def model_names(self) -> tuple[str, ...]:
        """What the server may call the model that is wanted."""
        return (self.spec.model_name,)

    def own_part(self, body: Any) -> Any:
        """Return what of a description is about the model that is wanted: all of it for a server with one model."""
        return body

    def get(self, path: str) -> Answer | None:
        """Send a GET; None when nobody answers, or as soon as the process is dead: its answer may hang for ever."""
        asked = self._control.ask(path)
        while not asked.wait(_WATCH_SECONDS):
            if not self.alive:
                return None
        return asked.answer()

    def chat(
        self,
        request: ChatRequest,
        kind: RequestKind,
        name: str,
        *,
        timeout: float | None = None,
        expect: Sequence[str] = (),
        fill: float | None = None,
        depth: float | None = None,
    ) -> RequestRecord:
        """Send one request and record it. Errors are in the record, never raised."""
        request = self._begun(request)
        (result,) = self._client.stream_many([self._posted(request, timeout)])
        return self._recorded(result, request, kind, name, expect=expect, fill=fill, depth=depth)

    def chat_at_once(self, requests: Mapping[str, ChatRequest], kind: RequestKind) -> tuple[RequestRecord, ...]:
        """Send several requests at the same time and record each under its name, as `chat` does."""
        begun = {name: self._begun(request) for name, request in requests.items()}
        results = self._client.stream_many([self._posted(request) for request in begun.values()])
        pairs = zip(begun.items(), results, strict=True)
        return tuple(self._recorded(result, request, kind, name) for (name, request), result in pairs)

    def _begun(self, request: ChatRequest) -> ChatRequest:
        """Say in the prompt how the answer should begin, where the engine cannot be given its beginning."""
        if not request.prefill or self.backend.continues_prefill:
            return request
        return replace(request, prompt=f"{request.prompt}\n{_BEGIN_WITH} {request.prefill}", prefill="")

    def _posted(self, request: ChatRequest, timeout: float | None = None) -> StreamRequest:
        return StreamRequest(
            path=self.backend.chat_path,
            body=self.backend.request(self.spec, request),
            timeout=timeout if timeout is not None else self.limits.request_seconds,
        )

    def _recorded(
        self,
        result: StreamResult,
        request: ChatRequest,
        kind: RequestKind,
        name: str,
        *,
        expect: Sequence[str] = (),
        fill: float | None = None,
        depth: float | None = None,
    ) -> RequestRecord:
        if result.error is not None:
            self.settle()
        backend = self.backend
        return record(
            kind=kind,
            name=name,
            sent=result.sent,
            status=result.status,
            events=_PARSERS[backend.stream_format](result.chunks) if request.stream else _as_one(result.chunks),
            read_event=backend.read_event if request.stream else backend.read_answer,
            finished=result.finished,
            error=result.error,
            body_text=result.body_text,
            prompt=request.prompt,
            expect=tuple(expect),
            wanted_output_tokens=request.max_tokens if request.ignore_eos and backend.ignores_eos else None,
            fill=fill,
            depth=depth,
            client_lag=result.client_lag,
        )

    def metrics(self) -> dict[str, float]:
        """Return the server's own counters; empty where it has none or does not answer."""
        if self.backend.metrics_path is None:
            return {}
        answer = self._control.get(self.backend.metrics_path)
        return self.backend.read_metrics(answer[1]) if answer is not None and answer[0] == 200 else {}

    def health_at_end(self) -> str:
        """Return an empty text when the server is still healthy, else what its health says now.

        An engine can die behind a front that lives on: vLLM's answers 503 from then on, and its process stays.
        """
        answer = self.get(self.backend.health_path)
        if answer is None:
            return "health does not answer"
        health = self.backend.read_health(*answer)
        return "" if health.ready else f"health says {'loading' if health.loading else health.detail}"


def generated(answer: RequestRecord) -> tuple[bool, str]:
    """Tell whether a request for one token was answered by one, and what is odd about it; "" where nothing is.

    A token need not have any text: the end of the answer has none, nor have those that open a channel or a thought,
    which the server takes out. Then its count has to tell.
    """
    if answer.error is not None:
        return False, answer.error
    if answer.first_token is not None:
        return True, ""
    if answer.finish_reason == "stop":
        # What that is worth says the check of the text.
        return True, "the first answer was empty: the model ended it at once"
    if answer.token_source == "usage" and answer.output_tokens:
        return True, "the first token has no text: it opens a channel or a thought, or is one of control"
    return False, "the answer held no token"


def _as_one(chunks: Sequence[tuple[float, bytes]]) -> Iterator[StreamEvent]:
    """Give an answer that came as one object as a single event, at the time of its last byte."""
    if chunks:
        yield StreamEvent(time=chunks[-1][0], data=b"".join(data for _, data in chunks).decode("utf-8", "replace"))
