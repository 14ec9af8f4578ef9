"""Headers that were cut, flipped or written to harm: one clear error, whatever is in them, and nothing else."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import pytest

from pytest_moegpu.errors import ModelFileError
from pytest_moegpu.host import ggufheader
from pytest_moegpu.host.hffolder import facts_of_folder, folder_file
from pytest_moegpu.host.modelfile import read_gguf
from pytest_moegpu.host.shapegguf import shape_of_gguf
from pytest_moegpu.host.shapehf import shape_of_folder
from tests.unit.test_shapegguf import written
from tests.unit.test_shapehf import DENSE, folder

MUTATIONS = 10_000
NUMBERS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


def small(folder: Path) -> bytes:
    values = {
        "block_count": 4,
        "full_attention_interval": 2,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 64,
        "ssm.state_size": 16,
        "ssm.group_count": 2,
        "expert_count": 4,
        "expert_used_count": 2,
    }
    tensors = {f"blk.{number}.ffn_up_exps.weight": (2, 32) for number in range(4)} | {"token_embd.weight": (4, 32)}
    return written(folder / "good.gguf", "qwen35moe", values, tensors, 32).read_bytes()


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Cut, flip, overwrite with a number that is often fatal, or repeat a part."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(changed))
        match rng.randrange(5):
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                del changed[at:]
                if not changed:
                    return b"G"
            case 2:
                changed[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS))
            case 3:
                changed[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS) & 0xFFFFFFFF)
            case _:
                changed[at:at] = changed[at : at + rng.randrange(1, 64)]
    return bytes(changed)


def refused(path: Path, data: bytes) -> str:
    """Return what a file is refused for; empty when it is read. Any other exception is one that nobody foresaw."""
    path.write_bytes(data)
    try:
        shape_of_gguf(path)
    except ModelFileError as error:
        return str(error)
    return ""


def test_ten_thousand_mutations_of_a_header_are_read_or_refused(tmp_path: Path) -> None:
    data, rng, path = small(tmp_path), random.Random(20261201), tmp_path / "m.gguf"
    told = [refused(path, mutated(data, rng)) for _ in range(MUTATIONS)]
    errors = [each for each in told if each]
    assert all(each.startswith(f"model file {path}: ") and "\n" not in each for each in errors)
    assert MUTATIONS // 4 < len(errors) < MUTATIONS


FOLDER = {
    "model_type": "qwen3_5_moe",
    "text_config": DENSE
    | {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_num_value_heads": 2,
        "linear_value_head_dim": 8,
        "num_experts": 2,
        "sliding_window": 128,
        "mtp_num_hidden_layers": 1,
    },
}
LAYERS = {
    "model.embed_tokens.weight": ("BF16", (10, 4)),
    "model.layers.0.mlp.experts.0.up_proj.weight": ("BF16", (4, 4)),
    "model.layers.1.mlp.experts.gate_up_proj": ("F8_E4M3", (2, 4, 4)),
    "mtp.layers.0.norm.weight": ("F32", (4,)),
}
INDEX = {"metadata": {"total_size": 160}, "weight_map": dict.fromkeys(LAYERS, "model.safetensors")}


def refused_folder(path: Path) -> str:
    """Return what a folder is refused for; empty when it is read."""
    try:
        shape_of_folder(path)
        facts_of_folder(path)
    except ModelFileError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("hurt", ["model.safetensors", "config.json", "model.safetensors.index.json"])
def test_ten_thousand_mutations_of_a_folder_are_read_or_refused(tmp_path: Path, hurt: str) -> None:
    path = folder(tmp_path / "m", FOLDER, LAYERS)
    (path / "model.safetensors.index.json").write_text(json.dumps(INDEX), encoding="utf-8")
    assert refused_folder(path) == ""
    data, rng = (path / hurt).read_bytes(), random.Random(20261201)
    errors = []
    for _ in range(MUTATIONS // 3 + 1):
        (path / hurt).write_bytes(mutated(data, rng))
        if told := refused_folder(path):
            errors.append(told)
    assert all(told.startswith(("model file ", "model folder ")) and str(path) in told for told in errors)
    assert len(errors) > MUTATIONS // 24


def header(*parts: bytes, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + b"".join(parts)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def number(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


def words(key: str, value: str) -> bytes:
    return text(key) + struct.pack("<I", 8) + text(value)


ARCHITECTURE = words("general.architecture", "llama")
NEEDED = [number(f"llama.{key}", 4) for key in ("embedding_length", "attention.head_count", "context_length")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (header(tensors=2**63), "is truncated: it ends within its header"),
        (header(keys=2**64 - 1), "is truncated: it ends within its header"),
        (header(struct.pack("<Q", 2**62), keys=1), "is truncated: it ends within its header"),
        (header(text("a") + struct.pack("<IIQ", 9, 8, 2**60), keys=1), "is truncated: it ends within its header"),
        (header(text("a") + struct.pack("<IIQ", 9, 9, 1), keys=1), "an array has the unknown type 9"),
        (header(text("t") + struct.pack("<I", 2**31), tensors=1), "a tensor has 2147483648 dimensions"),
        (header(number("general.alignment", 0), keys=1), "its alignment is 0, which is no power of two"),
        (header(number("general.alignment", 24), keys=1), "its alignment is 24, which is no power of two"),
        (
            header(*[text("t") + struct.pack("<IQIQ", 1, 1, 0, 0)] * 2, tensors=2),
            "two of its tensors have one name",
        ),
        (
            header(text("t") + struct.pack("<IQQIQ", 2, 2**63, 2**63, 0, 0), tensors=1),
            "is truncated: its tensors end at byte 340282366920938463463374607431768211",
        ),
        (
            header(ARCHITECTURE, number("llama.block_count", 2**32 - 1), *NEEDED, keys=5),
            "is damaged: it says that it has 4294967295 layers",
        ),
        (header(ARCHITECTURE, number("llama.block_count", 0), *NEEDED, keys=5), "it says that it has 0 layers"),
        (header(ARCHITECTURE, words("llama.block_count", "many"), *NEEDED, keys=5), "has no llama.block_count"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError) as caught:
        read_gguf(path)
    assert message in str(caught.value)


def test_a_header_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ggufheader, "_MAX_HEADER_BYTES", 2**20)
    path = tmp_path / "m.gguf"
    path.write_bytes(header(text("a") + struct.pack("<IIQ", 9, 8, 2**40), keys=1))
    with path.open("r+b") as file:
        file.truncate(22 * 10**9)
    with pytest.raises(ModelFileError, match="its header goes on beyond 1 MiB"):
        read_gguf(path)


def test_a_config_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    for read in (facts_of_folder, folder_file):
        with pytest.raises(ModelFileError, match=r"config\.json cannot be read: maximum recursion depth"):
            read(tmp_path)
