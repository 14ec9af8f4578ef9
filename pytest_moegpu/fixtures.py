"""The fixtures a test asks for. Without --moegpu each skips its test, with the reason marked tests get."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_moegpu.markers import SKIP_REASON

if TYPE_CHECKING:
    from pytest_moegpu.core.model import Gpu
    from pytest_moegpu.core.verdict import Verdict
    from pytest_moegpu.run import Run
    from pytest_moegpu.session.chat import ChatClient
    from pytest_moegpu.session.serving import AnyServer

__all__ = [
    "moegpu_client",
    "moegpu_gpu",
    "moegpu_provenance",
    "moegpu_scenario",
    "moegpu_server",
    "moegpu_verify",
]


def _run(config: pytest.Config) -> Run:
    run: Run | None = config.pluginmanager.get_plugin("moegpu-run")
    if run is None:
        pytest.skip(SKIP_REASON)
    return run


@pytest.fixture(scope="session")
def moegpu_gpu(pytestconfig: pytest.Config) -> Gpu:
    """The (first) GPU of this run, as the probe identifies it: name, memory_bytes, uuid, power_limit_watts, …."""
    return _run(pytestconfig).session.target.gpus[0]


@pytest.fixture
def moegpu_scenario(request: pytest.FixtureRequest) -> str:
    """Name of the scenario this test runs for; a test that uses it, directly or not, runs once per scenario."""
    run = _run(request.config)
    # Without a parameter: asked for by getfixturevalue, or by a unittest.TestCase.
    name: str | None = getattr(request, "param", None) or run.scenario_of(request.node)
    if name is None:
        names = ", ".join(s.name for s in run.session.target.scenarios)
        pytest.fail(
            f"which scenario? This test was not made for one, and the run has several ({names}): name one with "
            "@pytest.mark.moegpu(scenario=…), or take the fixture as an argument of the test",
            pytrace=False,
        )
    return name


@pytest.fixture
def moegpu_server(request: pytest.FixtureRequest, moegpu_scenario: str) -> AnyServer:
    """A live server of the scenario: url, spec.api_key, pid, served, log_path. Shared until another scenario's turn.

    A server that does not come up fails the test with phase, cause and the last lines of its log.
    """
    return _run(request.config).live(moegpu_scenario)


@pytest.fixture
def moegpu_client(moegpu_server: AnyServer) -> ChatClient:
    """Ask the live server: `moegpu_client("question", max_tokens=32)` returns text, TTFT, decode rate and usage."""
    from pytest_moegpu.session.chat import ChatClient

    return ChatClient(moegpu_server)


@pytest.fixture
def moegpu_verify(
    request: pytest.FixtureRequest,
    moegpu_scenario: str,
    moegpu_provenance: None,  # noqa: ARG001 - for its teardown
) -> Callable[..., tuple[Verdict, ...]]:
    """Judge: `moegpu_verify()` what this test's markers ask, `moegpu_verify("offload")` a check by its name.

    Returns the verdicts when all are green; fails the test with their text otherwise, and skips on NO_BASELINE.
    A test that takes this fixture and never calls it fails: it would be green without having judged anything.
    """
    run = _run(request.config)

    def verify(*checks: str, baseline: str | None = None) -> tuple[Verdict, ...]:
        return run.verify(request, moegpu_scenario, checks, baseline)

    return verify


@pytest.fixture(scope="session")
def moegpu_provenance(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Iterator[None]:
    """Write what was measured on what into the JUnit suite properties."""
    run = _run(pytestconfig)
    if not pytestconfig.pluginmanager.has_plugin("junitxml"):
        yield
        return
    record: Callable[[str, object], None] = request.getfixturevalue("record_testsuite_property")
    yield
    for name, value in run.suite_properties():
        record(name, value)
