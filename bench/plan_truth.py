"""Predicted against measured memory: is what `moegpu plan` says true of the real llama-server?

    python -m bench.plan_truth --program /path/to/llama-server --gpu --build 11434 [--model FILE] [--json FILE]
    python -m bench.plan_truth --judge FILE --gpu --build 11434 [--model FILE] [--json FILE]

Starts the server once for each configuration, as a run does, and sends it a prompt longer than a ubatch for every slot.
The peak of the device above its idle reading is held against the prediction, and the parts that the log names against
the predicted ones. `default` is predicted with the reserve of a device on which nothing was measured, `learned` with
that of one start before the table (context 4096, f16), which is itself not in it. With `--experts` a mixture is made of
the model (`moegpu model upcycle`) and started with experts in host memory too. `--judge` holds what a JSON file says
was measured against the predictions of today, and starts nothing.

Without `--gpu` everything is on the processor: then only the parts are judged, prompts are short, and the growth of the
process, where mapped pages count as they are touched, is printed beside them.
Prints a table and writes JSON. Exit code 1 when a part differs from the log's by more than 3 % and 2 MiB, when with
`--gpu` the learned prediction is off by more than 3 %, or when something was not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tabulate import tabulate

from pytest_moegpu.backends import get_backend
from pytest_moegpu.backends.base import ChatRequest
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.budget import Reserve, default_reserve
from pytest_moegpu.core.evidence import LogFacts, Phase, RequestKind
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, Limits, Settings
from pytest_moegpu.core.phases import peaks
from pytest_moegpu.core.predicted import logged_parts, predicted_budget
from pytest_moegpu.core.shape import ModelShape
from pytest_moegpu.core.units import GIB, MIB
from pytest_moegpu.core.upcycle import How, Order
from pytest_moegpu.host.control import free_port
from pytest_moegpu.host.fetch import fetch_model
from pytest_moegpu.host.hostmem import HostProbe
from pytest_moegpu.host.nvmlprobe import NvmlProbe
from pytest_moegpu.host.probe import Probe
from pytest_moegpu.host.sampler import Sampler
from pytest_moegpu.host.shapegguf import shape_of_gguf
from pytest_moegpu.host.upcycle import upcycle
from pytest_moegpu.session.device import used, wait_idle
from pytest_moegpu.session.server import Server, new_key

MOST_ERROR = 0.03
# The log counts to the hundredth of a MiB; a small buffer is off by its padding.
SLACK_BYTES = 2 * MIB
# A number and a space are two tokens: more than a ubatch. What a processor takes is allocated before any prompt.
PROMPT_WORDS = {DeviceKind.GPU: 600, DeviceKind.CPU: 8}
IDLE_SECONDS = 30.0
LEARNED_FROM = Settings(context=4096)
LARGE_CARD = 80 * GIB
MIXTURE = Order(how=How.COPIES, experts=4, used=2, seed=1)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One launch. `mixture`: of the mixture made of the model."""

    name: str
    settings: Settings
    mixture: bool = False


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What one start took, in bytes. `peak` is above the idle reading; `logged` by part, on the device that was asked.

    `failed` says why there is nothing, in words; empty when all was measured.
    """

    peak: int | None
    logged: dict[str, int]
    failed: str = ""

    @property
    def rest(self) -> int | None:
        """The peak less what the log names; None where it was not read."""
        return None if self.peak is None or not self.logged else self.peak - sum(self.logged.values())


@dataclass(frozen=True, kw_only=True)
class Row:
    """Prediction and truth of one case, in bytes; `parts` are those that the log names too."""

    name: str
    parts: dict[str, int]
    default: int
    learned: int
    truth: Truth

    @property
    def part_errors(self) -> dict[str, float]:
        """Share by which a predicted part is off, but for what is within the log's own rounding."""
        found = {}
        for name, logged in self.truth.logged.items():
            off = abs(self.parts[name] - logged)
            found[name] = off / logged if off > SLACK_BYTES and logged else 0.0
        return found

    @property
    def error(self) -> float | None:
        """Share by which the learned prediction is off, with its sign; None where nothing was measured."""
        return self.learned / self.truth.peak - 1 if self.truth.peak else None


