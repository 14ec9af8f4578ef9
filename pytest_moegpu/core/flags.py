"""The flags of a server program, and what flags of different programs mean alike."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MEANINGS", "Flag"]

MEANINGS: dict[str, str] = {
    "model": "model file or folder",
    "served_name": "name under which the model is served",
    "context": "context length in tokens",
    "slots": "requests served at the same time",
    "kv_cache": "precision of the KV cache",
    "kv_cache_value": "precision of the values in the KV cache",
    "gpu_layers": "layers on the GPU",
    "cpu_expert_layers": "layers whose experts stay in host memory",
    "memory_share": "share of the GPU memory the engine may take",
    "host_weights": "weights kept in host memory",
    "prefill_chunk": "tokens of a prompt computed at once",
    "prefix_cache_on": "reuse of a common prefix on",
    "prefix_cache_off": "reuse of a common prefix off",
    "flash_attention": "flash attention",
    "thinking": "thinking on or off",
    "threads": "threads of the processor",
    "tensor_parallel": "GPUs that share each layer",
    "device": "device",
    "host": "address to listen on",
    "port": "port to listen on",
    "api_key": "API key",
    "chat_template": "chat template",
    "load_format": "format of the model",
    "graphs_off": "CUDA graphs off",
    "metrics": "Prometheus metrics",
}
"""What a flag can mean, in words; backends say how they spell it."""


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag of a program, as its help text shows it.

    Args:
        names: Spellings with their dashes, such as `-c` and `--ctx-size`.
        takes_value: Whether a value follows; None when it may, or the help text does not tell.
        choices: Allowed values where the help text lists them.
        many: Whether more than one value may follow.
    """

    names: tuple[str, ...]
    takes_value: bool | None = None
    choices: tuple[str, ...] = ()
    many: bool = False
