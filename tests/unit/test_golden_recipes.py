"""How each engine is asked to score a text, and its answers as they were read off the real ones."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_moegpu.backends import BACKENDS, get_backend
from pytest_moegpu.core.golden import ScoreMethod, TokenScore
from pytest_moegpu.core.model import LaunchSpec, Settings

SPEC = LaunchSpec(
    program=("x",),
    model_path="/m",
    model_name="tiny",
    settings=Settings(context=2048),
    host="127.0.0.1",
    port=1,
    api_key="key",
)
LLAMA = {
    "completion_probabilities": [
        {
            "id": 7042,
            "token": " Paris",
            "logprob": -0.25908800959587097,
            "top_logprobs": [
                {"id": 7042, "logprob": -0.259},
                {"id": 260, "logprob": -2.73},
                {"id": 4528, "logprob": -4.38},
            ],
        }
    ]
}
VLLM = {
    "choices": [
        {
            "prompt_logprobs": [
                None,
                {"3575": {"logprob": -1.5, "rank": 2, "decoded_token": " cap"}, "9": {"logprob": -0.5, "rank": 1}},
                {"282": {"logprob": -0.1, "rank": 1}},
            ]
        }
    ]
}
SGLANG = {
    "meta_info": {
        "input_token_logprobs": [[None, 504, None], [-1.5, 3575, None], [-0.1, 282, None]],
        "input_top_logprobs": [None, [[-0.5, 9, None], [-1.5, 3575, None]], [[-0.1, 282, None]]],
    }
}
IDS = (504, 3575, 282)
BOTH = (
    TokenScore(token=3575, logprob=-1.5, top=((9, -0.5), (3575, -1.5))),
    TokenScore(token=282, logprob=-0.1, top=((282, -0.1),)),
)


def test_every_backend_says_how_it_scores() -> None:
    assert {name: get_backend(name).score_method for name in BACKENDS} == {
        "llamacpp": ScoreMethod.STEPS,
        "vllm": ScoreMethod.PROMPT,
        "sglang": ScoreMethod.PROMPT,
        "fastllm": None,
        "ollama": ScoreMethod.GREEDY,
        "mlx": None,
        "openai": ScoreMethod.GREEDY,
    }


def test_llama_server_is_asked_for_what_follows_all_but_the_last_token() -> None:
    post = get_backend("llamacpp").score(SPEC, IDS, 2, 200, fresh=False)
    assert post.path == "/completion"
    assert post.body["prompt"] == [504, 3575]
    assert (post.body["n_predict"], post.body["n_probs"], post.body["cache_prompt"]) == (1, 200, True)
    assert post.body["post_sampling_probs"] is False
    assert get_backend("llamacpp").score(SPEC, IDS, 2, 200, fresh=True).body["cache_prompt"] is False


def test_llama_server_lists_the_known_token_or_it_is_below_the_least() -> None:
    recipe = get_backend("llamacpp")
    top = ((7042, -0.259), (260, -2.73), (4528, -4.38))
    assert recipe.read_score(LLAMA, (504, 260), 1) == (TokenScore(token=260, logprob=-2.73, top=top),)
    assert recipe.read_score(LLAMA, (504, 99), 1) == (TokenScore(token=99, logprob=-4.38, top=top, below=True),)


def test_vllm_and_sglang_are_asked_for_the_prompt_as_ids() -> None:
    vllm = get_backend("vllm").score(SPEC, IDS, 1, 5, fresh=True)
    assert vllm.path == "/v1/completions"
    assert vllm.body == {
        "model": "tiny",
        "prompt": [504, 3575, 282],
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": 5,
    }
    sglang = get_backend("sglang").score(SPEC, IDS, 1, 5, fresh=True)
    assert sglang.path == "/generate"
    assert (sglang.body["input_ids"], sglang.body["logprob_start_len"]) == ([504, 3575, 282], 0)
    assert (sglang.body["return_logprob"], sglang.body["top_logprobs_num"]) == (True, 5)


@pytest.mark.parametrize(("name", "body"), [("vllm", VLLM), ("sglang", SGLANG)])
def test_a_prompt_is_read_place_by_place(name: str, body: Any) -> None:
    assert get_backend(name).read_score(body, IDS, 1) == BOTH


def test_a_number_left_out_is_none_in_every_engine() -> None:
    llama = {"completion_probabilities": [{"top_logprobs": [{"id": 5, "logprob": None}, {"id": 6, "logprob": -1.0}]}]}
    vllm = {"choices": [{"prompt_logprobs": [None, {"5": {"logprob": None}}]}]}
    sglang = {
        "meta_info": {"input_token_logprobs": [[None, 1, None], [None, 5, None]], "input_top_logprobs": [None, None]}
    }
    for name, body in (("llamacpp", llama), ("vllm", vllm), ("sglang", sglang)):
        (score,) = get_backend(name).read_score(body, (1, 5), 1)
        assert math.isnan(score.logprob), name
        assert not score.is_number


def test_a_token_that_vllm_does_not_list_is_no_number() -> None:
    (score,) = get_backend("vllm").read_score(
        {"choices": [{"prompt_logprobs": [None, {"6": {"logprob": -1.0}}]}]}, (1, 5), 1
    )
    assert math.isnan(score.logprob)


@pytest.mark.parametrize("name", ["llamacpp", "vllm", "sglang"])
@pytest.mark.parametrize("body", [None, {}, [], {"choices": []}, {"meta_info": {}}, {"completion_probabilities": []}])
def test_an_answer_of_another_form_is_a_value_error(name: str, body: Any) -> None:
    with pytest.raises(ValueError, match="unknown form"):
        get_backend(name).read_score(body, IDS, 1)


def test_log_probabilities_of_other_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="of other tokens than were sent"):
        get_backend("sglang").read_score(SGLANG, (504, 3575, 283), 1)
    with pytest.raises(ValueError, match="2 log-probabilities for 3 tokens"):
        get_backend("vllm").read_score(VLLM, (504, 3575, 282, 1), 1)


@pytest.mark.parametrize("name", ["llamacpp", "vllm"])
def test_token_ids_come_with_what_the_model_wants_before_a_text(name: str) -> None:
    recipe = get_backend(name)
    post = recipe.tokenize(SPEC, "a text")
    assert post.path == "/tokenize"
    assert "a text" in post.body.values()
    assert True in post.body.values()
    assert recipe.read_tokens({"tokens": [1, 2, 3], "count": 3}) == (1, 2, 3)


def test_token_ids_of_sglang_are_those_it_scores() -> None:
    recipe = get_backend("sglang")
    post = recipe.tokenize(SPEC, "a text")
    assert (post.path, post.body["text"], post.body["logprob_start_len"]) == ("/generate", "a text", 0)
    assert recipe.read_tokens(SGLANG) == tuple(IDS)


@pytest.mark.parametrize("name", ["llamacpp", "vllm", "sglang"])
@pytest.mark.parametrize("bad", [{}, {"tokens": []}, {"tokens": ["a"]}, {"tokens": [True]}, [1, 2], None])
def test_an_answer_without_token_ids_is_a_value_error(name: str, bad: Any) -> None:
    with pytest.raises(ValueError, match="without token ids"):
        get_backend(name).read_tokens(bad)
