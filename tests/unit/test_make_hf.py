from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import gguf
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
HEADS, KV_HEADS, WIDTH = 8, 2, 64
VOCABULARY = 128


@pytest.fixture(scope="module")
def make_hf() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_hf", ROOT / "scripts" / "_engines" / "make_hf.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _permuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to the rows of q and k."""
    rows, columns = weights.shape
    return weights.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _model(path: Path, pre: str = "smollm") -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_context_length(512)
    writer.add_vocab_size(VOCABULARY)
    writer.add_rope_freq_base(100000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(["<end>", "<start>", *(f"t{n}" for n in range(2, VOCABULARY))])
    writer.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (VOCABULARY - 2))
    writer.add_token_merges(["t 2", "t 3"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template("{{ messages }}")
    numbers = np.random.default_rng(1)
    writer.add_tensor("token_embd.weight", np.ones((VOCABULARY, WIDTH), dtype=np.float32))
    writer.add_tensor("output_norm.weight", np.full(WIDTH, 2, dtype=np.float32))
    for part, heads in (("attn_q", HEADS), ("attn_k", KV_HEADS)):
        rows = np.repeat(np.arange(WIDTH // HEADS * heads, dtype=np.float32)[:, None], WIDTH, axis=1)
        writer.add_tensor(f"blk.0.{part}.weight", _permuted(rows, heads))
    values = numbers.standard_normal((WIDTH, WIDTH)).astype(np.float32)
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.attn_output.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(path: Path) -> dict[str, np.ndarray]:
    """Read a safetensors file of bfloat16 tensors as float32."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    assert size % 8 == 0, "the data begin on a multiple of 8 bytes"
    table = json.loads(data[8 : 8 + size])
    assert table.pop("__metadata__") == {"format": "pt"}
    found = {}
    for name, entry in table.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        assert entry["dtype"] == "BF16"
        bits = np.frombuffer(data[begin:end], dtype="<u2").astype("<u4") << 16
        found[name] = bits.view("<f4").reshape(entry["shape"])
    assert end == len(data)
    return found


def test_bfloat16_rounds_to_the_nearest_and_ties_to_even(make_hf: ModuleType) -> None:
    # 1 + 2**-8 lies between 1 and 1 + 2**-7; 1 + 3 * 2**-8 between 1 + 2**-7 and 1 + 2**-6.
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -2.5, 0.0], dtype=np.float32)
    bits = np.frombuffer(make_hf.bfloat16(values), dtype="<u2")
    assert [hex(value) for value in bits] == ["0x3f80", "0x3f80", "0x3f82", "0x3f81", "0xc020", "0x0"]


def test_the_rows_of_q_and_k_stand_in_transformers_order_again(make_hf: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    make_hf.write_folder(_model(tmp_path / "model.gguf"), folder)
    tensors = _tensors(folder / "model.safetensors")
    assert tensors["model.layers.0.self_attn.q_proj.weight"][:, 0].tolist() == list(range(64))
    assert tensors["model.layers.0.self_attn.k_proj.weight"][:, 5].tolist() == list(range(16))


def test_weights_are_dequantised_and_named_as_transformers_has_them(make_hf: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    make_hf.write_folder(_model(tmp_path / "model.gguf"), folder)
    tensors = _tensors(folder / "model.safetensors")
    assert list(tensors) == [
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.norm.weight",
    ]
    assert tensors["model.embed_tokens.weight"].shape == (VOCABULARY, WIDTH)
    assert set(tensors["model.norm.weight"].tolist()) == {2.0}
    wanted = np.random.default_rng(1).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    # Q8_0 keeps 1/127 of the largest of 32 values, bfloat16 1/256 of each.
    assert np.abs(tensors["model.layers.0.self_attn.o_proj.weight"] - wanted).max() < 0.03


def test_configuration_and_tokenizer_say_what_the_file_says(make_hf: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    make_hf.write_folder(_model(tmp_path / "model.gguf"), folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (8, 2, 8)
    assert (config["rope_theta"], config["rms_norm_eps"]) == (100000.0, 1e-5)
    assert (config["torch_dtype"], config["tie_word_embeddings"], config["eos_token_id"]) == ("bfloat16", True, 0)
    assert json.loads((folder / "generation_config.json").read_text()) == {
        "bos_token_id": 1,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    assert [token["content"] for token in tokenizer["added_tokens"]] == ["<end>", "<start>"]
    assert tokenizer["model"]["vocab"]["t127"] == 127
    assert tokenizer["model"]["merges"] == ["t 2", "t 3"]
    named = json.loads((folder / "tokenizer_config.json").read_text())
    assert named["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert named["chat_template"] == "{{ messages }}"
    assert (named["eos_token"], named["bos_token"]) == ("<end>", "<start>")


def test_the_folder_is_made_once_and_anew_for_another_file(make_hf: ModuleType, tmp_path: Path) -> None:
    model, target = _model(tmp_path / "model.gguf"), tmp_path / "models" / "hf"
    assert make_hf.make(model, target, "aa") is True
    first = {path.name: path.read_bytes() for path in target.iterdir()}
    assert make_hf.make(model, target, "aa") is False
    assert make_hf.make(model, target, "bb") is True
    again = {path.name: path.read_bytes() for path in target.iterdir()}
    assert {name for name in again if again[name] != first[name]} == {"made-from.json"}, "same file, same bytes"
    assert [path.name for path in target.parent.iterdir()] == ["hf"], "nothing else is left"


def test_a_folder_that_could_not_be_finished_is_not_left(make_hf: ModuleType, tmp_path: Path) -> None:
    target = tmp_path / "models" / "hf"
    with pytest.raises(ValueError, match="tokenizer gpt2 with splitting qwen2; only gpt2 with smollm is known"):
        make_hf.make(_model(tmp_path / "model.gguf", pre="qwen2"), target, "aa")
    assert list(target.parent.iterdir()) == []
