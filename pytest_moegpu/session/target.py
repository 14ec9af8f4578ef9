"""What will be measured: profile, GPU, backend, program and model, found and checked before any GPU time is spent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pytest_moegpu.backends import get_backend
from pytest_moegpu.backends.base import Backend, EngineVersion
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.container import devices_of
from pytest_moegpu.core.model import DeviceKind, Gpu, LaunchSpec, ModelFile, Profile, Scenario
from pytest_moegpu.core.modelfacts import ModelFacts
from pytest_moegpu.core.units import format_bytes
from pytest_moegpu.errors import UserError
from pytest_moegpu.host.container import prepare
from pytest_moegpu.host.control import free_port
from pytest_moegpu.host.probe import Probe
from pytest_moegpu.host.recording import Origin
from pytest_moegpu.host.stack import program_output
from pytest_moegpu.options import Options
from pytest_moegpu.session.attachedfacts import attached_model, must_be_here, not_judged
from pytest_moegpu.session.attaching import Attachment, attach
from pytest_moegpu.session.chosen import choose_model, choose_program, program_checksum
from pytest_moegpu.session.contained import launch_of
from pytest_moegpu.session.daemon import refuse_daemon
from pytest_moegpu.session.launchcheck import launch_problems
from pytest_moegpu.session.launchhelp import InstalledFlags
from pytest_moegpu.session.openprobe import open_probe
from pytest_moegpu.session.progress import Progress
from pytest_moegpu.session.server import new_container_name, new_key

__all__ = ["Target", "resolve"]

_HOST = "127.0.0.1"
_ATTACHED = "openai"
"""How to talk to a server that is attached to, where no backend is named."""
# Backends whose servers say how much of the model is on a GPU.
_TELL_PLACEMENT = ("ollama",)
# Backends whose servers never say how much of a prompt came from the cache, so that prefill has no value.
_HIDE_CACHED = ("ollama",)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Everything fixed for one run. `restricted` when the command line says which scenarios.

    `versions` are the probe's, read once: reports are written after the device has been let go. `attached` is the
    server that was there before, where this run starts none.
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
    installed: InstalledFlags = field(default_factory=InstalledFlags)
    restricted: bool = False
    attached: Attachment | None = None

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
        """Return what a server of this scenario is started with: a port that is free now, and a key of its own.

        For an attached server it is where that is, with the key that was given for it.
        """
        if self.attached is not None:
            return self.attached.spec(scenario.settings)
        capabilities = [gpu.compute_capability for gpu in self.gpus if gpu.compute_capability is not None]
        return LaunchSpec(
            program=self.program,
            model_path=self.file.path,
            model_name=self.model.name,
            settings=scenario.settings,
            host=_HOST,
            port=free_port(_HOST, self.backend.last_port),
            api_key=new_key(),
            devices=devices_of(scenario.container, self.gpus),
            device_kind=self.profile.gpu.kind,
            model_format=self.file.format,
            scratch=scratch,
            compute_capability=min(capabilities, key=_version, default=None),
            container=scenario.container,
            flags=self._flags(scenario),
        )

    def _flags(self, scenario: Scenario) -> frozenset[str]:
        """Return the flags of the installed program, where the backend cannot write the command line without."""
        if scenario.container is not None or not self.backend.spells_by_build(scenario.settings):
            return frozenset()
        known = self.installed.of(self.backend, self.program)
        return frozenset(name for flag in known.flags for name in flag.names) if known is not None else frozenset()

    @property
    def rehearsal(self) -> str:
        """Say that a smaller card is emulated, and on what; empty when it is not."""
        real = dict.fromkeys(gpu.emulated_on for gpu in self.gpus if gpu.emulated_on)
        size = format_bytes(self.gpus[0].memory_bytes)
        return f"{size} emulated on {'; '.join(real)}: not a result of the real card" if real else ""

    @property
    def not_judged(self) -> tuple[str, ...]:
        """Checks, and metrics, of the plugin's own suites that have nothing to judge in this run."""
        if self.attached is None:
            prefill = ("prefill",) if self.backend.name in _HIDE_CACHED else ()
            return (*prefill, *self._unscored)
        told = not_judged(self.attached, tells_placement=self.backend.name in _TELL_PLACEMENT)
        return (*told, *self._unscored)

    @property
    def _unscored(self) -> tuple[str, ...]:
        """The check of log-probabilities, where the engine gives none, or has a file that is not known."""
        return ("golden",) if self.backend.score_method is None or self.attached is not None else ()

    def _attached_facts(self, attached: Attachment) -> tuple[tuple[str, str], ...]:
        """Return what is known of a server that this run does not start."""
        here = self.gpus if attached.own else ()
        device = "; ".join(f"{gpu.name}, {format_bytes(gpu.memory_bytes)}" for gpu in here)
        return (
            ("profile", self.profile.name),
            ("attached", f"{attached.address}, on {attached.place}, not started by this run"),
            ("device", device or f"not known: {attached.place}"),
            ("driver", self.versions.get("driver", "none") if attached.own else "not known"),
            ("engine", f"{self.backend.name}, {self.engine.version or 'of unknown version'}"),
            ("model", f"served as {attached.model}"),
            ("not judged", f"{', '.join(self.not_judged)}: not known of an attached server"),
        )

    def facts(self) -> tuple[tuple[str, str], ...]:
        """Return what this run is about, for headers, reports and JUnit."""
        if self.attached is not None:
            return self._attached_facts(self.attached)
        device = "GPU" if self.profile.gpu.kind is DeviceKind.GPU else "processor"
        return (
            ("profile", self.profile.name),
            *((("rehearsal", self.rehearsal),) if self.rehearsal else ()),
            (device, "; ".join(f"{gpu.name}, {format_bytes(gpu.memory_bytes)}" for gpu in self.gpus)),
            ("driver", self.versions.get("driver", "none")),
            ("CUDA driver", self.versions.get("cuda_driver", "none")),
            ("engine", f"{self.backend.name} {self.engine.version or 'of unknown version'}"),
            ("model", f"{self.model.title}, {self.file.quantisation}, {format_bytes(self.file.size_bytes)}"),
            *((("not judged", ", ".join(self.not_judged)),) if self.not_judged else ()),
        )


