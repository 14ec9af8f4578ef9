"""Write the embedded GGUF model once more, with 16-bit weights.

    python scripts/_engines/make_f16.py [FILE]

FILE is `models/smollm2-135m-instruct-f16.gguf` in the cache folder unless given. FastLLM starts with it and answers
nonsense, which is what a test needs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

from pytest_moegpu.catalog import Catalog
from pytest_moegpu.host.cache import cache_dir
from pytest_moegpu.host.fetch import fetch_model

MODEL = "smollm2-135m-instruct"


def write(source: Path, target: Path) -> None:
    """Copy the header, and each tensor dequantised: norms as they are, matrices as float16."""
    reader = GGUFReader(source)
    unfinished = target.with_suffix(".part")
    writer = GGUFWriter(unfinished, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        # The writer adds these itself.
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        value = 1 if name == "general.file_type" else field.contents()
        writer.add_key_value(name, value, kind, sub_type=inner)
    for tensor in reader.tensors:
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        writer.add_tensor(tensor.name, values if values.ndim == 1 else values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(target)


if __name__ == "__main__":
    made = Path(sys.argv[1]) if len(sys.argv) > 1 else cache_dir() / "models" / f"{MODEL}-f16.gguf"
    if not made.is_file():
        write(fetch_model(Catalog.load().model(MODEL)), made)
    print(made)
