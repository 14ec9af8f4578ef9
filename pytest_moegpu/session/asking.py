"""Asks a server and reads its refusals: a prompt that is too long, log-probabilities that it does not give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_moegpu.backends.base import ChatRequest
from pytest_moegpu.core.evidence import RequestKind, RequestRecord
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.session.conversation import Conversation

__all__ = ["Asker"]

# The token chosen and the likeliest other one: a margin needs no more.
_TOP_LOGPROBS = 2
_HTTP_OK, _BAD_REQUEST = 200, 400
_REFUSED = (_BAD_REQUEST, 422, 501)


class Asker:
    """Sends the requests of one start. Errors are in the records, never raised."""

    def __init__(self, server: Conversation) -> None:
        self.server = server
        self._top_logprobs = _TOP_LOGPROBS if server.backend.gives_logprobs else 0

    def chat(self, request: ChatRequest, kind: RequestKind, name: str, **more: object) -> RequestRecord:
        """Send a request as it is."""
        return self._read(self.server.chat(request, kind, name, **more))  # type: ignore[arg-type]

    def at_once(self, requests: Mapping[str, ChatRequest], kind: RequestKind) -> tuple[RequestRecord, ...]:
        """Send several requests at the same time, with log-probabilities where these are given."""
        asked = {name: replace(request, top_logprobs=self._top_logprobs) for name, request in requests.items()}
        return tuple(map(self._read, self.server.chat_at_once(asked, kind)))

    def ask(self, request: ChatRequest, kind: RequestKind, name: str, expect: Sequence[str] = ()) -> RequestRecord:
        """Send a request with log-probabilities; without them from the first refusal on that goes away so."""
        asked = replace(request, top_logprobs=self._top_logprobs)
        record = self.chat(asked, kind, name, expect=expect)
        if self._top_logprobs and record.error is not None and record.status in _REFUSED:
            plain = self.chat(replace(request, top_logprobs=0), kind, name, expect=expect)
            if plain.error is None:
                self.server.notes.append(f"log-probabilities are refused, near-ties cannot be seen: {record.error}")
                self._top_logprobs, record = 0, plain
        return record

    def known(self, answer: KnownAnswer, request: ChatRequest, kind: RequestKind, name: str) -> RequestRecord:
        """Ask a known answer; the record has its rule and its margin."""
        record = self.ask(request, kind, name, answer.expect)
        return replace(record, margin=answer.margin, rule=answer.rule)

    def _read(self, record: RequestRecord) -> RequestRecord:
        """Note whether a refusal says that the prompt is longer than the context."""
        if record.error is None or record.status is None:
            return record
        # In a stream the refusal may be an error object under HTTP 200.
        status = _BAD_REQUEST if record.status == _HTTP_OK and record.first_token is None else record.status
        return replace(record, too_long=self.server.backend.is_too_long(status, record.error))
