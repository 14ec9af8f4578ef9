"""The shape of a model from its folder: configurations as published, safetensors with nothing behind their headers."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_moegpu.core.budget import kv_bytes_per_token
from pytest_moegpu.core.planargs import PlanOrder
from pytest_moegpu.core.shape import BlockWeights, KvGroup
from pytest_moegpu.core.units import MIB
from pytest_moegpu.errors import ModelFileError
from pytest_moegpu.host.safetensors import read_header
from pytest_moegpu.host.shapehf import shape_of_folder
from pytest_moegpu.session import plan

BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "I32": 4}
DENSE = {
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_size": 32,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
}
HYBRID = {
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_size": 2048,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 248_320,
    "max_position_embeddings": 262_144,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
}


def header(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[bytes, int]:
    """Return the header of a file and the bytes that follow it."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = BYTES[dtype]
        for number in shape:
            size *= number
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text, at


def weights(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """Write a file whose tensors are holes."""
    text, room = header(tensors)
    path.write_bytes(text)
    with path.open("r+b") as file:
        file.truncate(len(text) + room)


def folder(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...]]] | None = None
) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if tensors is not None:
        weights(path / "model.safetensors", tensors)
    return path


def test_a_dense_model_is_added_up_by_block(tmp_path: Path) -> None:
    tensors = {
        "model.embed_tokens.weight": ("BF16", (100, 32)),
        "model.layers.0.mlp.up_proj.weight": ("BF16", (64, 32)),
        "model.layers.1.mlp.up_proj.weight": ("BF16", (64, 32)),
        "model.layers.1.input_layernorm.weight": ("F32", (32,)),
        "model.norm.weight": ("F32", (32,)),
    }
    shape = shape_of_folder(folder(tmp_path / "Tiny", DENSE, tensors))
    assert shape.weights is not None
    assert (shape.weights.embedding, shape.weights.output, shape.weights.other) == (6400, 128, 0)
    assert shape.weights.blocks == (BlockWeights(other=4096), BlockWeights(other=4096 + 128))
    assert (shape.weights.tied, shape.weights.exact) == (True, True)
    assert shape.weights.by_type == {"BF16": 14_592, "F32": 256}
    assert shape.parameters == 3200 + 2 * 2048 + 64
    assert shape.kv == (KvGroup(layers=2, k_width=32, v_width=32),)
    assert (shape.name, shape.architecture, shape.feed_forward, shape.missing) == ("tiny", "qwen3", 64, ())


def test_a_head_of_its_own_is_not_tied(tmp_path: Path) -> None:
    tensors = {"model.embed_tokens.weight": ("F16", (100, 32)), "lm_head.weight": ("F16", (100, 32))}
    shape = shape_of_folder(folder(tmp_path / "m", DENSE, tensors))
    assert shape.weights is not None
    assert (shape.weights.output, shape.weights.tied) == (6400, False)


# 62.8 and 75.4 MiB a slot are what llama.cpp logs for these two.
@pytest.mark.parametrize(
    ("kind", "layers", "mib", "token"), [("qwen3_5_moe", 40, 62.81, 20_480), ("qwen3_next", 48, 75.375, 24_576)]
)
@pytest.mark.parametrize("listed", [True, False])
def test_a_hybrid_has_a_cache_in_every_fourth_layer_and_a_state_in_the_others(
    tmp_path: Path, kind: str, layers: int, mib: float, token: int, listed: bool
) -> None:
    kinds = (["linear_attention"] * 3 + ["full_attention"]) * (layers // 4)
    inner = (
        HYBRID | {"num_hidden_layers": layers} | ({"layer_types": kinds} if listed else {"full_attention_interval": 4})
    )
    shape = shape_of_folder(folder(tmp_path / "m", {"model_type": kind, "text_config": inner}))
    assert shape.recurrent_layers == layers * 3 // 4
    assert shape.state_bytes / MIB == pytest.approx(mib, abs=0.01)
    assert kv_bytes_per_token(shape.kv, "bf16") == token
    assert (shape.experts, shape.experts_used, shape.shared_experts, shape.expert_width) == (256, 8, 1, 512)
    assert shape.weights is None
    assert shape.missing == ()


def test_a_state_without_widths_is_said_to_be_missing(tmp_path: Path) -> None:
    config = DENSE | {"layer_types": ["linear_attention", "full_attention"]}
    shape = shape_of_folder(folder(tmp_path / "m", config))
    assert (shape.recurrent_layers, shape.kv) == (1, (KvGroup(layers=1, k_width=32, v_width=32),))
    assert shape.missing == ("how large its recurrent state is: none is counted",)
    assert shape.recurrent_bytes_per_slot is None


def test_experts_apart_and_fused_are_told_from_shared_ones(tmp_path: Path) -> None:
    tensors = {
        "model.layers.0.mlp.experts.0.up_proj.weight": ("BF16", (8, 32)),
        "model.layers.0.mlp.experts.1.up_proj.weight": ("BF16", (8, 32)),
        "model.layers.0.mlp.shared_experts.up_proj.weight": ("BF16", (8, 32)),
        "model.layers.0.mlp.gate.weight": ("F32", (2, 32)),
        "model.layers.1.mlp.experts.gate_up_proj": ("BF16", (2, 32, 16)),
    }
    config = DENSE | {"model_type": "glm4_moe", "n_routed_experts": 2, "num_experts_per_tok": 1, "n_shared_experts": 1}
    shape = shape_of_folder(folder(tmp_path / "m", config, tensors))
    assert shape.weights is not None
    assert shape.weights.blocks == (
        BlockWeights(other=512 + 256, experts=1024),
        BlockWeights(other=0, experts=2048),
    )
    assert (shape.experts, shape.experts_used, shape.shared_experts) == (2, 1, 1)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"num_nextn_predict_layers": 1}, ("model.layers.2.mlp.up_proj.weight", "model.layers.2.eh_proj.weight")),
        ({"mtp_num_hidden_layers": 1}, ("mtp.layers.0.mlp.up_proj.weight", "mtp.fc.weight")),
    ],
)
def test_layers_of_multi_token_prediction_come_last_and_are_counted_apart(
    tmp_path: Path, config: dict[str, int], names: tuple[str, str]
) -> None:
    tensors = {f"model.layers.{n}.mlp.up_proj.weight": ("BF16", (64, 32)) for n in range(2)}
    tensors |= dict.fromkeys(names, ("BF16", (64, 32)))
    shape = shape_of_folder(folder(tmp_path / "m", DENSE | config, tensors))
    assert shape.weights is not None
    assert (shape.layers, shape.weights.mtp_blocks, len(shape.weights.blocks)) == (2, 1, 3)
    assert shape.weights.blocks[-1].other == 8192


