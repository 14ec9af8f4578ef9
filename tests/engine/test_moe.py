"""The embedded model as a mixture of experts, on the real server: the answers must be those of the dense model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.moe import PROMPTS, chat, distance, steps
from pytest_moegpu.core.modelfacts import ModelFacts
from pytest_moegpu.core.upcycle import How, Order
from pytest_moegpu.host.modelfile import read_gguf
from pytest_moegpu.host.upcycle import upcycle
from pytest_moegpu.session.server import Server

ORDERS = {
    "copies": Order(how=How.COPIES, experts=4, used=2, seed=1),
    "slices": Order(how=How.SLICES, experts=4, used=4),
}
LARGEST_MEAN = 0.15
"""Mean difference of log-probabilities (nat) on a common path. Seen: about 0.1 on a processor, 0.05 on an H200."""
NEAR_TIE = 1.0
"""Gap (nat) up to which a sound change of path may choose the other token: twice the largest change seen of one."""
COMPARED = 40
"""Tokens that must have been compared for the mean to say anything."""


@pytest.fixture(scope="module", params=sorted(ORDERS))
def moe(
    request: pytest.FixtureRequest,
    build: Callable[[Path, Path], Server],
    model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp(request.param)
    file = folder / "moe.gguf"
    order = ORDERS[request.param]
    upcycle(model, file, order)
    facts = read_gguf(file)
    assert (facts.experts, facts.experts_used) == (order.experts, order.used)
    made = build(file, folder / "server.log")
    try:
        made.start()
        yield made
    finally:
        made.stop()
        file.unlink()


def test_the_mixture_follows_the_dense_model_until_a_near_tie(server: Server, moe: Server) -> None:
    found = distance(*([steps(each, prompt) for prompt in PROMPTS] for each in (server, moe)))
    assert found.compared >= COMPARED, found
    # Other code computes it: exactly the same numbers would mean that no expert was used.
    assert 0 < found.mean <= LARGEST_MEAN, found
    assert max(found.gaps, default=0) < NEAR_TIE, found


def test_the_mixture_knows_what_the_dense_model_knows(moe: Server, facts: ModelFacts) -> None:
    wrong = {}
    for known in facts.known_answers:
        if known.margin is None or known.margin < 1.6 or known.rule != "contains":
            continue
        text = chat(moe, known.prompt, known.max_tokens)["message"]["content"]
        if not any(each.lower() in text.lower() for each in known.expect):
            wrong[known.prompt] = text
    assert wrong == {}
