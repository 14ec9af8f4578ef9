"""A plan as text for people and as JSON for others."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_moegpu.core.budget import kv_bytes_per_token
from pytest_moegpu.core.budgetpool import DEFAULT_SHARE, POOLS, kv_room
from pytest_moegpu.core.model import Settings
from pytest_moegpu.core.plan import Cell, Fit, Placement, Planner
from pytest_moegpu.core.units import GIB, format_bytes, format_percent

__all__ = ["Planned", "as_json", "as_text"]

_RULE = 0.075e9 / 1000
"""Bytes a token of the rule "0.075 GB for 1,000 tokens", which goes round for the 35B-A3B."""
_MARKS = {Fit.FITS: "", Fit.TIGHT: " ~", Fit.NO: " no"}


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What was worked out. `gpu` is empty where only a size was given; `line` where nothing fits."""

    planner: Planner
    gpu: str
    cells: tuple[Cell, ...]
    largest: tuple[tuple[str, int], ...]
    chosen: Settings
    placement: Placement
    line: Sequence[str]


def as_text(planned: Planned) -> str:
    """Print the facts, the table, the parts of one launch, and the line that starts it."""
    from tabulate import tabulate

    planner, shape = planned.planner, planned.planner.shape
    kinds = list(dict.fromkeys(cell.kv_cache for cell in planned.cells))
    contexts = list(dict.fromkeys(cell.context for cell in planned.cells))
    at = {(cell.context, cell.kv_cache): cell for cell in planned.cells}
    rows = [[f"{context:,}", *(_cell(at[context, kv]) for kv in kinds)] for context in contexts]
    rows.append(["largest", *(f"{found:,}" if found else "none" for _, found in planned.largest)])
    band = planned.cells[0].budget.band_bytes
    lines = [
        *_head(planned),
        "",
        tabulate(rows, headers=["context", *kinds], tablefmt="simple", disable_numparse=True, colalign=["right"]),
        f"GiB on the device of {planner.device_bytes / GIB:.1f}, give or take {format_bytes(band)}; "
        "~ within that of the limit, no: beyond it",
        "",
        *_parts(planned),
    ]
    if rule := _folklore(planned):
        lines += ["", rule]
    for note in dict.fromkeys(planned.cells[0].budget.notes):
        lines.append(f"note: {note}")
    lines += [f"NOT KNOWN: {text}" for text in planned.cells[0].budget.missing]
    if shape.sources:
        lines += ["", *(f"source: {source}" for source in shape.sources)]
    if planned.line:
        lines += ["", "start it with", f"  {shlex.join(planned.line)}"]
    return "\n".join(lines)


def _head(planned: Planned) -> list[str]:
    planner, shape = planned.planner, planned.planner.shape
    holding = sum(group.layers for group in shape.kv)
    layers = f"{shape.layers} layers, {holding} with a KV cache"
    if shape.recurrent_layers:
        layers += f", {shape.recurrent_layers} with a state of fixed size"
    experts = f", {shape.experts} experts, {shape.experts_used} used" if shape.experts else ""
    size = format_bytes(shape.weights.total) if shape.weights is not None else "size not known"
    facts = [
        ("device", f"{planned.gpu or 'a GPU'}, {format_bytes(planner.device_bytes)}"),
        ("model", f"{shape.name}, {shape.quantisation or 'quantisation not known'}, {size}: {layers}{experts}"),
        ("engine", f"{planner.backend}, {planned.chosen.slots} slot{'' if planned.chosen.slots == 1 else 's'}"),
        ("reserve", f"{format_bytes(planner.reserve.size_bytes)}, {planner.reserve.source}"),
    ]
    return [f"{label:<9}{text}" for label, text in facts]


def _cell(cell: Cell) -> str:
    return f"{cell.budget.total / GIB:.2f}{_MARKS[cell.fit]}"


def _parts(planned: Planned) -> list[str]:
    """Say what one launch is made of, and what has to leave the device."""
    settings, placement = planned.chosen, planned.placement
    budget = placement.budget or planned.planner.budget(settings)
    lines = [f"context {settings.context:,}, {settings.kv_cache}, part by part:"]
    lines += [f"  {part.name:<20}{format_bytes(part.size_bytes):>12}  {part.how}" for part in budget.parts]
    lines.append(f"  {'together':<20}{format_bytes(budget.total):>12}")
    if budget.host_bytes:
        lines.append(f"  {'in host memory':<20}{format_bytes(budget.host_bytes):>12}")
    if placement.settings is None:
        lines.append(f"it does not fit: {placement.words}")
    elif placement.settings != settings:
        lines.append(f"to fit, {placement.words} must leave the GPU")
    share = planned.planner.share(settings)
    if share is not None:
        lines += _pool(planned, share)
    return lines


def _pool(planned: Planned, share: float) -> list[str]:
    """Say what a share of the device leaves for the cache."""
    planner, settings = planned.planner, planned.chosen
    each = kv_bytes_per_token(planner.shape.kv, settings.kv_cache)
    default = settings.memory_share or DEFAULT_SHARE.get(planner.backend)
    lines = [f"smallest share of the device that holds this: {format_percent(share, signed=False)}"]
    if default is not None and planner.backend in POOLS and each:
        room = kv_room(planner.shape, default, planner.backend, planner.device_bytes, planner.reserve)
        tokens = max(0, int(room / each))
        lines.append(f"a share of {format_percent(default, signed=False)} leaves room for {tokens:,} tokens of cache")
    return lines


def _folklore(planned: Planned) -> str:
    """Say where the rule of 0.075 GB for 1,000 tokens goes wrong, where it does."""
    shape = planned.planner.shape
    real = kv_bytes_per_token(shape.kv, "f16")
    if not real or abs(_RULE / real - 1) < 1 / 10:
        return ""
    full = sum(group.layers for group in shape.kv if group.window is None)
    why = (
        f": it counts all {shape.layers} layers, and {full} hold a cache of the whole context"
        if full < shape.layers
        else ""
    )
    times, here = f"{_RULE / real:.1f} times", f"({real * 1000 / 1e9:.3f} GB)"
    return f"the rule of 0.075 GB for 1,000 tokens is {times} what f16 takes here {here}{why}"


def as_json(planned: Planned) -> str:
    """Write everything with sizes in bytes."""
    planner = planned.planner
    data: dict[str, Any] = {
        "device": {"name": planned.gpu or None, "bytes": planner.device_bytes},
        "model": {
            "name": planner.shape.name,
            "quantisation": planner.shape.quantisation,
            "weights_bytes": planner.shape.weights.total if planner.shape.weights is not None else None,
            "exact": planner.shape.weights.exact if planner.shape.weights is not None else None,
            "sources": list(planner.shape.sources),
        },
        "backend": planner.backend,
        "reserve": {"bytes": planner.reserve.size_bytes, "source": planner.reserve.source},
        "cells": [
            {
                "context": cell.context,
                "kv_cache": cell.kv_cache,
                "slots": planned.chosen.slots,
                "bytes": cell.budget.total,
                "free_bytes": cell.free_bytes,
                "band_bytes": cell.budget.band_bytes,
                "fit": cell.fit.value,
                "parts": {part.name: part.size_bytes for part in cell.budget.parts},
            }
            for cell in planned.cells
        ],
        "largest_context": dict(planned.largest),
        "leaves_the_device": planned.placement.words,
        "notes": list(planned.cells[0].budget.notes),
        "not_known": list(planned.cells[0].budget.missing),
        "line": list(planned.line),
    }
    return json.dumps(data, indent=1, ensure_ascii=False)
