"""`moegpu plan`: what a model takes of a GPU's memory, before any of it is used. Starts nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from pytest_moegpu.backends import get_backend
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.budget import Reserve, default_reserve
from pytest_moegpu.core.evidence import Evidence
from pytest_moegpu.core.kvcache import kv_meaning
from pytest_moegpu.core.learned import learned_reserve
from pytest_moegpu.core.model import ALL_LAYERS, DeviceKind, LaunchSpec, ModelFormat, Profile, Settings
from pytest_moegpu.core.plan import PLANNED_BACKENDS, Planner
from pytest_moegpu.core.planargs import PlanOrder
from pytest_moegpu.core.shape import ModelShape
from pytest_moegpu.core.units import parse_bytes
from pytest_moegpu.errors import RecordError, UserError
from pytest_moegpu.host.hffolder import is_folder_model
from pytest_moegpu.host.store import RunStore, read_run
from pytest_moegpu.report.plan import Planned, as_json, as_text
from pytest_moegpu.session.shapes import model_names, shape_named

__all__ = ["plan", "run"]

_USAGE = 3
_CONTEXTS = (4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144)
_KV = ("f16", "q8_0", "q4_0")
_POOL_KV = ("bf16", "fp8")
_MOST_RUNS = 200


def run(order: PlanOrder, out: TextIO, err: TextIO) -> int:
    """Write the plan; returns 0 when something fits, 1 when nothing does, 3 for wrong usage."""
    try:
        planned = plan(order)
    except UserError as error:
        print(f"moegpu plan: {error}", file=err)
        return _USAGE
    print(as_json(planned) if order.json else as_text(planned), file=out)
    return 0 if any(cell.free_bytes >= 0 for cell in planned.cells) else 1


def plan(order: PlanOrder) -> Planned:
    """Work out what fits.

    Raises:
        UserError: Something is unknown or missing; says what is allowed.
    """
    catalog = Catalog.load(order.catalog)
    profile = catalog.profile(order.profile) if order.profile else None
    backend = order.backend or (profile.backend if profile else PLANNED_BACKENDS[0])
    get_backend(backend)
    device, gpu = _device(order, profile)
    shape, path = _model(order, catalog, profile, backend)
    settings = _settings(order, catalog, profile, backend)
    planner = Planner(
        shape=shape,
        backend=backend,
        device_bytes=device,
        reserve=_reserve(order, gpu, backend, device),
        build=order.build,
    )
    contexts = _contexts(order, shape)
    kinds = order.kv or ((settings.kv_cache,) if settings.kv_cache not in _KV and backend == "llamacpp" else ())
    kinds = kinds or (_KV if backend == "llamacpp" else _POOL_KV)
    cells = [planner.cell(replace(settings, context=c, kv_cache=kv)) for kv in kinds for c in contexts]
    chosen = replace(settings, context=contexts[0] if order.contexts else settings.context, kv_cache=kinds[0])
    placement = planner.placement(chosen)
    return Planned(
        planner=planner,
        gpu=gpu,
        cells=tuple(cells),
        largest=tuple((kv, planner.largest_context(replace(settings, kv_cache=kv))) for kv in kinds),
        chosen=chosen,
        placement=placement,
        line=_line(planner, placement.settings, path, profile),
    )


def _device(order: PlanOrder, profile: Profile | None) -> tuple[int, str]:
    if order.vram is not None:
        if order.vram.strip().replace(".", "").isdigit():
            number = order.vram.strip()
            raise UserError(f"--vram {number}: write the unit, '{number} GiB' or '{number} GB': they differ by 7 %")
        return parse_bytes(order.vram), ""
    if profile is None:
        raise UserError('name a profile, such as rtx3090, or the memory of the GPU with --vram "24 GiB"')
    if profile.gpu.kind is DeviceKind.CPU:
        raise UserError(f'profile {profile.name} runs on the processor: give the memory of a GPU with --vram "24 GiB"')
    return profile.gpu.memory_bytes, profile.gpu.names[0]


def _model(order: PlanOrder, catalog: Catalog, profile: Profile | None, backend: str) -> tuple[ModelShape, str]:
    """Return the shape of the model, and its path for the launch line."""
    given = order.model or (profile.model if profile else None)
    if given is None:
        raise UserError(f"name a model with --model: its file, or one of {', '.join(model_names(catalog))}")
    if is_folder_model(Path(given).expanduser()) and backend == "llamacpp":
        pools = ", ".join(name for name in PLANNED_BACKENDS if name != backend)
        raise UserError(f"{given} is a folder, and llama.cpp loads GGUF files: plan for one of {pools} with --backend")
    shape, source = shape_named(given, order.quantisation, catalog)
    return shape, str(source) if isinstance(source, Path) else f"/path/to/{source.name}.gguf"


def _settings(order: PlanOrder, catalog: Catalog, profile: Profile | None, backend: str) -> Settings:
    """Take the launch of the profile's first scenario where it is for this backend, with what was asked changed."""
    base = Settings(context=_CONTEXTS[1], kv_cache="f16" if backend == "llamacpp" else "bf16")
    if profile is not None and profile.backend == backend and profile.gpu.kind is DeviceKind.GPU:
        base = catalog.scenario(profile.scenarios[0], profile).settings
    for word in order.kv:
        kv_meaning(word)
    for name, value in (("--slots", order.slots), ("--ubatch", order.ubatch)):
        if value is not None and value < 1:
            raise UserError(f"{name} {value}: write a whole number of 1 or more")
    return replace(
        base,
        slots=order.slots or base.slots,
        ubatch=order.ubatch or base.ubatch,
        batch=max(base.batch, order.ubatch or 0),
        gpu_layers=None if base.gpu_layers in (None, ALL_LAYERS) else base.gpu_layers,
    )