def test_a_latent_is_cached_once_for_all_heads(tmp_path: Path) -> None:
    config = DENSE | {"model_type": "deepseek_v2", "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert shape_of_folder(folder(tmp_path / "m", config)).kv == (KvGroup(layers=2, k_width=576, v_width=0),)


def test_windows_are_kept_where_the_configuration_puts_them(tmp_path: Path) -> None:
    full, windowed = KvGroup(layers=1, k_width=32, v_width=32), KvGroup(layers=1, k_width=32, v_width=32, window=128)
    given = {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"]}
    assert shape_of_folder(folder(tmp_path / "a", DENSE | given | {"model_type": "gpt_oss"})).kv == (full, windowed)
    off = {"sliding_window": 128, "use_sliding_window": False}
    assert shape_of_folder(folder(tmp_path / "b", DENSE | off)).kv == (KvGroup(layers=2, k_width=32, v_width=32),)
    mistral = {"sliding_window": 128, "model_type": "mistral"}
    assert shape_of_folder(folder(tmp_path / "c", DENSE | mistral)).kv[0].window == 128
    gemma = {"sliding_window": 128, "sliding_window_pattern": 2, "model_type": "gemma3_text"}
    assert shape_of_folder(folder(tmp_path / "d", DENSE | gemma)).kv == (full, windowed)
    unclear = shape_of_folder(folder(tmp_path / "e", DENSE | {"sliding_window": 128}))
    assert unclear.kv == (KvGroup(layers=2, k_width=32, v_width=32),)
    assert unclear.missing == ("which layers have the sliding window: all are taken to hold the whole context",)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"quant_method": "awq", "bits": 4}, "AWQ 4-bit"),
        ({"quant_method": "gptq", "bits": 8}, "GPTQ 8-bit"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "FP8"),
        ({"quant_method": "compressed-tensors"}, "COMPRESSED-TENSORS"),
        ({"quant_method": "mxfp4"}, "MXFP4"),
    ],
)
@pytest.mark.parametrize("nested", [True, False])
def test_packed_weights_count_as_stored_and_are_no_parameters(
    tmp_path: Path, config: dict[str, Any], told: str, nested: bool
) -> None:
    whole: dict[str, Any] = DENSE | {"quantization_config": config}
    tensors = {
        "model.layers.0.mlp.up_proj.qweight": ("I32", (32, 8)),
        "model.layers.0.mlp.up_proj.scales": ("F16", (1, 64)),
        "model.layers.1.mlp.up_proj.weight": ("F8_E4M3", (64, 32)),
    }
    given = {"model_type": "qwen3", "text_config": whole} if nested else whole
    shape = shape_of_folder(folder(tmp_path / "m", given, tensors))
    assert shape.weights is not None
    assert (shape.quantisation, shape.parameters) == (told, None)
    assert [block.other for block in shape.weights.blocks] == [1024 + 128, 2048]


def test_a_vision_tower_is_no_block(tmp_path: Path) -> None:
    tensors = {
        "model.visual.blocks.0.attn.weight": ("BF16", (10, 10)),
        "model.language_model.layers.0.mlp.up_proj.weight": ("BF16", (64, 32)),
    }
    shape = shape_of_folder(folder(tmp_path / "m", DENSE, tensors))
    assert shape.weights is not None
    assert (shape.weights.other, shape.weights.blocks[0].other) == (200, 4096)


