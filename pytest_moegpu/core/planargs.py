"""What `moegpu plan` is asked: its arguments, and the order that they make."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PlanOrder", "add_plan"]


@dataclass(frozen=True, kw_only=True)
class PlanOrder:
    """What to plan. None and empty: as the profile says, or a table of common contexts and cache types.

    `vram` is a size with its unit, `contexts` are tokens, `kv` words of `core.kvcache`, `model` a name or a path.
    """

    profile: str | None = None
    vram: str | None = None
    model: str | None = None
    quantisation: str | None = None
    backend: str | None = None
    contexts: tuple[str, ...] = ()
    kv: tuple[str, ...] = ()
    slots: int | None = None
    ubatch: int | None = None
    build: int | None = None
    json: bool = False
    catalog: tuple[Path, ...] = ()
    runs: Path = Path(".moegpu/runs")
    baselines: Path = Path("baselines")

    @classmethod
    def of(cls, args: argparse.Namespace) -> PlanOrder:
        """Take the order from what was parsed."""
        return cls(
            profile=args.profile,
            vram=args.vram,
            model=args.model,
            quantisation=args.quant,
            backend=args.backend,
            contexts=_listed(args.context),
            kv=_listed(args.kv),
            slots=args.slots,
            ubatch=args.ubatch,
            build=args.build,
            json=args.json,
            catalog=tuple(args.catalog),
            runs=args.runs,
            baselines=args.baselines,
        )


def _listed(words: list[str]) -> tuple[str, ...]:
    return tuple(part.strip() for word in words for part in word.split(",") if part.strip())


def add_plan(verb: argparse.ArgumentParser) -> None:
    """Describe the arguments of the verb."""
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    verb.description = (
        "Says what a model takes of a GPU's memory, part by part: a table by context and cache type, the largest\n"
        "context, what must leave the GPU when it does not fit, and the line to start it with. Starts nothing.\n"
        "Exit code 0: something fits, 1: nothing does, 3: wrong usage."
    )
    verb.epilog = (
        "examples:\n  moegpu plan rtx3090\n"
        '  moegpu plan --vram "24 GiB" --model qwen3-30b-a3b --quant Q4_K_M --context 8192,32768 --kv f16,q8_0\n'
        "  moegpu plan rtx4090 --model /models/some.gguf --slots 4 --json"
    )
    verb.add_argument(
        "profile", nargs="?", metavar="PROFILE", help="profile that names the GPU, the model and the engine"
    )
    verb.add_argument("--vram", metavar="SIZE", help='memory of the GPU, such as "24 GiB"; before that of the profile')
    verb.add_argument("--model", metavar="NAME", help="model of the catalog, or the path of its file")
    verb.add_argument("--quant", metavar="TYPE", help="quantisation of a model without a file, such as Q4_K_M")
    verb.add_argument("--backend", metavar="NAME", help="engine: llamacpp (default), vllm or sglang")
    verb.add_argument(
        "--context", action="append", default=[], metavar="N,…", help="tokens of one slot; several make a table"
    )
    verb.add_argument("--kv", action="append", default=[], metavar="TYPE,…", help="types of the KV cache")
    verb.add_argument("--slots", type=int, metavar="N", help="requests at the same time (default 1)")
    verb.add_argument("--ubatch", type=int, metavar="N", help="tokens computed in one go (default 512)")
    verb.add_argument("--build", type=int, metavar="N", help="number of the llama.cpp build, such as 11434")
    verb.add_argument("--json", action="store_true", help="write JSON, sizes in bytes")
    verb.add_argument(
        "--catalog", type=Path, action="append", default=[], metavar="FOLDER", help="folder with profiles of your own"
    )
    verb.add_argument(
        "--baselines", type=Path, default=Path("baselines"), metavar="FOLDER", help="where baselines are kept"
    )
