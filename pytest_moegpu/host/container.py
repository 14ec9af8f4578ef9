"""What is asked of the program that starts containers: whether it works, which image it has, whose processes run."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from pytest_moegpu.core.container import Launch, Mount
from pytest_moegpu.core.model import Container
from pytest_moegpu.core.runner import (
    RunnerKind,
    image_argv,
    inspect_argv,
    port_argv,
    read_image,
    runner_fault,
    runner_kind,
)
from pytest_moegpu.errors import ProgramError, UserError
from pytest_moegpu.host.checksum import sha256_of
from pytest_moegpu.host.ending import end, run
from pytest_moegpu.host.ggufparts import is_part

__all__ = ["ContainerProcess", "mounts_of", "once", "prepare"]

_RUNNER_SECONDS = 20.0
_INSPECT_SECONDS = 5.0
# How often a container that has no process yet is looked up.
_LOOK_SECONDS = 0.25
_CLOCK_SECONDS = 1.0
_INIT_PROGRAMS = ("docker-init", "tini", "catatonit", "podman-init")


def prepare(container: Container) -> Container:
    """Make sure that the runner works and has the image; returns the container with the image's digest.

    Raises:
        ProgramError: The runner is missing, does not answer, or may not be used.
        UserError: The image is not here; nothing is fetched in silence.
    """
    kind = runner_kind(container.runner)
    if shutil.which(container.runner[0]) is None:
        raise ProgramError(f"container.runner: {container.runner[0]!r} is not on PATH: install it, or give its path")
    if kind is RunnerKind.APPTAINER:
        return replace(container, digest=_image_file(container.image))
    argv = image_argv(container)
    code, out, said = run(argv, os.environ, _RUNNER_SECONDS)
    if code == 0:
        return replace(container, digest=read_image(out, container.image))
    shown = " ".join(container.runner)
    fault = runner_fault(container, [said])
    if code is None:
        raise ProgramError(f"container.runner: {shown!r} does not work: {said}")
    raise UserError(f"container.image {container.image} with {shown!r}: {fault or said or f'exit code {code}'}")


def _image_file(image: str) -> str:
    """Return the SHA-256 of an image file; empty for an unpacked folder, whose content is not known.

    Raises:
        UserError: It is neither.
    """
    path = Path(image)
    if path.is_dir():
        return ""
    if not path.is_file():
        raise UserError(
            f"container.image {image}: no such file; fetch it first with `apptainer pull NAME.sif {image}` and name "
            "that file: nothing is fetched in a run"
        )
    return f"sha256:{sha256_of(path)}"


def mounts_of(model: str) -> tuple[Mount, ...]:
    """Return what a container must see of the host to read a model at the path that it has here.

    A split file needs its parts; a folder of links, as the hub's cache has them, also the folders they lead to.
    """
    path = Path(model)
    if not path.is_dir():
        if is_part(path):
            return mounts_of(str(path.parent))
        return (Mount(source=os.path.realpath(path), target=str(path)),)
    places = {Path(os.path.realpath(each)).parent for each in path.iterdir() if each.is_symlink()}
    own = Path(os.path.realpath(path))
    outside = sorted(str(place) for place in places if not place.is_relative_to(own))
    return (Mount(source=str(own), target=str(path)), *(Mount(source=each, target=each) for each in outside))


def once(launch: Launch, container: Container, seconds: float) -> str:
    """Run a command in a container to its end and return what it printed; nothing of it is left.

    Raises:
        ProgramError: It fails, or does not end in time.
    """
    environment = os.environ | launch.environment
    code, out, said = run(launch.argv, environment, seconds)
    left = end(asdict(launch.end), environment) if code is None and launch.end is not None else ""
    if code == 0:
        return out
    fault = runner_fault(container, [said]) or said or f"exit code {code}"
    raise ProgramError(f"container.image {container.image}: {fault}{f'; {left}' if left else ''}")


class ContainerProcess:
    """The processes of a container, as the host counts them; nothing where the runner, or the host, does not tell.

    They are children of the runner's daemon and not of ours. A pid is taken for the container's only when that process
    is younger than our command: the daemon may live in another pid namespace, where it is another's.
    """

    def __init__(self, container: Container, name: str) -> None:
        self._container = container
        self._runner_name = name
        self._began = time.time()
        self._looked = 0.0
        self._root: psutil.Process | None = None

    @property
    def pid(self) -> int | None:
        """Pid of the server itself: of the first process, or of its only child where that is an init program."""
        root = self._find()
        if root is None:
            return None
        with contextlib.suppress(psutil.Error):
            children = root.children()
            if root.name() in _INIT_PROGRAMS and len(children) == 1:
                return int(children[0].pid)
        return int(root.pid)

    def wait(self, seconds: float) -> int | None:
        """Return the pid as soon as there is one, None when there is none after so long."""
        end = time.monotonic() + seconds
        while (pid := self.pid) is None and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)
        return pid

    def pids(self) -> frozenset[int]:
        """Return all processes of the container that live now."""
        root = self._find()
        if root is None:
            return frozenset()
        with contextlib.suppress(psutil.Error):
            return frozenset((root.pid, *(child.pid for child in root.children(recursive=True))))
        return frozenset()

    def publishes(self, host: str, port: int) -> bool:
        """Tell whether the runner says that an address of the host is forwarded to this container."""
        argv = port_argv(self._container, self._runner_name, port)
        code, out, _ = run(argv, os.environ, _INSPECT_SECONDS)
        return code == 0 and f"{host}:{port}" in out.split()

    def _find(self) -> psutil.Process | None:
        now = time.monotonic()
        if self._root is not None or (self._looked and now - self._looked < _LOOK_SECONDS):
            return self._root
        self._looked = now
        code, out, _ = run(inspect_argv(self._container, self._runner_name), os.environ, _INSPECT_SECONDS)
        with contextlib.suppress(psutil.Error, ValueError):
            found = psutil.Process(int(out)) if code == 0 and int(out) > 0 else None
            if found is not None and found.create_time() >= self._began - _CLOCK_SECONDS:
                self._root = found
        return self._root