def _contexts(order: PlanOrder, shape: ModelShape) -> tuple[int, ...]:
    if not order.contexts:
        return tuple(context for context in _CONTEXTS if context <= shape.context_train) or (shape.context_train,)
    found = []
    for word in order.contexts:
        number = word.lower().removesuffix("k")
        if not number.isdecimal() or int(number) < 1:
            raise UserError(f"--context {word}: write tokens as a whole number, or with a k for 1,024 of them")
        found.append(int(number) * (1024 if word.lower().endswith("k") else 1))
        if found[-1] > shape.context_train:
            raise UserError(f"--context {word}: {shape.name} was trained for {shape.context_train} tokens")
    return tuple(found)


def _reserve(order: PlanOrder, gpu: str, backend: str, device: int) -> Reserve:
    default = default_reserve(device)
    learned = learned_reserve(_stored(order.runs), gpu, backend, default.cublas_bytes) if gpu else None
    return default if learned is None else learned.reserve


def _stored(runs: Path) -> Iterator[Evidence]:
    store = RunStore(runs)
    for name in store.ids()[-_MOST_RUNS:]:
        try:
            yield from read_run(store.find(name)).evidence
        except RecordError:
            continue


def _line(planner: Planner, settings: Settings | None, path: str, profile: Profile | None) -> Sequence[str]:
    """Return the command line that starts what was planned, as the backend writes it; empty where nothing fits."""
    if settings is None:
        return ()
    share = planner.share(settings)
    if share is not None:
        settings = replace(settings, memory_share=min(0.95, round(share + 0.05, 2)))
    backend = get_backend(planner.backend)
    spec = LaunchSpec(
        program=(backend.program,),
        model_path=path if planner.backend == "llamacpp" else f"/path/to/{planner.shape.name}",
        model_name=planner.shape.name,
        settings=settings,
        host="127.0.0.1",
        port=8080,
        api_key="KEY",
        model_format=ModelFormat.GGUF if planner.backend == "llamacpp" else ModelFormat.HF,
        compute_capability=profile.gpu.compute_capability if profile else None,
    )
    return backend.argv(spec)
