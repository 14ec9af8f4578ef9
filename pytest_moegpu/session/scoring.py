"""Scores the fixed texts on a ready server: what the model gives to each of their tokens."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pytest_moegpu.backends.base import ChatRequest, Post, StreamFormat
from pytest_moegpu.core.evidence import TokenChoice
from pytest_moegpu.core.golden import TOP, Golden, ScoreMethod, TextScore, TokenScore
from pytest_moegpu.core.goldentexts import GREEDY_TOKENS, QUESTIONS, TEXTS, TEXTS_VERSION, split
from pytest_moegpu.core.ndjson import parse_lines
from pytest_moegpu.core.sse import parse_events
from pytest_moegpu.errors import ProgramError
from pytest_moegpu.host.control import Poster
from pytest_moegpu.session.conversation import Conversation

__all__ = ["Scoring"]

_HTTP_OK = 200
_DONE = "[DONE]"
_PARSERS = {StreamFormat.SSE: parse_events, StreamFormat.NDJSON: parse_lines}
# A place where the known token is not among so many costs a bound instead of a number.
_LISTED_IN_STEPS = 200
_MOST_DETAIL = 200
# A server that cannot write a NaN as JSON says so in place of an answer.
_NOT_A_NUMBER = re.compile(r"Out of range float values|not JSON compliant|\bnan\b", re.IGNORECASE)


class _NotANumberError(ValueError):
    """The server said that a log-probability is none."""


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Scores the texts of one server; of `golden` the token ids are taken, so that both are of the same tokens.

    `at_once` texts are scored at the same time, each over a connection of its own.
    """

    server: Conversation
    golden: Golden | None = None
    at_once: int = 1
    say: Callable[[str], None] = lambda _text: None
    going: Callable[[], bool] = lambda: True

    def run(self) -> tuple[TextScore, ...]:
        """Score all texts. What goes wrong is in the record of its text; nothing is recorded of a server that is gone.

        An engine without log-probabilities gives nothing.
        """
        method = self.server.backend.score_method
        if method is None:
            return ()
        names = tuple(QUESTIONS if method is ScoreMethod.GREEDY else self._ids() or TEXTS)
        with ThreadPoolExecutor(self.at_once, "moegpu-scores") as pool:
            found = pool.map(lambda name: self._one(method, name), names) if self.at_once > 1 else None
            scores = found if found is not None else (self._one(method, name) for name in names)
            return tuple(score for score in scores if score is not None)

    def _one(self, method: ScoreMethod, name: str) -> TextScore | None:
        if not (self.server.alive and self.going()):
            return None
        self.say(f"scoring the text {name!r}")
        spec = self.server.spec
        try:
            with Poster(spec.host, spec.port, spec.api_key, self.server.limits.request_seconds) as poster:
                if method is ScoreMethod.GREEDY:
                    return self._greedy(poster, name)
                return self._forced(poster, name, method)
        except (ProgramError, ValueError, KeyError) as error:
            return TextScore(text=name, method=method, error=f"{error}"[:_MOST_DETAIL])

    def _ids(self) -> dict[str, tuple[int, ...]]:
        """Return the ids that the golden has for the texts of today; none when it has them by other words."""
        if self.golden is None or self.golden.texts_version != TEXTS_VERSION:
            return {}
        return {score.text: score.ids for score in self.golden.texts if score.ids}

    def _forced(self, poster: Poster, name: str, method: ScoreMethod) -> TextScore:
        backend, spec = self.server.backend, self.server.spec
        known = self._ids().get(name)
        ids = known or backend.read_tokens(self._post(poster, backend.tokenize(spec, TEXTS[name])))
        first, end = split(len(ids))
        if known is not None:
            # The golden keeps what it scored, and no more of the text.
            first, end = self._first(name), len(ids)
        ids = ids[:end]
        # By places: each of the steps is a text that ends there.
        ends = range(first + 1, end + 1) if method is ScoreMethod.STEPS else (end,)
        found: list[TokenScore] = []
        for last in ends:
            begin = last - 1 if method is ScoreMethod.STEPS else first
            top = _LISTED_IN_STEPS if method is ScoreMethod.STEPS else TOP
            part = ids[:last]
            asked = backend.score(spec, part, begin, top, fresh=last == ends[0])
            try:
                found += backend.read_score(self._post(poster, asked), part, begin)
            except _NotANumberError:
                found += (TokenScore(token=token, logprob=math.nan) for token in part[begin:])
        return TextScore.of(text=name, method=method, tokens=found, context=tuple(ids[:first]))

    def _first(self, name: str) -> int:
        assert self.golden is not None
        return next(len(score.context) for score in self.golden.texts if score.text == name)

    def _greedy(self, poster: Poster, name: str) -> TextScore:
        """Score the model's own answer, as far as log-probabilities of it are streamed."""
        backend, spec = self.server.backend, self.server.spec
        request = ChatRequest(prompt=QUESTIONS[name], max_tokens=GREEDY_TOKENS, top_logprobs=TOP, cache_prompt=False)
        status, text = poster.post(backend.chat_path, backend.request(spec, request))
        if status != _HTTP_OK:
            raise ProgramError(_refusal(status, text))
        events = _PARSERS[backend.stream_format](((0.0, text.encode("utf-8")),))
        deltas = [backend.read_event(event.data) for event in events if event.data != _DONE]
        if error := next((delta.error for delta in deltas if delta.error), None):
            raise ProgramError(error)
        choices = [choice for delta in deltas for choice in delta.choices]
        if not choices:
            raise ProgramError("the answer came without log-probabilities")
        return TextScore.of(text=name, method=ScoreMethod.GREEDY, tokens=map(_chosen, choices))

    def _post(self, poster: Poster, post: Post) -> Mapping[str, Any]:
        status, text = poster.post(post.path, post.body)
        if status != _HTTP_OK:
            if _NOT_A_NUMBER.search(text):
                raise _NotANumberError(text[:_MOST_DETAIL])
            raise ProgramError(f"{post.path}: {_refusal(status, text)}")
        body: Mapping[str, Any] = json.loads(text)
        return body


def _refusal(status: int, text: str) -> str:
    return f"HTTP {status} {text[:_MOST_DETAIL]}".strip()


def _chosen(choice: TokenChoice) -> TokenScore:
    return TokenScore(token=choice.token, logprob=choice.logprob, top=choice.top)
