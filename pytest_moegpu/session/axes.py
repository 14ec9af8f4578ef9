"""Asks the known answers of one start again under other conditions (`core.axes`)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, islice, pairwise

from pytest_moegpu.backends.base import ChatRequest
from pytest_moegpu.core.axes import Amounts, Axis, amounts, is_sure, planned
from pytest_moegpu.core.channels import answered
from pytest_moegpu.core.counting import COUNTING_PREFILL, COUNTING_PROMPT
from pytest_moegpu.core.evidence import RequestKind, RequestRecord
from pytest_moegpu.core.model import Scenario
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.core.prompts import recall
from pytest_moegpu.session.asking import Asker
from pytest_moegpu.session.progress import Progress

__all__ = ["AxesRun"]

_FEW = 3
_SEVERAL = 8
# What is asked again and again is short; the longest known answers would take most of the time.
_SHORT_ANSWER = 16
_SHORT_PROMPT = 200
_RECALL_TOKENS = 8
_NEAR_END = 0.9
_CACHED_FILL = 160
_CONCURRENT_FILL = 40
_CODE_PROMPT = "The code of the locker is {code}. Remember it."
_CODE_QUESTION = "What is the code of the locker?"
_CODE_TOKENS = 24
# Lengths no further apart share one prompt, and differ in words of padding.
_CLUSTER = 64
_TRIES = 3
_AIM_BELOW = 12
_MOST_PADDING = 80
_PADDING = ("time", "day", "water", "people", "house", "city", "world", "year", "hand", "place")
"""Words of one token each in the vocabularies of most models."""
_SLICE = 0.1

_Plain = tuple[KnownAnswer, RequestRecord]


@dataclass
class AxesRun:
    """Sends what the conditions need, in their order, and gives each record to `keep`.

    `plain` are the known answers with what the server answered to them plainly; those that were right and sure are
    asked again. `tokens_per_sentence` and `overhead` are of `core.prompts`, in tokens.
    """

    asker: Asker
    scenario: Scenario
    plain: tuple[_Plain, ...]
    tokens_per_sentence: float
    overhead: float
    keep: Callable[[RequestRecord], None]
    going: Callable[[], bool]
    progress: Progress

    def __post_init__(self) -> None:
        self._kind = self.asker.server.spec.device_kind
        self._amounts: Amounts = amounts(self.scenario, self._kind)
        self._seed = self.scenario.workload.seed
        self._sure = _sure(self.plain)

    def run(self) -> None:
        """Ask all conditions of the scenario; stops where the server is gone."""
        send: dict[Axis, Callable[[], None]] = {
            Axis.LONG_OUTPUT: self._long_output,
            Axis.PROMPT_LENGTHS: self._prompt_lengths,
            Axis.SECOND_TURN: self._second_turn,
            Axis.CACHED: self._cached,
            Axis.CONCURRENT: self._concurrent,
            Axis.AFTER_REQUESTS: self._after_requests,
            Axis.AFTER_IDLE: self._after_idle,
            Axis.NOT_STREAMED: self._not_streamed,
            Axis.THINKING: self._thinking,
        }
        for axis in planned(self.scenario, self._kind):
            if not self.going():
                return
            self.progress.live(f"condition {axis}")
            send[axis]()

    def _kept(self, axis: Axis, record: RequestRecord) -> RequestRecord:
        record = replace(record, axis=axis)
        self.keep(record)
        return record

    def _ask(self, axis: Axis, request: ChatRequest, name: str, *expect: str) -> RequestRecord:
        return self._kept(axis, self.asker.ask(request, RequestKind.AXIS, f"{axis}-{name}", expect))

    def _again(self, axis: Axis, answers: Iterable[KnownAnswer], label: str = "", **changed: object) -> None:
        """Ask known answers word for word as they were asked plainly, but for what makes the condition."""
        for number, answer in enumerate(answers, 1):
            if not self.going():
                return
            request = replace(self._request(answer), **changed)  # type: ignore[arg-type]
            self._kept(axis, self.asker.known(answer, request, RequestKind.AXIS, f"{axis}-{label}{number}"))

    def _request(self, answer: KnownAnswer) -> ChatRequest:
        thinking = self.scenario.settings.thinking
        return ChatRequest(prompt=answer.prompt, max_tokens=answer.max_tokens, thinking=thinking)

    @property
    def _few(self) -> list[KnownAnswer]:
        return [answer for answer, _ in self._sure[:_FEW]]

    def _long_output(self) -> None:
        request = ChatRequest(
            prompt=COUNTING_PROMPT,
            prefill=COUNTING_PREFILL,
            max_tokens=self._amounts.output_tokens,
            ignore_eos=True,
        )
        self._ask(Axis.LONG_OUTPUT, request, "counting")

    def _prompt_lengths(self) -> None:
        for cluster in _clusters(self._amounts.prompt_tokens):
            self._lengths_of(cluster)

    def _lengths_of(self, cluster: tuple[int, ...]) -> None:
        """Ask prompts of these lengths, which the server's own counts make exact: a first one may be off."""
        filled, padding, before = cluster[0] - _AIM_BELOW, _AIM_BELOW, cluster[0]
        for tokens in cluster:
            padding, before = padding + tokens - before, tokens
            for _ in range(_TRIES):
                if not self.going():
                    return
                lacking = self._one_length(tokens, filled, padding)
                if not lacking:
                    break
                padding += lacking
                if not 0 <= padding <= _MOST_PADDING:
                    filled, padding = filled + padding - _AIM_BELOW, _AIM_BELOW

    def _one_length(self, tokens: int, filled: int, padding: int) -> int:
        """Ask one prompt; return how many tokens it lacked (below 0: had too many), 0 where that is not known."""
        fact = recall(filled - self.overhead, self.tokens_per_sentence, _NEAR_END, self._seed + filled)
        # A number of its own comes first, so that no prefix cache has any of it.
        words = (str(random.Random(tokens + padding).randrange(100, 1000)), *islice(cycle(_PADDING), padding))
        request = ChatRequest(
            prompt=f"{' '.join(words)}. {fact.prompt}",
            prefill=fact.prefill,
            max_tokens=_RECALL_TOKENS,
            cache_prompt=False,
        )
        record = self._ask(Axis.PROMPT_LENGTHS, request, str(tokens), fact.answer)
        return 0 if record.prompt_tokens is None else tokens - record.prompt_tokens

    def _second_turn(self) -> None:
        """Ask known answers after another one with its answer, and for what was said a turn before."""
        axis = Axis.SECOND_TURN
        pairs = [pair for pair in self._sure if "\n" not in pair[0].prompt]
        for number, ((answer, _), (other, said)) in enumerate(pairwise(pairs[: _FEW + 1]), 1):
            if not self.going():
                return
            request = replace(self._request(answer), history=((other.prompt, said.text),))
            record = self.asker.known(answer, request, RequestKind.AXIS, f"{axis}-{number}")
            # The healthy model's margin is that of the question alone.
            self._kept(axis, replace(record, margin=None))
        code = str(random.Random(self._seed).randrange(1000, 10_000))
        first = self._ask(axis, ChatRequest(prompt=_CODE_PROMPT.format(code=code), max_tokens=_CODE_TOKENS), "first")
        if first.error is None and self.going():
            history = ((first.prompt, first.text),)
            request = ChatRequest(prompt=_CODE_QUESTION, max_tokens=_CODE_TOKENS, history=history)
            self._ask(axis, request, "recall", code)

    def _cached(self) -> None:
        """Ask the same prompt once past the cache and twice through it: the second time it is all there."""
        fact = recall(_CACHED_FILL, self.tokens_per_sentence, _NEAR_END, self._seed + _CACHED_FILL)
        request = ChatRequest(prompt=fact.prompt, prefill=fact.prefill, max_tokens=_RECALL_TOKENS)
        for name, cache in (("cold", False), ("filled", True), ("repeated", True)):
            if self.going():
                self._ask(Axis.CACHED, replace(request, cache_prompt=cache), name, fact.answer)

    def _concurrent(self) -> None:
        """Send prompts with a secret each at once; one that was answered wrong is asked again alone."""
        axis, facts = Axis.CONCURRENT, {}
        for number in range(1, self._amounts.concurrent + 1):
            fact = recall(_CONCURRENT_FILL, self.tokens_per_sentence, _NEAR_END, self._seed + number)
            request = ChatRequest(prompt=fact.prompt, prefill=fact.prefill, max_tokens=_RECALL_TOKENS)
            facts[f"{axis}-{number}"] = (request, fact.answer)
        requests = {name: request for name, (request, _) in facts.items()}
        for record in self.asker.at_once(requests, RequestKind.AXIS):
            request, secret = facts[record.name]
            kept = self._kept(axis, replace(record, expect=(secret,)))
            if self.going() and kept.error is None and not answered(kept):
                self._ask(axis, request, f"alone-{record.name.rpartition('-')[2]}", secret)

    def _after_requests(self) -> None:
        several = [answer for answer, _ in self._sure[:_SEVERAL]]
        self._again(Axis.AFTER_REQUESTS, islice(cycle(several), self._amounts.requests))

    def _after_idle(self) -> None:
        if not self._sure:
            return
        end = time.monotonic() + self._amounts.idle_seconds
        while self.going() and time.monotonic() < end:
            time.sleep(_SLICE)
        self._again(Axis.AFTER_IDLE, self._few)

    def _not_streamed(self) -> None:
        self._again(Axis.NOT_STREAMED, self._few, stream=False)

    def _thinking(self) -> None:
        """Ask with thinking off; on as well where the scenario thinks, so that both ways of the switch are seen."""
        self._again(Axis.THINKING, self._few, "off-", thinking=False)
        if self.scenario.settings.thinking:
            self._again(Axis.THINKING, self._few, "on-", thinking=True)


def _sure(plain: Iterable[_Plain]) -> list[_Plain]:
    """Return the answers that may judge, short ones first, and of these the surest.

    Their margin is the smaller one of that of the healthy model and that of this server's plain answer.
    """
    sure = (pair for pair in plain if is_sure(*pair))
    found = [(replace(answer, margin=_margin(answer, record)), record) for answer, record in sure]
    return sorted(found, key=lambda pair: (_is_long(pair[0]), -(pair[0].margin or 0.0)))


def _margin(answer: KnownAnswer, record: RequestRecord) -> float:
    here = None if record.tightest is None else record.tightest.nat
    return min(margin for margin in (answer.margin, here) if margin is not None)


def _is_long(answer: KnownAnswer) -> bool:
    return answer.max_tokens > _SHORT_ANSWER or len(answer.prompt) > _SHORT_PROMPT


def _clusters(lengths: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Group lengths that are near to one another."""
    group: list[int] = []
    for tokens in lengths:
        if group and tokens - group[0] > _CLUSTER:
            yield tuple(group)
            group = []
        group.append(tokens)
    if group:
        yield tuple(group)
