"""What vLLM and SGLang do alike: the chat API, and what their real servers answered."""

from __future__ import annotations

import pytest

from pytest_moegpu.backends.base import ChatRequest, Usage
from pytest_moegpu.backends.sglang import SgLang
from pytest_moegpu.backends.vllm import Vllm
from tests.unit.recordings import Recorded


@pytest.fixture(params=[Vllm, SgLang])
def engine(request: pytest.FixtureRequest) -> Recorded:
    return Recorded(request.param(), "/opt/server")


def test_a_begun_answer_is_continued(engine: Recorded) -> None:
    body = engine.recipe.request(engine.launch(), ChatRequest(prompt="q", max_tokens=8, prefill="The capital"))
    assert body["messages"][-1] == {"role": "assistant", "content": "The capital"}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    plain = engine.recipe.request(engine.launch(), ChatRequest(prompt="q", max_tokens=8))
    assert not {"continue_final_message", "add_generation_prompt", "cache_salt"} & plain.keys()


def test_a_prompt_that_must_not_come_from_the_cache_shares_it_with_no_other(engine: Recorded) -> None:
    one, other = (
        engine.recipe.request(engine.launch(), ChatRequest(prompt=prompt, max_tokens=8, cache_prompt=False))[
            "cache_salt"
        ]
        for prompt in ("Größe", "q")
    )
    assert len(one) == len(other) == 16
    assert one != other


def test_the_continued_answer_holds_what_is_new_only(engine: Recorded) -> None:
    assert "".join(delta.text for delta in engine.events("stream-prefill.txt")) == " is Tokyo."


@pytest.mark.parametrize("details", ["", ',"prompt_tokens_details":null'])
def test_a_prompt_without_details_of_its_cached_tokens_had_none(engine: Recorded, details: str) -> None:
    usage = f'{{"prompt_tokens":1075,"total_tokens":1331,"completion_tokens":256{details}}}'
    delta = engine.recipe.read_event(f'{{"choices":[],"usage":{usage}}}')
    assert delta.usage == Usage(prompt_tokens=1075, cached_tokens=0, output_tokens=256, timings={})
