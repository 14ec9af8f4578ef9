"""What will be measured: profile, GPU, backend, program and model, found and checked before any GPU time is spent."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pytest_moegpu.backends import get_backend
from pytest_moegpu.backends.base import Backend, EngineVersion
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.model import DeviceKind, Gpu, LaunchSpec, ModelFacts, ModelFile, Profile, Scenario
from pytest_moegpu.core.units import format_bytes
from pytest_moegpu.errors import DeviceError, ProbeError, UserError
from pytest_moegpu.host.control import free_port
from pytest_moegpu.host.emulated import EmulatedProbe
from pytest_moegpu.host.hostmem import HostProbe
from pytest_moegpu.host.nvmlprobe import NvmlProbe
from pytest_moegpu.host.probe import Probe
from pytest_moegpu.host.recording import Origin
from pytest_moegpu.host.stack import program_output
from pytest_moegpu.options import Options
from pytest_moegpu.session.chosen import EMBEDDED, choose_model, choose_program, program_checksum
from pytest_moegpu.session.progress import Progress
from pytest_moegpu.session.server import new_key

__all__ = ["EMBEDDED", "Target", "open_probe", "resolve"]

_HOST = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Target:
    """Everything fixed for one run. `restricted` when the command line says which scenarios.

    `versions` are the probe's, read once: reports are written after the device has been let go.
    """

    profile: Profile
    scenarios: tuple[Scenario, ...]
    backend: Backend
    program: tuple[str, ...]
    engine: EngineVersion
    model: ModelFacts
    file: ModelFile
    probe: Probe
    gpus: tuple[Gpu, ...]
    versions: dict[str, str]
    program_sha256: str | None
    load: Callable[[str], Scenario]
    restricted: bool = False

    def scenario(self, name: str) -> Scenario:
        """Return a scenario of this run, or another of the catalog that a test names.

        Raises:
            UserError: There is no such scenario, or it does not fit the model.
        """
        for scenario in self.scenarios:
            if scenario.name == name:
                return scenario
        return _tried(self, self.load(name))

    @property
    def origin(self) -> Origin:
        """Where the telemetry of this run comes from, which makes its files complete in themselves."""
        return Origin(
            probe=self.probe.name,
            memory_version=self.probe.memory_version,
            interval_seconds=self.probe.interval_seconds,
            gpus=self.gpus,
            versions=self.versions,
        )

    def launch(self, scenario: Scenario, scratch: str = "") -> LaunchSpec:
        """Return what a server of this scenario is started with: a port that is free now, and a key of its own."""
        capabilities = [gpu.compute_capability for gpu in self.gpus if gpu.compute_capability is not None]
        return LaunchSpec(
            program=self.program,
            model_path=self.file.path,
            model_name=self.model.name,
            settings=scenario.settings,
            host=_HOST,
            port=free_port(_HOST, self.backend.last_port),
            api_key=new_key(),
            devices=tuple(gpu.cuda_name for gpu in self.gpus if gpu.cuda_name is not None),
            device_kind=self.profile.gpu.kind,
            model_format=self.file.format,
            scratch=scratch,
            compute_capability=min(capabilities, key=_version, default=None),
            container=scenario.container,
        )

    @property
    def rehearsal(self) -> str:
        """Say that a smaller card is emulated, and on what; empty when it is not."""
        real = dict.fromkeys(gpu.emulated_on for gpu in self.gpus if gpu.emulated_on)
        size = format_bytes(self.gpus[0].memory_bytes)
        return f"{size} emulated on {'; '.join(real)}: not a result of the real card" if real else ""

    def facts(self) -> tuple[tuple[str, str], ...]:
        """Return what this run is about, for headers, reports and JUnit."""
        device = "GPU" if self.profile.gpu.kind is DeviceKind.GPU else "processor"
        return (
            ("profile", self.profile.name),
            *((("rehearsal", self.rehearsal),) if self.rehearsal else ()),
            (device, "; ".join(f"{gpu.name}, {format_bytes(gpu.memory_bytes)}" for gpu in self.gpus)),
            ("driver", self.versions.get("driver", "none")),
            ("CUDA driver", self.versions.get("cuda_driver", "none")),
            ("engine", f"{self.backend.name} {self.engine.version or 'of unknown version'}"),
            ("model", f"{self.model.title}, {self.file.quantisation}, {format_bytes(self.file.size_bytes)}"),
        )


def resolve(options: Options, progress: Progress) -> Target:
    """Find everything a run needs.

    Raises:
        UserError: Something is unknown, missing or not what was asked for; the message tells what to do.
    """
    catalog = Catalog.load(options.catalog)
    profile = catalog.profile(options.profile)
    names = options.scenarios or profile.scenarios
    backend = get_backend(options.backend or profile.backend)
    probe, gpus = open_probe(profile, options.devices, options.emulate_bytes)
    try:
        program = choose_program(options, profile, backend)
        versions = probe.versions()
        engine = backend.read_version(program_output(backend.version_argv(program)))
        model, file = choose_model(options, catalog, profile, backend, progress)

        def load(name: str) -> Scenario:
            return _scenario(catalog, name, profile, model, backend)

        scenarios = tuple(load(name) for name in names)
        target = Target(
            profile=profile,
            scenarios=scenarios,
            backend=backend,
            program=program,
            engine=engine,
            model=model,
            file=file,
            probe=probe,
            gpus=gpus,
            versions=versions,
            program_sha256=program_checksum(program),
            load=load,
            restricted=bool(options.scenarios),
        )
        for scenario in scenarios:
            # Settings that the backend cannot express are told now, and not when the GPU is already in use.
            _tried(target, scenario)
    except BaseException:
        probe.close()
        raise
    return target


def _tried(target: Target, scenario: Scenario) -> Scenario:
    """Have the backend write the command line once.

    Raises:
        UserError: It cannot; the message names the scenario.
    """
    try:
        target.backend.argv(target.launch(scenario))
    except UserError as error:
        raise UserError(f"scenario {scenario.name}: {error}") from error
    return scenario


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def open_probe(
    profile: Profile, devices: tuple[str, ...], emulate_bytes: int | None = None
) -> tuple[Probe, tuple[Gpu, ...]]:
    """Open the profile's probe on the devices asked for, and make sure that they are what the profile expects.

    With `emulate_bytes` any larger GPU will do, and the probe reads it as one of that size.

    Raises:
        DeviceError: No such GPU, or another one; says what was found and what was expected.
    """
    if profile.probe == "host":
        for given, option in ((devices or None, "--moegpu-device"), (emulate_bytes, "--moegpu-emulate-vram")):
            if given is not None:
                raise DeviceError(
                    f"{option}: profile {profile.name} uses no GPU; leave it away, or take a profile of a GPU "
                    "(--moegpu=list shows them)"
                )
        host = HostProbe()
        return host, host.devices()
    want = profile.gpu
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        probe, gpus = _identify(devices, visible)
        if not devices and len(gpus) > want.count:
            fitting = [gpu for gpu in gpus if _fits(gpu, profile, emulate_bytes)] or gpus
            probe.close()
            probe, gpus = _identify([gpu.index for gpu in fitting[: want.count]], None)
    except ProbeError as error:
        raise DeviceError(f"profile {profile.name} expects {_expected(profile)}; found none: {error}") from error
    if emulate_bytes is not None and len(gpus) == want.count:
        return _emulated(profile, probe, emulate_bytes)
    wrong = [gpu for gpu in gpus if (want.names and gpu.name not in want.names) or gpu.memory_bytes < want.memory_bytes]
    if wrong or len(gpus) != want.count:
        probe.close()
        found = ", ".join(f"{gpu.name} with {format_bytes(gpu.memory_bytes)}" for gpu in gpus) or "no GPU"
        raise DeviceError(
            f"profile {profile.name} expects {_expected(profile)}; found {found}. "
            "--moegpu=list shows the profiles; a profile of your own goes into a --moegpu-catalog folder; "
            "--moegpu-emulate-vram rehearses the memory of a smaller card"
        )
    return probe, gpus


def _fits(gpu: Gpu, profile: Profile, emulate_bytes: int | None) -> bool:
    """Tell whether a device of several is one to take: of the right name, or larger than the one to rehearse."""
    if emulate_bytes is not None:
        return gpu.memory_bytes > emulate_bytes
    return not profile.gpu.names or gpu.name in profile.gpu.names


def _emulated(profile: Profile, probe: Probe, size: int) -> tuple[Probe, tuple[Gpu, ...]]:
    """Wrap a probe so that its devices look as small as the profile's; the real ones may have any name."""
    try:
        if size < profile.gpu.memory_bytes:
            raise DeviceError(
                f"--moegpu-emulate-vram={format_bytes(size)}: profile {profile.name} expects at least "
                f"{format_bytes(profile.gpu.memory_bytes)}"
            )
        emulated = EmulatedProbe(probe, size)
    except BaseException:
        probe.close()
        raise
    return emulated, emulated.devices()