def test_an_unknown_model_type_is_planned_and_said_to_be_unknown(tmp_path: Path) -> None:
    shape = shape_of_folder(folder(tmp_path / "m", DENSE | {"model_type": "foo"}))
    assert shape.kv == (KvGroup(layers=2, k_width=32, v_width=32),)
    assert shape.missing == ("how the layers of model type 'foo' cache: what config.json says is taken as it is",)


class TestParts:
    def split(self, path: Path, total: int = 8192) -> Path:
        where = {f"model.layers.{n}.mlp.up_proj.weight": f"model-{n}.safetensors" for n in range(2)}
        folder(path, DENSE)
        for name, file in where.items():
            weights(path / file, {name: ("BF16", (64, 32))})
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        return path

    def test_files_of_the_index_are_added_up_and_others_are_not(self, tmp_path: Path) -> None:
        path = self.split(tmp_path / "m")
        weights(path / "consolidated.safetensors", {"other": ("BF16", (64, 32))})
        shape = shape_of_folder(path)
        assert shape.weights is not None
        assert (shape.weights.total, shape.weights.exact) == (8192, True)

    def test_what_is_not_fetched_yet_is_spread_by_arithmetic(self, tmp_path: Path) -> None:
        path = self.split(tmp_path / "m", total=1_000_000)
        (path / "model-1.safetensors").unlink()
        shape = shape_of_folder(path)
        assert shape.weights is not None
        assert (shape.weights.total, shape.weights.exact) == (1_000_000, False)
        assert (shape.missing, shape.notes) == ((), ("1 of 2 weight files are not here: spread by arithmetic",))

    def test_one_tensor_in_two_files_is_refused(self, tmp_path: Path) -> None:
        path = self.split(tmp_path / "m")
        weights(path / "model-1.safetensors", {"model.layers.0.mlp.up_proj.weight": ("BF16", (64, 32))})
        with pytest.raises(ModelFileError, match=r"tensor model.layers.0.mlp.up_proj.weight is in two files"):
            shape_of_folder(path)

    def test_a_file_outside_the_folder_is_refused(self, tmp_path: Path) -> None:
        path = self.split(tmp_path / "m")
        index = {"weight_map": {"a": "../other/model.safetensors"}}
        (path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        with pytest.raises(ModelFileError, match=r"names '../other/model.safetensors', which is not in the folder"):
            shape_of_folder(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"1234", "4 bytes are too short for a header"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 98362432\n", "is a Git LFS pointer"),
        (struct.pack("<Q", 2**40) + b"{}", "at most 33,554,432 are read"),
        (struct.pack("<Q", 50) + b"{}", "50 bytes long, the file has 10: it is cut"),
        (struct.pack("<Q", 2) + b"[]", "is not a JSON object"),
        (struct.pack("<Q", 2) + b"{x", "is not JSON"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "nested too deep"),
        (struct.pack("<Q", 15) + b'{"a":1,"a":2}  ', "a name is in its header twice"),
        (struct.pack("<Q", 7) + b'{"a":1}', "tensor a has no description"),
    ],
)
def test_a_header_that_is_none_is_refused_in_words(tmp_path: Path, text: bytes, told: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(text)
    with pytest.raises(ModelFileError, match=told) as caught:
        read_header(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"dtype": "Q9", "shape": [1], "data_offsets": [0, 1]}, "is of type Q9: known are"),
        ({"dtype": "U8", "shape": [-1], "data_offsets": [0, 1]}, "no dimensions that can be"),
        ({"dtype": "U8", "shape": [True], "data_offsets": [0, 1]}, "no dimensions that can be"),
        ({"dtype": "U8", "shape": [2**63, 2**63], "data_offsets": [0, 1]}, "has 1 bytes, which U8 of"),
        ({"dtype": "U8", "shape": [99], "data_offsets": [0, 99]}, "lies outside the file"),
        ({"dtype": "U8", "shape": [1], "data_offsets": [1, 0]}, "lies outside the file"),
        ({"dtype": "U8", "shape": [8], "data_offsets": [2, 10]}, "begins inside another one"),
    ],
)
def test_a_tensor_that_cannot_be_is_refused_by_name(tmp_path: Path, entry: dict[str, Any], told: str) -> None:
    good = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    text = json.dumps({"good": good, "bad": entry}).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(10))
    with pytest.raises(ModelFileError, match=told) as caught:
        read_header(path)
    assert "bad" in str(caught.value)


def test_a_layer_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", DENSE, {"model.layers.9.mlp.up_proj.weight": ("BF16", (64, 32))})
    with pytest.raises(ModelFileError, match=r"is of a layer that is not there \(2\)"):
        shape_of_folder(path)


def test_a_folder_is_planned_for_the_engines_that_load_folders(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", DENSE, {"model.embed_tokens.weight": ("BF16", (100, 32))})
    out, err = io.StringIO(), io.StringIO()
    assert plan.run(PlanOrder(vram="8 GiB", model=str(path), backend="vllm", json=True), out, err) == 0
    assert json.loads(out.getvalue())["model"]["name"] == "m"
    assert plan.run(PlanOrder(vram="8 GiB", model=str(path)), out, err) == 3
    assert f"{path} is a folder, and llama.cpp loads GGUF files: plan for one of vllm, sglang" in err.getvalue()
