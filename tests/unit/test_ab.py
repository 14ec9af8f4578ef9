"""`moegpu ab` without servers: order, looks, what must match, correctness first, and that it fails closed."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pytest_moegpu.backends import get_backend
from pytest_moegpu.backends.base import EngineVersion
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.abargs import AbOrder, SideOrder
from pytest_moegpu.core.blocks import looks_up_to, order
from pytest_moegpu.core.evidence import Part, Phase, RequestKind, StartEvidence, StartFailure
from pytest_moegpu.core.model import ModelFile, Settings
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.core.units import GIB
from pytest_moegpu.errors import UserError
from pytest_moegpu.host.store import RunStore, read_run
from pytest_moegpu.options import Options
from pytest_moegpu.session import ab, abside
from pytest_moegpu.session.abjudge import foretold
from pytest_moegpu.session.abside import with_settings
from pytest_moegpu.session.cooldown import CoolDown
from pytest_moegpu.session.measure import Recorded, StartRun
from pytest_moegpu.session.progress import Silent
from pytest_moegpu.session.server import Server
from pytest_moegpu.session.target import Target
from tests.fakes.probe import FakeProbe
from tests.unit.builders import answers, gpu, profile, scenario, stream, watched

NOISE = (0.0, 0.004, -0.003, 0.001, -0.005, 0.002, 0.0035, -0.0015, 0.0005, -0.0025)

Made = Callable[[str, int, StartEvidence], StartEvidence]


@dataclass
class Machine:
    """Two programs whose decode rates are known; `change` may break a start of a side, `made` are the starts."""

    rates: dict[str, float]
    model: dict[str, str] = field(default_factory=dict)
    change: Made = lambda _side, _number, start: start
    made: list[str] = field(default_factory=list)
    probes: list[FakeProbe] = field(default_factory=list)
    folders: dict[Path, str] = field(default_factory=dict)

    def target(self, options: Options, _progress: object) -> Target:
        server = options.server or "same"
        mine = replace(profile(), name=options.profile)
        probe = FakeProbe(used=10 * 2**20, gpus=(gpu(uuid="GPU-1"),))
        self.probes.append(probe)
        return Target(
            profile=mine,
            scenarios=(scenario(),),
            backend=get_backend("llamacpp"),
            program=(server,),
            engine=EngineVersion(version="1.2" if server == "same" else server, build="GNU"),
            model=Catalog.load().model("smollm2-135m-instruct"),
            file=ModelFile(path="/m.gguf", size_bytes=1, sha256=self.model.get(server, "ab"), quantisation="Q4_1"),
            probe=probe,
            gpus=(gpu(uuid="GPU-1"),),
            versions=probe.versions(),
            program_sha256=server,
            load=lambda _name: scenario(),
        )

    def start(self, run: StartRun) -> Recorded:
        assert isinstance(run.server, Server)
        server = run.server.spec.program[0]
        # With seed 1 the first start is one of A.
        side = self.folders.setdefault(run.server.log_path.parent, "AB"[min(len(self.folders), 1)])
        self.made.append(side)
        rate = self.rates[server] * (1 + NOISE[(run.number - 1) % len(NOISE)])
        start = watched(
            run.number,
            parts=tuple(sorted(run.parts)),
            started_at=f"2026-12-01T10:{len(self.made):02}:00+00:00",
            requests=(*answers(), *(stream(rate) for _ in range(3))),
        )
        sample = Sample(time=0.0, phase="load", device=0, used_bytes=1)
        return Recorded(start=self.change(side, run.number, start), samples=(sample,), libraries={})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(rates={"same": 100.0, "slow": 90.0, "fast": 120.0, "tiny": 99.5})
    monkeypatch.setattr(abside, "resolve", made.target)
    monkeypatch.setattr(StartRun, "run", lambda run: made.start(run))
    yield made
    assert [probe.closes for probe in made.probes] == [1] * len(made.probes)


def run(tmp_path: Path, b: str = "same", starts: int = 10, settings: tuple[str, ...] = ()) -> tuple[int, str, str]:
    asked = AbOrder(
        profile="rtx3090",
        a=SideOrder(server="same"),
        b=SideOrder(server=b, settings=settings),
        starts=starts,
        seed=1,
        runs=tmp_path / "runs",
    )
    out, err = io.StringIO(), io.StringIO()
    code = ab.run(asked, out, err, ("moegpu", "ab"))
    return code, out.getvalue(), err.getvalue()


def test_the_order_is_of_blocks_that_cancel_a_drift() -> None:
    seen = Counter[str]()
    for seed in range(200):
        sides = order(10, seed)
        blocks = [sides[at : at + 4] for at in range(0, len(sides), 4)]
        seen.update(blocks)
        assert len(blocks) == 5
        # The places of A and of B have one sum, so what grows by the start adds the same to both.
        assert sum(at if side == "A" else -at for at, side in enumerate(sides)) == 0
    assert set(seen) == {"ABBA", "BAAB"}
    assert 400 < seen["ABBA"] < 600
    assert order(10, 7) == order(10, 7)


@pytest.mark.parametrize(("starts", "looks"), [(6, (6,)), (8, (6, 8)), (10, (6, 8, 10)), (14, (6, 8, 10, 14))])
def test_looks_end_at_the_starts_asked_for(starts: int, looks: tuple[int, ...]) -> None:
    assert looks_up_to(starts) == looks


@pytest.mark.parametrize("starts", [0, 4, 5, 7, -2])
def test_starts_that_could_find_nothing_or_split_a_block_are_refused(starts: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="an even number of at least 6 is needed"):
        looks_up_to(starts)
    code, page, told = run(tmp_path, starts=starts)
    assert (code, page) == (3, "")
    assert f"moegpu ab: {starts} starts of each side" in told


def test_a_slower_build_is_regressed_at_the_first_look(machine: Machine, tmp_path: Path) -> None:
    code, page, _ = run(tmp_path, "slow")
    assert code == 1
    assert machine.made == list(order(10, 1)[:12])
    assert "under test  engine_version 1.2 → slow; program same → slow" in page
    assert "REGRESSED  decode (B against A) 90.0 tok/s, baseline 100.0 (-10.0 %" in page
    assert "changed  engine_version 1.2 → slow, program same → slow      same: GPU, model, settings" in page
    assert "decode: B/A -10.0 % (99.1 % interval " in page
    assert "worse: 1 REGRESSED, " in page


def test_the_same_build_passes_at_the_first_look_and_both_runs_are_kept(machine: Machine, tmp_path: Path) -> None:
    code, page, _ = run(tmp_path)
    assert code == 0
    assert Counter(machine.made) == {"A": 6, "B": 6}
    assert "under test  nothing differs: A and B are the same" in page
    assert "REGRESSED" not in page
    kept = [read_run(RunStore(tmp_path / "runs").find(name)) for name in RunStore(tmp_path / "runs").ids()]
    assert [record.status for record in kept] == ["finished", "finished"]
    assert [len(record.evidence[0].starts) for record in kept] == [6, 6]
    judged = [{v.metric for v in record.verdicts if v.check == "baseline"} for record in kept]
    assert sorted(judged, key=len) == [set(), {"decode", "prefill", "ttft", "peak_memory"}]


def test_a_faster_build_is_improved_and_good(machine: Machine, tmp_path: Path) -> None:
    code, page, _ = run(tmp_path, "fast")
    assert code == 0
    assert "IMPROVED" in page
    assert len(machine.made) == 12


def test_what_is_not_decided_goes_on_to_the_last_look(machine: Machine, tmp_path: Path) -> None:
    # Its starts spread by 6 %, so that a loss of 5 % is not ruled out by any number of starts planned here.
    def noisy(side: str, number: int, start: StartEvidence) -> StartEvidence:
        rate = 100.0 * (0.94 if number % 2 else 1.06)
        return replace(start, requests=(*answers(), *(stream(rate) for _ in range(3)))) if side == "B" else start

    machine.change = noisy
    code, page, _ = run(tmp_path)
    assert code == 2
    assert Counter(machine.made) == {"A": 10, "B": 10}
    assert "INCONCLUSIVE  decode (B against A)" in page


def test_a_side_whose_text_cannot_be_judged_costs_one_start_of_each(machine: Machine, tmp_path: Path) -> None:
    def few(_side: str, _number: int, start: StartEvidence) -> StartEvidence:
        return replace(start, requests=(*answers()[:2], *(stream() for _ in range(3))))

    machine.change = few
    code, page, _ = run(tmp_path)
    assert code == 2
    assert machine.made == ["A"]
    assert "too few: 2 questions" in page


def lagging(*numbers: int) -> Made:
    """Let the client be too slow in these starts of B, by their own count."""

    def change(side: str, number: int, start: StartEvidence) -> StartEvidence:
        late = tuple(replace(r, client_lag=0.2) if r.kind is RequestKind.THROUGHPUT else r for r in start.requests)
        return replace(start, requests=late) if side == "B" and number in numbers else start

    return change


def test_a_start_that_may_not_be_believed_is_made_again_and_told(machine: Machine, tmp_path: Path) -> None:
    machine.change = lagging(1, 4)
    code, page, told = run(tmp_path, "slow")
    assert code == 1
    assert Counter(machine.made) == {"A": 6, "B": 8}
    assert "REGRESSED  decode (B against A) 90.0 tok/s" in page
    assert "\nmade again, B: start 1: client too slow: lag 200.0 ms" in page
    assert "\nmade again, B: start 4: client too slow: lag 200.0 ms" in page
    assert "B: made again: start 4" in told
    store = RunStore(tmp_path / "runs")
    numbers = {tuple(s.number for s in read_run(store.find(name)).evidence[0].starts) for name in store.ids()}
    assert numbers == {(1, 2, 3, 4, 5, 6), (2, 3, 5, 6, 7, 8)}


def test_starts_are_made_again_a_few_times_only(machine: Machine, tmp_path: Path) -> None:
    machine.change = lagging(*range(1, 99))
    code, page, _ = run(tmp_path)
    assert code == 2
    assert Counter(machine.made) == {"A": 6, "B": 10}
    assert "INCONCLUSIVE  decode (B against A)" in page


def test_a_side_with_wrong_text_is_found_before_any_speed(machine: Machine, tmp_path: Path) -> None:
    def wrong(side: str, _number: int, start: StartEvidence) -> StartEvidence:
        texts = tuple(replace(r, text="I cannot tell.") if r.expect else r for r in start.requests)
        return replace(start, requests=texts) if side == "B" else start

    machine.change = wrong
    code, page, _ = run(tmp_path, "slow")
    assert code == 1
    assert machine.made == ["A", "B"]
    assert "known answers (B)" in page
    assert "REGRESSED" not in page
    assert "no speed was compared" in page


def test_a_start_that_breaks_ends_it_without_an_answer(machine: Machine, tmp_path: Path) -> None:
    def broken(side: str, number: int, start: StartEvidence) -> StartEvidence:
        failure = StartFailure(phase=Phase.LOAD, cause="exited with code 7")
        return replace(start, failure=failure) if (side, number) == ("B", 2) else start

    machine.change = broken
    code, page, _ = run(tmp_path)
    assert code == 2
    assert machine.made == ["A", "B", "B"]
    assert "exited with code 7" in page


def test_nothing_is_started_after_memory_that_did_not_come_back(machine: Machine, tmp_path: Path) -> None:
    def leaking(_side: str, number: int, start: StartEvidence) -> StartEvidence:
        return replace(start, after_bytes=5 * GIB) if number == 2 else start

    machine.change = leaking
    code, page, _ = run(tmp_path)
    assert code != 0
    assert machine.made == ["A", "B", "B"]
    assert "LEFT BEHIND: start 2 left 4.99 GiB on the device, held by nobody known" in page


def test_ctrl_c_says_so_and_marks_both_runs(machine: Machine, tmp_path: Path) -> None:
    def interrupted(_side: str, number: int, start: StartEvidence) -> StartEvidence:
        if number == 2:
            raise KeyboardInterrupt
        return start

    machine.change = interrupted
    code, _, told = run(tmp_path)
    assert code == 2
    assert "moegpu ab: interrupted, nothing was decided" in told
    store = RunStore(tmp_path / "runs")
    assert [read_run(store.find(name)).status for name in store.ids()] == ["interrupted"] * 2


def test_another_model_file_is_refused_before_anything_starts(machine: Machine, tmp_path: Path) -> None:
    machine.model["slow"] = "cd"
    code, page, told = run(tmp_path, "slow")
    assert (code, page) == (3, "")
    assert "for what must match differs: model.sha256 ab → cd" in told
    assert machine.made == []
    assert not (tmp_path / "runs").exists()


def test_a_setting_of_one_side_is_under_test(machine: Machine, tmp_path: Path) -> None:
    code, page, _ = run(tmp_path, settings=("settings.ubatch=256",))
    assert code == 0
    assert "under test  settings.ubatch 512 → 256" in page
    record = read_run(RunStore(tmp_path / "runs").find("latest"))
    assert record.scenarios[0].settings.ubatch in (256, 512)
    assert set(Counter(machine.made)) == {"A", "B"}


def test_settings_are_read_as_in_a_scenario_file() -> None:
    read = with_settings(
        scenario(settings=Settings(context=2048)),
        ("settings.flash_attention=off", "settings.mmap=false", "settings.kv_cache=q8_0", "settings.gpu_layers=all"),
        "--b-set",
    ).settings
    assert (read.flash_attention, read.mmap, read.kv_cache, read.gpu_layers) == ("off", False, "q8_0", None)
    assert (read.context, read.ubatch) == (2048, 512)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("ubatch=256", r"write it as settings\.NAME=VALUE"),
        ("settings.ubatch", r"write it as settings\.NAME=VALUE"),
        ("limits.decode_min=1", "only launch settings may differ"),
        ("settings.ubtach=256", r"unknown key \(did you mean 'ubatch'\?\)"),
        ("settings.ubatch=many", "write a whole number of at least 1"),
        ("settings.context=512", "do not fit settings.context"),
    ],
)
def test_a_setting_that_cannot_be_read_is_named(word: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        with_settings(scenario(), (word,), "--b-set")


def test_what_can_be_found_is_told_before_the_first_start() -> None:
    told = foretold((6, 8, 10), scenario())
    assert told.startswith("a loss of 2.")
    assert told.endswith("with 10 + 10 starts is found 9 times in 10, if starts differ by 1.0 % (CV)")
    losses = [float(word) for word in told.split() if word.startswith(("2.", "3."))]
    assert losses == sorted(losses, reverse=True)


@dataclass
class Warm:
    """A device whose temperature is read from a list, the last one again and again."""

    celsius: list[float | None]

    def probe(self) -> FakeProbe:
        left = list(self.celsius)

        def read(time: float, phase: str) -> Sample:
            now = left.pop(0) if len(left) > 1 else left[0]
            return Sample(time=time, phase=phase, device=0, temperature_c=now)

        return FakeProbe(used=read)


def test_a_start_waits_until_the_device_is_as_cool_as_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("pytest_moegpu.session.cooldown.time.sleep", slept.append)
    cool, probe = CoolDown(seconds=60.0, progress=Silent()), Warm([30.0, 50.0, 40.0, 32.0]).probe()
    cool.wait(probe)
    cool.wait(probe)
    assert len(slept) == 2
    assert cool.describe() == "every start began within 2 °C of the first, at 30 °C"


def test_a_device_that_stays_warm_is_told() -> None:
    cool, probe = CoolDown(seconds=0.0, progress=Silent()), Warm([30.0, 41.0, 43.0]).probe()
    for _ in range(3):
        cool.wait(probe)
    assert cool.missed == [41.0, 43.0]
    assert cool.describe() == (
        "2 of 3 starts began warmer than the first (30 °C), up to 43 °C: not cooled down within 0 s"
    )


def test_a_temperature_that_is_not_known_is_never_waited_for() -> None:
    cool, probe = CoolDown(seconds=60.0, progress=Silent()), Warm([None]).probe()
    cool.wait(probe)
    cool.wait(probe)
    assert cool.first is None
    assert cool.describe() == "the temperature of the device is not known"


def test_all_starts_of_a_side_have_the_same_parts(machine: Machine, tmp_path: Path) -> None:
    run(tmp_path, starts=6)
    store = RunStore(tmp_path / "runs")
    parts = {start.parts for name in store.ids() for start in read_run(store.find(name)).evidence[0].starts}
    assert parts == {(Part.OUTPUT, Part.THROUGHPUT)}
    assert len(machine.made) == 12
