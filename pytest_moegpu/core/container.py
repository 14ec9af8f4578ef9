"""A server inside a container: what the runner is told around the backend's own command line.

Options are those of the references of `docker container run`, `podman run` and `apptainer exec`, and of NVIDIA's
container toolkit: `--gpus "device=…"` with literal quotes because docker reads the value as CSV, CDI names for podman.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from pytest_moegpu.core.model import Container, DeviceKind, Gpu, LaunchSpec
from pytest_moegpu.core.runner import RunnerKind, command, runner_kind
from pytest_moegpu.errors import UserError

__all__ = [
    "LABEL",
    "End",
    "Launch",
    "Mount",
    "devices_of",
    "inside",
    "wrap",
]

LABEL = "pytest-moegpu"
"""Label of every container that is started; its value is the container's name. A label cannot be changed later."""

_EVERYWHERE = "0.0.0.0"
# Over the grace that the runner itself gives, for its own work.
_RUNNER_SECONDS = 15.0
_REMOVE_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A file or folder of the host that the container sees read-only at `target`."""

    source: str
    target: str


@dataclass(frozen=True, kw_only=True)
class End:
    """How a container is ended that outlives the command which started it.

    `listing` prints the id of each that still exists, one a line. Each of `commands` is run with these ids behind it,
    for so many seconds at most.
    """

    listing: tuple[str, ...]
    commands: tuple[tuple[tuple[str, ...], float], ...]

    @property
    def seconds(self) -> float:
        """The longest it may take."""
        return sum(seconds for _, seconds in self.commands) + 3 * _RUNNER_SECONDS


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What is executed. `end` is None where everything descends from that process and ends with it."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    end: End | None = None


def devices_of(container: Container | None, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Return what pins the devices: UUIDs for a runner that hands over devices, else their numbers in PCI bus order."""
    names = [(gpu.cuda_name, gpu.uuid) for gpu in gpus if gpu.cuda_name is not None]
    if container is None or runner_kind(container.runner) is RunnerKind.APPTAINER:
        return tuple(name for name, _ in names)
    # A MIG instance is known to CUDA by its own UUID, which is not that of the card.
    return tuple(uuid if uuid is not None and name.isdigit() else name for name, uuid in names)


def inside(spec: LaunchSpec, program: str) -> LaunchSpec:
    """Return a launch as the server sees it from inside its container; without a container it is the same.

    It listens on all addresses there, because what the runner forwards comes from outside of it; on the host only the
    loopback address is published. Of the GPUs it sees those of the run, counted from 0.
    """
    if spec.container is None:
        return spec
    within = replace(spec, program=spec.container.program or (program,))
    if runner_kind(spec.container.runner) is RunnerKind.APPTAINER:
        return within
    host = spec.host if _shares_network(spec.container.flags) else _EVERYWHERE
    return replace(within, host=host, devices=tuple(str(number) for number in range(len(spec.devices))))


def wrap(
    spec: LaunchSpec,
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    name: str,
    mounts: Sequence[Mount] = (),
    grace: float = 10.0,
    publish: bool = True,
) -> Launch:
    """Write the runner's command line around a command that runs in the container.

    Variables go by the runner's own environment, so that no value, such as a key, stands on a command line.

    Args:
        spec: The launch as the host sees it, with its container.
        argv: Program in the image, and its arguments.
        environment: Variables of the program.
        name: Name of the container; nobody else on the machine may use it.
        mounts: What it sees of the host.
        grace: Seconds between TERM and KILL when it is stopped.
        publish: Whether its port can be reached from the host.

    Raises:
        UserError: The runner is not known, or a path cannot be given to it.
    """
    container = spec.container
    if container is None:
        return Launch(argv=tuple(argv), environment=environment)
    kind = runner_kind(container.runner)
    if kind is RunnerKind.APPTAINER:
        return _apptainer(spec, container, argv, environment, mounts)
    flags = ["run", "--rm", "--init", "--pull=never", "--name", name, "--label", f"{LABEL}={name}"]
    if publish and not _shares_network(container.flags):
        flags += ["--publish", f"{spec.host}:{spec.port}:{spec.port}"]
    if spec.device_kind is DeviceKind.GPU:
        if kind is RunnerKind.DOCKER:
            flags += ["--gpus", f'"device={",".join(spec.devices)}"' if spec.devices else "all"]
        else:
            flags += [word for each in spec.devices or ("all",) for word in ("--device", f"nvidia.com/gpu={each}")]
    for mount in mounts:
        flags += ["--mount", _csv("type=bind", f"source={mount.source}", f"target={mount.target}", "readonly")]
    for variable in environment:
        flags += ["--env", variable]
    return Launch(
        argv=(
            *command(container.runner, tuple(environment)),
            *flags,
            *container.flags,
            *("--entrypoint", argv[0], container.image),
            *argv[1:],
        ),
        environment=environment,
        end=_end(container.runner, name, grace),
    )


def _apptainer(
    spec: LaunchSpec,
    container: Container,
    argv: Sequence[str],
    environment: Mapping[str, str],
    mounts: Sequence[Mount],
) -> Launch:
    """Write an `apptainer exec`, whose processes are children of that command and share the host's network."""
    flags = ["exec", "--cleanenv", "--no-home"]
    if spec.device_kind is DeviceKind.GPU:
        flags.append("--nv")
    for mount in mounts:
        for path in (mount.source, mount.target):
            if ":" in path or "," in path:
                raise UserError(f"apptainer cannot be given the path {path}: it has a ':' or ',' in its name")
        flags += ["--bind", f"{mount.source}:{mount.target}:ro"]
    old = any(PurePath(word).name == "singularity" for word in container.runner)
    prefix = "SINGULARITYENV_" if old else "APPTAINERENV_"
    own = {f"{prefix}{variable}": value for variable, value in environment.items()}
    return Launch(
        argv=(*command(container.runner, tuple(own)), *flags, *container.flags, container.image, *argv),
        environment=own,
    )


def _end(runner: Sequence[str], name: str, grace: float) -> End:
    runs = command(runner)
    return End(
        listing=(*runs, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL}={name}"),
        commands=(
            ((*runs, "stop", "-t", str(math.ceil(grace))), grace + _RUNNER_SECONDS),
            ((*runs, "rm", "--force"), _REMOVE_SECONDS),
        ),
    )


def _shares_network(flags: Sequence[str]) -> bool:
    """Whether the container has the host's own network, where nothing is published."""
    joined = " ".join(flags)
    return re.search(r"(?:^| )--net(?:work)?[= ]host(?: |$)", joined) is not None


def _csv(*fields: str) -> str:
    """Write one CSV line, as docker and podman read the value of `--mount`: a path may hold a comma."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()