def cases(shape: ModelShape, experts: bool) -> list[Case]:
    """Return the launches: contexts, cache types, slots, layers, flash attention, ubatch, and experts."""
    base = Settings(context=8192)
    half = shape.layers // 2
    found = [
        Case(name="2K f16", settings=replace(base, context=2048)),
        Case(name="8K f16", settings=base),
        Case(name="32K f16", settings=replace(base, context=32_768)),
        Case(name="32K q8_0", settings=replace(base, context=32_768, kv_cache="q8_0")),
        Case(name="32K q4_0", settings=replace(base, context=32_768, kv_cache="q4_0")),
        Case(name="8K f16, 4 slots", settings=replace(base, slots=4)),
        Case(name="8K q8_0, 4 slots", settings=replace(base, slots=4, kv_cache="q8_0")),
        Case(name="32K f16, half the layers", settings=replace(base, context=32_768, gpu_layers=half)),
        Case(name="8K f16, no layer", settings=replace(base, gpu_layers=0)),
        Case(name="8K f16, ubatch 128", settings=replace(base, ubatch=128)),
        Case(name="8K f16, no flash attention", settings=replace(base, flash_attention="off")),
        Case(name="2K q8_0", settings=replace(base, context=2048, kv_cache="q8_0")),
        Case(name="8K q8_0", settings=replace(base, kv_cache="q8_0")),
        Case(name="16K q8_0", settings=replace(base, context=16_384, kv_cache="q8_0")),
        Case(name="2K q8_0, 4 slots", settings=replace(base, context=2048, kv_cache="q8_0", slots=4)),
        Case(name="8K q8_0, ubatch 128", settings=replace(base, kv_cache="q8_0", ubatch=128)),
        Case(name="8K q8_0, ubatch 256", settings=replace(base, kv_cache="q8_0", ubatch=256)),
        Case(name="32K q8_0, ubatch 128", settings=replace(base, context=32_768, kv_cache="q8_0", ubatch=128)),
        Case(name="2K f16, half the layers", settings=replace(base, context=2048, gpu_layers=half)),
        Case(name="8K f16, half the layers", settings=replace(base, gpu_layers=half)),
        Case(name="16K f16, half the layers", settings=replace(base, context=16_384, gpu_layers=half)),
        Case(name="8K f16, all but two", settings=replace(base, gpu_layers=shape.layers - 1)),
        Case(name="8K f16, all but one", settings=replace(base, gpu_layers=shape.layers)),
        Case(name="8K f16, the output only", settings=replace(base, gpu_layers=1)),
        Case(name="32K f16, all but one", settings=replace(base, context=32_768, gpu_layers=shape.layers)),
        Case(name="8K f16, half, ubatch 128", settings=replace(base, gpu_layers=half, ubatch=128)),
        Case(name="32K q8_0, half", settings=replace(base, context=32_768, kv_cache="q8_0", gpu_layers=half)),
        Case(name="32K f16, no layer", settings=replace(base, context=32_768, gpu_layers=0)),
        Case(name="8K f16, half, 4 slots", settings=replace(base, slots=4, gpu_layers=half)),
        Case(name="32K f16, no flash attention", settings=replace(base, context=32_768, flash_attention="off")),
        Case(
            name="2K f16, no flash attention, ubatch 128",
            settings=replace(base, context=2048, flash_attention="off", ubatch=128),
        ),
    ]
    if experts:
        found += [
            Case(name="mixture, 8K f16", settings=base, mixture=True),
            Case(
                name="mixture, experts of half the layers in host memory",
                settings=replace(base, cpu_expert_layers=half),
                mixture=True,
            ),
            Case(
                name="mixture, all experts in host memory",
                settings=replace(base, cpu_expert_layers=shape.layers),
                mixture=True,
            ),
            Case(name="mixture, 32K f16", settings=replace(base, context=32_768), mixture=True),
            Case(name="mixture, 32K q8_0", settings=replace(base, context=32_768, kv_cache="q8_0"), mixture=True),
            Case(name="mixture, 32K f16, half", settings=replace(base, context=32_768, gpu_layers=half), mixture=True),
            Case(
                name="mixture, 32K f16, half the experts in host memory",
                settings=replace(base, context=32_768, cpu_expert_layers=half),
                mixture=True,
            ),
            Case(name="mixture, 8K f16, 4 slots", settings=replace(base, slots=4), mixture=True),
        ]
    return found


