"""`moegpu model facts`: what people read and what programs read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_moegpu.cli import main
from tests.unit.test_shapehf import DENSE, HYBRID, folder


def test_a_model_of_the_catalog_is_told_with_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "facts", "qwen3.6-35b-a3b"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "model    qwen3.6-35b-a3b, qwen35moe"
    assert "KV cache 10 layers with 512 + 512 elements a token" in said
    assert "a token  f16 20,480 B, q8_0 10,880 B, fp8 10,240 B, q4_0 5,760 B" in said
    assert "state    30 layers with 63 MiB a slot in all, whatever the context" in said
    assert "experts  256 in a layer, 8 used for each token, 1 shared, inner width 512" in said
    assert "licence  Apache-2.0" in said
    assert any(line.startswith("source: ") for line in said)


def test_a_folder_is_told_with_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = DENSE | {"model_type": "foo", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "mtp_num_hidden_layers": 1}
    tensors = {
        "model.embed_tokens.weight": ("BF16", (512, 1024)),
        "lm_head.weight": ("BF16", (512, 1024)),
        "model.layers.0.mlp.experts.0.up_proj.weight": ("F8_E4M3", (1024, 1024)),
        "mtp.fc.weight": ("BF16", (512, 1024)),
        "model.visual.patch.weight": ("BF16", (1024, 1024)),
    }
    assert main(["model", "facts", str(folder(tmp_path / "Mine", config, tensors))]) == 0
    said = capsys.readouterr().out
    assert (
        "6 MiB: token embeddings 1 MiB, output head 1 MiB, 2 blocks 0 MiB without their experts, experts 1 MiB, 1 of"
        in said
    )
    assert "1 of multi-token prediction 1 MiB, other 2 MiB" in said
    assert "types    BF16 5 MiB, F8_E4M3 1 MiB" in said
    assert "KV cache 2 layers with 576 (a latent, of which V is computed) elements a token" in said
    assert "NOT KNOWN: how the layers of model type 'foo' cache" in said


def test_json_has_bytes_and_nulls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path / "m", {"model_type": "qwen3_next", "num_hidden_layers": 48, **HYBRID})
    assert main(["model", "facts", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], said["weights"], said["parameters"], said["licence"]) == (1, None, None, None)
    assert said["recurrent_bytes_per_slot"] == 79_036_416
    assert said["kv_bytes_per_token"] == {"f16": 24_576, "q8_0": 13_056, "fp8": 12_288, "q4_0": 6_912}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["qwen3.6-35b"], "unknown model 'qwen3.6-35b' (did you mean 'qwen3.6-35b-a3b'?): known are "),
        (["no/such/file.gguf"], "does not exist"),
        (["qwen3.6-35b-a3b", "--quant", "Q9"], "quantisation 'Q9' of qwen3.6-35b-a3b"),
    ],
)
def test_what_cannot_be_told_is_one_line_and_exit_code_3(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", "facts", *words]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("moegpu model facts: ")
    assert told in said.err
    assert said.err.count("\n") == 1
