"""Calibration keeps what is right with a margin, cuts it to the answer, and writes what the catalog reads again."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_moegpu.backends.base import ChatRequest
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.baseline import BASELINE_SCHEMA, Baseline
from pytest_moegpu.core.evidence import Margin, RequestKind, RequestRecord
from pytest_moegpu.core.model import Limits, Scenario, Settings, Stack, Workload
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.core.probemargins import few
from pytest_moegpu.core.probes import probes
from pytest_moegpu.host.store import write_baseline
from pytest_moegpu.session import calibrate
from pytest_moegpu.session.probing import answers_of

PROBE = KnownAnswer(prompt="What is 40 + 2?", expect=("42",), rule="word", name="arithmetic-2-en-1", max_tokens=8)
ORDER = calibrate.Order(profile="embedded", seed=7, tiers=(1,))


class Scripted:
    """Answers with the first tokens of a text, each with its gap to the next likeliest (nat)."""

    def __init__(self, *tokens: tuple[str, float]) -> None:
        self.tokens = tokens
        self.asked: list[int] = []

    def chat(self, request: ChatRequest, kind: RequestKind, name: str, *, expect: Sequence[str]) -> RequestRecord:
        self.asked.append(request.max_tokens)
        given = self.tokens[: request.max_tokens]
        index, gap = min(enumerate(gap for _, gap in given), key=lambda pair: pair[1])
        return RequestRecord(
            kind=kind,
            name=name,
            sent=0.0,
            text="".join(text for text, _ in given),
            expect=tuple(expect),
            tightest=Margin(index=index, nat=gap, logprob=-0.1, token="a", other="b"),
        )


def shortened(*tokens: tuple[str, float]) -> KnownAnswer | None:
    return calibrate._shortened(cast(Any, Scripted(*tokens)), PROBE)


def test_an_answer_is_cut_behind_its_last_token_and_one_more_where_that_is_sure() -> None:
    found = shortened(("4", 2.5), ("2", 3.0), (".", 2.0), (" So", 0.1))
    assert found is not None
    assert (found.max_tokens, found.margin) == (3, 2.0)


def test_a_near_tie_behind_the_answer_is_cut_off() -> None:
    found = shortened(("4", 2.5), ("2", 3.0), (".", 0.2))
    assert found is not None
    assert (found.max_tokens, found.margin) == (2, 2.5)


@pytest.mark.parametrize(
    "tokens",
    [
        (("4", 1.5), ("2", 3.0)),
        (("4", 2.5), ("1", 3.0)),
        (("It", 0.1), (" is ", 3.0), ("42", 9.0)),
    ],
)
def test_a_near_tie_on_the_way_or_a_wrong_answer_is_not_kept(tokens: tuple[tuple[str, float], ...]) -> None:
    assert shortened(*tokens) is None


def test_on_a_further_path_the_smaller_margin_stays_and_a_wrong_answer_goes() -> None:
    probe = KnownAnswer(prompt="?", expect=("42",), rule="word", name="a", max_tokens=2, margin=2.2)
    lower = calibrate._stands(cast(Any, Scripted(("4", 1.8), ("2", 9.0))), probe)
    assert lower is not None
    assert lower.margin == 1.8
    higher = calibrate._stands(cast(Any, Scripted(("4", 7.0), ("2", 9.0))), probe)
    assert higher is not None
    assert higher.margin == 2.2
    assert calibrate._stands(cast(Any, Scripted(("4", 1.2), ("2", 9.0))), probe) is None
    assert calibrate._stands(cast(Any, Scripted(("4", 7.0), ("3", 9.0))), probe) is None


def test_what_is_written_is_read_by_the_catalog_as_it_was(tmp_path: Path) -> None:
    found = tuple(KnownAnswer(**{**vars(p), "margin": 2.25}) for p in probes(7))
    rows = tomllib.loads(calibrate.as_toml(found, ORDER))["known_answers"]
    assert len(rows) == len(found)
    base = 'schema = 1\nname = "mine"\ntitle = "Mine"\nextends = "smollm2-135m-instruct"\n'
    (tmp_path / "models").mkdir()
    said = calibrate.write(tmp_path / "models" / "mine.toml", base + calibrate.as_toml(found, ORDER))
    assert said.startswith(f"{tmp_path}/models/mine.toml: written")
    assert Catalog.load([tmp_path]).model("mine").known_answers == found


def target(sha256: str) -> Any:
    return SimpleNamespace(
        model=SimpleNamespace(known_answers=(PROBE,)),
        profile=SimpleNamespace(name="p"),
        backend=SimpleNamespace(name="llamacpp"),
        file=SimpleNamespace(sha256=sha256),
    )


def scenario(name: str) -> Scenario:
    return Scenario(name=name, title=name, settings=Settings(context=512), workload=Workload(), limits=Limits())


def test_margins_come_from_the_baseline_of_the_same_model_file_only(tmp_path: Path) -> None:
    assert answers_of(target("ab"), tmp_path, scenario("s")) == (PROBE,)
    baseline = Baseline(
        schema=BASELINE_SCHEMA,
        profile="p",
        scenario="s",
        backend="llamacpp",
        check_version=1,
        identity={"model.sha256": "ab"},
        stack=Stack(),
        sessions=(),
        margins={PROBE.name: 2.75},
    )
    path = write_baseline(tmp_path, baseline)
    assert [answer.margin for answer in answers_of(target("ab"), tmp_path, scenario("s"))] == [2.75]
    assert [answer.margin for answer in answers_of(target("cd"), tmp_path, scenario("s"))] == [None]
    assert [answer.margin for answer in answers_of(target("ab"), tmp_path, scenario("other"))] == [None]
    path.write_text("{", encoding="utf-8")
    assert answers_of(target("ab"), tmp_path, scenario("s")) == (PROBE,)


def test_few_answers_are_spread_over_their_list_and_a_witness_is_always_asked() -> None:
    judging = tuple(KnownAnswer(prompt=str(number), expect=("x",), margin=2.0) for number in range(10))
    witness = KnownAnswer(prompt="tied", expect=("x",), margin=0.1)
    assert [a.prompt for a in few((*judging, witness), 4)] == ["0", "2", "5", "7", "tied"]
    assert few((*judging, witness), 10) == few((*judging, witness), None) == (*judging, witness)
