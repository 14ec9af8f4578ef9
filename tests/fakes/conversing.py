"""A server in the test's own process, healthy or with one fault that shows under one condition only."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pytest_moegpu.backends.base import ChatRequest
from pytest_moegpu.backends.llamacpp import LlamaCpp
from pytest_moegpu.core.evidence import Margin, RequestKind, RequestRecord
from pytest_moegpu.core.model import LaunchSpec, Limits, Settings
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.session.conversation import Conversation

__all__ = ["KNOWN", "Conversing"]

KNOWN = tuple(
    KnownAnswer(prompt=f"What comes after {number}?", expect=(f"It is {number + 1}.",), margin=3.0, max_tokens=8)
    for number in range(10, 16)
)
_WRONG = "I cannot tell."
_SOUP = "_get_set_ValueOf_handler_objIdx"
_ANSWERS = {known.prompt: known.expect[0] for known in KNOWN}
_RECALL = re.compile(r"The number of the (\w+) train is (\d+)\.")
_CODE = re.compile(r"code of the locker is (\d+)")


class Conversing(Conversation):
    """Counts a word as a token. `faults` are what a test wants broken:

    fades (after so many numbers), skips (one number at so many), wrong_at (prompt tokens), wrong_in_second_turn,
    forgets_first_turn, wrong_from_cache, cross_talk, wrong_at_once, broken_after (requests), broken_after_idle
    (seconds), wrong_unstreamed, one_wrong_in (requests), think_tag, reasons_only, always_thinks, refuses_unstreamed,
    all_near_ties, dies_after (requests), stops_counting (after so many).
    """

    def __init__(self, settings: Settings, spec: LaunchSpec, **faults: Any) -> None:
        super().__init__(LlamaCpp(), replace(spec, settings=settings), Limits())
        self.faults = faults
        self.asked: list[ChatRequest] = []
        self._answered = 0
        self._last = time.monotonic()
        self._seen: set[str] = set()

    @property
    def alive(self) -> bool:
        return self._answered <= int(self.faults.get("dies_after", 10**9))

    def chat(self, request: ChatRequest, kind: RequestKind, name: str, **more: Any) -> RequestRecord:
        self.asked.append(request)
        self._answered += 1
        tokens = len(" ".join((*(t for turn in request.history for t in turn), request.prompt)).split())
        if "refuses_unstreamed" in self.faults and not request.stream:
            return RequestRecord(kind=kind, name=name, sent=0.0, status=400, error="HTTP 400: stream must be true")
        text = self._text(request, tokens)
        reasoning = "Let me see." if "always_thinks" in self.faults else ""
        if "think_tag" in self.faults:
            text = f"Let me see.</think>{text}"
        if "reasons_only" in self.faults and request.prompt in _ANSWERS:
            text, reasoning = "", text
        gap = 0.1 if _WRONG in text and "all_near_ties" in self.faults else 3.0
        self._last = time.monotonic()
        count = len(text.split())
        return RequestRecord(
            kind=kind,
            name=name,
            sent=0.0,
            status=200,
            first_token=0.1,
            prompt_tokens=tokens,
            cached_tokens=tokens if request.prompt in self._seen and request.cache_prompt else 0,
            output_tokens=count,
            prompt=request.prompt,
            text=text,
            reasoning=reasoning,
            finish_reason="length" if request.ignore_eos else "stop",
            expect=tuple(more.get("expect", ())),
            tightest=Margin(index=0, nat=gap, logprob=-0.1, token="a", other="b"),
        )

    def chat_at_once(self, requests: Mapping[str, ChatRequest], kind: RequestKind) -> tuple[RequestRecord, ...]:
        records = [self.chat(request, kind, name) for name, request in requests.items()]
        if "cross_talk" in self.faults:
            records[0] = replace(records[0], text=records[1].text)
        if "wrong_at_once" in self.faults:
            records[0] = replace(records[0], text=_WRONG)
        return tuple(records)

    def _text(self, request: ChatRequest, tokens: int) -> str:
        if request.prompt.startswith("Count from"):
            return self._count(request.max_tokens)
        repeated = request.prompt in self._seen and request.cache_prompt
        self._seen.add(request.prompt)
        return _WRONG if self._is_wrong(request, tokens, repeated=repeated) else self._right(request)

    def _is_wrong(self, request: ChatRequest, tokens: int, *, repeated: bool) -> bool:
        faults = self.faults
        every = faults.get("one_wrong_in")
        return (
            tokens == faults.get("wrong_at")
            or bool(request.history and "wrong_in_second_turn" in faults)
            or bool(repeated and "wrong_from_cache" in faults and request.prefill)
            or self._answered > faults.get("broken_after", 10**9)
            or time.monotonic() - self._last > faults.get("broken_after_idle", 10**9)
            or bool(not request.stream and "wrong_unstreamed" in faults)
            or (every is not None and self._answered > 20 and self._answered % every == 0)
        )

    def _right(self, request: ChatRequest) -> str:
        if (found := _RECALL.search(request.prompt)) is not None:
            return f"{found[2]}."
        told = [turn for turn in request.history if _CODE.search(turn[0])]
        if "What is the code" in request.prompt:
            found = _CODE.search(told[0][0]) if told and "forgets_first_turn" not in self.faults else None
            return f"It is {found[1]}." if found else "I do not know."
        return _ANSWERS.get(request.prompt, "Understood.")

    def _count(self, most: int) -> str:
        numbers = [f"{number}," for number in range(11, 11 + most)]
        if (at := self.faults.get("fades")) is not None:
            numbers[at:] = [_SOUP * 3] * (most - at)
        if (at := self.faults.get("skips")) is not None:
            del numbers[at]
        if (at := self.faults.get("stops_counting")) is not None:
            numbers[at:] = ["and", "so", "on", "until", "we", "come", "to", "the", "end", "of", "the", "list."]
        return " ".join(numbers)
