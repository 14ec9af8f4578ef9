"""How far are the numbers of sound stacks apart? Scores of the fixed texts, of one start against others.

    python bench/golden_noise.py --program llama-server --model FILE [--other-program P]… [--injured FILE]…
        [--precision FILE] [--vllm "COMMAND" --sglang "COMMAND" --hf FOLDER] [--cpu] [--only NAME,…]

Starts each server by the plugin's own recipes, one after another, and ends it. The first is the reference of all; the
first of vLLM, of SGLang and of another precision is one for those after it. Prints a table and writes JSON. A command
may begin with `env NAME=VALUE`. Figures are those of `core.goldenfit`, in nat.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pytest_moegpu.backends import get_backend
from pytest_moegpu.core.golden import Golden, TextScore
from pytest_moegpu.core.goldenfit import FLOOR, PRECISION_FLOOR, QUANTISED_FLOOR, Agreement, Floor, agree, grade
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, Limits, ModelFormat, Settings
from pytest_moegpu.errors import MoegpuError
from pytest_moegpu.host.control import free_port
from pytest_moegpu.session.scoring import Scoring
from pytest_moegpu.session.server import Server, new_key

HEADERS = ("against", "run", "tokens", "top-1", "mean |d|", "max |d|", "mean KL", "p99 KL", "bounds", "grade", "s")
READY_SECONDS = 280.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """One start. `weights` names what it loads: runs of the same weights are held to the narrow floor."""

    name: str
    backend: str
    program: tuple[str, ...]
    model: str
    weights: str
    settings: Settings
    at_once: int = 1
    reference: bool = False


def runs(args: argparse.Namespace) -> Iterator[Run]:
    """Yield what was asked for, the reference first."""
    base = Settings(context=2048, gpu_layers=0 if args.cpu else None, threads=1 if args.cpu else None)
    first = Run(
        name="reference",
        backend="llamacpp",
        program=tuple(shlex.split(args.program)),
        model=args.model,
        weights="model",
        settings=base,
        reference=True,
    )
    yield first

    def like(name: str, at_once: int = 1, **settings: object) -> Run:
        changed = replace(base, **settings)  # type: ignore[arg-type]
        return replace(first, name=name, settings=changed, at_once=at_once, reference=False)

    yield like("same again")
    yield like("4 slots", slots=4)
    yield like("4 slots, 4 at once", slots=4, at_once=4)
    yield like("ubatch 32", batch=32, ubatch=32)
    yield like("ubatch 128", batch=128, ubatch=128)
    yield like("flash attention on", flash_attention="on")
    yield like("flash attention off", flash_attention="off")
    yield like("KV q8_0", kv_cache="q8_0", flash_attention="on")
    yield like("KV q4_0", kv_cache="q4_0", flash_attention="on")
    if args.cpu:
        yield like("2 threads", threads=2)
    for number, program in enumerate(args.other_program, 1):
        yield replace(like(f"build {number + 1}"), program=tuple(shlex.split(program)))
    for path in args.injured:
        yield replace(like(f"injured {Path(path).stem}"), model=path, weights="injured")
    for path in args.precision:
        other = replace(like(f"precision {Path(path).stem}"), model=path, weights="precision", reference=True)
        yield other
        yield replace(other, name=f"{other.name}, 4 slots at once", settings=replace(base, slots=4), at_once=4)
    yield from torch_runs(args)


def torch_runs(args: argparse.Namespace) -> Iterator[Run]:
    """Yield vLLM and SGLang, each twice and with four requests at once."""
    base = Settings(context=2048, slots=4, gpu_layers=0 if args.cpu else None, cuda_graphs=False)
    flags = {
        "vllm": (),
        "sglang": () if args.cpu else ("--attention-backend", "triton", "--sampling-backend", "pytorch"),
    }
    shares = {"vllm": 0.2, "sglang": 0.15}
    for name, command in (("vllm", args.vllm), ("sglang", args.sglang)):
        if command is None:
            continue
        share = None if args.cpu else shares[name]
        settings = replace(base, memory_share=share, extra_flags=flags[name])
        run = Run(
            name=name,
            backend=name,
            program=tuple(shlex.split(command)),
            model=args.hf,
            weights="precision",
            settings=settings,
            reference=True,
        )
        yield run
        yield replace(run, name=f"{name}, 4 at once", at_once=4, reference=False)


def score(run: Run, golden: Golden | None, folder: Path, *, cpu: bool) -> tuple[TextScore, ...]:
    """Start the server of a run, score the texts, end it."""
    spec = LaunchSpec(
        program=run.program,
        model_path=run.model,
        model_name="model",
        settings=run.settings,
        host="127.0.0.1",
        port=free_port(last=get_backend(run.backend).last_port),
        api_key=new_key(),
        device_kind=DeviceKind.CPU if cpu else DeviceKind.GPU,
        model_format=ModelFormat.GGUF if run.backend == "llamacpp" else ModelFormat.HF,
    )
    log = folder / f"{run.name.replace(' ', '-').replace(',', '')}.log"
    server = Server(get_backend(run.backend), spec, Limits(ready_seconds=READY_SECONDS, request_seconds=120.0), log)
    try:
        server.start()
        return Scoring(server=server, golden=golden, at_once=run.at_once).run()
    finally:
        server.stop()


def row(against: Run, run: Run, fit: Agreement, seconds: float, near: Floor) -> tuple[str, ...]:
    """Return one line of the table."""
    alike = against.weights == run.weights or run.weights == "injured"
    floor = PRECISION_FLOOR if not alike else near if against.weights == "model" else FLOOR
    return (
        against.name,
        run.name,
        f"{fit.tokens}/{fit.expected}",
        f"{fit.top1:.3f}",
        f"{fit.difference:.4f}",
        f"{fit.difference_max:.3f}",
        f"{fit.divergence:.5f}",
        f"{fit.divergence_p99:.4f}",
        str(fit.uncertain),
        str(grade(fit, floor)),
        f"{seconds:.1f}",
    )


def figures(fit: Agreement) -> dict[str, object]:
    """Return the figures for JSON, which has no NaN."""
    return {name: None if isinstance(v, float) and math.isnan(v) else v for name, v in asdict(fit).items()}


def table(rows: list[tuple[str, ...]]) -> str:
    """Lay out the rows without a package that a bare host may not have."""
    cells = [HEADERS, *rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADERS))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells)


def main() -> None:
    """Run all, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="llama-server, or a command that takes its flags")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--other-program", action="append", default=[], metavar="COMMAND")
    parser.add_argument("--injured", action="append", default=[], metavar="FILE", help="damaged copy of the model")
    parser.add_argument("--precision", action="append", default=[], metavar="FILE", help="the model in another one")
    parser.add_argument("--vllm", metavar="COMMAND")
    parser.add_argument("--sglang", metavar="COMMAND")
    parser.add_argument("--hf", metavar="FOLDER", help="the model for vLLM and SGLang")
    parser.add_argument("--cpu", action="store_true", help="on the processor, with one thread")
    parser.add_argument("--only", default="", metavar="NAME,…", help="of the runs after the first only these")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no further start after so many")
    parser.add_argument("--json", type=Path, default=Path("bench/results/golden-noise.json"))
    parser.add_argument("--scores", type=Path, metavar="FILE", help="write the scores themselves too")
    args = parser.parse_args()
    wanted, began = [name for name in args.only.split(",") if name], time.monotonic()
    references: list[tuple[Run, tuple[TextScore, ...]]] = []
    golden: Golden | None = None
    rows: list[tuple[str, ...]] = []
    kept: list[dict[str, object]] = []
    scores: dict[str, tuple[TextScore, ...]] = {}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for run in runs(args):
            if references and wanted and not any(run.name.startswith(name) for name in wanted):
                continue
            if time.monotonic() - began > args.seconds:
                print(f"left out for want of time: {run.name}")
                continue
            start = time.monotonic()
            try:
                found = score(run, golden, Path(folder), cpu=args.cpu)
            except MoegpuError as error:
                print(f"{run.name}: {error}", flush=True)
                continue
            seconds = time.monotonic() - start
            scores[run.name] = found
            for told in dict.fromkeys(text.error for text in found if text.error):
                print(f"{run.name}: {told}", flush=True)
            if golden is None:
                golden = Golden(model_sha256="", made_with=run.name, texts=found)
                print(f"{run.name}: {sum(len(text.rows) for text in found)} tokens in {seconds:.1f} s", flush=True)
            for against, texts in references:
                if run.weights == "injured" and against is not references[0][0]:
                    continue
                fit = agree(texts, found)
                rows.append(row(against, run, fit, seconds, FLOOR if args.cpu else QUANTISED_FLOOR))
                kept.append({"against": against.name, "run": run.name, "seconds": seconds, **figures(fit)})
                print(*rows[-1], sep="  ", flush=True)
                # Each time, so that a run that is ended in between has left what it found.
                args.json.write_text(json.dumps(kept, indent=1) + "\n")
            if run.reference:
                references.append((run, found))
    print(table(rows))
    if args.scores:
        as_json = {name: [asdict(text) for text in found] for name, found in scores.items()}
        args.scores.write_text(json.dumps(as_json, ensure_ascii=False))


if __name__ == "__main__":
    main()