def measure(program: tuple[str, ...], model: Path, settings: Settings, probe: Probe, kind: DeviceKind) -> Truth:
    """Start the server, fill a ubatch in every slot, end it, and wait until the device is idle again."""
    (gpu, *_) = probe.devices()
    with tempfile.TemporaryDirectory(prefix="plan-truth-") as folder:
        spec = LaunchSpec(
            program=program,
            model_path=str(model),
            model_name="model",
            settings=settings,
            host="127.0.0.1",
            port=free_port(),
            api_key=new_key(),
            devices=(gpu.cuda_name or str(gpu.index),) if kind is DeviceKind.GPU else (),
            device_kind=kind,
        )
        limits = Limits(ready_seconds=120, request_seconds=120)
        server = Server(get_backend("llamacpp"), spec, limits, Path(folder) / "server.log")
        sampler, failed, log = Sampler(probe), "", LogFacts()
        probe.follow(None)
        idle = used(sampler.read_once("idle"))
        sampler.enter(Phase.LOAD)
        sampler.start()
        try:
            server.start(spawned=probe.follow)
            prompts = {
                f"slot {number}": ChatRequest(prompt=f"{number} " * PROMPT_WORDS[kind], max_tokens=32, ignore_eos=True)
                for number in range(settings.slots)
            }
            records = server.chat_at_once(prompts, RequestKind.WARMUP)
            failed = "; ".join(record.error for record in records if record.error)
            log = server.log_facts()
        finally:
            server.stop()
            sampler.stop()
        after, _ = wait_idle(probe, idle, IDLE_SECONDS)
    during = peaks(sample for sample in sampler.samples if sample.phase != "idle")
    if sampler.error is not None:
        failed = failed or str(sampler.error)
    if idle is None or after is None or not during:
        return Truth(peak=None, logged=logged_parts(log, kind), failed=failed or "the device could not be read")
    return Truth(peak=max(during.values()) - idle, logged=logged_parts(log, kind), failed=failed)


def row(
    case: Case, shape: ModelShape, kind: DeviceKind, reserves: Sequence[Reserve], build: int | None, truth: Truth
) -> Row:
    """Hold one case against its predictions, with the default reserve and the learned one."""
    default, learned = (predicted_budget(shape, case.settings, kind, reserve, build) for reserve in reserves)
    state = default.of("recurrent state")
    return Row(
        name=case.name,
        parts={
            "weights": default.of("weights"),
            # The log's figure holds both.
            "KV cache": default.of("KV cache") + state,
            "compute buffer": default.of("compute buffer"),
        },
        default=default.total,
        learned=learned.total,
        truth=truth,
    )


def shown(found: Row) -> list[str]:
    """Return a row of the table, in MiB."""
    pairs = [f"{found.parts[part] / MIB:.1f} / {size / MIB:.1f}" for part, size in found.truth.logged.items()]
    peak, error = found.truth.peak, found.error
    measured = "not measured" if peak is None else f"{peak / MIB:.1f}"
    off = "" if error is None else f"{error * 100:+.1f} %"
    return [found.name, *pairs, f"{found.default / MIB:.1f}", f"{found.learned / MIB:.1f}", measured, off]


def good(found: Row, kind: DeviceKind) -> bool:
    """Tell whether the prediction of a case is true, and was measured."""
    parts = bool(found.truth.logged) and all(error <= MOST_ERROR for error in found.part_errors.values())
    whole = kind is DeviceKind.CPU or (found.error is not None and abs(found.error) <= MOST_ERROR)
    return parts and whole and not found.truth.failed


def as_json(device: str, build: int | None, reserves: Sequence[Reserve], rows: Sequence[Row], kind: DeviceKind) -> str:
    """Return everything in bytes, as far as it was measured."""
    default, learned = reserves
    data = {
        "device": device,
        "build": build,
        "default_reserve": default.size_bytes,
        "learned_reserve": learned.size_bytes,
        "rows": [asdict(each) | {"part_errors": each.part_errors, "error": each.error} for each in rows],
        "wrong": [each.name for each in rows if not good(each, kind)],
    }
    return json.dumps(data, indent=1) + "\n"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--program", help="llama-server, with arguments of its own")
    what.add_argument("--judge", type=Path, help="JSON file of what was measured")
    parser.add_argument("--model", type=Path, help="GGUF file (default: the embedded model)")
    parser.add_argument("--build", type=int, help="number of the build, where it limits the logits it reserves")
    parser.add_argument("--gpu", action="store_true", help="on the GPU")
    parser.add_argument("--experts", action="store_true", help="with a mixture made of the model too")
    parser.add_argument("--json", type=Path, default=Path("plan_truth.json"))
    return parser.parse_args()


