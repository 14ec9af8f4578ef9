"""How long does a large model file take to be understood, and how much memory? A sparse file with a real header.

    python bench/read_model.py [--json FILE]

The file has the header of a 35B-A3B: 40 blocks with 256 experts, 248,320 tokens with their scores and types, 247,587
merges. Its 22 GB of weights are a hole. A process of its own reads it, as `moegpu plan` does; time and peak memory are
those of reading, beside a process that only imports the same.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
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


READ = """
import resource, sys, time
from pathlib import Path
from pytest_moegpu.host.shapegguf import shape_of_gguf
import gguf.constants
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.perf_counter()
shape = shape_of_gguf(Path(sys.argv[1]))
print(time.perf_counter() - began, before * 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
assert shape.weights.total > 18e9 and shape.recurrent_layers == 30, shape
"""


def main() -> int:
    """Write the file, read it a few times, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moegpu-read-") as folder:
        path = Path(folder) / "model.gguf"
        write(path)
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
        args.json.write_text(json.dumps({"file_bytes": FILE_BYTES, "rounds": ROUNDS, **found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.exit(main())
