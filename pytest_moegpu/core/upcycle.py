"""How a dense model becomes a mixture of experts that gives the same answers: the plan, and the arithmetic on bytes.

Two ways, for the architecture `llama`, whose server code takes experts, weights them by a softmax over the router's
logits, and makes the weights of the chosen ones sum to 1 (Mixtral, arXiv:2401.04088, section 2.1):

- copies: each expert is the whole dense feed-forward network. Whatever the router says, the sum is the dense answer.
- slices: the hidden units are dealt out over N experts, all of which are used. The router is zero, so each weight is
  1/N, and the down-projections are multiplied by N. N is a power of two, so that this changes only exponents.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_moegpu.errors import ModelFileError, UserError

__all__ = ["Action", "DenseTensor", "How", "Order", "Plan", "PlannedTensor", "TensorType", "plan", "router", "sliced"]

_ARCHITECTURE = "llama"
_MOST_EXPERTS = 512
"""llama.cpp's own limit, LLAMA_MAX_EXPERTS."""
_FFN = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)\.weight")
_EXPERTS = re.compile(r"blk\.\d+\.ffn_(gate_inp|\w+_exps)\b")
_PARTS = ("gate", "up", "down")
_SCALES: dict[str, tuple[tuple[int, ...], str]] = {
    "F32": ((0,), "<f4"),
    "F16": ((0,), "<f2"),
    "Q4_0": ((0,), "<f2"),
    "Q4_1": ((0, 2), "<f2"),
    "Q5_0": ((0,), "<f2"),
    "Q5_1": ((0, 2), "<f2"),
    "Q8_0": ((0,), "<f2"),
    "IQ4_NL": ((0,), "<f2"),
    "Q2_K": ((80, 82), "<f2"),
    "Q3_K": ((108,), "<f2"),
    "Q4_K": ((0, 2), "<f2"),
    "Q5_K": ((0, 2), "<f2"),
    "Q6_K": ((208,), "<f2"),
}
"""GGML type → where in a block the scales (and minima) stand, in bytes, and what they are; ggml-common.h."""


class How(StrEnum):
    """What the experts are made of."""

    COPIES = "copies"
    SLICES = "slices"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What was asked for. `used` experts of `experts` work on each token; `seed` draws the router of copies."""

    how: How
    experts: int
    used: int
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class TensorType:
    """A GGML type: a block of `elements` values takes `size` bytes."""

    name: str
    elements: int
    size: int


@dataclass(frozen=True, kw_only=True)
class DenseTensor:
    """A tensor of the dense file. `shape` is GGUF's: the length of a row first."""

    name: str
    shape: tuple[int, ...]
    type: TensorType


class Action(StrEnum):
    """Where the bytes of a tensor come from."""

    KEEP = "keep"
    """The dense tensor, once."""
    REPEAT = "repeat"
    """The dense tensor, once for each expert."""
    SLICE = "slice"
    """The dense tensor, its columns dealt out over the experts and multiplied by their number (`sliced`)."""
    ROUTER = "router"
    """New: `router`."""


@dataclass(frozen=True, kw_only=True)
class PlannedTensor:
    """A tensor of the new file: made from the dense tensor `source`, or for layer `layer` where it is a router."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    action: Action
    source: str = ""
    layer: int = 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The tensors of the new file in order, and the metadata numbers that are set in it."""

    tensors: tuple[PlannedTensor, ...]
    numbers: dict[str, int]


def plan(order: Order, metadata: Mapping[str, object], tensors: Sequence[DenseTensor], router_type: TensorType) -> Plan:
    """Say what the mixture-of-experts file holds. `router_type` is F32.

    Raises:
        UserError: The numbers of `order` make no sense, together or for this model.
        ModelFileError: The model is not dense, or not of an architecture that this is known for.
    """
    _sane(order)
    width, hidden = _dense(metadata, tensors)
    if order.how is How.SLICES and hidden % order.experts:
        raise UserError(f"{order.experts} experts do not divide the {hidden} hidden units of a layer")
    planned: list[PlannedTensor] = []
    for tensor in tensors:
        match = _FFN.fullmatch(tensor.name)
        if match is None:
            planned.append(_kept(tensor))
            continue
        layer, part = int(match[1]), match[2]
        if part == "gate":
            name, shape = f"blk.{layer}.ffn_gate_inp.weight", (width, order.experts)
            planned.append(PlannedTensor(name=name, shape=shape, type=router_type, action=Action.ROUTER, layer=layer))
        planned.append(_experts(order, tensor, f"blk.{layer}.ffn_{part}_exps.weight", part, hidden))
    numbers = {f"{_ARCHITECTURE}.expert_count": order.experts, f"{_ARCHITECTURE}.expert_used_count": order.used}
    if order.how is How.SLICES:
        numbers[f"{_ARCHITECTURE}.feed_forward_length"] = hidden // order.experts
    return Plan(tensors=tuple(planned), numbers=numbers)


def _sane(order: Order) -> None:
    if not 2 <= order.experts <= _MOST_EXPERTS:
        raise UserError(f"{order.experts} experts: 2 to {_MOST_EXPERTS} are possible")
    if not 1 <= order.used <= order.experts:
        raise UserError(f"{order.used} experts used: 1 to {order.experts}, the number of experts, are possible")
    if order.how is How.SLICES:
        if order.used != order.experts:
            raise UserError(
                f"slices sum to the dense answer only if all are used: {order.experts} of {order.experts}, "
                f"not {order.used}"
            )
        if order.experts & (order.experts - 1):
            raise UserError(
                f"{order.experts} slices: their number must be a power of two, so that multiplying by it is exact"
            )


