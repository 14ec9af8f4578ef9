"""What is sent to a ready server, part by part."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pytest_moegpu.backends.base import ChatRequest
from pytest_moegpu.core.evidence import Part, Phase, RequestKind, RequestRecord
from pytest_moegpu.core.model import Scenario
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.core.prompts import recall, throughput_prompt
from pytest_moegpu.session.asking import Asker
from pytest_moegpu.session.axes import AxesRun
from pytest_moegpu.session.conversation import Conversation
from pytest_moegpu.session.progress import Progress

__all__ = ["Workload"]

# Two lengths give the tokens of a sentence without those of the chat template.
_CALIBRATION_SENTENCES = (4, 24)
# What stands until the server's own counts replace it: SmolLM2 has 12 tokens a sentence, and 80 for fact and question.
_TOKENS_PER_SENTENCE = 12.0
_CONTEXT_OVERHEAD = 80
# Longer than the context by more than the tokens of a sentence can be off.
_BEYOND = 1.3
_BEYOND_OUTPUT_TOKENS = 8


@dataclass
class Workload:
    """Sends the requests of one start and keeps their records.

    It stops at a dead server, and when `halted` says that the device can no longer be read: the rest says nothing.
    """

    server: Conversation
    scenario: Scenario
    answers: tuple[KnownAnswer, ...]
    context_tokens: tuple[int, ...]
    recall_reach: int | None
    enter: Callable[[Phase], None]
    progress: Progress
    halted: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.records: list[RequestRecord] = []
        self._per_sentence = _TOKENS_PER_SENTENCE
        self._overhead = float(_CONTEXT_OVERHEAD)
        self._asker = Asker(self.server)

    @property
    def _going(self) -> bool:
        return self.server.alive and not self.halted()

    def run(self, parts: frozenset[Part]) -> None:
        """Send all parts asked for: correctness first, what the first start alone is asked after what all are."""
        for part, send in (
            (Part.OUTPUT, self._output),
            (Part.THROUGHPUT, self._throughput),
            (Part.AXES, self._axes),
            (Part.CONTEXT, self._context),
        ):
            if part in parts and self._going:
                began, before = time.monotonic(), len(self.records)
                send()
                count = len(self.records) - before
                self.progress.line(f"{part}: {count} requests in {time.monotonic() - began:.1f} s")

    def _chat(self, request: ChatRequest, kind: RequestKind, name: str, **more: object) -> RequestRecord:
        record = self._asker.chat(request, kind, name, **more)
        self.records.append(record)
        return record

    def _ask(self, answer: KnownAnswer, name: str) -> RequestRecord:
        """Ask a known answer plainly."""
        request = ChatRequest(
            prompt=answer.prompt, max_tokens=answer.max_tokens, thinking=self.scenario.settings.thinking
        )
        return self._asker.known(answer, request, RequestKind.ANSWER, name)

    def _output(self) -> None:
        self.enter(Phase.OUTPUT)
        for number, answer in enumerate(self.answers, 1):
            if not self._going:
                return
            self.progress.live(f"known answer {number}/{len(self.answers)}")
            self.records.append(self._ask(answer, answer.name or f"answer-{number}"))

    def _calibrate(self) -> None:
        """Learn how many tokens a sentence is for this model, from two prompts with one token back."""
        counts = []
        for sentences in _CALIBRATION_SENTENCES:
            prompt = throughput_prompt(sentences, 1, self.scenario.workload.seed - sentences)
            record = self._chat(ChatRequest(prompt=prompt, max_tokens=1), RequestKind.WARMUP, "calibration")
            counts.append(record.prompt_tokens)
        few, many = counts
        if few is not None and many is not None and many > few:
            self._per_sentence = (many - few) / (_CALIBRATION_SENTENCES[1] - _CALIBRATION_SENTENCES[0])

    def _calibrate_once(self) -> None:
        if not any(r.name == "calibration" for r in self.records):
            self._calibrate()

    def _throughput(self) -> None:
        """One stream, one request after another; no two prompts share a prefix, and the answer has a fixed length."""
        load = self.scenario.workload
        self.enter(Phase.WARMUP)
        self._calibrate()
        for number in range(load.warmup_requests + load.requests):
            if not self._going:
                return
            warm = number >= load.warmup_requests
            if warm:
                self.enter(Phase.PREFILL)
            self.progress.live(f"throughput {number + 1}/{load.warmup_requests + load.requests}")
            prompt = throughput_prompt(load.prompt_tokens, self._per_sentence, load.seed + number)
            request = ChatRequest(prompt=prompt, max_tokens=load.output_tokens, ignore_eos=True, cache_prompt=False)
            kind = RequestKind.THROUGHPUT if warm else RequestKind.WARMUP
            self._chat(request, kind, f"throughput-{number + 1 - load.warmup_requests}" if warm else "warm-up")

    def _axes(self) -> None:
        """Ask under other conditions those known answers that were right when asked plainly."""
        self.enter(Phase.AXES)
        self._calibrate_once()
        plain = [r for r in self.records if r.kind is RequestKind.ANSWER]
        AxesRun(
            asker=self._asker,
            scenario=self.scenario,
            plain=tuple(zip(self.answers, plain, strict=False)),
            tokens_per_sentence=self._per_sentence,
            overhead=self._overhead,
            keep=self.records.append,
            going=lambda: self._going,
            progress=self.progress,
        ).run()

    def _context(self) -> None:
        """Prompts of growing length with a fact at several depths, the deepest first so that a prefix cache helps."""
        load = self.scenario.workload
        self.enter(Phase.CONTEXT)
        self._calibrate_once()
        context = self.scenario.settings.context
        for tokens in self.context_tokens:
            for depth in load.context_depths:
                if not self._going:
                    return
                self.progress.live(f"context {tokens} of {context} tokens, fact at {depth:.0%}")
                output = max(8, min(load.context_output_tokens, context - tokens - 8))
                room = tokens - self._overhead
                fact = recall(room, self._per_sentence, depth, load.seed + tokens)
                request = ChatRequest(prompt=fact.prompt, prefill=fact.prefill, max_tokens=output, ignore_eos=True)
                # Beyond what the healthy model recalls, a wrong answer would accuse nobody; the rest is still measured.
                far = self.recall_reach is not None and (1 - depth) * tokens > self.recall_reach
                record = self._chat(
                    request,
                    RequestKind.CONTEXT,
                    f"context-{tokens}-{depth:g}",
                    expect=() if far else (fact.answer,),
                    fill=tokens / context,
                    depth=depth,
                )
                if record.prompt_tokens is not None:
                    # What came beside the filler is the same for the next prompt, which then has its length exactly.
                    self._overhead += record.prompt_tokens - tokens
        if self._going and self.server.backend.limits_context:
            self._beyond(context)

    def _beyond(self, context: int) -> None:
        """Send one prompt longer than the context: a sound server refuses it in words, and lives."""
        self.enter(Phase.BEYOND)
        tokens = round(_BEYOND * context)
        self.progress.live(f"a prompt of {tokens} tokens, with a context of {context}")
        prompt = throughput_prompt(tokens, self._per_sentence, self.scenario.workload.seed + tokens)
        request = ChatRequest(prompt=prompt, max_tokens=_BEYOND_OUTPUT_TOKENS, cache_prompt=False)
        self._chat(request, RequestKind.BEYOND, f"beyond-{tokens}", fill=tokens / context)
