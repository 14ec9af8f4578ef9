"""One sound file of each kind for the tests of the catalog."""

from __future__ import annotations

from pathlib import Path

SCENARIO = """\
schema = 1
name = "mine"
title = "Mine"

[settings]
context = 2048

[workload]
prompt_tokens = 256

[limits]
memory_budget = "23.5 GiB"

[limits.tolerance]
decode = "5 %"
"""

PROFILE = """\
schema = 1
name = "box"
title = "Box"
probe = "nvml"
backend = "llamacpp"
model = "qwen3.6-35b-a3b"
scenarios = ["mine"]

[gpu]
names = ["NVIDIA RTX A6000"]
memory = "48000 MiB"
"""

MODEL = """\
schema = 1
name = "tiny"
title = "Tiny"
architecture = "llama"
layers = 2
kv_layers = 2
kv_heads = 1
head_dim = 64
vocabulary = 1000
context_train = 2048
embedding = 64
licence = "MIT"

[[known_answers]]
prompt = "one plus one?"
expect = ["two"]
"""


def write(folder: Path, kind: str, name: str, text: str) -> Path:
    file = folder / kind / f"{name}.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file
