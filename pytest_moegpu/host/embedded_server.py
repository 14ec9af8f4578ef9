"""The real llama.cpp server out of the xllamacpp wheel, in a process of its own, with llama-server's own flags.

    python -m pytest_moegpu.host.embedded_server -m FILE --port N …

It exists so that the embedded profile runs the same code path as `llama-server` without a compiler or a GPU. Only the
flags that the llama.cpp backend writes are understood; another one is refused, as llama-server itself does.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from importlib import metadata
from types import FrameType
from typing import Any

from pytest_moegpu import __version__

__all__ = ["main", "parameters", "parser", "version"]


def parser() -> argparse.ArgumentParser:
    """Describe the flags, named and valued as llama-server's."""
    p = argparse.ArgumentParser(prog="moegpu-embedded-server", description=__doc__, allow_abbrev=False)
    p.add_argument("--version", action="store_true", help="print version and build, then exit")
    p.add_argument("-m", "--model", metavar="FILE", help="GGUF file")
    p.add_argument("-a", "--alias", help="name of the model in answers")
    p.add_argument("-c", "--ctx-size", type=int, default=0, help="context of all slots together, in tokens")
    p.add_argument("-np", "--parallel", type=int, default=1, help="slots")
    p.add_argument("-ngl", "--gpu-layers", type=int, default=0, help="layers to put on a GPU")
    p.add_argument(
        "-ncmoe", "--n-cpu-moe", type=int, default=0, help="layers whose experts stay in host memory, as all do here"
    )
    p.add_argument("-ctk", "--cache-type-k", default="f16", help="type of the K cache")
    p.add_argument("-ctv", "--cache-type-v", default="f16", help="type of the V cache")
    p.add_argument("-fa", "--flash-attn", choices=("auto", "on", "off"), default="auto")
    p.add_argument("-b", "--batch-size", type=int, default=2048)
    p.add_argument("-ub", "--ubatch-size", type=int, default=512)
    p.add_argument("-t", "--threads", type=int)
    p.add_argument("-fit", "--fit", choices=("on", "off"), default="on")
    p.add_argument("-lv", "--log-verbosity", type=int, default=3)
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=8080)
    p.add_argument("--metrics", action="store_true", help="serve /metrics")
    p.add_argument("--no-cache-prompt", action="store_true", help="no reuse of a common prompt prefix")
    p.add_argument("-cram", "--cache-ram", type=int, default=0, help="MiB of host memory for finished prompts")
    p.add_argument("--no-webui", action="store_true")
    return p


def version(x: Any) -> str:
    """Return version and build in the two-line form of `llama-server --version`."""
    build = x.BUILD_INFO
    return (
        f"version: {metadata.version('xllamacpp')} (xllamacpp)\n"
        f"built with {build.get('compiler', 'unknown')} for {build.get('build_target', 'unknown')}"
    )


def parameters(x: Any, args: argparse.Namespace) -> Any:
    """Turn the flags into the library's parameters.

    Raises:
        SystemExit: An unknown cache type.
    """
    p = x.CommonParams()
    p.model.path = args.model
    if args.alias:
        p.model_alias = {args.alias}
    p.n_ctx, p.n_parallel = args.ctx_size, args.parallel
    p.n_gpu_layers = args.gpu_layers
    types = {name.removeprefix("GGML_TYPE_").lower(): value for name, value in x.ggml_type.__members__.items()}
    for flag in ("cache_type_k", "cache_type_v"):
        if (wanted := getattr(args, flag)) not in types:
            raise SystemExit(f"error: unknown cache type {wanted!r}")
        setattr(p, flag, types[wanted])
    flash = {"auto": "AUTO", "on": "ENABLED", "off": "DISABLED"}[args.flash_attn]
    p.flash_attn_type = x.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{flash}"]
    p.n_batch, p.n_ubatch = args.batch_size, args.ubatch_size
    if args.threads:
        p.cpuparams.n_threads = args.threads
        p.cpuparams_batch.n_threads = args.threads
    p.fit_params = args.fit == "on"
    p.verbosity = args.log_verbosity
    p.hostnames, p.port = [args.host], args.port
    p.endpoint_metrics = args.metrics
    p.cache_prompt = not args.no_cache_prompt
    p.cache_ram_mib = args.cache_ram
    p.ui = not args.no_webui
    if key := os.environ.get("LLAMA_API_KEY"):
        p.api_keys = [key]
    return p


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM; exit code 1 when the model cannot be loaded, 2 for a wrong flag, as llama-server."""
    args = parser().parse_args(argv)
    # GNU OpenMP's threads spin without end by default: with any other load on the cores decode falls from 65 to
    # 2-10 tok/s (2 cores, load 4). This count was as fast as the default on an idle machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        import xllamacpp as x
    except ImportError as error:
        print(f"error: {error}; install with: pip install 'pytest-moegpu[embedded]=={__version__}'", file=sys.stderr)
        return 1
    if args.version:
        print(version(x))
        return 0
    if not args.model:
        print("error: --model is required", file=sys.stderr)
        return 2
    if args.n_cpu_moe and args.gpu_layers:
        print("error: --n-cpu-moe: this server has no placement of experts on a GPU: use llama-server", file=sys.stderr)
        return 2
    print(version(x), flush=True)
    done = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        done.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        server = x.Server(parameters(x, args))
    except (RuntimeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"listening on {server.listening_address}", flush=True)
    done.wait()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # The library's own teardown joins its HTTP threads and can wait for an open stream; the process is over.
    os._exit(code)
