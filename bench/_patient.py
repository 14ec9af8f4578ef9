"""A GGUF file that is changed in place: its tensors as bytes, rows and blocks, and its metadata."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pytest_moegpu.core.upcycle import TensorType
from pytest_moegpu.host.ggufraw import RawGguf, RawTensor, read_raw, tensor_type

__all__ = ["Blocks", "Patient", "opened"]

Blocks = npt.NDArray[np.uint8]
_SCALED = {"Q4_1": (0, 2), "Q4_0": (0,), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2)}
"""GGML type → where in a block its scale, and what is added to its values, stand, in bytes; ggml-common.h."""
_SEED = 20261201


class Patient:
    """A file whose tensors can be changed in place."""

    def __init__(self, data: mmap.mmap, raw: RawGguf) -> None:
        self.raw = raw
        self.random = np.random.default_rng(_SEED)
        self._data = data
        self._tensors = {tensor.name: tensor for tensor in raw.tensors}
        self.layers = 1 + max(int(name.split(".")[1]) for name in self._tensors if name.startswith("blk."))
        self.moe = "blk.0.ffn_gate_inp.weight" in self._tensors

    def tensor(self, name: str) -> RawTensor:
        return self._tensors[name]

    def view(self, name: str) -> Blocks:
        """Return the bytes of a tensor, to be written to."""
        tensor = self._tensors[name]
        return np.frombuffer(self._data, dtype=np.uint8, count=tensor.size, offset=tensor.offset)

    def rows(self, name: str) -> Blocks:
        """Return the bytes of a tensor, a row of the matrix in each row; those of all experts one after another."""
        kind = self.kind(name)
        return self.view(name).reshape(-1, self.tensor(name).shape[0] // kind.elements * kind.size)

    def blocks(self, name: str) -> Blocks:
        return self.view(name).reshape(-1, self.kind(name).size)

    def kind(self, name: str) -> TensorType:
        return tensor_type(self._tensors[name].type, name)

    def scaled(self) -> list[str]:
        """Return the names of the layers' tensors that are stored in blocks with scales."""
        return [name for name in self._tensors if name.startswith("blk.") and self.kind(name).name in _SCALED]

    def scale_offsets(self, name: str) -> tuple[int, ...]:
        return _SCALED[self.kind(name).name]

    def chosen(self, share: float) -> Iterator[tuple[Blocks, npt.NDArray[np.int64], tuple[int, ...]]]:
        """Draw blocks of all layers by chance, at least one: the tensor's blocks, rows drawn, scale offsets."""
        names = self.scaled()
        sizes = np.array([len(self.blocks(name)) for name in names])
        counts = self.random.binomial(sizes, share)
        if not counts.any():
            counts[self.random.integers(len(names))] = 1
        for name, size, count in zip(names, sizes, counts, strict=True):
            if count:
                yield self.blocks(name), self.random.choice(size, count, replace=False), self.scale_offsets(name)

    def number(self, key: str) -> float:
        (entry,) = (e for e in self.raw.entries if e.key == key)
        return float(struct.unpack_from("<f", self._data, entry.value)[0])

    def set_number(self, key: str, value: float) -> None:
        (entry,) = (e for e in self.raw.entries if e.key == key)
        struct.pack_into("<f", self._data, entry.value, value)

    def swap_texts(self, first: str, second: str) -> None:
        """Exchange two entries of the vocabulary that are equally long."""
        (entry,) = (e for e in self.raw.entries if e.key == "tokenizer.ggml.tokens")
        texts = [struct.pack("<Q", len(text.encode())) + text.encode() for text in (first, second)]
        if len(texts[0]) != len(texts[1]):
            raise ValueError(f"{first!r} and {second!r} are not equally long")
        end = entry.value + len(entry.data)
        at = [self._data.find(text, entry.value, end) for text in texts]
        if -1 in at:
            raise ValueError(f"{first!r} or {second!r} is not in the vocabulary")
        for place, text in zip(at, reversed(texts), strict=True):
            self._data[place : place + len(text)] = text

    def cut(self, share: float) -> None:
        """Take the end of the file away."""
        self._data.resize(int(len(self._data) * (1 - share)))


@contextmanager
def opened(path: Path) -> Iterator[Patient]:
    """Open a file to be changed in place."""
    raw = read_raw(path)
    with path.open("r+b") as file:
        data = mmap.mmap(file.fileno(), 0)
        yield Patient(data, raw)
        data.flush()
        # Not closed here: views of it may still be alive, and it goes with the last of them.