def main() -> int:
    """Start all or read what was measured, print the table, write JSON."""
    args = arguments()
    kind = DeviceKind.GPU if args.gpu else DeviceKind.CPU
    model = args.model or fetch_model(Catalog.load().model("smollm2-135m-instruct"))
    with tempfile.TemporaryDirectory(prefix="plan-truth-model-") as folder:
        mixture = Path(folder) / "mixture.gguf"
        if args.experts:
            upcycle(model, mixture, MIXTURE)
        try:
            device, reserves, rows = (_judged if args.judge else _measured)(args, kind, model, mixture)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 1
    heads = ("launch", "weights", "KV and state", "compute", "default", "learned", "measured", "learned is off")
    default, learned = reserves
    print(f"{device}, reserve {default.size_bytes / MIB:.1f} MiB, learned {learned.size_bytes / MIB:.1f} MiB")
    print(f"MiB, parts as predicted / logged, build {args.build or 'not known'}\n")
    print(tabulate([shown(each) for each in rows], headers=heads, tablefmt="github", disable_numparse=True))
    wrong = [each.name for each in rows if not good(each, kind)]
    print(f"\nnot within {MOST_ERROR:.0%}, or not measured: {'; '.join(wrong) or 'none'}")
    return 1 if wrong else 0


def _measured(
    args: argparse.Namespace, kind: DeviceKind, model: Path, mixture: Path
) -> tuple[str, tuple[Reserve, Reserve], list[Row]]:
    """Start the server once for each case.

    Raises:
        ValueError: The first start taught nothing.
    """
    program = tuple(shlex.split(args.program))
    probe: Probe = NvmlProbe((), os.environ.get("CUDA_VISIBLE_DEVICES")) if args.gpu else HostProbe()
    rows: list[Row] = []
    (device, *_) = probe.devices()
    default = default_reserve(device.memory_bytes)
    first = measure(program, model, LEARNED_FROM, probe, kind)
    if first.rest is None:
        raise ValueError(f"nothing was learned: {first.failed}")
    learned = replace(default, size_bytes=first.rest, source="one start", band_bytes=0)
    for case in cases(shape_of_gguf(model), args.experts):
        file = mixture if case.mixture else model
        truth = measure(program, file, case.settings, probe, kind)
        rows.append(row(case, shape_of_gguf(file), kind, (default, learned), args.build, truth))
        print(shown(rows[-1]), file=sys.stderr, flush=True)
        # After each: a time limit must not cost what was measured before it.
        args.json.write_text(as_json(device.name, args.build, (default, learned), rows, kind), encoding="utf-8")
    probe.close()
    return device.name, (default, learned), rows


def _judged(
    args: argparse.Namespace, kind: DeviceKind, model: Path, mixture: Path
) -> tuple[str, tuple[Reserve, Reserve], list[Row]]:
    """Predict again what is in a file; cases that are not in it are left out."""
    stored = json.loads(args.judge.read_text(encoding="utf-8"))
    truths = {each["name"]: Truth(**each["truth"]) for each in stored["rows"]}
    default = replace(default_reserve(LARGE_CARD if args.gpu else 0), size_bytes=stored["default_reserve"])
    reserves = default, replace(default, size_bytes=stored["learned_reserve"])
    dense = shape_of_gguf(model)
    rows = [
        row(case, shape_of_gguf(mixture) if case.mixture else dense, kind, reserves, args.build, truths[case.name])
        for case in cases(dense, args.experts)
        if case.name in truths
    ]
    args.json.write_text(as_json(stored["device"], args.build, reserves, rows, kind), encoding="utf-8")
    return stored["device"], reserves, rows


if __name__ == "__main__":
    sys.exit(main())
