"""The command that starts containers: which one it is, what it is asked, and what its complaints mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import PurePath

from pytest_moegpu.core.model import Container
from pytest_moegpu.errors import UserError

__all__ = [
    "RunnerKind",
    "command",
    "image_argv",
    "inspect_argv",
    "port_argv",
    "read_image",
    "runner_fault",
    "runner_kind",
]


class RunnerKind(StrEnum):
    """What starts containers, by whose options it takes."""

    DOCKER = "docker"
    PODMAN = "podman"
    APPTAINER = "apptainer"


_KINDS = {
    "docker": RunnerKind.DOCKER,
    "podman": RunnerKind.PODMAN,
    "apptainer": RunnerKind.APPTAINER,
    "singularity": RunnerKind.APPTAINER,
}
_ADVICE = {
    RunnerKind.DOCKER: "docker pull",
    RunnerKind.PODMAN: "podman pull",
    RunnerKind.APPTAINER: "apptainer pull",
}


def runner_kind(runner: Sequence[str]) -> RunnerKind:
    """Tell what a runner is by the name of its program, which may stand behind `sudo` or the like.

    Raises:
        UserError: It is none that is known.
    """
    for word in runner:
        if (kind := _KINDS.get(PurePath(word).name)) is not None:
            return kind
    raise UserError(
        f"container.runner: {' '.join(runner)!r} is not known: write docker, podman or apptainer, by its path if need "
        "be, or with sudo before it"
    )


def command(runner: Sequence[str], keep: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the runner's command. sudo must not ask for a password, and throws variables away unless told."""
    if PurePath(runner[0]).name != "sudo":
        return tuple(runner)
    kept = (f"--preserve-env={','.join(keep)}",) if keep else ()
    return (runner[0], "--non-interactive", *kept, *runner[1:])


def image_argv(container: Container) -> tuple[str, ...]:
    """Return the command that describes an image without fetching it: its id, then its digests in registries."""
    form = "{{.Id}}{{range .RepoDigests}} {{.}}{{end}}"
    return (*command(container.runner), "image", "inspect", "--format", form, container.image)


def read_image(output: str, image: str) -> str:
    """Return the digest of an image: that of the registry it was named by, of any other, or the id it has here."""
    own, *digests = output.split() or [""]
    repository = re.sub(r"(?:@[^/]+|:[^/:]+)$", "", image)
    return next((digest for digest in digests if digest.partition("@")[0].endswith(repository)), (digests or [own])[0])


def inspect_argv(container: Container, name: str) -> tuple[str, ...]:
    """Return the command that prints the pid, on the host, of a container's first process; 0 when none runs."""
    return (*command(container.runner), "container", "inspect", "--format", "{{.State.Pid}}", name)


def port_argv(container: Container, name: str, port: int) -> tuple[str, ...]:
    """Return the command that prints which addresses of the host are forwarded to a port of a container."""
    return (*command(container.runner), "port", name, f"{port}/tcp")


_FAULTS: tuple[tuple[str, str], ...] = (
    (r"permission denied.*docker", "you may not use docker here: join the group `docker`, or write `sudo docker`"),
    (r"cannot connect to the docker daemon|is the docker daemon running", "the docker daemon does not run: start it"),
    (r"a password is required|a terminal is required", "sudo asks for a password: allow the command without one"),
    (
        r"not allowed to preserve the environment|not allowed to set the following environment",
        "sudo throws the server's variables away: allow SETENV for the command in sudoers",
    ),
    (
        r"no such image|unable to find image|image not known|no such object",
        "the image is not here: fetch it with `{pull} {image}`; nothing is fetched in a run",
    ),
    (
        r"could not select device driver",
        "docker cannot give GPUs to containers: install nvidia-container-toolkit, then run "
        "`nvidia-ctk runtime configure --runtime=docker` and restart docker",
    ),
    (
        r"unresolvable cdi devices",
        "no CDI description of this GPU: run `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
    ),
    (r"port is already allocated|address already in use", "somebody took the port in between: run it again"),
    (
        r"executable file .*not found|no such file or directory: unknown",
        "the image has no such program on its PATH: give its path in `container.program`",
    ),
    (r"unknown flag|unknown shorthand flag", "the runner does not know a flag of `container.flags`"),
    (
        r"catatonit|docker-init.*not found",
        "the runner lacks its init program: install catatonit (podman) or docker-init",
    ),
)


def runner_fault(container: Container, lines: Sequence[str]) -> str:
    """Say what the runner itself complains about, with its line; an empty text when no line is known."""
    pull = _ADVICE[runner_kind(container.runner)]
    for line in lines:
        for pattern, words in _FAULTS:
            if re.search(pattern, line, re.IGNORECASE):
                return f"{words.format(pull=pull, image=container.image)} ({line.strip()})"
    return ""
