"""What is sent to a server, and what is made of its refusals. The conversation is a stand-in without a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_moegpu.backends.base import ChatRequest
from pytest_moegpu.backends.llamacpp import LlamaCpp
from pytest_moegpu.core.evidence import Part, Phase, RequestKind, RequestRecord
from pytest_moegpu.core.model import LaunchSpec, Limits, Settings
from pytest_moegpu.core.model import Workload as Load
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.session.conversation import Conversation
from pytest_moegpu.session.progress import Silent
from pytest_moegpu.session.workload import Workload
from tests.unit.builders import scenario

QUESTION = KnownAnswer(prompt="What is the capital of France?", expect=("Paris",), margin=2.0, max_tokens=8)
OTHER = KnownAnswer(prompt="Two plus two?", expect=("4",))
SPEC = LaunchSpec(
    program=("x",),
    model_path="/m",
    model_name="m",
    settings=Settings(context=2048),
    host="127.0.0.1",
    port=18000,
    api_key="k",
)
Reply = Callable[[ChatRequest, RequestKind], dict[str, Any]]


class Engine(LlamaCpp):
    """A recipe whose claims a test can change."""

    def __init__(self, **claims: bool) -> None:
        for name, value in claims.items():
            setattr(self, name, value)


class Talk(Conversation):
    """Answers by a function, and keeps what was asked."""

    def __init__(self, reply: Reply, engine: Engine | None = None) -> None:
        super().__init__(engine or Engine(), SPEC, Limits())
        self.asked: list[tuple[RequestKind, ChatRequest]] = []
        self.reply = reply
        self.dead = False

    @property
    def alive(self) -> bool:
        return not self.dead

    def chat(self, request: ChatRequest, kind: RequestKind, name: str, **more: Any) -> RequestRecord:
        self.asked.append((kind, request))
        said: dict[str, Any] = {"status": 200, "first_token": 0.1, "prompt_tokens": len(request.prompt.split())}
        given = {key: value for key, value in more.items() if key in ("expect", "fill", "depth")}
        return RequestRecord(
            kind=kind, name=name, sent=0.0, prompt=request.prompt, **given, **(said | self.reply(request, kind))
        )

    def of(self, kind: RequestKind) -> list[ChatRequest]:
        return [request for of, request in self.asked if of is kind]


def sent(talk: Talk, *parts: Part, phases: list[Phase] | None = None) -> tuple[RequestRecord, ...]:
    """Send these parts, with two known answers and one long context."""
    load = Load(context_fills=(0.5,), context_depths=(0.9, 0.1))
    work = Workload(
        server=talk,
        scenario=scenario(workload=load),
        answers=(QUESTION, OTHER),
        context_tokens=(1024,),
        recall_reach=None,
        enter=(phases if phases is not None else []).append,
        progress=Silent(),
    )
    work.run(frozenset(parts))
    return tuple(work.records)


def fine(_request: ChatRequest, _kind: RequestKind) -> dict[str, Any]:
    return {}


def test_known_answers_are_asked_with_the_two_likeliest_tokens() -> None:
    talk = Talk(fine)
    records = sent(talk, Part.OUTPUT)
    assert [r.top_logprobs for r in talk.of(RequestKind.ANSWER)] == [2, 2]
    assert [(r.name, r.margin, r.expect) for r in records] == [
        ("answer-1", 2.0, ("Paris",)),
        ("answer-2", None, ("4",)),
    ]


def test_an_engine_that_gives_none_is_not_asked_for_them() -> None:
    talk = Talk(fine, Engine(gives_logprobs=False))
    sent(talk, Part.OUTPUT)
    assert [r.top_logprobs for r in talk.of(RequestKind.ANSWER)] == [0, 0]


def test_nothing_else_is_asked_with_log_probabilities() -> None:
    """They cost time, and speeds are measured."""
    talk = Talk(fine)
    sent(talk, Part.THROUGHPUT, Part.CONTEXT)
    assert talk.asked
    assert {request.top_logprobs for _, request in talk.asked} == {0}


def refuse_logprobs(request: ChatRequest, _kind: RequestKind) -> dict[str, Any]:
    return {"status": 400, "error": "HTTP 400: logprobs is not supported"} if request.top_logprobs else {"text": "4"}


def test_a_server_that_refuses_log_probabilities_is_asked_without() -> None:
    talk = Talk(refuse_logprobs)
    records = sent(talk, Part.OUTPUT)
    assert [r.top_logprobs for r in talk.of(RequestKind.ANSWER)] == [2, 0, 0]
    assert [(r.error, r.text, r.margin) for r in records] == [(None, "4", 2.0), (None, "4", None)]
    assert talk.notes == [
        "log-probabilities are refused, near-ties cannot be seen: HTTP 400: logprobs is not supported"
    ]


def test_a_refusal_that_has_another_reason_is_kept_as_it_was() -> None:
    talk = Talk(lambda _request, _kind: {"status": 400, "error": "HTTP 400: model not found"})
    records = sent(talk, Part.OUTPUT)
    assert [r.top_logprobs for r in talk.of(RequestKind.ANSWER)] == [2, 0, 2, 0]
    assert [r.error for r in records] == ["HTTP 400: model not found"] * 2
    assert talk.notes == []


def test_one_prompt_longer_than_the_context_comes_last_in_a_phase_of_its_own() -> None:
    talk, phases = Talk(fine), list[Phase]()
    records = sent(talk, Part.CONTEXT, phases=phases)
    assert phases == [Phase.CONTEXT, Phase.BEYOND]
    assert [r.kind for r in records[-3:]] == [RequestKind.CONTEXT, RequestKind.CONTEXT, RequestKind.BEYOND]
    (beyond,) = talk.of(RequestKind.BEYOND)
    assert (beyond.max_tokens, beyond.cache_prompt, beyond.ignore_eos) == (8, False, False)
    # This tokenizer takes a word for a token.
    assert 2450 < len(beyond.prompt.split()) < 2850
    assert records[-1].fill == 2662 / 2048
    assert not records[-1].too_long


def test_an_engine_without_a_limit_is_not_asked_beyond_it() -> None:
    talk = Talk(fine, Engine(limits_context=False))
    sent(talk, Part.CONTEXT)
    assert talk.of(RequestKind.BEYOND) == []


def test_a_dead_server_is_not_asked_beyond_its_context() -> None:
    def die(_request: ChatRequest, kind: RequestKind) -> dict[str, Any]:
        talk.dead = kind is RequestKind.CONTEXT
        return {}

    talk = Talk(die)
    sent(talk, Part.CONTEXT)
    assert len(talk.of(RequestKind.CONTEXT)) == 1
    assert talk.of(RequestKind.BEYOND) == []


def refused(status: int, error: str, **more: Any) -> RequestRecord:
    """The record of a prompt beyond the context that was answered like this."""

    def reply(_request: ChatRequest, kind: RequestKind) -> dict[str, Any]:
        return {"status": status, "error": error} | more if kind is RequestKind.BEYOND else {}

    return sent(Talk(reply), Part.CONTEXT)[-1]


def test_a_refusal_in_words_is_known_as_one() -> None:
    assert refused(400, "HTTP 400: request exceeds the available context size", first_token=None).too_long
    assert not refused(500, "HTTP 500: request exceeds the available context size", first_token=None).too_long
    assert not refused(400, "HTTP 400: no such model", first_token=None).too_long


def test_a_refusal_may_be_an_error_object_in_a_stream() -> None:
    """FastLLM answers HTTP 200 and then says that the prompt is too long."""
    assert refused(200, "(prompt too long)", first_token=None).too_long
    # After a token it is no refusal but an answer that broke off.
    assert not refused(200, "(prompt too long)").too_long


def test_a_long_context_that_was_refused_is_known_too() -> None:
    talk = Talk(
        lambda _request, kind: (
            {"status": 400, "error": "HTTP 400: prompt too long", "first_token": None}
            if kind is RequestKind.CONTEXT
            else {}
        )
    )
    assert [r.too_long for r in sent(talk, Part.CONTEXT) if r.kind is RequestKind.CONTEXT] == [True, True]
