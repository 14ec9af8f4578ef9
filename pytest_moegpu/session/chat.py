"""A small client for the tests people write themselves."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_moegpu.backends.base import ChatRequest
from pytest_moegpu.core.evidence import RequestKind, RequestRecord
from pytest_moegpu.core.timing import decode_rate, ttft
from pytest_moegpu.errors import MoegpuError
from pytest_moegpu.session.serving import AnyServer

__all__ = ["Answer", "ChatClient"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer: the text, and how it came. `ttft` in s, `decode` in tok/s; None where it could not be measured."""

    text: str
    reasoning: str
    finish_reason: str | None
    ttft: float | None
    decode: float | None
    record: RequestRecord


class ChatClient:
    """Sends one greedy chat request at a time to a live server."""

    def __init__(self, server: AnyServer) -> None:
        self.server = server

    def __call__(self, prompt: str, *, max_tokens: int = 128, ignore_eos: bool = False) -> Answer:
        """Ask and wait for the whole answer.

        Raises:
            MoegpuError: The server is not there any more, and why; or the request failed, with the server's words.
        """
        if self.server.stopped:
            raise MoegpuError(
                "the server of this moegpu_client is no longer running: a measurement or another scenario needed the "
                "device, and one server lives at a time. Use moegpu_client before moegpu_verify, or in another test"
            )
        if not self.server.alive:
            raise MoegpuError(f"the server is no longer running: {self.server.death()} (log: {self.server.log_path})")
        request = ChatRequest(prompt=prompt, max_tokens=max_tokens, ignore_eos=ignore_eos)
        record = self.server.chat(request, RequestKind.ANSWER, "test")
        if record.error is not None:
            raise MoegpuError(f"the request failed: {record.error} (log: {self.server.log_path})")
        return Answer(
            text=record.text,
            reasoning=record.reasoning,
            finish_reason=record.finish_reason,
            ttft=ttft(record),
            decode=decode_rate(record),
            record=record,
        )