def resolve(options: Options, progress: Progress) -> Target:
    """Find everything a run needs.

    Raises:
        UserError: Something is unknown, missing or not what was asked for; the message tells what to do.
    """
    catalog = Catalog.load(options.catalog)
    profile = catalog.profile(options.profile)
    names = options.scenarios or profile.scenarios
    backend = get_backend(options.backend or (_ATTACHED if options.attach is not None else profile.backend))
    if not backend.program and options.attach is None:
        raise UserError(f"--moegpu-backend={backend.name} starts no server: {backend.install_hint}")
    if options.attach is None:
        refuse_daemon(backend)
    probe, gpus = open_probe(profile, options.devices, options.emulate_bytes)
    try:
        versions = probe.versions()
        program: tuple[str, ...] = ()
        attached: Attachment | None = None
        if options.attach is not None:
            backend, attached = attach(options.attach, options.model, backend)
            must_be_here(attached, profile)
            engine, (model, file) = attached.engine, attached_model(attached, catalog, profile)
        else:
            engine = EngineVersion()
            # Where every server is in a container, the program need not be on this machine.
            if any(catalog.scenario(name, profile).container is None for name in names):
                program = choose_program(options, profile, backend)
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
            program_sha256=program_checksum(program) if program else None,
            load=load,
            installed=InstalledFlags(progress.line),
            restricted=bool(options.scenarios),
            attached=attached,
        )
        # Settings that the backend cannot express are told now, and not when the GPU is already in use.
        target = replace(target, scenarios=tuple(_tried(target, scenario) for scenario in scenarios))
    except BaseException:
        probe.close()
        raise
    return target


def _tried(target: Target, scenario: Scenario) -> Scenario:
    """Have the backend write the command line once, where there is something to start.

    Raises:
        UserError: It cannot, or the program has no such flag; the message names the scenario.
    """
    if target.attached is not None:
        if scenario.container is not None:
            raise UserError(f"scenario {scenario.name} starts a container: leave it out, or --moegpu-attach")
        return scenario
    try:
        spec = target.launch(scenario)
        launch_of(target.backend, spec, new_container_name())
        if scenario.settings.extra_flags and scenario.container is None:
            # Only for flags of the user's own: some programs take 20 s to print their help.
            wrong = launch_problems(target.backend, spec, target.installed)
            if wrong:
                raise UserError(f"settings.extra_flags: {'; '.join(wrong)}")
        container = prepare(scenario.container) if scenario.container is not None else None
    except UserError as error:
        raise UserError(f"scenario {scenario.name}: {error}") from error
    return replace(scenario, container=container)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


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
