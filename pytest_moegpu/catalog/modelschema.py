"""Which keys the file of a model has, and how the values become its facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_moegpu.catalog import values as v
from pytest_moegpu.catalog.knownanswers import answers_of
from pytest_moegpu.catalog.tables import HEAD, Key, Rows, Sub, Table
from pytest_moegpu.core.answers import RULES
from pytest_moegpu.core.modelfacts import ModelFacts, ModelSource, PublishedFile
from pytest_moegpu.core.probes import TIERS
from pytest_moegpu.core.shape import KvGroup
from pytest_moegpu.errors import UserError

__all__ = ["MODELS", "model_of"]

MODELS: Table = {
    **HEAD,
    "architecture": Key(v.text, required=True),
    "layers": Key(v.whole(1), required=True),
    "kv_layers": Key(v.whole(0), required=True),
    "kv_heads": Key(v.whole(1), required=True),
    "head_dim": Key(v.whole(1), required=True),
    "vocabulary": Key(v.whole(1), required=True),
    "context_train": Key(v.whole(1), required=True),
    "recall_reach": Key(v.whole(1)),
    "embedding": Key(v.whole(1), required=True),
    "recurrent_bytes_per_slot": Key(v.whole(0)),
    "experts": Key(v.whole(0)),
    "experts_used": Key(v.whole(0)),
    "licence": Key(v.text, required=True),
    "aliases": Key(v.listed(v.name)),
    "heads": Key(v.whole(1)),
    "feed_forward": Key(v.whole(1)),
    "expert_width": Key(v.whole(1)),
    "shared_experts": Key(v.whole(0)),
    "dense_layers": Key(v.whole(0)),
    "recurrent_layers": Key(v.whole(0)),
    "mtp_layers": Key(v.whole(0)),
    "parameters": Key(v.whole(1)),
    "tied": Key(v.boolean),
    "kv": Rows(
        {
            "layers": Key(v.whole(1), required=True),
            "k_width": Key(v.whole(1), required=True),
            "v_width": Key(v.whole(0), required=True),
            "window": Key(v.whole(1)),
        }
    ),
    "files": Rows(
        {
            "quantisation": Key(v.text, required=True),
            "size": Key(v.size(1), required=True, to="size_bytes"),
            "rounded": Key(v.boolean),
            "source": Key(v.text, required=True),
        }
    ),
    "file": Sub(
        {
            "size_bytes": Key(v.whole(1), required=True),
            "sha256": Key(v.sha256, required=True),
            "quantisation": Key(v.text, required=True),
        }
    ),
    "source": Sub(
        {
            "package": Key(v.name, required=True),
            "version": Key(v.text, required=True),
            "member": Key(v.text, required=True),
            "wheel_sha256": Key(v.sha256, required=True),
        }
    ),
    "known_answers": Rows(
        {
            "name": Key(v.name),
            "prompt": Key(v.text, required=True),
            "rule": Key(v.choice(*RULES)),
            "expect": Key(v.listed(v.text, least=1), required=True),
            "margin": Key(v.positive),
            "max_tokens": Key(v.whole(1)),
        }
    ),
    "probe_tiers": Key(v.listed(v.choice_of_numbers(*TIERS))),
    "references": Key(v.listed(v.text)),
}


def model_of(read: Mapping[str, Any]) -> ModelFacts:
    """Make the facts of a model of their values.

    Raises:
        UserError: Values that contradict each other.
    """
    if read["kv_layers"] > read["layers"]:
        raise UserError(f"kv_layers: {read['kv_layers']} is more than layers = {read['layers']}")
    if read.get("experts_used", 0) > read.get("experts", 0):
        raise UserError(f"experts_used: {read['experts_used']} is more than experts = {read.get('experts', 0)}")
    kv = tuple(KvGroup(**row) for row in read.get("kv", ()))
    if kv and (total := sum(group.layers for group in kv)) != read["kv_layers"]:
        raise UserError(f"kv: its layers add up to {total}, and kv_layers is {read['kv_layers']}")
    files = tuple(PublishedFile(**row) for row in read.get("files", ()))
    fields = {key: value for key, value in read.items() if key not in ("schema", "extends", "file", "probe_tiers")}
    made = {
        "source": ModelSource(**read["source"]) if "source" in read else None,
        "known_answers": answers_of(read),
        "kv": kv,
        "files": files,
    }
    return ModelFacts(**{**fields, **read.get("file", {}), **made})
