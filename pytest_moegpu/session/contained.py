"""The launch of a server: the backend's command line as it is, or wrapped for the container a scenario names."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_moegpu.backends.base import Backend, EngineVersion
from pytest_moegpu.core.container import Launch, inside, wrap
from pytest_moegpu.core.model import Container, LaunchSpec
from pytest_moegpu.errors import UserError
from pytest_moegpu.host.container import mounts_of, once, prepare

__all__ = ["Contained", "examine", "launch_of"]

# An image's first start unpacks and imports; engines of Python take half a minute for that on a slow disk.
_VERSION_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Contained:
    """An image as it is here, and the engine in it."""

    container: Container
    engine: EngineVersion

    @property
    def image(self) -> str:
        """What the image is known by: its digest, or its name where the runner has no digest of it."""
        return self.container.digest or self.container.image


def launch_of(backend: Backend, spec: LaunchSpec, name: str) -> Launch:
    """Write what is executed for a launch; `name` is that of its container.

    Raises:
        UserError: The backend, or the runner, cannot express it.
    """
    within = inside(spec, backend.program)
    if spec.container is None:
        return wrap(spec, backend.argv(within), backend.environment(within), name=name)
    if backend.setup(within):
        raise UserError(
            f"container: {backend.name} needs commands beside its server, which are not run in a container; start it "
            "without one"
        )
    return wrap(
        spec,
        backend.argv(within),
        backend.environment(within),
        name=name,
        mounts=mounts_of(spec.model_path),
        grace=backend.stop_seconds,
    )


def examine(backend: Backend, spec: LaunchSpec, name: str) -> Contained:
    """Look at the image of a launch and ask the engine in it for its version, before anything is measured.

    Raises:
        UserError: The runner does not work, has no such image, or the engine in it does not start.
    """
    assert spec.container is not None
    # A run has looked at it already, before anything else was done.
    container = spec.container if spec.container.digest else prepare(spec.container)
    asked = backend.version_argv(inside(spec, backend.program).program)
    launch = wrap(spec, asked, {}, name=name, publish=False)
    return Contained(container=container, engine=backend.read_version(once(launch, container, _VERSION_SECONDS)))