def _identify(devices: Sequence[int | str], visible: str | None) -> tuple[NvmlProbe, tuple[Gpu, ...]]:
    probe = NvmlProbe(devices, visible)
    try:
        return probe, probe.devices()
    except BaseException:
        probe.close()
        raise


def _expected(profile: Profile) -> str:
    want = profile.gpu
    names = " or ".join(want.names) or "any GPU"
    return f"{want.count} x {names} with at least {format_bytes(want.memory_bytes)}"


def _scenario(catalog: Catalog, name: str, profile: Profile, model: ModelFacts, backend: Backend) -> Scenario:
    scenario = catalog.scenario(name, profile)
    for key, wanted, found in (("model", scenario.model, model.name), ("backend", scenario.backend, backend.name)):
        if wanted is not None and wanted != found:
            raise UserError(f"scenario {name} is for {key} {wanted}, and this run has {found}")
    if scenario.settings.speculative:
        raise UserError(f"scenario {name}: settings.speculative is not built yet for {backend.name}")
    if scenario.settings.context > model.context_train:
        raise UserError(
            f"scenario {name}: context {scenario.settings.context} is more than the {model.context_train} tokens "
            f"{model.title} was trained for"
        )
    if profile.gpu.kind is DeviceKind.CPU and scenario.settings.gpu_layers is None:
        return replace(scenario, settings=replace(scenario.settings, gpu_layers=0))
    return scenario
