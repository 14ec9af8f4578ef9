"""A dense model made a mixture of experts: read back with the gguf package, number by number."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest

from pytest_moegpu.cli import main
from pytest_moegpu.core.upcycle import Action, How, Order, PlannedTensor, TensorType, router, sliced
from pytest_moegpu.errors import ModelFileError, UserError
from pytest_moegpu.host.modelfile import read_gguf
from pytest_moegpu.host.upcycle import upcycle
from tests.fakes.dense_gguf import HIDDEN, WIDTH, write_dense

COPIES = Order(how=How.COPIES, experts=4, used=2, seed=1)
SLICES = Order(how=How.SLICES, experts=4, used=4)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEGPU_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return write_dense(tmp_path / "dense.gguf")


def tensors(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def values(tensor: Any) -> np.ndarray:
    """Return the numbers of a tensor, experts first, then rows."""
    numbers: np.ndarray = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return numbers


def ffn(x: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    """Return down(silu(gate x) * up x)."""
    g = gate @ x
    out: np.ndarray = down @ (g / (1 + np.exp(-g)) * (up @ x))
    return out


@pytest.mark.parametrize("order", [COPIES, SLICES, Order(how=How.SLICES, experts=8, used=8)])
def test_the_experts_sum_to_the_dense_network(dense: Path, tmp_path: Path, order: Order) -> None:
    upcycle(dense, tmp_path / "moe.gguf", order)
    old, new = tensors(dense), tensors(tmp_path / "moe.gguf")
    x = np.random.default_rng(3).standard_normal(WIDTH)
    for layer in range(2):
        parts = [f"blk.{layer}.ffn_{part}" for part in ("gate", "up", "down")]
        wanted = ffn(x, *(values(old[f"{part}.weight"]).astype(np.float64) for part in parts))
        experts = [values(new[f"{part}_exps.weight"]).astype(np.float64) for part in parts]
        logits = new[f"blk.{layer}.ffn_gate_inp.weight"].data @ x
        chosen = np.argsort(-logits)[: order.used]
        weights = np.exp(logits[chosen]) / np.exp(logits[chosen]).sum()
        got = sum(w * ffn(x, *(each[e] for each in experts)) for w, e in zip(weights, chosen, strict=True))
        assert np.allclose(got, wanted, rtol=1e-9, atol=1e-9)
        assert np.abs(wanted).max() > 1


def test_what_is_not_a_feed_forward_network_stays_as_it_is(dense: Path, tmp_path: Path) -> None:
    upcycle(dense, tmp_path / "moe.gguf", SLICES)
    old, new = gguf.GGUFReader(dense), gguf.GGUFReader(tmp_path / "moe.gguf")
    kept = [t for t in old.tensors if ".ffn_" not in t.name or "norm" in t.name]
    assert len(kept) == 2 + 2 * 6
    found = tensors(tmp_path / "moe.gguf")
    for tensor in kept:
        assert found[tensor.name].data.tobytes() == tensor.data.tobytes()
        assert list(found[tensor.name].shape) == list(tensor.shape)
    changed = {"llama.feed_forward_length": HIDDEN // 4, "llama.expert_count": 4, "llama.expert_used_count": 4}
    for name, field in new.fields.items():
        if name.startswith("GGUF."):
            continue
        wanted = changed.pop(name) if name in changed else old.fields[name].contents()
        assert field.contents() == wanted, name
    assert changed == {}


def test_copies_hold_the_bytes_of_the_dense_network_and_slices_deal_them_out(dense: Path, tmp_path: Path) -> None:
    upcycle(dense, tmp_path / "copies.gguf", COPIES)
    upcycle(dense, tmp_path / "slices.gguf", SLICES)
    old, copies, slices = tensors(dense), tensors(tmp_path / "copies.gguf"), tensors(tmp_path / "slices.gguf")
    for part in ("gate", "up", "down"):
        bytes_ = old[f"blk.1.ffn_{part}.weight"].data.tobytes()
        assert copies[f"blk.1.ffn_{part}_exps.weight"].data.tobytes() == bytes_ * 4
    assert slices["blk.1.ffn_gate_exps.weight"].data.tobytes() == old["blk.1.ffn_gate.weight"].data.tobytes()
    down = values(old["blk.1.ffn_down.weight"])
    dealt = values(slices["blk.1.ffn_down_exps.weight"])
    assert dealt.shape == (4, WIDTH, HIDDEN // 4)
    for expert in range(4):
        assert (dealt[expert] == 4 * down[:, expert * 64 : (expert + 1) * 64]).all()
    assert not slices["blk.1.ffn_gate_inp.weight"].data.any()


def test_the_same_seed_gives_the_same_file_and_another_one_another(dense: Path, tmp_path: Path) -> None:
    made = [
        upcycle(dense, tmp_path / f"{n}.gguf", Order(how=How.COPIES, experts=4, used=2, seed=seed))
        for n, seed in enumerate((1, 1, 2))
    ]
    assert made[0].sha256 == made[1].sha256 != made[2].sha256
    for n, each in enumerate(made):
        data = (tmp_path / f"{n}.gguf").read_bytes()
        assert (each.size_bytes, each.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_routers_differ_from_layer_to_layer_and_have_the_spread_that_makes_routing_vary() -> None:
    first, second = (np.frombuffer(router(COPIES, layer, 4096), dtype="<f4") for layer in (0, 1))
    assert (first != second).any()
    assert first.std() * 4096**0.5 == pytest.approx(1, abs=0.02)
    # Python's generator gives these for this seed on any machine.
    assert first[:2] == pytest.approx([0.0008595, -0.0097355], abs=1e-7)


@pytest.mark.parametrize(
    "name",
    ["F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"],
)
def test_multiplying_a_slice_is_exact_in_every_type(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.constants.GGML_QUANT_SIZES[kind]
    each, rows, experts = max(64, elements), 8, 4
    chance = np.random.default_rng(5)
    if name in ("F32", "F16"):
        data = chance.standard_normal((rows, each * experts)).astype("<f4" if name == "F32" else "<f2").tobytes()
    else:
        blocks = chance.integers(0, 256, (rows * experts * each // elements, size), dtype=np.uint8)
        half = np.frombuffer(np.float16(0.0123).tobytes(), dtype=np.uint8)
        for offset in {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}.get(name, (0, 2)):
            blocks[:, offset : offset + 2] = half
        data = blocks.tobytes()
    tensor = PlannedTensor(
        name="down",
        shape=(each, rows, experts),
        type=TensorType(name=name, elements=elements, size=size),
        action=Action.SLICE,
    )

    def numbers(raw: bytes, columns: int) -> np.ndarray:
        stored = np.frombuffer(raw, dtype={"F32": "<f4", "F16": "<f2"}.get(name, np.uint8))
        found: np.ndarray = gguf.quants.dequantize(
            stored.reshape(-1, columns // elements * size // stored.itemsize), kind
        )
        return found

    old, new = numbers(data, each * experts), numbers(sliced(data, tensor), each).reshape(experts, rows, each)
    assert np.isfinite(old).all()
    for expert in range(experts):
        assert (new[expert] == 4 * old[:, expert * each : (expert + 1) * each]).all()


def test_a_scale_that_would_overflow_is_refused() -> None:
    block = np.float16(60000).tobytes() + bytes(18)
    tensor = PlannedTensor(
        name="down",
        source="blk.0.ffn_down.weight",
        shape=(32, 1, 2),
        type=TensorType(name="Q4_1", elements=32, size=20),
        action=Action.SLICE,
    )
    with pytest.raises(ModelFileError, match=r"blk\.0\.ffn_down\.weight are too large to be multiplied by 2"):
        sliced(block * 2, tensor)


def test_an_alignment_of_its_own_is_kept(tmp_path: Path) -> None:
    dense = write_dense(tmp_path / "dense.gguf", lambda writer: writer.add_custom_alignment(256))
    upcycle(dense, tmp_path / "moe.gguf", SLICES)
    reader = gguf.GGUFReader(tmp_path / "moe.gguf")
    assert reader.alignment == 256
    assert {tensor.data_offset % 256 for tensor in reader.tensors} == {0}
    old, new = tensors(dense), tensors(tmp_path / "moe.gguf")
    assert new["blk.1.attn_q.weight"].data.tobytes() == old["blk.1.attn_q.weight"].data.tobytes()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--experts 1 --used 1 --how copies", "1 experts: 2 to 512 are possible"),
        ("--experts 513 --used 1 --how copies", "513 experts: 2 to 512 are possible"),
        ("--experts 4 --used 5 --how copies", "5 experts used: 1 to 4"),
        ("--experts 4 --used 0 --how copies", "0 experts used: 1 to 4"),
        ("--experts 4 --used 2 --how slices", "only if all are used: 4 of 4, not 2"),
        ("--experts 3 --used 3 --how slices", "must be a power of two"),
        ("--experts 512 --used 512 --how slices", "512 experts do not divide the 256 hidden units of a layer"),
        ("--experts 16 --used 16 --how slices", "16 slices of 16 hidden units cut through the blocks of 32 values"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(
    dense: Path, tmp_path: Path, words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", "upcycle", str(dense), str(tmp_path / "moe.gguf"), *words.split()]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("moegpu model upcycle: ")
    assert says in err
    assert sorted(path.name for path in tmp_path.glob("*.gguf*")) == ["dense.gguf"]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("text", "is not a GGUF file: it starts with b'hell'"),
        ("missing", "does not exist"),
        ("half", "is truncated"),
        ("qwen2", "its architecture is qwen2; only llama can be made a mixture"),
        ("moe", "it is a mixture of experts already"),
        ("no-up", "it has no tensor blk.1.ffn_up.weight"),
        ("shape", "shape (64, 256), not (64, 512)"),
        ("bias", "has biases, which experts have not"),
        ("part", "it is a part of a split model"),
    ],
)
def test_a_model_that_does_not_do_is_refused(tmp_path: Path, kind: str, says: str) -> None:
    file = tmp_path / ("dense-00001-of-00001.gguf" if kind == "part" else "dense.gguf")
    if kind == "text":
        file.write_text("hello")
    elif kind == "qwen2":
        write_dense(file, arch="qwen2")
    elif kind == "no-up":
        write_dense(file, leave="blk.1.ffn_up.weight")
    elif kind == "shape":
        write_dense(file, file_hidden=512)
    elif kind == "bias":
        write_dense(file, lambda w: w.add_tensor("blk.0.ffn_up.bias", np.ones(HIDDEN, dtype=np.float32)))
    elif kind != "missing":
        write_dense(file)
    if kind == "half":
        file.write_bytes(file.read_bytes()[:-5000])
    if kind == "moe":
        upcycle(file, tmp_path / "made.gguf", COPIES)
        file = tmp_path / "made.gguf"
    with pytest.raises(ModelFileError) as caught:
        upcycle(file, tmp_path / "moe.gguf", SLICES)
    assert says in str(caught.value)
    assert str(file) in str(caught.value)
    assert not (tmp_path / "moe.gguf").exists()


def test_a_file_that_is_there_is_replaced_only_by_force(dense: Path, tmp_path: Path) -> None:
    out = tmp_path / "moe.gguf"
    out.write_text("mine")
    with pytest.raises(UserError, match=r"is there already: name another file, or give --force"):
        upcycle(dense, out, SLICES)
    assert out.read_text() == "mine"
    upcycle(dense, out, SLICES, force=True)
    assert read_gguf(out).experts == 4


def test_neither_the_model_itself_nor_a_folder_is_written_over(dense: Path, tmp_path: Path) -> None:
    before = dense.read_bytes()
    for out, says in ((dense, "is the dense model itself"), (tmp_path, "is a folder"), (tmp_path / "a/b", "not exist")):
        with pytest.raises(UserError, match=says):
            upcycle(dense, out, SLICES, force=True)
    assert dense.read_bytes() == before


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    with pytest.raises(UserError, match=r"moe\.gguf needs .* and its disk has .* free: make room"):
        upcycle(dense, tmp_path / "moe.gguf", COPIES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dense.gguf"]


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_of_a_file_that_could_not_be_finished(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    def fail(_: int) -> None:
        raise fault

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError if isinstance(fault, OSError) else KeyboardInterrupt):
        upcycle(dense, tmp_path / "moe.gguf", COPIES)
    assert [path.name for path in tmp_path.glob("*") if path.is_file()] == ["dense.gguf"]


def test_sizes_and_checksums_are_told(dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "moe.gguf"
    words = ["--experts", "4", "--used", "2", "--how", "copies", "--seed", "9"]
    assert main(["model", "upcycle", str(dense), str(out), *words]) == 0
    told = capsys.readouterr().out
    for path in (dense, out):
        data = path.read_bytes()
        assert f"{path}  {len(data)} B (" in told
        assert hashlib.sha256(data).hexdigest() in told
    assert "4 copies, 2 used for each token, router of seed 9" in told
