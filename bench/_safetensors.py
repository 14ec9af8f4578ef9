"""Damage to a folder of safetensors in BF16, as `bench/_injuries.py` does it to a GGUF file."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["negate_blocks", "swap_layers"]

_BLOCK = 32
_SIGN = np.uint16(0x8000)
_SEED = 20261201
_PARTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


class _Weights:
    """The tensors of one file, to be changed in place."""

    def __init__(self, folder: Path) -> None:
        (path,) = folder.glob("*.safetensors")
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        self._at = {name: each["data_offsets"] for name, each in header.items() if name != "__metadata__"}
        if kinds := {each["dtype"] for name, each in header.items() if name != "__metadata__"} - {"BF16"}:
            raise ValueError(f"{path} holds {', '.join(kinds)}, only BF16 is known here")
        self._data = np.memmap(path, dtype=np.uint8, mode="r+", offset=8 + length)

    def tensor(self, name: str) -> npt.NDArray[np.uint16]:
        """Return the numbers of a tensor as 16 bits each."""
        begin, end = self._at[name]
        return self._data[begin:end].view(np.uint16)

    def layers(self) -> list[str]:
        """Return the names of all matrices of the layers."""
        return sorted(name for name in self._at if any(f"{part}.weight" in name for part in (*_PARTS, *_MLP)))

    def close(self) -> None:
        """Write what was changed."""
        self._data.flush()


def negate_blocks(folder: Path, share: float) -> None:
    """Negate a share of all blocks of 32 numbers of the layers' matrices."""
    weights, random = _Weights(folder), np.random.default_rng(_SEED)
    for name in weights.layers():
        blocks = weights.tensor(name).reshape(-1, _BLOCK)
        blocks[random.random(len(blocks)) < share] ^= _SIGN
    weights.close()


def swap_layers(folder: Path, first: int, second: int) -> None:
    """Exchange the matrices of two layers."""
    weights = _Weights(folder)
    for part in (*_PARTS, *_MLP):
        a, b = (weights.tensor(f"model.layers.{layer}.{part}.weight") for layer in (first, second))
        kept = a.copy()
        a[:] = b
        b[:] = kept
    weights.close()
