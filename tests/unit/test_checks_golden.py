"""The numbers of a run against the golden of its baseline: what passes, what fails, what says nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_moegpu.checks.golden import Reference, judge, judge_against
from pytest_moegpu.core.evidence import Evidence, Phase, StartFailure
from pytest_moegpu.core.golden import Golden, ScoreMethod, TextScore, TokenScore
from pytest_moegpu.core.goldentexts import TEXTS_VERSION
from pytest_moegpu.core.model import Stack
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from pytest_moegpu.errors import RecordError, UserError
from pytest_moegpu.host.store import Bundle, read_baseline, write_baseline
from pytest_moegpu.session.records import promote
from pytest_moegpu.session.reference import References, golden_of
from tests.unit.builders import answers, baseline, evidence, profile, run_record, scenario, start, stream, watched

SHA = {"model.sha256": "abc"}


def scores(shift: float = 0.0, count: int = 60, **changes: Any) -> tuple[TextScore, ...]:
    """Two texts whose tokens have probability one half beside 0.4; the shift takes from the first."""
    listed = ((1, math.log(0.5) - shift), (2, math.log(0.4)))
    score = TokenScore(token=1, logprob=listed[0][1], top=tuple(sorted(listed, key=lambda pair: -pair[1])))
    made = (
        TextScore.of(text=name, method=ScoreMethod.STEPS, tokens=[score] * count, context=(7, 8))
        for name in ("prose", "code")
    )
    return tuple(replace(text, **changes) for text in made)


def golden(**changes: Any) -> Golden:
    kept = Golden(model_sha256="abc", made_with="llamacpp 11434", texts=scores(), texts_version=TEXTS_VERSION)
    return replace(kept, **changes)


def reference(asked: bool = False, **changes: Any) -> Reference:
    kept = baseline(golden=golden(), identity=SHA)
    return Reference(baseline=replace(kept, **changes), source="baselines/x.json", asked=asked)


def run(*given: tuple[TextScore, ...], **changes: Any) -> Evidence:
    starts = (start(number, scores=of) for number, of in enumerate(given or (scores(), scores()), 1))
    return evidence(*starts, **({"identity": SHA} | changes))


def one(found: Evidence, against: Reference | None) -> Verdict:
    (verdict,) = judge_against(against)(found, scenario(), profile())
    return verdict


def said(verdict: Verdict) -> dict[str, str]:
    return dict(verdict.lines)


def test_the_same_numbers_pass() -> None:
    verdict = one(run(), reference())
    assert (verdict.outcome, verdict.reason) == (Outcome.PASS, "identical")
    assert verdict.more == {"value": "0.0000 nat", "grade": "identical"}
    assert said(verdict)["agreement"].startswith("starts 1, 2: mean difference 0.0000 nat (largest 0.000)")
    assert said(verdict)["golden"] == "baselines/x.json, made with llamacpp 11434; fixed texts token by token"
    assert verdict.findings == ()


def test_numbers_within_the_floor_pass_with_a_note_that_names_what_moved() -> None:
    found = run(scores(0.05), scores(0.05), stack=Stack(driver="590.1", cuda_driver="13.0"))
    verdict = one(found, reference())
    assert verdict.outcome is Outcome.PASS
    assert verdict.more == {"value": "0.0500 nat", "grade": "within the floor"}
    (note,) = verdict.findings
    assert note.startswith("the numbers moved, within the floor: mean difference 0.0500 nat")
    assert note.endswith("moved: driver 580.159 → 590.1")
    assert said(verdict)["changed"] == "driver 580.159 → 590.1"


def test_numbers_that_moved_though_nothing_known_did_say_so() -> None:
    (note,) = one(run(scores(0.05)), reference()).findings
    assert note.endswith("moved: nothing known")


def test_numbers_beyond_the_floor_fail_whatever_the_other_starts_say() -> None:
    verdict = one(run(scores(0.9), scores(0.9)), reference())
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.CORRECTNESS)
    assert verdict.reason.startswith("beyond the floor: mean difference 0.9000 nat (largest 0.900)")
    assert said(verdict)["first other"] == ("'prose', token 0: the golden had 1 before 2 by 0.22 nat, a near-tie")
    assert "% of what is allowed" in said(verdict)["margin"]
    assert verdict.log_path == "runs/x/server-1.log"


def test_starts_that_differ_fail_with_a_golden_or_without() -> None:
    for against in (None, reference()):
        verdict = one(run(scores(), scores(0.9)), against)
        assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.CORRECTNESS)
        assert verdict.reason.startswith("start 2 is beyond the floor of start 1")


def test_numbers_that_are_none_fail_with_a_golden_or_without() -> None:
    bad = (replace(scores()[0], rows=(*scores()[0].rows[:-1], "[1,NaN,1,-0.7]")), scores()[1])
    for against in (None, reference()):
        verdict = one(run(scores(), bad), against)
        assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.CORRECTNESS)
        assert verdict.reason == (
            "log-probabilities that are no numbers: 1 places, the first: start 2, prose, token 59"
        )


def test_too_little_in_common_is_never_green() -> None:
    verdict = one(run(scores(count=20)), reference())
    assert (verdict.outcome, verdict.failed_class) == (Outcome.INCONCLUSIVE, None)
    assert verdict.reason == "too little in common: 40 of 120 tokens could be compared"


def test_texts_that_were_not_scored_are_told() -> None:
    refused = (scores()[0], replace(scores()[1], rows=(), error="HTTP 500 x"))
    verdict = one(run(refused), reference())
    assert verdict.findings == ("not scored: code: HTTP 500 x",)
    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_no_golden_is_no_baseline_and_says_how_to_make_one() -> None:
    (verdict,) = judge(run(), scenario(), profile())
    assert verdict.outcome is Outcome.NO_BASELINE
    assert verdict.reason.endswith("promote a good run: moegpu promote .moegpu/runs/<id>")
    old = one(run(), reference(golden=None))
    assert old.outcome is Outcome.NO_BASELINE
    assert old.reason == "baselines/x.json holds no golden; promote a run of this version"


def test_another_model_file_is_not_comparable_unless_asked_for() -> None:
    other = golden(model_sha256="def")
    verdict = one(run(), reference(golden=other))
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    assert "def → abc" in verdict.reason
    asked = one(run(), reference(golden=other, asked=True))
    assert asked.outcome is Outcome.PASS
    assert "another precision of the model, as asked for" in asked.reason
    assert said(asked)["allowed"].startswith("for another precision: ")


def test_another_precision_of_the_cache_is_allowed_more_and_named() -> None:
    then, now = SHA | {"settings.kv_cache": "f16"}, SHA | {"settings.kv_cache": "q4_0"}
    verdict = one(run(scores(0.15), identity=now), reference(identity=then))
    assert verdict.outcome is Outcome.PASS
    assert verdict.reason.startswith("within the floor (another precision of the KV cache): ")
    assert said(verdict)["changed"] == "settings.kv_cache f16 → q4_0"
    assert one(run(scores(0.25), identity=then), reference(identity=then)).outcome is Outcome.FAILED


@pytest.mark.parametrize(("weights", "outcome"), [("BF16", Outcome.FAILED), ("Q4_1", Outcome.PASS)])
def test_quantised_weights_on_a_gpu_are_allowed_more(weights: str, outcome: Outcome) -> None:
    identity = SHA | {"model.quantisation": weights}
    assert one(run(scores(0.15), identity=identity), reference(identity=identity)).outcome is outcome


def test_texts_of_another_version_are_not_comparable() -> None:
    verdict = one(run(), reference(golden=golden(texts_version=TEXTS_VERSION + 1)))
    assert verdict.outcome is Outcome.NOT_COMPARABLE


def test_nothing_scored_and_a_broken_start_are_errors() -> None:
    assert one(evidence(start(1), identity=SHA), reference()).outcome is Outcome.ERROR
    died = start(1, failure=StartFailure(phase=Phase.DECODE, cause="it died"))
    verdict = one(evidence(died, identity=SHA), reference())
    assert (verdict.outcome, verdict.reason) == (Outcome.ERROR, "it died")


def test_another_method_on_the_same_tokens_is_compared_and_told() -> None:
    prompts = scores(method=ScoreMethod.PROMPT)
    verdict = one(run(prompts), reference())
    assert verdict.outcome is Outcome.PASS
    assert said(verdict)["golden"].endswith(
        "fixed texts as prompts and fixed texts token by token: other kernels, the same tokens"
    )


class TestGoldenOfARun:
    def test_the_first_start_makes_it(self) -> None:
        made = golden_of(run(scores(0.01), scores(), stack=Stack(engine_version="b11434")))
        assert made == golden(made_with="llamacpp b11434", texts=scores(0.01))

    def test_starts_that_do_not_agree_make_none(self) -> None:
        with pytest.raises(RecordError, match=r"no golden: its starts do not agree: start 2 is beyond the floor"):
            golden_of(run(scores(), scores(0.9)))

    def test_numbers_that_are_none_make_none(self) -> None:
        bad = (replace(scores()[0], rows=("[1,NaN]",)),)
        with pytest.raises(RecordError, match="no numbers in prose"):
            golden_of(run(bad))

    def test_a_run_that_scored_nothing_makes_none(self) -> None:
        assert golden_of(evidence()) is None
        refused = (replace(scores()[0], rows=(), error="HTTP 404"),)
        assert golden_of(run(refused)) is None


class TestReferences:
    def make(self, folder: Path, backend: str = "llamacpp", **more: Any) -> References:
        return References(folder=folder, profile="rtx3090", backend=backend, model_sha256="abc", **more)

    def test_the_own_baseline_comes_first_and_then_another_backend_of_the_same_file(self, tmp_path: Path) -> None:
        assert self.make(tmp_path).of("balanced-6k") is None
        write_baseline(tmp_path, baseline(golden=golden()))
        other = self.make(tmp_path, backend="vllm").of("balanced-6k")
        assert other is not None
        assert other.source.endswith("llamacpp.json, of another backend")
        assert self.make(tmp_path, backend="vllm").golden("balanced-6k") == golden()
        own = self.make(tmp_path).of("balanced-6k")
        assert own is not None
        assert own.source.endswith("balanced-6k/llamacpp.json")

    def test_another_backend_with_another_file_is_no_reference(self, tmp_path: Path) -> None:
        write_baseline(tmp_path, baseline(golden=golden(model_sha256="def")))
        assert self.make(tmp_path, backend="vllm").of("balanced-6k") is None

    def test_ids_of_another_file_are_not_sent_unless_asked_for(self, tmp_path: Path) -> None:
        path = write_baseline(tmp_path, baseline(golden=golden(model_sha256="def")))
        assert self.make(tmp_path).golden("balanced-6k") is None
        assert self.make(tmp_path, given=path).golden("balanced-6k") == golden(model_sha256="def")

    def test_a_damaged_baseline_is_an_error_when_it_is_judged_and_keeps_nothing_from_being_measured(
        self, tmp_path: Path
    ) -> None:
        path = write_baseline(tmp_path, baseline(golden=golden(texts=(replace(scores()[0], rows=("[1]",)),))))
        references = self.make(tmp_path)
        assert references.golden("balanced-6k") is None
        (verdict,) = references.judge(run(), scenario(), profile())
        assert verdict.outcome is Outcome.ERROR
        assert f"{path}: damaged baseline: golden: damaged scores" in verdict.reason

    def test_a_file_without_a_golden_cannot_be_asked_for(self, tmp_path: Path) -> None:
        path = write_baseline(tmp_path, baseline())
        with pytest.raises(UserError, match=r"--moegpu-golden=.*holds no golden"):
            self.make(tmp_path, given=path)
        with pytest.raises(UserError, match="there is no such baseline"):
            self.make(tmp_path, given=tmp_path / "none.json")


class TestPromote:
    def save(self, folder: Path, name: str, *given: tuple[TextScore, ...], verdicts: tuple[Verdict, ...] = ()) -> None:
        starts = (
            watched(number, requests=(*answers(), *(stream(),) * 3), scores=of) for number, of in enumerate(given, 1)
        )
        green = Verdict(
            outcome=Outcome.PASS, check="output", scenario="balanced-6k", subject="output", phase=Phase.OUTPUT
        )
        record = run_record(
            evidence(*starts, identity=SHA),
            id=name,
            verdicts=(green, *verdicts),
            asked=profile(),
            scenarios=(scenario(),),
        )
        Bundle(folder / "runs" / name).write(record)

    def promote(self, folder: Path, name: str, *, add: bool = False) -> Golden | None:
        promote([name], folder / "runs", folder / "baselines", add)
        return read_baseline(folder / "baselines/rtx3090/balanced-6k/llamacpp.json").golden

    def test_the_golden_goes_into_the_baseline_and_comes_back_as_it_was(self, tmp_path: Path) -> None:
        self.save(tmp_path, "a", scores(), scores())
        assert self.promote(tmp_path, "a") == golden(made_with="llamacpp")

    def test_a_verdict_of_no_golden_does_not_keep_a_run_from_making_one_and_a_failed_one_does(
        self, tmp_path: Path
    ) -> None:
        told = Verdict(
            outcome=Outcome.NO_BASELINE, check="golden", scenario="balanced-6k", subject="golden", phase=Phase.OUTPUT
        )
        self.save(tmp_path, "a", scores(), verdicts=(told,))
        assert self.promote(tmp_path, "a") is not None
        self.save(tmp_path, "b", scores(), verdicts=(replace(told, outcome=Outcome.FAILED, reason="beyond"),))
        with pytest.raises(RecordError, match="not good enough for a baseline: golden FAILED: beyond"):
            self.promote(tmp_path, "b")

    def test_starts_that_do_not_agree_are_refused_with_the_reason(self, tmp_path: Path) -> None:
        self.save(tmp_path, "a", scores(), scores(0.9))
        with pytest.raises(RecordError, match="its starts do not agree: start 2 is beyond the floor of start 1"):
            self.promote(tmp_path, "a")

    def test_a_run_that_is_added_must_agree_and_the_first_golden_stays(self, tmp_path: Path) -> None:
        self.save(tmp_path, "a", scores())
        self.save(tmp_path, "b", scores(0.05))
        self.save(tmp_path, "c", scores(0.9))
        first = self.promote(tmp_path, "a")
        assert self.promote(tmp_path, "b", add=True) == first
        with pytest.raises(RecordError, match="run c cannot join the baseline of rtx3090/balanced-6k: its log-prob"):
            self.promote(tmp_path, "c", add=True)

    def test_a_run_without_scores_makes_a_baseline_without_a_golden(self, tmp_path: Path) -> None:
        self.save(tmp_path, "a", ())
        assert self.promote(tmp_path, "a") is None
