"""The shape of a model from headers as converters write them, with nothing behind the header but room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from pytest_moegpu.core.budget import kv_bytes_per_token
from pytest_moegpu.core.shape import KvGroup
from pytest_moegpu.core.units import MIB
from pytest_moegpu.errors import ModelFileError
from pytest_moegpu.host.shapegguf import shape_of_gguf

COMMON = {
    "context_length": 262_144,
    "attention.head_count": 16,
    "attention.head_count_kv": 2,
    "attention.key_length": 256,
    "attention.value_length": 256,
}


def written(
    path: Path, architecture: str, values: dict[str, Any], tensors: dict[str, tuple[int, int]], width: int = 64
) -> Path:
    """Write a small file: numbers as they are, tensors of F16."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_vocab_size(248_320)
    writer.add_embedding_length(width)
    for key, value in {**COMMON, **values}.items():
        add = writer.add_array if isinstance(value, list) else writer.add_uint32
        add(f"{architecture}.{key}", value)
    for name, shape in tensors.items():
        writer.add_tensor(name, np.zeros(shape, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# Of the published files: a 35B-A3B, Qwen3-Next and the dense 27B. What they log is 62.8, 75.4 and 149.6 MiB a slot.
@pytest.mark.parametrize(
    ("architecture", "layers", "inner", "mib", "token"),
    [
        ("qwen35moe", 40, 4096, 62.81, 20_480),
        ("qwen3next", 48, 4096, 75.375, 24_576),
        ("qwen35", 64, 6144, 149.63, 32_768),
    ],
)
def test_a_hybrid_has_a_cache_in_every_fourth_layer_and_a_state_in_the_others(
    tmp_path: Path, architecture: str, layers: int, inner: int, mib: float, token: int
) -> None:
    values = {
        "block_count": layers,
        "full_attention_interval": 4,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": inner,
        "ssm.state_size": 128,
        "ssm.group_count": 16,
    }
    shape = shape_of_gguf(written(tmp_path / "m.gguf", architecture, values, {"token_embd.weight": (8, 64)}))
    assert (shape.layers, shape.recurrent_layers, shape.missing) == (layers, layers * 3 // 4, ())
    assert shape.state_bytes / MIB == pytest.approx(mib, abs=0.01)
    assert kv_bytes_per_token(shape.kv, "f16") == token


def test_blocks_of_multi_token_prediction_are_counted_apart(tmp_path: Path) -> None:
    tensors = {f"blk.{number}.attn_q.weight": (4, 64) for number in range(5)}
    values = {"block_count": 5, "nextn_predict_layers": 1, "expert_count": 8, "expert_used_count": 2}
    shape = shape_of_gguf(written(tmp_path / "m.gguf", "glm4moe", values, tensors))
    assert shape.weights is not None
    assert (shape.layers, len(shape.weights.blocks), shape.weights.mtp_blocks) == (4, 5, 1)
    assert shape.kv == (KvGroup(layers=4, k_width=512, v_width=512),)


def test_a_latent_is_cached_once_for_all_heads(tmp_path: Path) -> None:
    values = {
        "block_count": 27,
        "attention.kv_lora_rank": 512,
        "rope.dimension_count": 64,
        "attention.key_length_mla": 192,
    }
    shape = shape_of_gguf(written(tmp_path / "m.gguf", "deepseek2", values, {}))
    assert shape.kv == (KvGroup(layers=27, k_width=576, v_width=0),)
    plain = {key: value for key, value in values.items() if not key.endswith("_mla")}
    shape = shape_of_gguf(written(tmp_path / "old.gguf", "deepseek2", plain, {}))
    assert shape.kv == (KvGroup(layers=27, k_width=512, v_width=512),)


def test_windows_take_turns_with_the_whole_context(tmp_path: Path) -> None:
    values = {
        "block_count": 24,
        "attention.sliding_window": 128,
        "attention.key_length": 64,
        "attention.value_length": 64,
    }
    shape = shape_of_gguf(written(tmp_path / "m.gguf", "gpt-oss", values, {}))
    full, windowed = shape.kv
    assert (full.layers, full.window, windowed.layers, windowed.window) == (12, None, 12, 128)


def test_layers_that_differ_are_grouped_by_form(tmp_path: Path) -> None:
    values = {
        "block_count": 4,
        "attention.head_count_kv": [0, 2, 4, 2],
        "attention.sliding_window": 512,
        "attention.sliding_window_pattern": [True, False, True, True],
    }
    shape = shape_of_gguf(written(tmp_path / "m.gguf", "newfangled", values, {}))
    assert shape.kv == (
        KvGroup(layers=1, k_width=512, v_width=512),
        KvGroup(layers=1, k_width=512, v_width=512, window=512),
        KvGroup(layers=1, k_width=1024, v_width=1024, window=512),
    )


def test_a_hybrid_says_which_layers_are_recurrent(tmp_path: Path) -> None:
    values = {
        "block_count": 5,
        "nextn_predict_layers": 1,
        "attention.recurrent_layers": [True, False, True, True, False],
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 64,
        "ssm.state_size": 16,
        "ssm.group_count": 2,
    }
    shape = shape_of_gguf(written(tmp_path / "m.gguf", "qwen35", values, {}))
    assert (shape.layers, shape.recurrent_layers, shape.kv) == (4, 3, (KvGroup(layers=1, k_width=512, v_width=512),))
    assert shape.recurrent_bytes_per_slot == 3 * 4 * (3 * (64 + 2 * 2 * 16) + 64 * 16)


def test_a_state_of_unknown_size_is_missing_and_not_guessed(tmp_path: Path) -> None:
    shape = shape_of_gguf(written(tmp_path / "m.gguf", "newfangled", {"block_count": 3, "ssm.inner_size": 64}, {}))
    assert (shape.recurrent_bytes_per_slot, shape.state_bytes) == (None, 0)
    assert "how large the recurrent state of architecture 'newfangled' is: none is counted" in shape.missing


def test_weights_are_counted_where_they_are(tmp_path: Path) -> None:
    tensors = {
        "token_embd.weight": (100, 64),
        "output.weight": (50, 64),
        "output_norm.weight": (1, 64),
        "rope_freqs.weight": (1, 32),
        "blk.0.attn_q.weight": (10, 64),
        "blk.0.ffn_down_exps.weight": (20, 64),
        "blk.1.ffn_up_shexp.weight": (30, 64),
    }
    values = {"block_count": 2, "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 16}
    shape = shape_of_gguf(written(tmp_path / "m.gguf", "qwen3moe", values, tensors))
    weights = shape.weights
    assert weights is not None
    assert (weights.embedding, weights.output, weights.other) == (12_800, 6528, 64)
    assert [(block.other, block.experts) for block in weights.blocks] == [(1280, 2560), (3840, 0)]
    assert (weights.tied, weights.exact, weights.by_type, weights.total) == (False, True, {"F16": 27_072}, 27_072)
    assert (shape.expert_width, shape.parameters) == (16, 13_536)


def test_an_architecture_that_is_not_known_is_planned_and_said_to_be_a_guess(tmp_path: Path) -> None:
    shape = shape_of_gguf(written(tmp_path / "m.gguf", "newfangled", {"block_count": 3}, {}))
    assert shape.kv == (KvGroup(layers=3, k_width=512, v_width=512),)
    assert shape.missing == (
        "how the layers of architecture 'newfangled' cache: all are taken to hold the whole context",
    )


def test_a_tensor_of_a_block_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", "llama", {"block_count": 2}, {"blk.7.attn_q.weight": (2, 64)})
    with pytest.raises(
        ModelFileError, match=r"m\.gguf: tensor blk\.7\.attn_q\.weight is of a block that is not there \(2\)"
    ):
        shape_of_gguf(path)