def _dense(metadata: Mapping[str, object], tensors: Sequence[DenseTensor]) -> tuple[int, int]:
    """Return width and hidden units of a dense model that this is known for."""
    architecture = metadata.get("general.architecture")
    if architecture != _ARCHITECTURE:
        raise ModelFileError(f"its architecture is {architecture}; only {_ARCHITECTURE} can be made a mixture")
    layers, width, hidden = (
        _number(metadata, key) for key in ("block_count", "embedding_length", "feed_forward_length")
    )
    names = {tensor.name: tensor for tensor in tensors}
    if metadata.get(f"{_ARCHITECTURE}.expert_count") or any(_EXPERTS.match(name) for name in names):
        raise ModelFileError("it is a mixture of experts already; a dense model is needed")
    if "split.count" in metadata:
        raise ModelFileError("it is a part of a split model: make it one file first, with `llama-gguf-split --merge`")
    for layer in range(layers):
        for part in _PARTS:
            name = f"blk.{layer}.ffn_{part}.weight"
            shape = (hidden, width) if part == "down" else (width, hidden)
            if name not in names:
                raise ModelFileError(f"it has no tensor {name}: its feed-forward network is of another kind")
            if names[name].shape != shape:
                raise ModelFileError(f"its tensor {name} has shape {names[name].shape}, not {shape}")
            if f"blk.{layer}.ffn_{part}.bias" in names:
                raise ModelFileError("its feed-forward network has biases, which experts have not")
    return width, hidden


def _number(metadata: Mapping[str, object], key: str) -> int:
    value = metadata.get(f"{_ARCHITECTURE}.{key}")
    if not isinstance(value, int):
        raise ModelFileError(f"it has no {_ARCHITECTURE}.{key} that is one number for all layers")
    return value


def _kept(tensor: DenseTensor) -> PlannedTensor:
    return PlannedTensor(name=tensor.name, shape=tensor.shape, type=tensor.type, action=Action.KEEP, source=tensor.name)


def _experts(order: Order, tensor: DenseTensor, name: str, part: str, hidden: int) -> PlannedTensor:
    """Plan the experts of one of the three projections."""
    shape, action = (*tensor.shape, order.experts), Action.REPEAT
    if order.how is How.SLICES:
        each = hidden // order.experts
        # Rows of gate and up are hidden units, so that a slice is a run of whole rows and the bytes stay as they are.
        shape, action = (tensor.shape[0], each, order.experts), Action.KEEP
        if part == "down":
            shape, action = (each, tensor.shape[1], order.experts), Action.SLICE
            if each % tensor.type.elements:
                raise UserError(
                    f"{order.experts} slices of {each} hidden units cut through the blocks of {tensor.type.elements} "
                    f"values in which {tensor.name} ({tensor.type.name}) is stored: take fewer experts"
                )
            if tensor.type.name not in _SCALES:
                raise ModelFileError(
                    f"its tensor {tensor.name} is of type {tensor.type.name}, which cannot be scaled here; known: "
                    f"{', '.join(_SCALES)}; copies take any type"
                )
    return PlannedTensor(name=name, shape=shape, type=tensor.type, action=action, source=tensor.name)


def router(order: Order, layer: int, width: int) -> bytes:
    """Return the router of a layer as F32, a row of `width` for each expert; zeros for slices.

    Uniform with variance 1/width: logits of about 1 for the normed input of a layer, so that routing varies by token.
    """
    import numpy as np

    count = width * order.experts
    if order.how is How.SLICES:
        return bytes(4 * count)
    # Python's own generator, because its numbers for a seed are the same in every version.
    draw = random.Random(order.seed * 1_000_003 + layer)
    bound = (3 / width) ** 0.5
    return np.array([bound * (2 * draw.random() - 1) for _ in range(count)], dtype="<f4").tobytes()


def sliced(data: bytes, tensor: PlannedTensor) -> bytes:
    """Deal the columns of a down-projection out over its experts, and multiply them by the number of experts.

    Raises:
        ModelFileError: A scale times the number of experts is more than its type can hold.
    """
    import numpy as np

    each, rows, experts = tensor.shape
    row_bytes = each // tensor.type.elements * tensor.type.size
    # The dense row holds the slices side by side; the new tensor has one expert's rows after another's.
    dealt = np.frombuffer(data, dtype=np.uint8).reshape(rows, experts, row_bytes).transpose(1, 0, 2)
    blocks = np.ascontiguousarray(dealt).reshape(-1, tensor.type.size)
    offsets, number = _SCALES[tensor.type.name]
    for offset in offsets:
        field = blocks[:, offset : offset + np.dtype(number).itemsize]
        scales = np.ascontiguousarray(field).view(number)
        with np.errstate(over="ignore"):
            larger = scales * scales.dtype.type(experts)
        if np.isinf(larger[np.isfinite(scales)]).any():
            raise ModelFileError(f"scales of its tensor {tensor.source} are too large to be multiplied by {experts}")
        field[:] = larger.view(np.uint8)
    return blocks.tobytes()
