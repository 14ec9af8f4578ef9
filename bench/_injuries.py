"""Ways to damage a GGUF file, from hardly at all to grossly: what a broken kernel, memory or conversion would do.

Every injury changes bytes of a copy in place, so that the file stays a whole GGUF file of the same layout. Numbers are
drawn from a seed, so that a row of the table can be made again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench._patient import Blocks, Patient, opened

__all__ = ["INJURIES", "Injury", "injure"]

Change = Callable[[Patient], None]


@dataclass(frozen=True)
class Injury:
    """One damage. `model` is the file it is done to: dense, slices or copies; `harmless` where none is expected."""

    kind: str
    strength: str
    change: Change
    model: str = "dense"
    harmless: bool = False

    @property
    def name(self) -> str:
        """Kind and strength, as rows are named."""
        return f"{self.kind} {self.strength}".strip()


def injure(path: Path, injury: Injury) -> None:
    """Damage a file."""
    with opened(path) as patient:
        injury.change(patient)


def _flip_scales(share: float, lowest: int, highest: int) -> Change:
    """Flip one bit, of those numbered so, in the scale of a share of all blocks."""

    def change(p: Patient) -> None:
        for blocks, rows, offsets in p.chosen(share):
            bits = p.random.integers(lowest, highest + 1, len(rows))
            places = offsets[0] + bits // 8
            blocks[rows, places] ^= (1 << (bits % 8)).astype(np.uint8)

    return change


def _flip_quants(share: float) -> Change:
    """Flip one bit in the quantised values of a share of all blocks."""

    def change(p: Patient) -> None:
        for blocks, rows, offsets in p.chosen(share):
            start = 2 * len(offsets)
            places = p.random.integers(start, blocks.shape[1], len(rows))
            blocks[rows, places] ^= (1 << p.random.integers(0, 8, len(rows))).astype(np.uint8)

    return change


def _negate(share: float) -> Change:
    def change(p: Patient) -> None:
        for blocks, rows, offsets in p.chosen(share):
            for offset in offsets:
                blocks[rows, offset + 1] ^= 0x80

    return change


def _set_scales(number: float, count: int) -> Change:
    """Set the scales of some blocks of one layer's down-projection."""

    def change(p: Patient) -> None:
        name = _down(p, p.layers // 2)
        blocks = p.blocks(name)
        rows = p.random.choice(len(blocks), count, replace=False)
        blocks[rows, :2] = np.frombuffer(np.float16(number).tobytes(), dtype=np.uint8)

    return change


def _lose_minima(share: float) -> Change:
    """Zero what is added to each value of a block."""

    def change(p: Patient) -> None:
        for blocks, rows, offsets in p.chosen(share):
            blocks[rows, offsets[-1]] = blocks[rows, offsets[-1] + 1] = 0

    return change


def _coarse(bits: int) -> Change:
    """Zero the low bits of all quantised values of the layers: a kernel that loses precision."""

    def change(p: Patient) -> None:
        mask = np.uint8(0xFF & ~(((1 << bits) - 1) * 0x11))
        for name in p.scaled():
            p.blocks(name)[:, 2 * len(p.scale_offsets(name)) :] &= mask

    return change


def _swap(first: str, second: str) -> Change:
    def change(p: Patient) -> None:
        a, b = p.view(first), p.view(second)
        kept = a.copy()
        a[:] = b
        b[:] = kept

    return change


def _swap_layers(first: int, second: int) -> Change:
    def change(p: Patient) -> None:
        for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            _swap(f"blk.{first}.{part}.weight", f"blk.{second}.{part}.weight")(p)

    return change


def _zero_heads(count: int, layers: Callable[[int], range]) -> Change:
    """Zero the columns of the attention output that belong to the first heads."""

    def change(p: Patient) -> None:
        for layer in layers(p.layers):
            name = f"blk.{layer}.attn_output.weight"
            rows, kind = p.rows(name), p.kind(name)
            rows[:, : count * 64 // kind.elements * kind.size] = 0

    return change


def _zero_layers(layers: Callable[[int], range]) -> Change:
    """Have layers add nothing to what goes through them."""

    def change(p: Patient) -> None:
        for layer in layers(p.layers):
            p.view(f"blk.{layer}.attn_output.weight")[:] = 0
            p.view(_down(p, layer))[:] = 0

    return change


def _zero_rows(name: str, share: float) -> Change:
    def change(p: Patient) -> None:
        rows = p.rows(name)
        rows[p.random.choice(len(rows), max(1, int(share * len(rows))), replace=False)] = 0

    return change


def _shift_rows(name: str, by: int) -> Change:
    def change(p: Patient) -> None:
        rows = p.rows(name)
        rows[:] = np.roll(rows.copy(), by, axis=0)

    return change


def _rope(factor: float) -> Change:
    def change(p: Patient) -> None:
        p.set_number("llama.rope.freq_base", p.number("llama.rope.freq_base") * factor)

    return change


def _norms(factor: float, layers: Callable[[int], range]) -> Change:
    def change(p: Patient) -> None:
        for layer in layers(p.layers):
            weights = p.view(f"blk.{layer}.attn_norm.weight").view("<f4")
            weights *= np.float32(factor)

    return change


def _noise(name: str, spread: float) -> Change:
    """Multiply the F32 numbers of one tensor, or of all layers' if `{}` is in its name, by 1 plus noise."""

    def change(p: Patient) -> None:
        names = [name.format(layer) for layer in range(p.layers)] if "{}" in name else [name]
        for each in names:
            weights = p.view(each).view("<f4")
            weights *= (1 + spread * p.random.standard_normal(len(weights))).astype(np.float32)

    return change


def _tokens(first: str, second: str) -> Change:
    return lambda p: p.swap_texts(first, second)


def _truncate(share: float) -> Change:
    return lambda p: p.cut(share)


def _expert(p: Patient, layer: int, expert: int) -> Blocks:
    """Return the down-projection of one expert."""
    name = _down(p, layer)
    each = p.tensor(name).size // p.tensor(name).shape[2]
    return p.view(name)[expert * each : (expert + 1) * each]


def _zero_expert(layers: Callable[[int], range]) -> Change:
    def change(p: Patient) -> None:
        for layer in layers(p.layers):
            _expert(p, layer, 1)[:] = 0

    return change


def _swap_experts(layers: Callable[[int], range]) -> Change:
    """Exchange the down-projections of two experts, so that each is led by the other's gate: a wrong expert index."""

    def change(p: Patient) -> None:
        for layer in layers(p.layers):
            a, b = _expert(p, layer, 0), _expert(p, layer, 1)
            kept = a.copy()
            a[:] = b
            b[:] = kept

    return change


def _router(number: float | None, layers: Callable[[int], range]) -> Change:
    """Fill routers with a number, or with noise that makes the weights of experts unequal."""

    def change(p: Patient) -> None:
        for layer in layers(p.layers):
            weights = p.view(f"blk.{layer}.ffn_gate_inp.weight").view("<f4")
            weights[:] = number if number is not None else p.random.standard_normal(len(weights)) * 0.05

    return change


def _down(p: Patient, layer: int) -> str:
    return f"blk.{layer}.ffn_down_exps.weight" if p.moe else f"blk.{layer}.ffn_down.weight"


def _one(layers: int) -> range:
    return range(layers // 2, layers // 2 + 1)


def _first(layers: int) -> range:
    return range(min(1, layers))


def _last(layers: int) -> range:
    return range(layers - 1, layers)


def _three(layers: int) -> range:
    return range(layers // 2 - 1, layers // 2 + 2)


def _all(layers: int) -> range:
    return range(layers)


_SHARES = (("1 block", 0.0), ("1e-5", 1e-5), ("1e-4", 1e-4), ("1e-3", 1e-3), ("1e-2", 1e-2), ("0.1", 0.1))

INJURIES: tuple[Injury, ...] = (
    Injury("none", "dense", lambda _: None, harmless=True),
    Injury("none", "again", lambda _: None, harmless=True),
    Injury("none", "slices", lambda _: None, model="slices", harmless=True),
    Injury("none", "copies", lambda _: None, model="copies", harmless=True),
    *(Injury("scale, any bit flipped", text, _flip_scales(share, 0, 15)) for text, share in _SHARES),
    *(Injury("scale, fraction bit flipped", text, _flip_scales(share, 0, 9)) for text, share in _SHARES[2:]),
    Injury("scale, fraction bit flipped", "all", _flip_scales(1.0, 0, 9)),
    *(Injury("quantised value, bit flipped", text, _flip_quants(share)) for text, share in _SHARES[2:]),
    Injury("quantised value, bit flipped", "all blocks", _flip_quants(1.0)),
    *(Injury("block negated", text, _negate(share)) for text, share in _SHARES[1:]),
    *(Injury("minimum of a block lost", text, _lose_minima(share)) for text, share in _SHARES[2:]),
    Injury("low bits lost", "1 of 4", _coarse(1)),
    Injury("low bits lost", "2 of 4", _coarse(2)),
    Injury("NaN scale", "1 block", _set_scales(float("nan"), 1)),
    Injury("NaN scale", "100 blocks", _set_scales(float("nan"), 100)),
    Injury("Inf scale", "1 block", _set_scales(float("inf"), 1)),
    Injury("largest scale", "1 block", _set_scales(65504.0, 1)),
    Injury("tensors swapped", "attn_k 14, 15", _swap("blk.14.attn_k.weight", "blk.15.attn_k.weight")),
    Injury("tensors swapped", "attn_output 14, 15", _swap("blk.14.attn_output.weight", "blk.15.attn_output.weight")),
    Injury("tensors swapped", "ffn_down 14, 15", _swap("blk.14.ffn_down.weight", "blk.15.ffn_down.weight")),
    Injury("tensors swapped", "attn_q, attn_output 15", _swap("blk.15.attn_q.weight", "blk.15.attn_output.weight")),
    Injury("tensors swapped", "attn_k, attn_v 15", _swap("blk.15.attn_k.weight", "blk.15.attn_v.weight")),
    Injury("layers swapped", "14, 15", _swap_layers(14, 15)),
    Injury("layers swapped", "5, 25", _swap_layers(5, 25)),
    Injury("heads zeroed", "1 of 9, one layer", _zero_heads(1, _one)),
    Injury("heads zeroed", "3 of 9, one layer", _zero_heads(3, _one)),
    Injury("heads zeroed", "9 of 9, one layer", _zero_heads(9, _one)),
    Injury("heads zeroed", "1 of 9, all layers", _zero_heads(1, _all)),
    Injury("heads zeroed", "3 of 9, all layers", _zero_heads(3, _all)),
    Injury("layer adds nothing", "middle", _zero_layers(_one)),
    Injury("layer adds nothing", "last", _zero_layers(_last)),
    Injury("layer adds nothing", "first", _zero_layers(_first)),
    Injury("layer adds nothing", "three", _zero_layers(_three)),
    Injury("rows of the embedding zeroed", "0.1 %", _zero_rows("token_embd.weight", 0.001)),
    Injury("rows of the embedding zeroed", "1 %", _zero_rows("token_embd.weight", 0.01)),
    Injury("rows of the embedding zeroed", "10 %", _zero_rows("token_embd.weight", 0.1)),
    Injury("rows shifted by one", "attn_k, one layer", _shift_rows("blk.15.attn_k.weight", 1)),
    Injury("rows shifted by one", "attn_output, one layer", _shift_rows("blk.15.attn_output.weight", 1)),
    Injury("rows shifted by one", "token_embd", _shift_rows("token_embd.weight", 1)),
    Injury("rope base", "x 1.01", _rope(1.01)),
    Injury("rope base", "x 1.1", _rope(1.1)),
    Injury("rope base", "x 2", _rope(2)),
    Injury("rope base", "x 0.1", _rope(0.1)),
    Injury("norm weights scaled", "x 1.05, one layer", _norms(1.05, _one)),
    Injury("norm weights scaled", "x 2, one layer", _norms(2, _one)),
    Injury("norm weights scaled", "x 1.05, all layers", _norms(1.05, _all)),
    Injury("norm weights scaled", "x 1.5, all layers", _norms(1.5, _all)),
    Injury("norm weights, noise", "0.2 %, all layers", _noise("blk.{}.attn_norm.weight", 0.002)),
    Injury("norm weights, noise", "2 %, all layers", _noise("blk.{}.attn_norm.weight", 0.02)),
    Injury("norm weights, noise", "20 %, all layers", _noise("blk.{}.attn_norm.weight", 0.2)),
    Injury("norm weights, noise", "20 %, output norm", _noise("output_norm.weight", 0.2)),
    Injury("two tokens swapped", "Paris, Tokyo", _tokens("ĠParis", "ĠTokyo")),
    Injury("two tokens swapped", "rare", _tokens("Ġviolin", "Ġpepper")),
    Injury("expert zeroed", "one layer", _zero_expert(_one), model="slices"),
    Injury("expert zeroed", "all layers", _zero_expert(_all), model="slices"),
    Injury("expert of copies zeroed", "one layer", _zero_expert(_one), model="copies"),
    Injury("expert of copies zeroed", "all layers", _zero_expert(_all), model="copies"),
    Injury("experts swapped", "one layer", _swap_experts(_one), model="slices"),
    Injury("experts swapped", "all layers", _swap_experts(_all), model="slices"),
    Injury("router of copies zeroed", "all layers", _router(0.0, _all), model="copies", harmless=True),
    Injury("router noise", "one layer", _router(None, _one), model="slices"),
    Injury("router noise", "all layers", _router(None, _all), model="slices"),
    Injury("router NaN", "one layer", _router(float("nan"), _one), model="slices"),
    Injury("file truncated", "1 %", _truncate(0.01)),
)
