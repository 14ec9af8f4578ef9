"""What a model is made of, as far as its memory is concerned: weights by block, KV cache and recurrent state.

Sizes are bytes, widths elements. `None` means "not known", never zero; what could not be learned is in `missing`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["BlockWeights", "KvGroup", "ModelShape", "WeightTable"]


@dataclass(frozen=True, kw_only=True)
class KvGroup:
    """Layers whose KV cache has one form.

    Args:
        layers: How many there are.
        k_width: Elements of K for one token in one layer: KV heads x head_dim, or the latent width of MLA.
        v_width: Elements of V; 0 where V is computed from what K holds (MLA).
        window: Tokens that a sliding window keeps; None where the cache holds the whole context.
    """

    layers: int
    k_width: int
    v_width: int
    window: int | None = None


@dataclass(frozen=True, kw_only=True)
class BlockWeights:
    """Weights of one block. `experts` are the routed ones, which can stay in host memory by themselves."""

    other: int
    experts: int = 0


@dataclass(frozen=True, kw_only=True)
class WeightTable:
    """Where the bytes of a file are.

    Args:
        embedding: The token embeddings, which llama.cpp leaves in host memory.
        output: Output head and final norm. With `tied` the head is the embeddings, which then lie on the device too.
        blocks: In the order of the layers; those of multi-token prediction come last and are counted in `mtp_blocks`.
        mtp_blocks: How many of the blocks serve multi-token prediction only.
        other: What belongs to no block: rope factors, a vision tower.
        by_type: Bytes of each tensor type, such as Q4_K or BF16.
        tied: Whether the output head is the token embeddings.
        exact: Whether it was read from a file; else it is spread over the blocks by arithmetic.
    """

    embedding: int
    output: int
    blocks: tuple[BlockWeights, ...]
    mtp_blocks: int = 0
    other: int = 0
    by_type: dict[str, int] = field(default_factory=dict)
    tied: bool = False
    exact: bool = True

    @property
    def total(self) -> int:
        """All weights, in bytes."""
        return self.embedding + self.output + self.other + sum(b.other + b.experts for b in self.blocks)

    @property
    def without_mtp(self) -> int:
        """All weights but the blocks of multi-token prediction, in bytes."""
        ahead = self.blocks[len(self.blocks) - self.mtp_blocks :]
        return self.total - sum(b.other + b.experts for b in ahead)


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """One model, from its file or from the catalog.

    Args:
        name: As the catalog has it, or made from the file's own title.
        architecture: The GGUF architecture (`qwen35moe`) or Hugging Face's `model_type` (`qwen3_5_moe`).
        layers: Blocks of the text model, without those of multi-token prediction.
        embedding: Width of the hidden state.
        heads: Query heads of one attention layer.
        kv: The layers with a KV cache, by form. Their number and that of `recurrent_layers` may be below `layers`.
        vocabulary: Rows of the output head; the compute buffer holds one row of logits for each token of a ubatch.
        context_train: Tokens that the model was trained for, before any scaling.
        recurrent_layers: Layers whose state has a fixed size.
        recurrent_bytes_per_slot: All of that state, for one sequence; None where there is one of unknown size.
        mtp_layers: Blocks of multi-token prediction.
        experts: Routed experts of one layer, 0 for a dense model.
        experts_used: Of these, how many work on a token.
        shared_experts: Experts that work on every token.
        expert_width: Inner width of one expert.
        feed_forward: Inner width of a dense feed-forward layer; None where there is none.
        quantisation: Of the weights, as the file names it.
        parameters: All of them.
        weights: None where only the shape is known.
        licence: As the file or the catalog names it.
        missing: What is needed for planning and is not known, in words.
        notes: What a reader of a plan should know.
        sources: Where each number is from.
    """

    name: str
    architecture: str
    layers: int
    embedding: int
    heads: int
    kv: tuple[KvGroup, ...]
    vocabulary: int
    context_train: int
    recurrent_layers: int = 0
    recurrent_bytes_per_slot: int | None = 0
    mtp_layers: int = 0
    experts: int = 0
    experts_used: int = 0
    shared_experts: int = 0
    expert_width: int | None = None
    feed_forward: int | None = None
    quantisation: str | None = None
    parameters: int | None = None
    weights: WeightTable | None = None
    licence: str | None = None
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def state_bytes(self) -> int:
        """The recurrent state of one sequence as far as it is known, in bytes."""
        return self.recurrent_bytes_per_slot or 0

    @property
    def not_known(self) -> tuple[str, ...]:
        """What a sum of memory lacks: `missing`, and the weights where there are none."""
        return self.missing if self.weights is not None else (*self.missing, "how large its weights are")
