"""Requests in other forms than one stream: with turns before, as one answer, several at once."""

from __future__ import annotations

from urllib.parse import urlsplit

from pytest_moegpu.backends.base import ChatRequest
from pytest_moegpu.backends.openai import OpenAi
from pytest_moegpu.core.evidence import RequestKind
from pytest_moegpu.core.model import LaunchSpec, Limits, Settings
from pytest_moegpu.session.conversation import Conversation
from tests.fakes.openai_server import Behaviour, serving

JAPAN = ChatRequest(prompt="What is the capital of Japan?", max_tokens=16)
WATER = ChatRequest(prompt="What is the chemical symbol for water?", max_tokens=16)


def talk(url: str) -> Conversation:
    address = urlsplit(url)
    spec = LaunchSpec(
        program=(),
        model_path="",
        model_name="tiny",
        settings=Settings(context=1024),
        host=address.hostname or "",
        port=address.port or 0,
        api_key="",
    )
    return Conversation(OpenAi(), spec, Limits(request_seconds=10))


def test_an_answer_that_is_not_streamed_is_read_as_the_streamed_one() -> None:
    behaviour = Behaviour()
    with serving(behaviour) as url:
        streamed = talk(url).chat(JAPAN, RequestKind.AXIS, "streamed")
        whole = talk(url).chat(ChatRequest(prompt=JAPAN.prompt, max_tokens=16, stream=False), RequestKind.AXIS, "whole")
    assert [body["stream"] for body in behaviour.asked] == [True, False]
    assert ["stream_options" in body for body in behaviour.asked] == [True, False]
    assert whole.error is None
    assert whole.text == streamed.text.strip() == "The capital of Japan is Tokyo."
    assert (whole.finish_reason, whole.prompt_tokens, whole.output_tokens) == ("stop", streamed.prompt_tokens, 6)


def test_an_answer_that_is_no_json_is_an_error_of_the_record() -> None:
    with serving(Behaviour(chat=False)) as url:
        whole = talk(url).chat(ChatRequest(prompt="x", max_tokens=4, stream=False), RequestKind.AXIS, "whole")
    assert whole.error == 'HTTP 404: {"error": "not found"}; not found'


def test_turns_before_are_sent_in_their_order() -> None:
    behaviour = Behaviour()
    request = ChatRequest(prompt="And now?", max_tokens=4, history=(("First?", "One."), ("Second?", "Two.")))
    with serving(behaviour) as url:
        talk(url).chat(request, RequestKind.AXIS, "turn")
    assert [(m["role"], m["content"]) for m in behaviour.asked[0]["messages"]] == [
        ("user", "First?"),
        ("assistant", "One."),
        ("user", "Second?"),
        ("assistant", "Two."),
        ("user", "And now?"),
    ]


def test_several_at_once_keep_their_names_and_answers() -> None:
    with serving(Behaviour()) as url:
        records = talk(url).chat_at_once({"japan": JAPAN, "water": WATER}, RequestKind.AXIS)
    assert [(r.name, r.text.split()[-1]) for r in records] == [("japan", "Tokyo."), ("water", "H2O.")]
    first, second = records
    assert first.finished is not None
    # Both were under way together: the fake takes a tenth of a second to the first token.
    assert second.sent < first.finished
