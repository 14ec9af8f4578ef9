"""How long does a large model file take to be understood, and how much memory? A sparse file with a real header.

    python bench/read_model.py [--folder] [--json FILE]

The file has the header of a 35B-A3B: 40 blocks with 256 experts, 248,320 tokens with their scores and types, 247,587
merges. Its 22 GB of weights are a hole. A process of its own reads it, as `moegpu plan` does; time and peak memory are
those of reading, beside a process that only imports the same. With `--folder` the same weights with 8 bits each as a
folder of Hugging Face's form: 33 GB in five files, experts apart, 30,762 tensors.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np
from tabulate import tabulate

TOKENS, MERGES, LAYERS, WIDTH, EXPERTS, EXPERT_WIDTH = 248_320, 247_587, 40, 2048, 256, 512
FILE_BYTES = 22 * 10**9
FILES = 5
ROUNDS = 5


def write(path: Path) -> None:
    """Write the header, and make the file as long as the tensors that it lists."""
    writer = gguf.GGUFWriter(path, "qwen35moe")
    numbers = {
        "block_count": LAYERS,
        "context_length": 262_144,
        "embedding_length": WIDTH,
        "attention.head_count": 16,
        "attention.head_count_kv": 2,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "expert_count": EXPERTS,
        "expert_used_count": 8,
        "expert_feed_forward_length": EXPERT_WIDTH,
        "full_attention_interval": 4,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 4096,
        "ssm.state_size": 128,
        "ssm.group_count": 16,
    }
    for key, value in numbers.items():
        writer.add_uint32(f"qwen35moe.{key}", value)
    writer.add_token_list([f"token-{number}" for number in range(TOKENS)])
    writer.add_token_types([1] * TOKENS)
    writer.add_token_merges([f"left{number} right{number}" for number in range(MERGES)])
    q4 = gguf.GGMLQuantizationType.Q4_K
    shapes: list[tuple[str, tuple[int, ...]]] = [
        (f"{name}.weight", (TOKENS, WIDTH)) for name in ("token_embd", "output")
    ]
    shapes += [(f"blk.{layer}.attn_q.weight", (4096, WIDTH)) for layer in range(LAYERS)]
    for part in ("gate", "up", "down"):
        shapes += [(f"blk.{layer}.ffn_{part}_exps.weight", (EXPERTS, EXPERT_WIDTH, WIDTH)) for layer in range(LAYERS)]
    for name, shape in shapes:
        # The writer is told rows in bytes: 144 for each 256 numbers.
        in_bytes = (*shape[:-1], shape[-1] // 256 * 144)
        writer.add_tensor_info(name, in_bytes, np.dtype(np.uint8), int(np.prod(in_bytes)), raw_dtype=q4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(FILE_BYTES)


def write_folder(path: Path) -> None:
    """Write a configuration, an index, and files whose tensors are holes."""
    kinds = (["linear_attention"] * 3 + ["full_attention"]) * (LAYERS // 4)
    config = {
        "model_type": "qwen3_5_moe",
        "text_config": {
            "num_hidden_layers": LAYERS,
            "layer_types": kinds,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "hidden_size": WIDTH,
            "linear_num_key_heads": 16,
            "linear_key_head_dim": 128,
            "linear_num_value_heads": 32,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "num_experts": EXPERTS,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": EXPERT_WIDTH,
            "vocab_size": TOKENS,
            "max_position_embeddings": 262_144,
        },
    }
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    names = {"model.embed_tokens.weight": (TOKENS, WIDTH), "lm_head.weight": (TOKENS, WIDTH)}
    names |= {f"model.layers.{layer}.self_attn.q_proj.weight": (4096, WIDTH) for layer in range(LAYERS)}
    names |= {
        f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight": (EXPERT_WIDTH, WIDTH)
        for layer in range(LAYERS)
        for expert in range(EXPERTS)
        for part in ("gate", "up", "down")
    }
    listed = list(names.items())
    where: dict[str, str] = {}
    for number in range(FILES):
        file, at, entries = f"model-{number + 1:05}-of-{FILES:05}.safetensors", 0, {}
        for name, (rows, columns) in listed[number::FILES]:
            # A byte each, 33 GB in all.
            entries[name] = {
                "dtype": "F8_E4M3",
                "shape": [rows, columns],
                "data_offsets": [at, at + rows * columns],
            }
            at += rows * columns
            where[name] = file
        text = json.dumps(entries).encode()
        with (path / file).open("wb") as opened:
            opened.write(struct.pack("<Q", len(text)) + text)
            opened.truncate(8 + len(text) + at)
    index = {"metadata": {}, "weight_map": where}
    (path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


READ = """
import sys, time
from pathlib import Path
from pytest_moegpu.host.shapegguf import shape_of_gguf
from pytest_moegpu.host.shapehf import shape_of_folder
import gguf.constants
def peak():
    # ru_maxrss begins with what the parent had when it forked.
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) * 1024
before = peak()
began = time.perf_counter()
path = Path(sys.argv[1])
shape = (shape_of_folder if path.is_dir() else shape_of_gguf)(path)
print(time.perf_counter() - began, before, peak())
assert shape.weights.total > 18e9 and shape.recurrent_layers == 30, shape
"""


def main() -> int:
    """Write the file, read it a few times, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", action="store_true", help="a folder of safetensors files")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moegpu-read-") as folder:
        path = Path(folder) / "model.gguf"
        (write_folder if args.folder else write)(path)
        rows = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True, timeout=120
            )
            seconds, before, peak = map(float, done.stdout.split())
            rows.append((seconds, time.perf_counter() - began, before, peak))
    names = ("reading, s", "whole process, s", "memory before, MiB", "peak memory, MiB")
    columns = [statistics.median(row[place] for row in rows) for place in range(4)]
    found = dict(zip(names, (columns[0], columns[1], columns[2] / 2**20, columns[3] / 2**20), strict=True))
    print(tabulate([[f"{value:.2f}" for value in found.values()]], headers=list(found), tablefmt="github"))
    if args.json:
        args.json.write_text(json.dumps({"folder": args.folder, "rounds": ROUNDS, **found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.exit(main())
