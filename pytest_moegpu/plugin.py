"""pytest's side of the plugin: hooks of a few lines, each handing on to the module that knows.

Without --moegpu nothing but pytest and three small modules of this package is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_moegpu import markers
from pytest_moegpu.errors import UserError
from pytest_moegpu.fixtures import (
    moegpu_client,
    moegpu_gpu,
    moegpu_provenance,
    moegpu_scenario,
    moegpu_server,
    moegpu_verify,
)
from pytest_moegpu.options import LIST, add_options, tells_only, wanted_profile

if TYPE_CHECKING:
    from pytest_moegpu.run import Run
    from pytest_moegpu.specs import Spec

__all__ = [
    "active",
    "moegpu_client",
    "moegpu_gpu",
    "moegpu_provenance",
    "moegpu_scenario",
    "moegpu_server",
    "moegpu_verify",
]


def active(config: pytest.Config) -> Run | None:
    """Return this run, or None when pytest was started without a profile."""
    run: Run | None = config.pluginmanager.get_plugin("moegpu-run")
    return run


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options and ini keys."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Find everything a run needs before a test is collected; what the caller can put right is a usage error."""
    markers.declare(config)
    if tells_only(config):
        return
    try:
        profile = wanted_profile(config)
        if profile is not None and profile != LIST:
            from pytest_moegpu.run import Run

            config.pluginmanager.register(Run.open(config), "moegpu-run")
    except UserError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Answer --moegpu=list instead of running tests."""
    try:
        if tells_only(config) or wanted_profile(config) != LIST:
            return None
        from pytest_moegpu.run import list_profiles

        print("\n".join(list_profiles(config)))
    except UserError as error:
        raise pytest.UsageError(str(error)) from error
    return 0


def _specs(items: list[pytest.Item]) -> dict[pytest.Item, Spec]:
    """Read the markers of all tests that have ours; the reader is imported only when there are any."""
    ours = [item for item in items if markers.marked(item)]
    if not ours:
        return {}
    from pytest_moegpu.specs import read

    return {item: spec for item in ours if (spec := read(item)) is not None}


def _leave_out(config: pytest.Config, items: list[pytest.Item], run: Run) -> None:
    """Drop tests of the plugin's own suites that have nothing to judge: they would fail for what nobody asked."""
    names = set(run.session.target.not_judged) if run.own_suites else set()
    if out := [item for item in items if names & {item.path.stem.removeprefix("test_"), _metric(item)}]:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


def _metric(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("metric", "")) if callspec is not None else ""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check every marker; without a profile, skip marked tests, all with the same reason."""
    run = active(config)
    try:
        specs = _specs(items)
    except UserError as error:
        raise pytest.UsageError(str(error)) from error
    if run is not None:
        run.select(items, specs)
        _leave_out(config, items, run)
        return
    for item in specs:
        item.add_marker(pytest.mark.skip(reason=markers.SKIP_REASON))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Gather what the tests that are left need, so that one measurement holds all of it."""
    run = active(session.config)
    if run is not None:
        try:
            run.gather(session.items)
        except UserError as error:
            raise pytest.UsageError(str(error)) from error


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each scenario of the run, or for the one its marker names."""
    run = active(metafunc.config)
    if run is not None and "moegpu_scenario" in metafunc.fixturenames:
        run.parametrize(metafunc)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Put GPU, driver, CUDA and engine into pytest-benchmark's machine info."""
    run = active(config)
    if run is not None:
        machine_info["moegpu"] = dict(run.session.facts())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Give the table and the place of the bundle."""
    run = active(config)
    if run is not None:
        run.summarise(terminalreporter)
