"""Write the embedded GGUF model as a Hugging Face folder, for the engines that do not load GGUF files.

    python scripts/_engines/make_hf.py [--offline] [FOLDER]

FOLDER is `models/smollm2-135m-instruct-hf` in the cache folder unless given. The weights are the dequantised ones of
the file, rounded to bfloat16, so every engine computes with the same numbers as far as bfloat16 holds them. The same
file gives the same bytes. A folder that this very script made from this very file is left as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

from pytest_moegpu.catalog import Catalog
from pytest_moegpu.errors import MoegpuError
from pytest_moegpu.host.cache import cache_dir
from pytest_moegpu.host.fetch import fetch_model

MODEL = "smollm2-135m-instruct"
STAMP = "made-from.json"
# llama.cpp's name of a tensor → the name in transformers' LlamaForCausalLM.
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL = 3  # gguf.TokenType.CONTROL

Header = Callable[[str], Any]
Floats = NDArray[np.float32]


def hf_name(name: str) -> str:
    """Return transformers' name of a llama tensor.

    Raises:
        KeyError: A tensor that the llama architecture does not have, or an output matrix of its own.
    """
    if name in TOP:
        return TOP[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{LAYER[part]}.weight"


def unpermute(weights: Floats, heads: int) -> Floats:
    """Undo the reordering of rows with which llama.cpp's converter makes rotary pairs adjacent (LlamaModel.permute)."""
    rows, columns = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def bfloat16(values: Floats) -> bytes:
    """Round to the nearest bfloat16, ties to even, and return the little-endian bytes. The values are finite."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded: NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return rounded.tobytes()


def tensors(reader: GGUFReader, header: Header) -> Iterator[tuple[str, tuple[int, ...], bytes]]:
    """Give name, shape and bfloat16 bytes of each tensor, in the order of the names."""
    heads = {"attn_q": header("llama.attention.head_count"), "attn_k": header("llama.attention.head_count_kv")}
    for tensor in sorted(reader.tensors, key=lambda found: hf_name(found.name)):
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        for part, count in heads.items():
            if f".{part}." in tensor.name:
                values = unpermute(values, count)
        yield hf_name(tensor.name), values.shape, bfloat16(values)


def write_safetensors(path: Path, found: list[tuple[str, tuple[int, ...], bytes]]) -> None:
    """Write the safetensors format: length of the header, header as JSON padded to 8 bytes, then the data."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape, data in found:
        table[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for _, _, data in found:
            file.write(data)
        file.flush()
        os.fsync(file.fileno())


def config(header: Header) -> dict[str, Any]:
    """Return config.json. `rope_theta` stands at the top, where FastLLM and MLX look for it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": header("llama.vocab_size"),
        "hidden_size": header("llama.embedding_length"),
        "intermediate_size": header("llama.feed_forward_length"),
        "num_hidden_layers": header("llama.block_count"),
        "num_attention_heads": header("llama.attention.head_count"),
        "num_key_value_heads": header("llama.attention.head_count_kv"),
        "head_dim": header("llama.rope.dimension_count"),
        "max_position_embeddings": header("llama.context_length"),
        "rope_theta": header("llama.rope.freq_base"),
        # Stored as float32: 1e-05 again.
        "rms_norm_eps": float(f"{header('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **end_ids(header),
    }


def end_ids(header: Header) -> dict[str, int]:
    """Return the ids of the tokens that begin, end and pad, as config.json and generation_config.json name them."""
    return {
        "bos_token_id": header("tokenizer.ggml.bos_token_id"),
        "eos_token_id": header("tokenizer.ggml.eos_token_id"),
        "pad_token_id": header("tokenizer.ggml.padding_token_id"),
    }


def special_tokens(header: Header) -> dict[str, str]:
    """Return the texts of the special tokens by their role."""
    texts = header("tokenizer.ggml.tokens")
    roles = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    return {role: texts[header(f"tokenizer.ggml.{name}_token_id")] for role, name in roles.items()}


def tokenizer(header: Header) -> dict[str, Any]:
    """Return tokenizer.json: byte-level BPE after splitting digits, which is what `smollm` means to llama.cpp.

    Raises:
        ValueError: The file has a tokenizer of another kind.
    """
    kind = (header("tokenizer.ggml.model"), header("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"the file has tokenizer {kind[0]} with splitting {kind[1]}; only gpt2 with smollm is known")
    texts, types = header("tokenizer.ggml.tokens"), header("tokenizer.ggml.token_type")
    added = [
        {
            "id": number,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, (text, kind_of_token) in enumerate(zip(texts, types, strict=True))
        if kind_of_token == CONTROL
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: number for number, text in enumerate(texts)},
            "merges": header("tokenizer.ggml.merges"),
        },
    }


def tokenizer_config(header: Header) -> dict[str, Any]:
    """Return tokenizer_config.json; the class is the one that every engine's transformers knows."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": header("llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "chat_template": header("tokenizer.chat_template"),
        **special_tokens(header),
    }


def write_folder(gguf: Path, folder: Path) -> None:
    """Write all files of the model into an empty folder."""
    reader = GGUFReader(gguf)

    def header(key: str) -> Any:
        found = reader.fields.get(key)
        if found is None:
            raise ValueError(f"{gguf.name} has no {key}")
        return found.contents()

    if (architecture := header("general.architecture")) != "llama":
        raise ValueError(f"{gguf.name} has architecture {architecture}; only llama is known")
    write_safetensors(folder / "model.safetensors", list(tensors(reader, header)))
    for name, value in {
        "config.json": config(header),
        "generation_config.json": end_ids(header),
        "tokenizer.json": tokenizer(header),
        "tokenizer_config.json": tokenizer_config(header),
        "special_tokens_map.json": special_tokens(header),
    }.items():
        (folder / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def make(gguf: Path, target: Path, sha256: str | None) -> bool:
    """Make the folder unless it is there; return whether it was made. It appears complete or not at all."""
    stamp = json.dumps(
        {"gguf_sha256": sha256, "script_sha256": hashlib.sha256(Path(__file__).read_bytes()).hexdigest()}
    )
    made = target / STAMP
    if made.is_file() and made.read_text(encoding="utf-8") == stamp:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".hf-", dir=target.parent) as temporary:
        folder = Path(temporary) / target.name
        folder.mkdir()
        write_folder(gguf, folder)
        (folder / STAMP).write_text(stamp, encoding="utf-8")
        if target.exists():
            target.rename(Path(temporary) / "old")
        folder.rename(target)
    return True


def main() -> int:
    """Run as a script; exit code 2 with one line when the model cannot be had or written."""
    parser = argparse.ArgumentParser(description="Write the embedded GGUF model as a Hugging Face folder.")
    parser.add_argument("--offline", action="store_true", help="do not fetch the GGUF file")
    parser.add_argument("folder", nargs="?", type=Path, help="where to write it (default: the cache folder)")
    arguments = parser.parse_args()
    try:
        facts = Catalog.load().model(MODEL)
        target = arguments.folder or cache_dir() / "models" / f"{MODEL}-hf"
        made = make(fetch_model(facts, offline=arguments.offline), target, facts.sha256)
    except (MoegpuError, OSError, ValueError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{target}{'' if made else ' (was there)'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
