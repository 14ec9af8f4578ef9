"""The bench that injures a model: what each injury does to the file, and what the tables make of the runs."""

from __future__ import annotations

import argparse
import json
import shlex
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from bench._injuries import INJURIES, Injury, injure
from bench._patient import opened
from bench._safetensors import negate_blocks, swap_layers
from bench._swapped_model import replaced, used
from bench.injury import ORDERS, ROOT, Project, Row, markdown, row_of
from bench.moe import Step, distance
from pytest_moegpu.backends import get_backend
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.evidence import Phase
from pytest_moegpu.core.model import LaunchSpec, Settings
from pytest_moegpu.core.verdict import Outcome, Verdict
from pytest_moegpu.errors import ModelFileError
from pytest_moegpu.host.modelfile import read_gguf
from pytest_moegpu.host.upcycle import upcycle
from tests.fakes.dense_gguf import WIDTH, write_dense
from tests.unit.builders import evidence, run_record, start, stream

LAYERS = 30


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOEGPU_CACHE", str(folder / "cache"))
        found = {"dense": write_dense(folder / "dense.gguf", layers=LAYERS)}
        for name, order in ORDERS.items():
            found[name] = folder / f"{name}.gguf"
            upcycle(found["dense"], found[name], order)
    return found


@pytest.fixture
def injured(models: dict[str, Path], tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    """Do an injury by its name; returns the intact file and the injured one."""

    def do(name: str) -> tuple[Path, Path]:
        (injury,) = (each for each in INJURIES if each.name == name)
        file = tmp_path / "injured.gguf"
        file.write_bytes(models[injury.model].read_bytes())
        injure(file, injury)
        return models[injury.model], file

    return do


def values(path: Path, name: str) -> np.ndarray:
    (tensor,) = (each for each in gguf.GGUFReader(path).tensors if each.name == name)
    numbers: np.ndarray = gguf.quants.dequantize(np.array(tensor.data), tensor.tensor_type)
    return numbers


def raw(path: Path, name: str) -> bytes:
    (tensor,) = (each for each in gguf.GGUFReader(path).tensors if each.name == name)
    data: bytes = tensor.data.tobytes()
    return data


@pytest.mark.parametrize("injury", INJURIES, ids=lambda injury: injury.name)
def test_an_injury_changes_the_file_and_leaves_it_whole(
    models: dict[str, Path], tmp_path: Path, injury: Injury
) -> None:
    before = models[injury.model].read_bytes()
    file = tmp_path / "injured.gguf"
    file.write_bytes(before)
    injure(file, injury)
    after = file.read_bytes()
    assert (after == before) == (injury.kind == "none")
    if injury.kind == "file truncated":
        with pytest.raises(ModelFileError, match="is truncated"):
            read_gguf(file)
        return
    assert len(after) == len(before)
    assert read_gguf(file) == read_gguf(models[injury.model]) or injury.kind == "two tokens swapped"
    file.write_bytes(before)
    injure(file, injury)
    assert file.read_bytes() == after, "the same injury again is another one"


def test_names_are_those_of_one_injury_each() -> None:
    assert len({injury.name for injury in INJURIES}) == len(INJURIES)
    assert sum(injury.harmless for injury in INJURIES) == 5


Injured = Callable[[str], tuple[Path, Path]]


@pytest.mark.parametrize(("name", "blocks"), [("NaN scale 1 block", 1), ("NaN scale 100 blocks", 100)])
def test_a_nan_scale_makes_the_numbers_of_its_block_nan(injured: Injured, name: str, blocks: int) -> None:
    _, file = injured(name)
    assert np.isnan(values(file, "blk.15.ffn_down.weight")).sum() == 32 * blocks
    assert not np.isnan(values(file, "blk.14.ffn_down.weight")).any()


def test_swapped_tensors_are_each_the_other(injured: Injured) -> None:
    intact, file = injured("tensors swapped attn_output 14, 15")
    for a, b in ((14, 15), (15, 14)):
        assert (values(file, f"blk.{a}.attn_output.weight") == values(intact, f"blk.{b}.attn_output.weight")).all()


def test_flipped_fraction_bits_change_a_scale_by_less_than_half(injured: Injured) -> None:
    intact, file = injured("scale, fraction bit flipped all")
    old, new = (np.frombuffer(raw(path, "blk.3.attn_q.weight"), dtype="<u2").reshape(-1, 10) for path in (intact, file))
    assert (old[:, 1:] == new[:, 1:]).all()
    share = np.abs(new[:, 0].copy().view("<f2") / old[:, 0].copy().view("<f2") - 1)
    assert (share > 0).all()
    assert share.max() <= 0.5


def test_a_share_of_the_blocks_is_about_that_share(injured: Injured) -> None:
    intact, file = injured("quantised value, bit flipped 0.1")
    changed = total = 0
    for layer in range(LAYERS):
        for part in ("attn_q", "ffn_up", "ffn_down"):
            name = f"blk.{layer}.{part}.weight"
            old, new = (np.frombuffer(raw(path, name), dtype=np.uint8).reshape(-1, 20) for path in (intact, file))
            bits = np.unpackbits(old ^ new, axis=1).sum(axis=1)
            assert set(bits) <= {0, 1}
            changed, total = changed + int(bits.sum()), total + len(bits)
    assert changed / total == pytest.approx(0.1, abs=0.01)


def test_the_rope_base_and_norms_are_what_the_name_says(injured: Injured) -> None:
    _, file = injured("rope base x 2")
    assert gguf.GGUFReader(file).fields["llama.rope.freq_base"].contents() == 200000.0
    _, file = injured("norm weights scaled x 2, one layer")
    assert (values(file, "blk.15.attn_norm.weight") == 2).all()
    assert (values(file, "blk.16.attn_norm.weight") == 1).all()


def test_a_layer_that_adds_nothing_and_rows_that_are_shifted(injured: Injured) -> None:
    _, file = injured("layer adds nothing middle")
    assert not values(file, "blk.15.attn_output.weight").any()
    assert not values(file, "blk.15.ffn_down.weight").any()
    assert values(file, "blk.15.attn_q.weight").any()
    intact, file = injured("rows shifted by one attn_k, one layer")
    assert (values(file, "blk.15.attn_k.weight")[1] == values(intact, "blk.15.attn_k.weight")[0]).all()


def test_two_tokens_are_exchanged_in_the_vocabulary(injured: Injured) -> None:
    _, file = injured("two tokens swapped Paris, Tokyo")
    tokens = gguf.GGUFReader(file).fields["tokenizer.ggml.tokens"].contents()
    assert tokens[:5] == ["ĠTokyo", "ĠParis", "Ġviolin", "Ġpepper", "t0"]


def test_tokens_that_are_not_there_are_told(models: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(models["dense"].read_bytes())
    with opened(file) as patient, pytest.raises(ValueError, match="not in the vocabulary"):
        patient.swap_texts("ĠParis", "ĠRome!")


def test_one_expert_is_zeroed_or_takes_the_place_of_another(injured: Injured) -> None:
    intact, file = injured("expert zeroed one layer")
    old, new = values(intact, "blk.15.ffn_down_exps.weight"), values(file, "blk.15.ffn_down_exps.weight")
    assert old.shape == (4, WIDTH, 64)
    assert not new[1].any()
    assert (new[[0, 2, 3]] == old[[0, 2, 3]]).all()
    _, file = injured("experts swapped one layer")
    assert (values(file, "blk.15.ffn_down_exps.weight")[[0, 1]] == old[[1, 0]]).all()
    _, file = injured("router NaN one layer")
    assert np.isnan(values(file, "blk.15.ffn_gate_inp.weight")).all()


def test_only_the_model_of_a_command_is_replaced(tmp_path: Path) -> None:
    server = ["llama-server", "-m", "/m/a.gguf", "-c", "1024"]
    assert replaced(server, "/x/b.gguf") == ["llama-server", "-m", "/x/b.gguf", "-c", "1024"]
    assert replaced(server, "") == server
    assert replaced(["llama-server", "--model", "/m/a.gguf"], "/x/b.gguf") == ["llama-server", "--model", "/x/b.gguf"]
    python = ["python", "-m", "pytest_moegpu.host.embedded_server", "--version"]
    assert replaced(python, "/x/b.gguf") == python
    order = tmp_path / "order.txt"
    order.write_text("/x/b.gguf\n")
    argv = [sys.executable, str(ROOT / "bench/_swapped_model.py"), str(order), "/bin/echo", *python[1:3], *server[1:]]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "-m pytest_moegpu.host.embedded_server -m /x/b.gguf -c 1024\n"
    assert used(order).read_text() == "/x/b.gguf"


def test_the_command_line_that_the_backend_writes_is_one_whose_model_is_replaced() -> None:
    settings = Settings(context=1024)
    spec = LaunchSpec(
        program=(sys.executable, "-m", "pytest_moegpu.host.embedded_server"),
        model_path="/m/a.gguf",
        model_name="m",
        settings=settings,
        host="127.0.0.1",
        port=1,
        api_key="",
    )
    argv = list(get_backend("llamacpp").argv(spec))
    new = list(get_backend("llamacpp").argv(replace(spec, model_path="/x/b.gguf")))
    assert argv != new == replaced(argv, "/x/b.gguf")


def test_a_run_whose_server_got_another_model_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = argparse.Namespace(profile="embedded", program="true", checks="output")
    made = Project(tmp_path, args, Path("/models/smol.gguf"))
    done = subprocess.CompletedProcess([], 0, "1 passed", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(ValueError, match="the server was given no model: 1 passed"):
        made.run(tmp_path / "injured.gguf")


def row(kind: str, strength: str, outcome: Outcome, *, decode: float | None = 50.0, harmless: bool = False) -> Row:
    checks = {"output: known answers": outcome.value, "throughput: decode": "ERROR"}
    return Row(
        kind=kind,
        strength=strength,
        model="dense",
        harmless=harmless,
        checks=checks,
        finding="",
        decode=decode,
        seconds=1.0,
    )


def test_the_table_names_the_smallest_injury_caught_and_what_was_not() -> None:
    rows = [
        row("none", "", Outcome.PASS, harmless=True),
        row("bits", "1", Outcome.PASS),
        row("bits", "10", Outcome.INCONCLUSIVE, decode=25.0),
        row("bits", "100", Outcome.FAILED),
        row("bits", "1000", Outcome.FAILED, decode=None),
        row("rope", "x 1.01", Outcome.PASS),
    ]
    text = markdown(rows)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert ["bits", "100", "1 (PASS); 10 (INCONCLUSIVE)"] in lines
    assert ["rope", "none", "x 1.01 (PASS)"] in lines
    assert ["bits", "10", "INCONCLUSIVE", "INCONCLUSIVE", "25", "0.50", ""] in lines
    assert text.endswith("Harmless and accused: none\n")


def test_a_speed_does_not_make_an_injury_caught_and_nothing_judged_is_not_good() -> None:
    assert row("bits", "1", Outcome.PASS).state == "PASS"
    empty = Row(kind="bits", strength="1", model="dense", harmless=False, checks={}, finding="", decode=None, seconds=1)
    assert empty.state == "INCONCLUSIVE"


def test_a_harmless_change_that_was_accused_is_named() -> None:
    assert markdown([row("none", "again", Outcome.FAILED, harmless=True)]).endswith("accused: none again\n")


def test_a_run_is_summed_up_by_its_worst_outcomes_its_first_finding_and_its_median_speed() -> None:
    def verdict(check: str, subject: str, outcome: Outcome, reason: str = "") -> Verdict:
        return Verdict(outcome=outcome, check=check, scenario="s", subject=subject, phase=Phase.OUTPUT, reason=reason)

    record = run_record(
        evidence(start(requests=tuple(stream(rate) for rate in (90.0, 100.0, 104.0)))),
        verdicts=(
            verdict("throughput", "decode", Outcome.ERROR, "no speed"),
            verdict("output", "text form", Outcome.PASS),
            verdict("output", "text form", Outcome.FAILED, "broken text: periodic-tail"),
            verdict("context", "context 512 tokens (50 %)", Outcome.FAILED, "0 of 1"),
        ),
    )
    summed = row_of(INJURIES[0], record, 2.34)
    assert summed.checks == {
        "throughput: decode": "ERROR",
        "output: text form": "FAILED",
        "context: context N tokens (N %)": "FAILED",
    }
    assert summed.finding == "output: text form: broken text: periodic-tail"
    assert summed.decode == pytest.approx(100, rel=0.01)
    assert (summed.seconds, summed.state) == (2.3, "FAILED")


@pytest.mark.parametrize("name", ["embedded", "h200"])
def test_the_catalog_of_the_bench_extends_the_profile_and_swaps_the_model_behind_it(tmp_path: Path, name: str) -> None:
    program = "/opt/llama server" if name == "h200" else None
    args = argparse.Namespace(profile=name, program=program and f"'{program}'")
    made = Project(tmp_path, args, Path("/models/smol.gguf"))
    catalog = Catalog.load([tmp_path / "catalog"])
    profile = catalog.profile("injury")
    assert profile.gpu == catalog.profile(name).gpu
    assert profile.model_path == "/models/smol.gguf"
    words = shlex.split(profile.program or "")
    assert words[:3] == [sys.executable, str(ROOT / "bench/_swapped_model.py"), str(made.order)]
    assert words[3:] == ([program] if program else [sys.executable, "-m", "pytest_moegpu.host.embedded_server"])
    scenario = catalog.scenario("injury-1k", profile)
    assert (scenario.settings.context, scenario.workload.requests) == (1024, 3)


def test_a_distance_is_that_of_the_common_path_and_names_the_gap_where_it_ends() -> None:
    dense = [[Step("a", -0.1, 3.0), Step("b", -0.5, 0.2), Step("c", -1.0, 1.0)], [Step("x", -0.3, 1.0)]]
    mixed = [[Step("a", -0.2, 3.0), Step("z", -0.6, 0.1), Step("c", -1.0, 1.0)], [Step("x", -0.6, 1.0)]]
    found = distance(dense, mixed)
    assert (found.compared, found.gaps) == (2, (0.2,))
    assert found.mean == pytest.approx(0.2)
    assert found.largest == pytest.approx(0.3)
    with pytest.raises(ValueError, match="no common token"):
        distance([[Step("a", 0, 0)]], [[Step("b", 0, 0)]])


def test_a_folder_is_replaced_too_behind_whatever_names_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    folder = str(tmp_path)
    assert replaced(["vllm", "serve", folder, "--port", "1"], "/x") == ["vllm", "serve", "/x", "--port", "1"]
    assert replaced(["server", "--model-path", folder], "/x") == ["server", "--model-path", "/x"]
    assert replaced(["serve", "help"], "/x") == ["serve", "help"]


def saved(folder: Path, layers: int) -> dict[str, npt.NDArray[np.uint16]]:
    """Write a folder of BF16 weights with one row of 64 numbers a matrix; return them by name."""
    parts = [f"self_attn.{p}_proj" for p in "qkvo"] + [f"mlp.{p}_proj" for p in ("gate", "up", "down")]
    random = np.random.default_rng(1)
    names = [f"model.layers.{layer}.{part}.weight" for layer in range(layers) for part in parts]
    tensors = {name: random.integers(0, 2**16, 64, dtype=np.uint16) for name in [*names, "model.norm.weight"]}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for number, name in enumerate(tensors):
        header[name] = {"dtype": "BF16", "shape": [1, 64], "data_offsets": [number * 128, number * 128 + 128]}
    text = json.dumps(header).encode()
    body = b"".join(tensor.tobytes() for tensor in tensors.values())
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    return tensors


def read_back(folder: Path, before: dict[str, npt.NDArray[np.uint16]]) -> dict[str, npt.NDArray[np.uint16]]:
    data = (folder / "model.safetensors").read_bytes()[-128 * len(before) :]
    return {name: np.frombuffer(data, np.uint16, 64, number * 128) for number, name in enumerate(before)}


def test_layers_of_a_folder_change_places_and_nothing_else_moves(tmp_path: Path) -> None:
    before = saved(tmp_path, 3)
    swap_layers(tmp_path, 0, 2)
    other = {"0": "2", "2": "0"}
    for name, tensor in read_back(tmp_path, before).items():
        words = name.split(".")
        words[2] = other.get(words[2], words[2])
        assert (tensor == before[".".join(words)]).all()


def test_blocks_of_a_folder_are_negated_whole_and_only_in_matrices_of_layers(tmp_path: Path) -> None:
    before = saved(tmp_path, 3)
    negate_blocks(tmp_path, 0.5)
    changed = {name: (tensor ^ before[name]).reshape(2, 32) for name, tensor in read_back(tmp_path, before).items()}
    assert not changed.pop("model.norm.weight").any()
    blocks = np.concatenate(list(changed.values()))
    negated = (blocks == 0x8000).all(axis=1)
    assert ((blocks == 0).all(axis=1) | negated).all()
    assert 10 <= negated.sum() <= 32
