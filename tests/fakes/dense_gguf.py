"""A small dense model of architecture llama in Q4_1, whole enough to be made a mixture of experts or to be injured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

__all__ = ["HIDDEN", "WIDTH", "write_dense"]

WIDTH, HIDDEN = 64, 256
TOKENS = ("ĠParis", "ĠTokyo", "Ġviolin", "Ġpepper")


def write_dense(
    path: Path,
    change: Callable[[gguf.GGUFWriter], None] | None = None,
    *,
    layers: int = 2,
    arch: str = "llama",
    leave: str = "",
    file_hidden: int = HIDDEN,
) -> Path:
    """Write the model; `leave` is a tensor that it lacks, `change` adds keys or tensors. Returns the path."""
    chance = np.random.default_rng(7)
    q4_1 = gguf.GGMLQuantizationType.Q4_1
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("Tiny Dense")
    writer.add_block_count(layers)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(file_hidden)
    writer.add_head_count(1)
    writer.add_context_length(2048)
    writer.add_rope_freq_base(100000.0)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_token_list([*TOKENS, *(f"t{n}" for n in range(60))])
    if change:
        change(writer)

    def quantised(name: str, rows: int, columns: int) -> None:
        if name != leave:
            values = chance.standard_normal((rows, columns), dtype=np.float32)
            writer.add_tensor(name, gguf.quants.quantize(values, q4_1), raw_dtype=q4_1)

    quantised("token_embd.weight", 64, WIDTH)
    for n in range(layers):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            quantised(f"blk.{n}.{part}.weight", WIDTH, WIDTH)
        quantised(f"blk.{n}.ffn_gate.weight", HIDDEN, WIDTH)
        quantised(f"blk.{n}.ffn_up.weight", HIDDEN, WIDTH)
        quantised(f"blk.{n}.ffn_down.weight", WIDTH, HIDDEN)
        for part in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{n}.{part}.weight", np.ones(WIDTH, dtype=np.float32))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
