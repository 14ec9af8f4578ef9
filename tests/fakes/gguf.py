"""Small valid GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np


def write_gguf(
    path: Path,
    change: Callable[[gguf.GGUFWriter], None] | None = None,
    *,
    arch: str = "llama",
    vocabulary: int = 128,
    context: int = 8192,
) -> Path:
    """Write a model of 4 layers, embedding 64 and 8 heads; `change` adds keys or tensors. Returns the path."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("Tiny Llama 1.1B")
    writer.add_license("apache-2.0")
    writer.add_block_count(4)
    writer.add_embedding_length(64)
    writer.add_head_count(8)
    writer.add_context_length(context)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_token_list([f"t{n}" for n in range(vocabulary)])
    writer.add_tensor("token_embd.weight", np.zeros((vocabulary, 64), dtype=np.float16))
    writer.add_tensor("output_norm.weight", np.ones(64, dtype=np.float32))
    if change:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
